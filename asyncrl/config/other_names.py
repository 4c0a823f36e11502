"""Names of settings in other libraries: the error about an unknown flag names the setting here.

`docs/other_libraries.md` shows these tables; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

STABLE_BASELINES, SAMPLE_FACTORY, CLEANRL, PYTORCH = "Stable-Baselines3", "Sample Factory", "CleanRL", "PyTorch"
RLLIB = "RLlib"
COMMON_NAMES = "Common names"
"""Names that several libraries and programs have."""


@dataclass(frozen=True)
class OtherName:
    """A name in another library.

    Attributes:
        library: the library, or `COMMON_NAMES`.
        setting: the setting here; empty if there is none.
        note: the difference, or the alternative if there is no such setting.
    """

    library: str
    setting: str
    note: str = ""


_ADAM = "the optimizer is Adam; --backend=hogwild has --hogwild_optimizer"
_TARGETS = "the target critics move at each update, by the fraction --tau"
_SCALES = (
    "uint8 images are scaled to [0, 1], --normalize_images subtracts the mean of each, "
    "and --normalize_input normalizes everything else"
)
_PER_ENV = "for each of --num_workers processes"
_STEPS_OF_ALL = "times n_envs: there the steps of one environment are counted, here those of all"
_ONE_RATE = "one for policy, critics and entropy coefficient"
_ALL_RUNS = "the folder of all runs; --experiment names the run's folder in it"
_NEW_RUN = "a new run starts from its weights at step 0; --experiment resumes a run"
_RESUMES = "the name of a run; it resumes with its settings"
_OF_EPISODES = (
    "python -m asyncrl.enjoy shows a trained policy, and --video_every_env_steps records videos during training"
)
_OF_WRAPPERS = "in a function of yours that makes the environment, --env=MODULE:function"
_UPDATE_RATIO = "gradient_steps / (train_freq x n_envs)"

OTHER_NAMES: dict[str, OtherName] = {
    "lr": OtherName(PYTORCH, "learning_rate"),
    "total_timesteps": OtherName(STABLE_BASELINES, "train_for_env_steps"),
    "n_steps": OtherName(STABLE_BASELINES, "rollout", "of SAC: --n_step"),
    "n_epochs": OtherName(STABLE_BASELINES, "num_epochs"),
    "n_envs": OtherName(STABLE_BASELINES, "num_envs_per_worker", _PER_ENV),
    "vf_coef": OtherName(
        STABLE_BASELINES, "value_loss_coeff", "of CleanRL: half of it, because the squared error is halved there"
    ),
    "clip_range": OtherName(STABLE_BASELINES, "ppo_clip_ratio"),
    "clip_range_vf": OtherName(STABLE_BASELINES, "ppo_clip_value", "in units of normalized returns"),
    "rms_prop_eps": OtherName(STABLE_BASELINES, "", _ADAM),
    "use_rms_prop": OtherName(STABLE_BASELINES, "", _ADAM),
    "policy_kwargs": OtherName(STABLE_BASELINES, "encoder_mlp_layers", "and the other settings of the model"),
    "n_sampled_goal": OtherName(STABLE_BASELINES, "her_goals", "the strategy is future"),
    "net_arch": OtherName(STABLE_BASELINES, "encoder_mlp_layers"),
    "activation_fn": OtherName(STABLE_BASELINES, "nonlinearity"),
    "log_std_init": OtherName(STABLE_BASELINES, "initial_stddev", "the deviation, not its logarithm"),
    "ortho_init": OtherName(STABLE_BASELINES, "policy_initialization", "--policy_initialization=orthogonal"),
    "share_features_extractor": OtherName(
        STABLE_BASELINES, "actor_critic_share_weights", "shares all hidden layers, those of net_arch too"
    ),
    "action_noise": OtherName(STABLE_BASELINES, "exploration_noise", "TD3's deviation is --exploration_stddev"),
    "policy_noise": OtherName(CLEANRL, "target_policy_noise"),
    "noise_clip": OtherName(CLEANRL, "target_noise_clip"),
    "buffer_size": OtherName(STABLE_BASELINES, "replay_size"),
    "learning_starts": OtherName(STABLE_BASELINES, "warmup_env_steps"),
    "gradient_steps": OtherName(STABLE_BASELINES, "updates_per_env_step", _UPDATE_RATIO),
    "train_freq": OtherName(STABLE_BASELINES, "updates_per_env_step", _UPDATE_RATIO),
    "target_update_interval": OtherName(STABLE_BASELINES, "", _TARGETS),
    "n_critics": OtherName(STABLE_BASELINES, "num_critics", "of more than two, two are drawn for each target"),
    "eval_freq": OtherName(STABLE_BASELINES, "eval_every_env_steps", _STEPS_OF_ALL),
    "n_eval_episodes": OtherName(STABLE_BASELINES, "eval_episodes"),
    "deterministic": OtherName(STABLE_BASELINES, "eval_deterministic"),
    "save_freq": OtherName(STABLE_BASELINES, "save_every_env_steps", _STEPS_OF_ALL),
    "log_interval": OtherName(STABLE_BASELINES, "report_every_s", "seconds, not iterations"),
    "stats_window_size": OtherName(STABLE_BASELINES, "", "means are over the last 100 episodes"),
    "tensorboard_log": OtherName(STABLE_BASELINES, "with_tensorboard", "events are in the run's folder"),
    "verbose": OtherName(STABLE_BASELINES, "quiet"),
    "norm_obs": OtherName(STABLE_BASELINES, "normalize_input"),
    "norm_reward": OtherName(STABLE_BASELINES, "normalize_returns", "scales the critic's targets, not the rewards"),
    "clip_reward": OtherName(
        STABLE_BASELINES, "reward_clip", "there normalized rewards are clipped, here those of --reward_scale"
    ),
    "num_steps": OtherName(CLEANRL, "rollout"),
    "update_epochs": OtherName(CLEANRL, "num_epochs"),
    "num_minibatches": OtherName(CLEANRL, "num_batches_per_epoch"),
    "minibatch_size": OtherName(CLEANRL, "batch_size"),
    "num_envs": OtherName(CLEANRL, "num_envs_per_worker", _PER_ENV),
    "clip_coef": OtherName(CLEANRL, "ppo_clip_ratio"),
    "clip_vloss": OtherName(CLEANRL, "ppo_clip_value", "the range, in units of normalized returns"),
    "norm_adv": OtherName(CLEANRL, "normalize_advantage"),
    "anneal_lr": OtherName(CLEANRL, "lr_schedule", "--lr_schedule=linear_decay"),
    "policy_lr": OtherName(CLEANRL, "learning_rate", _ONE_RATE),
    "q_lr": OtherName(CLEANRL, "learning_rate", _ONE_RATE),
    "policy_frequency": OtherName(
        CLEANRL, "policy_delay", "the policy is updated once each time, there as often as the critics"
    ),
    "target_network_frequency": OtherName(CLEANRL, "", _TARGETS),
    "alpha": OtherName(CLEANRL, "ent_coef"),
    "autotune": OtherName(CLEANRL, "ent_coef", "--ent_coef=auto"),
    "env_id": OtherName(CLEANRL, "env"),
    "exp_name": OtherName(CLEANRL, "experiment"),
    "cuda": OtherName(CLEANRL, "device", "--device=cuda"),
    "torch_deterministic": OtherName(CLEANRL, "serial_mode", "a serial run on a CPU repeats to the bit"),
    "capture_video": OtherName(CLEANRL, "video_every_env_steps"),
    "exploration_loss_coeff": OtherName(SAMPLE_FACTORY, "entropy_loss_coeff"),
    "exploration_loss": OtherName(SAMPLE_FACTORY, "", "the entropy bonus is the only one"),
    "optimizer": OtherName(SAMPLE_FACTORY, "", _ADAM),
    "decoder_mlp_layers": OtherName(SAMPLE_FACTORY, "", "the heads follow the encoder or the recurrent core directly"),
    "policy_init_gain": OtherName(SAMPLE_FACTORY, "", "each kind of layer has a fixed gain"),
    "continuous_tanh_scale": OtherName(SAMPLE_FACTORY, "squash_actions", "it squashes the action, not its mean"),
    "obs_subtract_mean": OtherName(SAMPLE_FACTORY, "", _SCALES),
    "obs_scale": OtherName(SAMPLE_FACTORY, "", _SCALES),
    "normalize_input_keys": OtherName(SAMPLE_FACTORY, "", "--normalize_input normalizes all keys, except uint8 images"),
    "env_frameskip": OtherName(SAMPLE_FACTORY, "env_kwargs", 'as an argument of the environment, {"frameskip": 4}'),
    "env_framestack": OtherName(SAMPLE_FACTORY, "atari_preprocessing", "4 frames for ALE/*; elsewhere use a wrapper"),
    "pixel_format": OtherName(SAMPLE_FACTORY, "image_channels", "CHW is first, HWC is last"),
    "summaries_use_frameskip": OtherName(SAMPLE_FACTORY, "", "steps are the policy's; time/total_frames counts frames"),
    "batched_sampling": OtherName(SAMPLE_FACTORY, "env_backend", "auto steps vectorized implementations at once"),
    "env_gpu_actions": OtherName(SAMPLE_FACTORY, "env_backend", "--env_backend=tensor"),
    "env_gpu_observations": OtherName(SAMPLE_FACTORY, "env_backend", "--env_backend=tensor"),
    "policy_workers_per_policy": OtherName(SAMPLE_FACTORY, "num_inference_workers"),
    "decorrelate_experience_max_seconds": OtherName(SAMPLE_FACTORY, "", "all workers start at once"),
    "decorrelate_envs_on_one_worker": OtherName(SAMPLE_FACTORY, "", "all environments start at once"),
    "heartbeat_reporting_interval": OtherName(SAMPLE_FACTORY, "env_step_timeout"),
    "experiment_summaries_interval": OtherName(SAMPLE_FACTORY, "report_every_s"),
    "stats_avg": OtherName(SAMPLE_FACTORY, "", "means are over the last 100 episodes"),
    "save_every_sec": OtherName(SAMPLE_FACTORY, "save_every_s"),
    "save_milestones_sec": OtherName(SAMPLE_FACTORY, "save_milestones_s"),
    "save_best_every_sec": OtherName(SAMPLE_FACTORY, "save_best_metric", "a new best is saved when it is found"),
    "save_best_after": OtherName(SAMPLE_FACTORY, "save_best_metric", "a new best needs 100 finished episodes"),
    "load_checkpoint_kind": OtherName(
        SAMPLE_FACTORY, "init_from", "takes the path of checkpoints/best; starts at step 0"
    ),
    "value_bootstrap": OtherName(SAMPLE_FACTORY, "", "truncated episodes are always bootstrapped"),
    "pbt_mix_policies_in_one_env": OtherName(SAMPLE_FACTORY, "policy_mapping", "random mixes them"),
    "with_wandb": OtherName(SAMPLE_FACTORY, "track", "--track=wandb"),
    "benchmark": OtherName(SAMPLE_FACTORY, "", "python -m asyncrl.benchmark measures speed"),
    "num_env_runners": OtherName(RLLIB, "num_workers"),
    "num_envs_per_env_runner": OtherName(RLLIB, "num_envs_per_worker"),
    "rollout_fragment_length": OtherName(RLLIB, "rollout"),
    "train_batch_size_per_learner": OtherName(
        RLLIB, "num_batches_per_epoch", "samples of a dataset: --batch_size times --num_batches_per_epoch"
    ),
    "lambda_": OtherName(RLLIB, "gae_lambda"),
    "clip_param": OtherName(RLLIB, "ppo_clip_ratio"),
    "vf_clip_param": OtherName(
        RLLIB,
        "ppo_clip_value",
        "there the squared error is clipped, here the change of the value, in units of normalized returns",
    ),
    "vf_loss_coeff": OtherName(RLLIB, "value_loss_coeff"),
    "entropy_coeff": OtherName(RLLIB, "entropy_loss_coeff"),
    "kl_coeff": OtherName(RLLIB, "kl_loss_coeff", "there adapted to kl_target, here fixed"),
    "kl_target": OtherName(
        RLLIB, "target_kl", "there a target of the adaptive penalty, here the passes over a dataset end above it"
    ),
    "grad_clip": OtherName(RLLIB, "max_grad_norm"),
    "fcnet_hiddens": OtherName(RLLIB, "encoder_mlp_layers"),
    "fcnet_activation": OtherName(RLLIB, "nonlinearity"),
    "vf_share_layers": OtherName(RLLIB, "actor_critic_share_weights"),
    "use_lstm": OtherName(RLLIB, "use_rnn", "--rnn_type=lstm"),
    "lstm_cell_size": OtherName(RLLIB, "rnn_size"),
    "max_seq_len": OtherName(RLLIB, "recurrence"),
    "env_config": OtherName(RLLIB, "env_kwargs"),
    "num_learners": OtherName(RLLIB, "", "start the ranks with torchrun"),
    "num_gpus_per_learner": OtherName(RLLIB, "device", "--device=cuda"),
    "evaluation_interval": OtherName(RLLIB, "eval_every_env_steps", "there iterations"),
    "evaluation_duration": OtherName(RLLIB, "eval_episodes"),
    "policy_mapping_fn": OtherName(RLLIB, "policy_mapping", "MODULE:function; it chooses for an agent and its episode"),
    "observation_filter": OtherName(RLLIB, "normalize_input", "MeanStdFilter is True"),
    "max_requests_in_flight_per_env_runner": OtherName(
        RLLIB, "num_batches_to_accumulate", "datasets that may wait, of all workers"
    ),
    "twin_q": OtherName(RLLIB, "num_critics", "2, the default, is twin_q=True"),
    "num_rollout_workers": OtherName(RLLIB, "num_workers"),
    "num_sgd_iter": OtherName(RLLIB, "num_epochs"),
    "sgd_minibatch_size": OtherName(RLLIB, "batch_size"),
    "shuffle_batch_per_epoch": OtherName(RLLIB, "shuffle_minibatches"),
    "clip_rewards": OtherName(RLLIB, "reward_clip", "the limit; there True takes the sign of rewards"),
    "vtrace": OtherName(RLLIB, "with_vtrace"),
    "vtrace_clip_rho_threshold": OtherName(RLLIB, "vtrace_rho"),
    "vtrace_clip_pg_rho_threshold": OtherName(RLLIB, "vtrace_rho", "one limit for both"),
    "broadcast_interval": OtherName(RLLIB, "", "weights are published after each pass over a dataset"),
    "actor_lr": OtherName(RLLIB, "learning_rate", _ONE_RATE),
    "critic_lr": OtherName(RLLIB, "learning_rate", _ONE_RATE),
    "alpha_lr": OtherName(RLLIB, "learning_rate", _ONE_RATE),
    "initial_alpha": OtherName(RLLIB, "initial_ent_coef", "with --ent_coef=auto"),
    "replay_buffer_config": OtherName(RLLIB, "replay_size", "its capacity; DQN: see --prioritized_replay"),
    "store_buffer_in_checkpoints": OtherName(RLLIB, "save_replay"),
    "num_steps_sampled_before_learning_starts": OtherName(RLLIB, "warmup_env_steps"),
    "training_intensity": OtherName(RLLIB, "updates_per_env_step", "training_intensity / batch_size"),
    "target_network_update_freq": OtherName(RLLIB, "", _TARGETS),
    "max_num_env_runner_restarts": OtherName(RLLIB, "max_restarts", "of all workers within --restart_window_s"),
    "evaluation_num_env_runners": OtherName(RLLIB, "", "one process evaluates while training continues"),
    "policy": OtherName(COMMON_NAMES, "", "the networks follow from the spaces; --model names one of your own"),
    "resume": OtherName(COMMON_NAMES, "experiment", _RESUMES),
    "name": OtherName(COMMON_NAMES, "experiment"),
    "run_name": OtherName(COMMON_NAMES, "experiment"),
    "log_dir": OtherName(COMMON_NAMES, "train_dir", _ALL_RUNS),
    "logdir": OtherName(COMMON_NAMES, "train_dir", _ALL_RUNS),
    "output_dir": OtherName(COMMON_NAMES, "train_dir", _ALL_RUNS),
    "load": OtherName(COMMON_NAMES, "init_from", _NEW_RUN),
    "checkpoint": OtherName(COMMON_NAMES, "init_from", _NEW_RUN),
    "hidden_sizes": OtherName(COMMON_NAMES, "encoder_mlp_layers"),
    "activation": OtherName(COMMON_NAMES, "nonlinearity"),
    "render": OtherName(COMMON_NAMES, "", _OF_EPISODES),
    "render_mode": OtherName(COMMON_NAMES, "", _OF_EPISODES),
    "max_episode_steps": OtherName(COMMON_NAMES, "", f"use gymnasium.wrappers.TimeLimit {_OF_WRAPPERS}"),
    "frame_stack": OtherName(
        COMMON_NAMES,
        "",
        f"ALE/* stacks 4 frames; elsewhere use gymnasium.wrappers.FrameStackObservation {_OF_WRAPPERS}",
    ),
}
"""By the name there."""

OTHER_VALUES: dict[tuple[str, str], str] = {
    ("algo", "appo"): "Sample Factory's APPO is --algo=ppo --async_rl=True",
    ("algo", "impala"): "the nearest is --algo=a2c --with_vtrace=True",
    ("algo", "ddpg"): "the nearest is --algo=td3",
    ("device", "gpu"): "a GPU is --device=cuda",
    ("learner_device", "gpu"): "a GPU is --learner_device=cuda",
    ("inference_devices", "gpu"): "a GPU is --inference_devices=cuda",
    ("encoder_conv_architecture", "convnet_atari"): "Sample Factory's convnet_atari is nature",
    ("encoder_conv_architecture", "resnet_impala"): "Sample Factory's resnet_impala is impala",
    ("encoder_conv_architecture", "convnet_simple"): "the nearest is nature",
    ("encoder_conv_architecture", "convnet_impala"): "the nearest is nature",
    ("recurrence", "-1"): "Sample Factory's -1 is auto",
    ("save_best_metric", "reward"): "Sample Factory's reward is train",
}
"""The meaning here of a value of another library, by setting and value in lower case."""


def explain_name(name: str, known: Container[str]) -> str | None:
    """A clause that explains a name of another library; None if it is no such name, or `known` lacks the setting."""
    other = OTHER_NAMES.get(name)
    if other is None or (other.setting or "env") not in known:  # `known` may be the names of presets, for example
        return None
    whose = "" if other.library == COMMON_NAMES else f"{other.library}'s "
    if not other.setting:
        return f"{whose}{name} has no counterpart here: {other.note}"
    return f"{whose}{name} is --{other.setting}" + (f" ({other.note})" if other.note else "")
