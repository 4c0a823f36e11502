"""Global settings of an environment's module change neither networks nor updates, and updates that fail end the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import gymnasium
import numpy as np
import pytest
import torch
from command import PROBE, Command

import asyncrl
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

SERIAL = ("--serial_mode=True", "--async_rl=False")
HOGWILD = ("--backend=hogwild",)
REPLAY = ("--warmup_env_steps=100", "--train_for_env_steps=400", "--updates_per_env_step=0.5")
SAC = ("--algo=sac", *REPLAY)
RECURRENT = ("--use_rnn=True", "--rnn_size=8")
EVALUATED = ("--eval_every_env_steps=200", "--eval_episodes=2")


def train(start: Callable[..., Command], what: str, *flags: str) -> Command:
    kwargs = f"--env_kwargs={json.dumps({'what': what})}"
    return start("asyncrl.train", "--env=setting_envs:Demanding", kwargs, *PROBE, "--train_for_env_steps=400", *flags)


@pytest.mark.parametrize(
    ("what", "flags"),
    [
        pytest.param("float64,no_grad", (*SAC, *HOGWILD), id="float64-no_grad-sac-hogwild"),
        pytest.param("float64,inference", ("--algo=a2c", *RECURRENT, *HOGWILD), id="inference-recurrent-a2c-hogwild"),
        pytest.param("meta,no_grad", (*RECURRENT, *SERIAL, *EVALUATED), id="meta-no_grad-recurrent-ppo-serial"),
        pytest.param("float64,meta", (*SAC, *SERIAL), id="float64-meta-sac-serial"),
    ],
)
def test_networks_train_in_float32_whatever_the_environment_has_set(
    start: Callable[..., Command], what: str, flags: tuple[str, ...]
) -> None:
    training = train(start, what, *flags)
    code, _, stderr = training.finish()
    assert code == 0, stderr
    summary = training.summary()
    assert (summary["status"], summary["restarts"]) == ("completed", 0)
    assert summary["num_updates"] > 0
    saved = training.checkpoint()
    assert saved is not None
    tensors = checkpoint.load(saved).model.values()
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


@pytest.mark.parametrize("flags", [SERIAL, (*SAC, *SERIAL)], ids=str)
def test_numpy_that_raises_does_not_raise_where_numbers_are_stored_as_float32(
    start: Callable[..., Command], flags: tuple[str, ...]
) -> None:
    kwargs = f"--env_kwargs={json.dumps({'what': 'seterr', 'scale': 1e-60})}"
    flags = (*PROBE, "--train_for_env_steps=400", *flags)
    training = start("asyncrl.train", "--env=setting_envs:Demanding", kwargs, *flags)
    code, _, stderr = training.finish()
    assert code == 0, stderr


@pytest.fixture
def settings_of_torch() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    np.seterr(all="warn", under="ignore")


@pytest.mark.usefixtures("settings_of_torch")
def test_a_loaded_policy_acts_in_float32_whatever_a_script_has_set(start: Callable[..., Command]) -> None:
    training = start("asyncrl.train", "--env=Pendulum-v1", *PROBE, *RECURRENT, *SERIAL, "--train_for_env_steps=64")
    assert training.finish()[0] == 0
    obs = gymnasium.make("Pendulum-v1").reset(seed=0)[0]
    expected = asyncrl.load_policy(training.folder).act(obs, deterministic=True)
    torch.set_default_dtype(torch.float64)
    assert asyncrl.load_policy(training.folder).act(obs, deterministic=True) == pytest.approx(expected)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device("meta")
    assert asyncrl.load_policy(training.folder).act(obs, deterministic=True) == pytest.approx(expected)


@pytest.mark.parametrize("flags", [SAC, ("--algo=ppo", "--hogwild_mode=gradients")], ids=str)
def test_an_exception_in_an_update_ends_the_run_and_restarts_no_worker(
    start: Callable[..., Command], flags: tuple[str, ...]
) -> None:
    own = ("--import_modules=setting_envs", "--encoder=fails_in_updates", "--train_for_env_steps=100000")
    training = start("asyncrl.train", "--env=CartPole-v1", *PROBE, *HOGWILD, *flags, *own)
    code, _, stderr = training.finish()
    assert code == 1, stderr
    assert "ArithmeticError: the update is wrong" in stderr and "in forward" in stderr
    assert training.summary()["restarts"] == 0


def test_a_run_past_its_warm_up_without_an_update_has_failed(start: Callable[..., Command]) -> None:
    workers = ("--num_workers=1", "--num_envs_per_worker=4")
    # Each worker dies after 80 steps, and its successor begins with an empty replay.
    steps = "--train_for_env_steps=200"
    training = start("asyncrl.train", "--env=setting_envs:DiesEarly", *PROBE, *SAC, *HOGWILD, *workers, steps)
    code, _, stderr = training.finish()
    assert code == 1, stderr
    assert "error: Nothing was trained: " in stderr and "Traceback" not in stderr
    summary = training.summary()
    assert (summary["status"], summary["num_updates"]) == ("failed", 0)
    assert summary["env_steps"] >= 200


def test_a_run_within_its_warm_up_is_completed(start: Callable[..., Command]) -> None:
    flags = ("--warmup_env_steps=400", "--stagger_episodes=False")  # a shortened episode takes a row without a step
    training = start("asyncrl.train", "--env=Pendulum-v1", *PROBE, *SAC, *SERIAL, *flags)
    code, _, stderr = training.finish()
    assert code == 0, stderr
    assert (training.summary()["status"], training.summary()["num_updates"]) == ("completed", 0)
