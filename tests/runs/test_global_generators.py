"""What environments draw from global generators and from their spaces follows from seed, role, index and attempt."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Command
from global_envs import read, values

from asyncrl import TrainConfig, Trainer
from asyncrl.storage import checkpoint

SMALL: dict[str, Any] = {
    "num_workers": 1,
    "num_envs_per_worker": 2,
    "rollout": 8,
    "batch_size": 16,
    "num_batches_per_epoch": 1,
    "num_epochs": 1,
    "learner_threads": 1,
    "encoder_mlp_layers": [8],
    "with_tensorboard": False,
    "train_for_env_steps": 128,
}
SERIAL: dict[str, Any] = {"serial_mode": True, "async_rl": False}
REPLAY: dict[str, Any] = {"algo": "sac", "warmup_env_steps": 32, "replay_size": 256}

pytestmark = [pytest.mark.usefixtures("leaves_nothing"), pytest.mark.timeout(300)]


def train(folder: Path, env: str = "Drawing", env_kwargs: Any = None, **settings: Any) -> Path:
    """Trains; returns the folder of what the environments drew, or of the run for those that note nothing."""
    draws = folder / "draws"
    draws.mkdir(parents=True, exist_ok=True)
    kwargs = {**({} if env == "Quiet" else {"folder": str(draws)}), **(env_kwargs or {})}
    given = {**SMALL, "train_dir": str(folder), "experiment": "run", "env": f"global_envs:{env}", "env_kwargs": kwargs}
    Trainer(TrainConfig(**{**given, **settings}), preset="none").run()
    return folder / "run" if env == "Quiet" else draws


def drawn_in(folder: Path, env: str = "Drawing", **settings: Any) -> list[list[dict[str, Any]]]:
    """What each environment of a run drew, without those of the check before it."""
    return [resets for resets in read(train(folder, env, **settings)) if resets[0]["role"] != "check"]


def first_by_role(environments: list[list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """What the first environment of each process drew at its first reset."""
    return {resets[0]["role"]: resets[0]["drawn"] for resets in reversed(environments)}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"inference_mode": "central"}, id="central inference"),
        pytest.param({"algo": "a3c"}, id="hogwild"),
        pytest.param({"env": "vectorized", "env_backend": "gym_vector"}, id="vectorized"),
    ],
)
def test_every_process_draws_other_numbers_and_they_follow_from_the_seed(settings: Any, tmp_path: Path) -> None:
    settings = {"num_workers": 2, "seed": 5, **settings}
    if settings.get("env") != "vectorized":
        settings.update(eval_every_env_steps=10_000, eval_episodes=2)  # after training
    first, again = (drawn_in(tmp_path / name, **settings) for name in ("first", "again"))
    assert len(set(values(first))) == len(values(first))
    assert first_by_role(first) == first_by_role(again)
    evaluating = {"evaluation"} if "eval_episodes" in settings else set()
    assert set(first_by_role(first)) == {"rollout-0", "rollout-1", *evaluating}


def test_a_process_that_is_restarted_before_its_first_step_draws_other_numbers(tmp_path: Path) -> None:
    resets = list(itertools.chain(*drawn_in(tmp_path, env_kwargs={"dies_once": True})))
    first, *successor = [each for each in resets if each["seed"] is not None]
    assert {each["process"] for each in successor} != {first["process"]}
    assert len({each["seed"] for each in (first, *successor)}) == 3  # of two environments, one of them twice
    assert len(set(values([resets]))) == len(values([resets]))


def test_a_resumed_run_draws_other_numbers_than_before(tmp_path: Path) -> None:
    train(tmp_path, **SERIAL)
    environments = drawn_in(tmp_path, **SERIAL, train_for_env_steps=256, restart_behavior="resume")
    assert len(environments) == 4
    assert len(set(values(environments))) == len(values(environments))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="trajectories"),
        pytest.param({"env": "Flat", **REPLAY}, id="replay"),
        pytest.param({"algo": "a3c"}, id="hogwild"),
        pytest.param({"env": "Agents", "batch_size": 32}, id="several agents"),
        pytest.param({"env": "tensors", "env_backend": "tensor", "num_envs_per_worker": 2}, id="tensors"),
    ],
)
def test_a_serial_run_repeats_all_draws_and_leaves_the_generators_of_its_program(settings: Any, tmp_path: Path) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    runs = [train(tmp_path / str(n), seed=seed, **SERIAL, **settings) for n, seed in enumerate((3, 3, 4))]
    first, again, other = (values(read(run)) for run in runs)  # with those of the check before each run
    assert first == again
    assert set(first).isdisjoint(other)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"eval_every_env_steps": 32, "eval_episodes": 2}, id="evaluation"),
        pytest.param({"video_every_env_steps": 32, "video_length": 5}, id="videos"),
    ],
)
def test_serial_training_draws_the_same_with_and_without_evaluation(extra: Any, tmp_path: Path) -> None:
    if "video_length" in extra:
        pytest.importorskip("imageio_ffmpeg", reason="writing videos needs imageio-ffmpeg")
    without, with_others = (drawn_in(tmp_path / str(bool(settings)), **SERIAL, **settings) for settings in ({}, extra))
    assert len(without) == 2 < len(with_others)
    assert with_others[:2] == without
    assert set(values(with_others[2:])).isdisjoint(values(without))


def test_initial_weights_follow_from_the_seed_whatever_a_network_draws_from(tmp_path: Path) -> None:
    own = {"encoder": "numpy_encoder", "train_for_env_steps": 16, **SERIAL}
    first, again, other = (
        train(tmp_path / str(number), "Quiet", seed=seed, learning_rate=0.0, **own)
        for number, seed in enumerate((3, 3, 4))
    )
    assert weights_of(first) == weights_of(again) != weights_of(other)


@pytest.mark.parametrize("settings", [{}, {"algo": "dqn", "warmup_env_steps": 32}], ids=["ppo", "dqn"])
def test_what_an_environment_draws_and_seeds_changes_nothing_that_is_learned(settings: Any, tmp_path: Path) -> None:
    settings = {**SERIAL, "eval_every_env_steps": 64, "eval_episodes": 2, **settings}
    quiet = train(tmp_path / "quiet", "Quiet", **settings)
    noisy = train(tmp_path / "noisy", "Quiet", env_kwargs={"noisy": True}, **settings)
    assert weights_of(quiet) == weights_of(noisy)


def weights_of(folder: Path) -> dict[str, Any]:
    """The weights of the newest checkpoint."""
    path = checkpoint.latest(folder / "checkpoints")
    assert path is not None
    return {name: tensor.tolist() for name, tensor in checkpoint.load(path).model.items()}


def test_the_commands_repeat_their_draws_for_a_seed(tmp_path: Path, start: Callable[..., Command]) -> None:
    train(tmp_path, env_kwargs={"reward": True}, **SERIAL)
    run = [f"--train_dir={tmp_path}", "--experiment=run", "--episodes=3"]
    outcomes = [start("asyncrl.evaluate", *run, f"--seed={seed}").finish() for seed in (1, 1, 2)]
    assert [code for code, _, _ in outcomes] == [0, 0, 0]
    first, again, other = (stdout.splitlines()[-1] for _, stdout, _ in outcomes)
    assert first == again != other
