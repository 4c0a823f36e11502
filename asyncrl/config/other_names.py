"""What other libraries call a setting: an unknown flag is answered with the name that it has here.

`docs/other_libraries.md` shows these tables; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

STABLE_BASELINES, SAMPLE_FACTORY, CLEANRL = "Stable-Baselines3", "Sample Factory", "CleanRL"


@dataclass(frozen=True)
class OtherName:
    """A name in another library.

    Attributes:
        library: the library.
        setting: the setting here; empty if there is none.
        note: what differs, or what to do where there is no such setting.
    """

    library: str
    setting: str
    note: str = ""


_NONE_OF_PBT = "one run trains one policy"

OTHER_NAMES: dict[str, OtherName] = {
    "total_timesteps": OtherName(STABLE_BASELINES, "train_for_env_steps"),
    "lr": OtherName(STABLE_BASELINES, "learning_rate"),
    "n_steps": OtherName(STABLE_BASELINES, "rollout"),
    "n_epochs": OtherName(STABLE_BASELINES, "num_epochs"),
    "n_envs": OtherName(STABLE_BASELINES, "num_envs_per_worker", "for each of --num_workers processes"),
    "vf_coef": OtherName(STABLE_BASELINES, "value_loss_coeff"),
    "clip_range": OtherName(STABLE_BASELINES, "ppo_clip_ratio"),
    "clip_range_vf": OtherName(STABLE_BASELINES, "ppo_clip_value"),
    "net_arch": OtherName(STABLE_BASELINES, "encoder_mlp_layers"),
    "activation_fn": OtherName(STABLE_BASELINES, "nonlinearity"),
    "log_std_init": OtherName(STABLE_BASELINES, "initial_stddev", "the deviation, not its logarithm"),
    "buffer_size": OtherName(STABLE_BASELINES, "replay_size"),
    "learning_starts": OtherName(STABLE_BASELINES, "warmup_env_steps"),
    "gradient_steps": OtherName(STABLE_BASELINES, "updates_per_env_step", "gradient_steps divided by train_freq"),
    "train_freq": OtherName(STABLE_BASELINES, "updates_per_env_step", "gradient_steps divided by train_freq"),
    "eval_freq": OtherName(STABLE_BASELINES, "eval_every_env_steps"),
    "n_eval_episodes": OtherName(STABLE_BASELINES, "eval_episodes"),
    "save_freq": OtherName(STABLE_BASELINES, "save_every_env_steps"),
    "tensorboard_log": OtherName(STABLE_BASELINES, "with_tensorboard", "events lie in the run's folder"),
    "verbose": OtherName(STABLE_BASELINES, "quiet"),
    "normalize_reward": OtherName(STABLE_BASELINES, "normalize_returns", "the critic's targets, not the rewards"),
    "norm_obs": OtherName(STABLE_BASELINES, "normalize_input"),
    "num_steps": OtherName(CLEANRL, "rollout"),
    "update_epochs": OtherName(CLEANRL, "num_epochs"),
    "num_minibatches": OtherName(CLEANRL, "num_batches_per_epoch"),
    "num_envs": OtherName(CLEANRL, "num_envs_per_worker", "for each of --num_workers processes"),
    "clip_coef": OtherName(CLEANRL, "ppo_clip_ratio"),
    "norm_adv": OtherName(CLEANRL, "normalize_advantage"),
    "anneal_lr": OtherName(CLEANRL, "lr_schedule", "--lr_schedule=linear_decay"),
    "env_id": OtherName(CLEANRL, "env"),
    "exp_name": OtherName(CLEANRL, "experiment"),
    "policy_frequency": OtherName(CLEANRL, "policy_delay"),
    "exploration_loss_coeff": OtherName(SAMPLE_FACTORY, "entropy_loss_coeff"),
    "save_every_sec": OtherName(SAMPLE_FACTORY, "save_every_s"),
    "save_milestones_sec": OtherName(SAMPLE_FACTORY, "save_milestones_s"),
    "save_best_every_sec": OtherName(SAMPLE_FACTORY, "save_best_metric", "the best is saved when it is found"),
    "experiment_summaries_interval": OtherName(SAMPLE_FACTORY, "report_every_s"),
    "policy_workers_per_policy": OtherName(SAMPLE_FACTORY, "num_inference_workers"),
    "env_frameskip": OtherName(SAMPLE_FACTORY, "env_kwargs", 'as an argument of the environment, {"frameskip": 4}'),
    "num_policies": OtherName(SAMPLE_FACTORY, "", _NONE_OF_PBT),
    "with_pbt": OtherName(SAMPLE_FACTORY, "", _NONE_OF_PBT),
    "batched_sampling": OtherName(SAMPLE_FACTORY, "env_backend", "auto steps vectorized implementations at once"),
    "with_wandb": OtherName(SAMPLE_FACTORY, "with_tensorboard", "there is no Weights & Biases; metrics.jsonl has all"),
    "value_bootstrap": OtherName(SAMPLE_FACTORY, "", "truncated episodes are always bootstrapped"),
}
"""By the name there."""

OTHER_VALUES: dict[tuple[str, str], str] = {
    ("algo", "appo"): "Sample Factory's APPO is --algo=ppo --async_rl=True",
    ("algo", "impala"): "the nearest is --algo=a2c --with_vtrace=True",
    ("algo", "dqn"): "for discrete actions there are ppo, a2c and sac",
    ("algo", "ddpg"): "the nearest is --algo=sac",
    ("algo", "td3"): "the nearest is --algo=sac",
    ("device", "gpu"): "a GPU is --device=cuda",
    ("learner_device", "gpu"): "a GPU is --learner_device=cuda",
    ("inference_devices", "gpu"): "a GPU is --inference_devices=cuda",
}
"""By setting and value, in lower case: what is meant."""

OF_SAMPLE_FACTORY = (
    *("train_dir", "experiment", "restart_behavior", "seed", "algo", "env", "device", "serial_mode", "async_rl"),
    *("num_workers", "num_envs_per_worker", "worker_num_splits", "num_batches_to_accumulate", "max_policy_lag"),
    *("rollout", "recurrence", "batch_size", "num_batches_per_epoch", "num_epochs", "shuffle_minibatches"),
    *("train_for_env_steps", "train_for_seconds", "keep_checkpoints", "gamma", "gae_lambda"),
    *("reward_scale", "reward_clip", "normalize_input", "normalize_returns"),
    *("learning_rate", "lr_schedule", "lr_schedule_kl_threshold", "lr_adaptive_min", "lr_adaptive_max"),
    *("adam_eps", "adam_beta1", "adam_beta2", "max_grad_norm"),
    *("ppo_clip_ratio", "ppo_clip_value", "value_loss_coeff", "kl_loss_coeff"),
    *("with_vtrace", "vtrace_rho", "vtrace_c"),
    *("use_rnn", "rnn_type", "rnn_size", "rnn_num_layers", "nonlinearity", "policy_initialization"),
    *("encoder_mlp_layers", "encoder_conv_architecture", "encoder_conv_mlp_layers"),
    *("actor_critic_share_weights", "adaptive_stddev", "initial_stddev"),
)
"""Settings that have the name and the meaning that they have in Sample Factory 2; defaults differ."""


def explain_name(name: str, known: Container[str]) -> str | None:
    """What a name of another library is called here, as a clause; None if no library has it or `known` does not."""
    other = OTHER_NAMES.get(name)
    if other is None or (other.setting and other.setting not in known):
        return None
    if not other.setting:
        return f"{other.library}'s {name} has no counterpart here: {other.note}"
    return f"{other.library}'s {name} is --{other.setting}" + (f" ({other.note})" if other.note else "")
