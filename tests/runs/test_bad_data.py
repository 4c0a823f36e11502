"""Environments that fail or return NaN, and training that diverges: the run continues, or says why not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command import PROBE, Command

from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

Start = Callable[..., Command]
FAILED = "ZeroDivisionError: the probe was asked to fail"
SAC = ("--algo=sac", "--warmup_env_steps=200", "--replay_size=5000", "--updates_per_env_step=0.1")
A3C = ("--algo=a3c", "--batch_size=32")


def unreliable(every: int = 0, markers: Path | None = None, **faults: int) -> tuple[str, str]:
    kwargs = {"faults": faults, "every": every, "markers": None if markers is None else str(markers)}
    return "--env=probe_envs:Unreliable-v0", f"--env_kwargs={json.dumps(kwargs)}"


def train(start: Start, *flags: str) -> tuple[Command, int, str, str]:
    command = start("asyncrl.train", "--with_tensorboard=False", *PROBE, *flags)
    return (command, *command.finish())


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--inference_mode=central", "--async_rl=False"), id="central-sync"),
        pytest.param(SAC, id="sac"),
        pytest.param(A3C, id="a3c"),
        pytest.param((*SAC, "--backend=hogwild"), id="hogwild-sac"),
    ],
)
def test_a_step_that_raises_and_one_that_is_no_number_are_left_out_and_the_run_reaches_its_target(
    start: Start, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    environment = unreliable(markers=tmp_path, step=53, observation=62, reward=71)
    command, code, out, err = train(start, *environment, *flags, "--train_for_env_steps=3000")
    assert code == 0, err
    summary = command.summary()
    assert summary["status"] == "completed"
    assert summary["env_steps"] >= 3000
    assert (summary["env_failures"], summary["skipped_steps"]) == (1, 0)
    last = command.records()[-1]
    assert (last["perf/env_failures"], last["perf/not_finite_steps"]) == (1, 2)
    assert last["perf/dropped_samples"] >= 2
    assert summary["ep_rew_mean"] == 5.0
    shown = out + err
    assert "failed in step at its step 52" in shown
    assert shown.count(FAILED) == 1
    assert "probe_envs.py" in shown
    assert "observation that is not finite at its step 61: element 1 is nan" in shown
    content = checkpoint.load(command.checkpoint())
    assert all(torch.isfinite(tensor).all() for tensor in (*content.model.values(), *content.optimizer.values()))


@pytest.mark.parametrize("flags", [("--serial_mode",), A3C], ids=["serial", "a3c"])
def test_an_environment_that_fails_again_and_again_ends_the_run_with_what_was_learned(
    start: Start, flags: tuple[str, ...]
) -> None:
    command, code, _, err = train(start, *unreliable(every=12), *flags, "--max_env_failures=9")
    assert code == 3, err
    assert "failed 10 times within 600 s, --max_env_failures=9 allows 9" in err
    assert err.count(FAILED) == 1
    assert command.summary()["status"] == "failed"
    assert checkpoint.load(command.checkpoint()).model


@pytest.mark.parametrize(
    ("flags", "shown"),
    [((), "advantage"), (SAC, "reward"), (A3C, "advantage"), ((*SAC, "--backend=hogwild"), "reward")],
    ids=["ppo", "sac", "a3c", "hogwild-sac"],
)
def test_training_that_diverges_ends_with_a_diagnosis_and_nothing_that_is_not_finite_is_saved(
    start: Start, flags: tuple[str, ...], shown: str
) -> None:
    command, code, _, err = train(start, *unreliable(huge=100), "--num_epochs=2", *flags, "--save_every_s=0.3")
    assert code == 1
    assert "training has diverged: " in err
    assert "the last of these steps: " in err
    assert f"\n{shown}: " in err
    assert flags or command.summary()["skipped_steps"] >= 4  # of the datasets before the last
    for path in checkpoint.newest_first(command.folder / "checkpoints"):
        content = checkpoint.load(path)
        assert all(torch.isfinite(tensor).all() for tensor in (*content.model.values(), *content.optimizer.values()))
        assert math.isfinite(content.state["learning_rate"])
