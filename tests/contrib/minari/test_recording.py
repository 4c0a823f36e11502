"""`evaluate --record` writes what was played, as Minari alone reads it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from small_training import SMALL

from asyncrl import TrainConfig, Trainer
from asyncrl import evaluate as evaluate_command
from asyncrl.contrib.minari import recording
from asyncrl.envs.factory import make_env

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")


class Mixed(gymnasium.Env[Any, Any]):
    """Dict observations with an image, and Tuple actions; it changes the arrays that it has returned."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "number": spaces.Box(-9, 9, (2,), np.float32)}
    )
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))

    def __init__(self) -> None:
        self._obs = {"image": np.zeros((8, 8, 3), np.uint8), "number": np.zeros(2, np.float32)}
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._length = 0
        return self._change(), {}

    def step(self, action: Any) -> Any:
        self._length += 1
        return self._change(), float(action[0]), False, self._length == 5, {}

    def _change(self) -> Any:
        self._obs["image"][:] = self.np_random.integers(256, size=(8, 8, 3))
        self._obs["number"][:] = self._length
        return self._obs


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "datasets"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {**SMALL, "eval_every_env_steps": None, "train_for_env_steps": 300}
    return (
        Trainer(TrainConfig(**small, train_dir=str(tmp_path_factory.mktemp("runs")), experiment="cartpole"))
        .run()
        .folder
    )


def record(capsys: pytest.CaptureFixture[str], run: Path, *flags: str) -> Any:
    assert evaluate_command.main([str(run), "--episodes=5", "--num_envs=3", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_dataset_has_the_episodes_that_were_played(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = record(capsys, run, "--record=cartpole/first-v0", "--deterministic")
    played = record(capsys, run, "--deterministic")
    assert result["mean_reward"] == played["mean_reward"] and result["actions"] == "deterministic"
    dataset = minari.load_dataset("cartpole/first-v0")
    episodes = list(dataset.iterate_episodes())
    assert np.mean([episode.rewards.sum() for episode in episodes]) == result["mean_reward"]
    assert np.mean([len(episode) for episode in episodes]) == result["mean_ep_length"] and len(episodes) == 5
    assert dataset.spec.env_spec.id == "CartPole-v1" and dataset.storage.metadata["algorithm_name"] == "PPO"
    env = dataset.recover_environment()
    for episode, metadata in zip(episodes, dataset.storage.get_episode_metadata(range(5)), strict=True):
        obs, _ = env.reset(seed=int(metadata["seed"]))
        replayed = [obs]
        for action in episode.actions:
            obs, _, terminated, truncated, _ = env.step(action)
            replayed.append(obs)
        assert np.array_equal(np.array(replayed), episode.observations), "its seed and actions give the same episode"
        assert (terminated, truncated) == (episode.terminations[-1], episode.truncations[-1])


def test_structured_spaces_and_images_come_back_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {**SMALL, "eval_every_env_steps": None, "train_for_env_steps": 200, "env": f"{__name__}:Mixed"}
    run = Trainer(TrainConfig(**small, train_dir=str(tmp_path), experiment="mixed")).run().folder
    result = record(capsys, run, "--record=mixed-v0")
    dataset = minari.load_dataset("mixed-v0")
    assert dataset.observation_space == Mixed.observation_space and dataset.action_space == Mixed.action_space
    returns = []
    for episode, metadata in zip(dataset, dataset.storage.get_episode_metadata(range(5)), strict=True):
        env = Mixed()
        env.reset(seed=int(metadata["seed"]))
        images = [env._obs["image"].copy()]
        for action in zip(*episode.actions, strict=True):
            env.step(action)
            images.append(env._obs["image"].copy())
        assert np.array_equal(images, episode.observations["image"])
        assert episode.observations["number"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert np.array_equal(episode.rewards, episode.actions[0])
        returns.append(float(episode.rewards.sum()))
    assert np.mean(returns) == pytest.approx(result["mean_reward"])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--record=first",), "--record=first is not a name of a Minari dataset"),
        (("--record=a b-v0",), "is not a name of a Minari dataset: expected one such as hopper/expert-v0"),
        (("--record=first-v0", "--compare=best"), "--compare is not possible with --record"),
        (("--record=first-v0", "--render"), "--render is not possible with --record"),
        (("--record=first-v0", "--opponents=random"), "--opponents and --record are not possible together"),
    ],
)
def test_mistakes_get_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], says: str
) -> None:
    assert evaluate_command.main([str(run), "--episodes=1", *flags]) == 2
    assert says in capsys.readouterr().err


def test_a_dataset_is_never_replaced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(capsys, run, "--record=cartpole/first-v0")
    assert evaluate_command.main([str(run), "--episodes=1", "--record=cartpole/first-v0"]) == 2
    assert "There is a Minari dataset cartpole/first-v0: choose another --record" in capsys.readouterr().err
    assert minari.load_dataset("cartpole/first-v0").total_episodes == 5


def test_a_dataset_that_cannot_be_written_is_not_a_failure_of_the_environment(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **settings: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(minari, "create_dataset_from_buffers", refuse)
    assert evaluate_command.main([str(run), "--episodes=3", "--record=cartpole/first-v0"]) == 2
    error = capsys.readouterr().err
    assert "The Minari dataset cartpole/first-v0 cannot be written: OSError" in error and "No space left" in error


def test_an_environment_that_would_be_another_one_is_not_stored(tmp_path: Path) -> None:
    """Gymnasium makes the game with raw frames, and the episodes have preprocessed ones."""
    pytest.importorskip("ale_py")
    game = make_env("ALE/Pong-v5")
    assert recording._spec_of(game) is None
    game.close()
    plain = make_env("CartPole-v1")
    assert recording._spec_of(plain).id == "CartPole-v1"
    plain.close()


def test_enjoy_does_not_have_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    from asyncrl.commands.enjoy import main

    assert main(["anything", "--record=first-v0"]) == 2
    assert "record" in capsys.readouterr().err
