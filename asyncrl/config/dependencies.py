"""The conditions under which a run reads a setting, as data.

A setting without a condition is read by every run, or `asyncrl.config.checks` refuses it in runs that do not read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from asyncrl.config.algorithms import BUILT_IN, find_algorithm
from asyncrl.config.flags import format_value
from asyncrl.config.schema import TrainConfig

Condition = Mapping[str, tuple[Any, ...]]
"""Values that other settings must have, by name; * matches any text. `algo` is a3c for A2C with Hogwild."""

_IS_SET = ("anything",)

_TRAJECTORIES: Condition = {"algo": ("ppo", "a2c", "a3c")}
_DATASETS: Condition = {"algo": ("ppo", "a2c")}
_BATCHES: Condition = {"algo": ("ppo", "a2c", "sac", "td3", "dqn")}
_REPLAY: Condition = {"algo": ("sac", "td3", "dqn")}
_CRITICS: Condition = {"algo": ("sac", "td3")}
_OWN_MODEL: Condition = {"algo": ("ppo", "a2c", "a3c", "sac")}
_SAC: Condition = {"algo": ("sac",)}
_TD3: Condition = {"algo": ("td3",)}
_DQN: Condition = {"algo": ("dqn",)}
_RATIO: Condition = {"algo": ("ppo",)}
_ACTOR_LEARNER: Condition = {"backend": ("actor_learner",)}
_HOGWILD: Condition = {"backend": ("hogwild",)}
_ADAPTIVE: Condition = {"lr_schedule": ("kl_adaptive_minibatch", "kl_adaptive_epoch")}
_SERVED: Condition = {"inference_mode": ("central",)}
_EVALUATED: Condition = {"eval_every_env_steps": _IS_SET}
_ONE_BY_ONE: Condition = {"env_backend": ("auto", "gym", "gym_vector", "envpool")}
_RECURRENT: Condition = {"use_rnn": (True,)}

_CONDITIONS: tuple[tuple[Condition, str], ...] = (
    ({"env": ("ALE/*",)}, "atari_preprocessing"),
    (_EVALUATED, "eval_episodes"),
    ({**_EVALUATED, "env_backend": ("tensor",)}, "eval_num_envs"),
    ({"video_every_env_steps": _IS_SET}, "video_length"),
    (_ACTOR_LEARNER, "async_rl learner_device compile"),
    ({"serial_mode": (False,)}, "inference_mode env_step_timeout max_restarts max_learner_restarts"),
    (_ONE_BY_ONE, "nan_policy max_env_failures"),
    ({"checkpoint_resets": (False,)}, "save_every_s"),
    (_SERVED, "num_inference_workers inference_devices inference_max_wait_ms"),
    ({**_DATASETS, **_ACTOR_LEARNER, "async_rl": (True,)}, "fixed_lag"),
    ({**_DATASETS, **_ACTOR_LEARNER, "async_rl": (True,), "fixed_lag": (False,)}, "num_batches_to_accumulate"),
    ({**_DATASETS, **_ACTOR_LEARNER}, "max_policy_lag num_batches_per_epoch"),
    ({**_DATASETS, **_ACTOR_LEARNER, "with_vtrace": (False,)}, "recompute_values"),
    (_DATASETS, "num_epochs shuffle_minibatches recompute_advantages target_kl"),
    ({**_DATASETS, **_ACTOR_LEARNER, "adaptive_stddev": (False,)}, "final_stddev"),
    ({**_DATASETS, "normalize_advantage": (True,)}, "normalize_advantage_over"),
    (_TRAJECTORIES, "rollout gae_lambda ppo_clip_value value_loss_coeff entropy_loss_coeff kl_loss_coeff"),
    (_TRAJECTORIES, "final_entropy_loss_coeff"),
    (_TRAJECTORIES, "normalize_advantage normalize_returns actor_critic_share_weights adaptive_stddev squash_actions"),
    ({**_TRAJECTORIES, "squash_actions": (False,)}, "action_unit"),
    (_BATCHES, "batch_size"),
    (_OWN_MODEL, "model use_sde initial_stddev"),
    ({"use_sde": (True,)}, "sde_sample_freq"),
    ({"with_vtrace": (True,)}, "vtrace_rho vtrace_c"),
    (_ADAPTIVE, "lr_schedule_kl_threshold lr_adaptive_min lr_adaptive_max"),
    ({"hogwild_optimizer": ("adam",)}, "adam_beta1 adam_beta2"),
    (_RATIO, "ppo_clip_ratio final_ppo_clip_ratio ppo_clip_mode"),
    ({**_RATIO, **_ACTOR_LEARNER}, "ppo_objective"),
    ({**_RATIO, **_ACTOR_LEARNER, "ppo_objective": ("decoupled",)}, "behaviour_weight_cap"),
    (_REPLAY, "replay_size save_replay warmup_env_steps updates_per_env_step n_step normalize_rewards weight_decay"),
    (_REPLAY, "her_goals"),
    (_CRITICS, "policy_delay critic_mlp_layers"),
    ({**_CRITICS, **_ACTOR_LEARNER}, "exploration_noise"),
    (_TD3, "exploration_stddev exploration_stddev_max target_policy_noise target_noise_clip"),
    (_SAC, "num_critics"),
    (_SAC, "ent_coef critic residual_blocks hyperspherical_weights batch_renorm value_bins use_target_critics"),
    (
        {**_CRITICS, "residual_blocks": (False,), "hyperspherical_weights": (False,), "batch_renorm": (False,)},
        "critic_layer_norm",
    ),
    ({**_SAC, "value_bins": _IS_SET}, "value_limit"),
    ({**_REPLAY, "use_target_critics": (True,)}, "tau"),
    (_DQN, "prioritized_replay"),
    ({**_DQN, "prioritized_replay": (True,)}, "prioritized_replay_alpha prioritized_replay_beta"),
    (_DQN, "dueling exploration_initial_eps exploration_final_eps exploration_fraction"),
    ({**_REPLAY, **_ACTOR_LEARNER, "async_rl": (True,), "serial_mode": (False,)}, "replay_ratio_tolerance"),
    ({**_SAC, "ent_coef": ("auto",)}, "target_entropy initial_ent_coef"),
    ({**_SAC, "ent_coef": ("auto",), "target_entropy": ("auto",)}, "target_entropy_per_dim"),
    (_HOGWILD, "hogwild_mode hogwild_optimizer"),
    ({**_HOGWILD, "hogwild_mode": ("auto", "shared", "synced")}, "hogwild_max_staleness"),
    ({**_HOGWILD, "hogwild_mode": ("gradients",)}, "num_gradients_to_combine combine_gradients"),
    ({"cluster": ("ray",)}, "ray_address num_remote_hosts num_workers_per_remote_host ray_resources ray_runtime_env"),
    ({"cluster": ("ray",)}, "remote_start_timeout"),
    ({"cluster": ("ray",), **_ACTOR_LEARNER}, "cluster_observations"),
    (
        {"cluster": ("ray",), **_TRAJECTORIES, **_ACTOR_LEARNER, "async_rl": (True,), "fixed_lag": (False,)},
        "remote_slots_in_flight",
    ),
    ({"cluster": ("ray",), **_REPLAY, "async_rl": (True,)}, "remote_rows_in_flight"),
    ({"self_play": (True,)}, "self_play_pool_share self_play_pool_size self_play_add_every_env_steps"),
    ({"with_pbt": (True,)}, "pbt_period_env_steps pbt_start_mutation pbt_replace_fraction pbt_mutation_rate"),
    ({"with_pbt": (True,)}, "pbt_perturb_min pbt_perturb_max pbt_replace_reward_gap pbt_replace_reward_gap_absolute"),
    ({"with_pbt": (True,)}, "pbt_optimize_gamma pbt_target_objective pbt_shared_dir"),
    ({"track": _IS_SET}, "track_project"),
    (_RECURRENT, "core rnn_type rnn_size rnn_num_layers recurrence"),
    ({**_CRITICS, **_RECURRENT}, "burn_in"),
)
_READ_WITH = {name: condition for condition, names in _CONDITIONS for name in names.split()}


def missing_for(name: str, config: TrainConfig, inference_mode: str | None = None) -> str | None:
    """The condition, as text, that a setting needs to have an effect and that `config` does not meet; None without one.

    Args:
        name: the setting.
        config: all settings.
        inference_mode: the resolved value of `config.inference_mode`.
    """
    for other, values in _READ_WITH.get(name, {}).items():
        value = getattr(config, other)
        if other == "algo" and value not in BUILT_IN:
            # Which settings a user's algorithm reads is not known: perhaps all that are for its kind of samples.
            values = tuple(each for each in values if each in BUILT_IN)
            if any(find_algorithm(each).collects == config.algorithm.collects for each in values):
                continue
        if other == "algo" and (config.algo, config.backend) == ("a2c", "hogwild"):
            value = "a3c"
        if other == "inference_mode" and inference_mode is not None:
            value = inference_mode
        if values is _IS_SET and value in (None, []):
            return other
        if values is not _IS_SET and not any(_is_like(value, wanted) for wanted in values):
            return f"{other}={' or '.join(map(format_value, values))}"
    return None


def _is_like(value: Any, wanted: Any) -> bool:
    return fnmatchcase(value, wanted) if isinstance(value, str) else bool(value == wanted)
