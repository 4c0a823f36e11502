"""`asyncrl.config.dependencies` against what runs of every kind do: no role reads what is said to be unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import run_helper
from run_helper import run

from asyncrl.config.dependencies import missing_for
from asyncrl.config.schema import TrainConfig

A2C: dict[str, Any] = {"algo": "a2c", "num_epochs": 1}
SAC: dict[str, Any] = {"algo": "sac", "warmup_env_steps": 100, "batch_size": 16, "precision": "float32"}
HOGWILD: dict[str, Any] = {"backend": "hogwild"}
# A2C's learner is PPO's, whose clip range it makes and uses for a figure alone; in a Hogwild worker it is given one
# pass of one minibatch by settings of its own. SAC squashes whatever `squash_actions` says.
READ_IN_VAIN = {
    "sac": {"squash_actions"},
    "hogwild-sac": {"squash_actions", "compile", "exploration_noise"},
    "a2c": {"ppo_clip_ratio", "final_ppo_clip_ratio", "ppo_clip_mode"},
    "a3c": {
        *("num_epochs", "num_batches_per_epoch", "shuffle_minibatches", "recompute_values", "max_policy_lag"),
        *("normalize_advantage_over", "final_stddev"),
    },
    "rmsprop": {"adam_beta1", "adam_beta2"},
}


class RecordedConfig(TrainConfig):
    """Settings that note which of them were asked for."""

    def __getattribute__(self, name: str) -> Any:
        if name in TrainConfig.model_fields:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()


@pytest.mark.parametrize(
    ("settings", "in_vain"),
    [
        ({}, ()),
        ({"with_vtrace": True, "lr_schedule": "kl_adaptive_epoch", "learning_rate": 1e-3}, ()),
        (A2C, ("a2c",)),
        (SAC, ("sac",)),
        ({**A2C, **HOGWILD}, ("a2c", "a3c")),
        ({**A2C, **HOGWILD, "hogwild_mode": "gradients"}, ("a2c", "a3c")),
        ({**SAC, **HOGWILD}, ("hogwild-sac",)),
        ({**SAC, **HOGWILD, "hogwild_optimizer": "rmsprop"}, ("hogwild-sac", "rmsprop")),
    ],
    ids=["ppo", "ppo-vtrace", "a2c", "sac", "a3c", "a3c-gradients", "hogwild-sac", "hogwild-rmsprop"],
)
@pytest.mark.usefixtures("leaves_nothing")
def test_no_role_reads_what_is_said_to_be_unread(
    settings: dict[str, Any], in_vain: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = run_helper._run

    def forget_and_run(*args: Any) -> Any:
        READ.clear()  # planning and checking look at everything
        return execute(*args)

    monkeypatch.setattr(run_helper, "TrainConfig", RecordedConfig)
    monkeypatch.setattr(run_helper, "_run", forget_and_run)
    finished = run(tmp_path, "serial", "CartPole-v1", **{**settings, "train_for_env_steps": 500})
    read = set(READ)
    allowed = {name for kind in in_vain for name in READ_IN_VAIN[kind]}
    unread = {name for name in TrainConfig.model_fields if missing_for(name, finished.config) is not None}
    assert read & {"learning_rate", "gamma"} == {"learning_rate", "gamma"}
    assert read & unread <= allowed
