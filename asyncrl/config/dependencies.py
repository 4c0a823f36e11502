"""The conditions under which a run reads a setting, as data.

A setting without a condition is read by every run, or `asyncrl.config.checks` refuses it in runs that do not read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from asyncrl.config.flags import format_value
from asyncrl.config.schema import TrainConfig

Condition = Mapping[str, tuple[Any, ...]]
"""Values that other settings must have, by name; * matches any text. `algo` is a3c for A2C with Hogwild."""

_IS_SET = ("anything",)

_TRAJECTORIES: Condition = {"algo": ("ppo", "a2c", "a3c")}
_DATASETS: Condition = {"algo": ("ppo", "a2c")}
_BATCHES: Condition = {"algo": ("ppo", "a2c", "sac")}
_REPLAY: Condition = {"algo": ("sac",)}
_RATIO: Condition = {"algo": ("ppo",)}
_ACTOR_LEARNER: Condition = {"backend": ("actor_learner",)}
_HOGWILD: Condition = {"backend": ("hogwild",)}
_COMBINED: Condition = {"hogwild_mode": ("gradients",)}
_ADAPTIVE: Condition = {"lr_schedule": ("kl_adaptive_minibatch", "kl_adaptive_epoch")}
_SERVED: Condition = {"inference_mode": ("central",)}
_EVALUATED: Condition = {"eval_every_env_steps": _IS_SET}
_RECURRENT: Condition = {"use_rnn": (True,)}

_READ_WITH: dict[str, Condition] = {
    "atari_preprocessing": {"env": ("ALE/*",)},
    "eval_episodes": _EVALUATED,
    "eval_deterministic": _EVALUATED,
    "async_rl": _ACTOR_LEARNER,
    "num_batches_to_accumulate": {**_DATASETS, "async_rl": (True,), "fixed_lag": (False,)},
    "fixed_lag": {**_DATASETS, "async_rl": (True,)},
    "inference_mode": {"serial_mode": (False,)},
    "num_inference_workers": _SERVED,
    "inference_devices": _SERVED,
    "learner_device": _ACTOR_LEARNER,
    "inference_max_wait_ms": _SERVED,
    "max_policy_lag": _DATASETS,
    "rollout": _TRAJECTORIES,
    "batch_size": _BATCHES,
    "num_batches_per_epoch": _DATASETS,
    "num_epochs": _DATASETS,
    "shuffle_minibatches": _DATASETS,
    "recompute_values": _DATASETS,
    "recompute_advantages": _DATASETS,
    "target_kl": _DATASETS,
    "vtrace_rho": {"with_vtrace": (True,)},
    "vtrace_c": {"with_vtrace": (True,)},
    "gae_lambda": _TRAJECTORIES,
    "lr_schedule_kl_threshold": _ADAPTIVE,
    "lr_adaptive_min": _ADAPTIVE,
    "lr_adaptive_max": _ADAPTIVE,
    "adam_beta1": {"hogwild_optimizer": ("adam",)},
    "adam_beta2": {"hogwild_optimizer": ("adam",)},
    "ppo_objective": _RATIO,
    "behaviour_weight_cap": {**_RATIO, "ppo_objective": ("decoupled",)},
    "ppo_clip_ratio": _RATIO,
    "ppo_clip_mode": _RATIO,
    "ppo_clip_value": _TRAJECTORIES,
    "value_loss_coeff": _TRAJECTORIES,
    "entropy_loss_coeff": _TRAJECTORIES,
    "kl_loss_coeff": _TRAJECTORIES,
    "normalize_advantage": _TRAJECTORIES,
    "normalize_advantage_over": {**_DATASETS, "normalize_advantage": (True,)},
    "normalize_returns": _TRAJECTORIES,
    "replay_size": _REPLAY,
    "save_replay": _REPLAY,
    "warmup_env_steps": _REPLAY,
    "updates_per_env_step": _REPLAY,
    "replay_ratio_tolerance": {**_REPLAY, **_ACTOR_LEARNER, "async_rl": (True,)},
    "n_step": _REPLAY,
    "tau": _REPLAY,
    "ent_coef": _REPLAY,
    "target_entropy": {**_REPLAY, "ent_coef": ("auto",)},
    "policy_delay": _REPLAY,
    "critic_layer_norm": _REPLAY,
    "compile": _ACTOR_LEARNER,
    "hogwild_mode": _HOGWILD,
    "hogwild_optimizer": _HOGWILD,
    "num_gradients_to_combine": {**_HOGWILD, **_COMBINED},
    "combine_gradients": {**_HOGWILD, **_COMBINED},
    "core": _RECURRENT,
    "rnn_type": _RECURRENT,
    "rnn_size": _RECURRENT,
    "rnn_num_layers": _RECURRENT,
    "recurrence": _RECURRENT,
    "actor_critic_share_weights": _TRAJECTORIES,
    "adaptive_stddev": _TRAJECTORIES,
    "action_unit": {**_TRAJECTORIES, "squash_actions": (False,)},
    "squash_actions": _TRAJECTORIES,
}


def missing_for(name: str, config: TrainConfig, inference_mode: str | None = None) -> str | None:
    """The condition, as text, that a setting needs to have an effect and that `config` does not meet; None without one.

    Args:
        name: the setting.
        config: all settings.
        inference_mode: the resolved value of `config.inference_mode`.
    """
    for other, values in _READ_WITH.get(name, {}).items():
        value = getattr(config, other)
        if other == "algo" and (config.algo, config.backend) == ("a2c", "hogwild"):
            value = "a3c"
        if other == "inference_mode" and inference_mode is not None:
            value = inference_mode
        if values is _IS_SET and value is None:
            return other
        if values is not _IS_SET and not any(_is_like(value, wanted) for wanted in values):
            return f"{other}={' or '.join(map(format_value, values))}"
    return None


def _is_like(value: Any, wanted: Any) -> bool:
    return fnmatchcase(value, wanted) if isinstance(value, str) else bool(value == wanted)
