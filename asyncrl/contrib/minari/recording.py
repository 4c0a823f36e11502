"""Records the episodes of an evaluation into a Minari dataset, which Minari reads without asyncrl.

environments (`_RecordedEnv`) --complete episodes--> `DatasetWriter` --Minari--> its folder of datasets

Each episode is written when it ends, so at most one episode of each environment is in memory. An episode that an
environment's failure cuts is not written. Images are stored without loss.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

import asyncrl
from asyncrl.commands.playing import load_to_play
from asyncrl.config.errors import UsageError
from asyncrl.contrib.minari.option import OPTION
from asyncrl.evaluation.episodes import EvaluationResult, make_checked_env
from asyncrl.evaluation.episodes import evaluate as play
from asyncrl.inference.policy import Policy
from asyncrl.storage import checkpoint as checkpoints

if TYPE_CHECKING:
    from asyncrl.commands.evaluate import Options


def evaluate(checkpoint: Path, options: Options) -> EvaluationResult:
    """Plays the policy of a checkpoint and writes its episodes to the dataset that `--record` names."""
    dataset_id = str(getattr(options, OPTION.name))
    check_name(dataset_id)
    if options.render:
        raise UsageError("--render is not possible with --record: show the episodes without recording them.")
    policy = load_to_play(checkpoint, options)
    if policy.spec.agents or policy.spec.gives_tensors:
        kind = "several agents" if policy.spec.agents else "tensors of a device"
        raise UsageError(f"--record needs an environment of one agent, and {policy.config.env} has {kind}.")
    is_deterministic = bool(options.deterministic) or not policy.is_stochastic
    writer = DatasetWriter(dataset_id, policy, _describe(checkpoint, policy, is_deterministic))
    result = play(
        policy,
        episodes=options.episodes,
        num_envs=options.num_envs,
        seed=options.seed,
        deterministic=is_deterministic,
        make=lambda _: _RecordedEnv(make_checked_env(policy.config), writer),
    )
    print(f"wrote the Minari dataset {dataset_id}: {writer.num_episodes} episodes", flush=True)
    env_steps = checkpoints.saved_env_steps(checkpoint)
    return dataclasses.replace(result, env_steps=env_steps, checkpoint=str(checkpoint))


def check_name(dataset_id: str) -> None:
    """Checks that a dataset can be written.

    Raises:
        UsageError: Minari or h5py is not installed, the name is none of Minari's, or there is such a dataset.
    """
    missing = [name for name in ("minari", "h5py") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f'--record needs {" and ".join(missing)}: pip install -e ".[minari]" (Python 3.11 or newer).')
    import minari
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError) as error:
        text = f"--record={dataset_id} is not a name of a Minari dataset: expected one such as hopper/expert-v0."
        raise UsageError(text) from error
    if dataset_id in minari.list_local_datasets():
        raise UsageError(f"There is a Minari dataset {dataset_id}: choose another --record, or a higher version.")


class DatasetWriter:
    """Writes episodes to a new dataset, which exists from the first one on.

    Attributes:
        num_episodes: episodes written.
    """

    def __init__(self, dataset_id: str, policy: Policy, description: str) -> None:
        self._dataset_id, self._policy, self._description = dataset_id, policy, description
        self._dataset: Any = None
        self.num_episodes = 0

    def write(self, env: gymnasium.Env[Any, Any], episode: dict[str, Any]) -> None:
        """Adds an episode of this environment: the fields of Minari's `EpisodeBuffer`.

        Raises:
            UsageError: it cannot be written.
        """
        try:
            self._write(env, episode)
        except Exception as error:  # of the disk, h5py or Minari; the environment has not failed
            text = f"The Minari dataset {self._dataset_id} cannot be written: {type(error).__name__}: {error}."
            raise UsageError(text) from error

    def _write(self, env: gymnasium.Env[Any, Any], episode: dict[str, Any]) -> None:
        import minari
        from minari.data_collector import EpisodeBuffer

        buffer = EpisodeBuffer(id=self.num_episodes, infos={}, **episode)
        if self._dataset is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an author and a link, which it does not know
                self._dataset = minari.create_dataset_from_buffers(
                    self._dataset_id,
                    [buffer],
                    env=_spec_of(env),
                    observation_space=env.observation_space,
                    action_space=env.action_space,
                    algorithm_name=self._policy.config.algorithm.name.upper(),
                    description=self._description,
                    data_format="hdf5",
                    jpeg_encoding=False,
                )
        else:
            self._dataset.update_dataset_from_buffer([buffer])
        self.num_episodes += 1


class _RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the steps of an episode, and gives it to the writer when it ends."""

    def __init__(self, env: gymnasium.Env[Any, Any], writer: DatasetWriter) -> None:
        super().__init__(env)
        self._writer = writer
        self._observations: list[Any] = []
        self._actions: list[Any] = []
        self._steps: dict[str, list[Any]] = {}
        self._seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        self._seed = seed
        self._observations, self._actions = [_copy(obs)], []
        self._steps = {"rewards": [], "terminations": [], "truncations": []}
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self._observations.append(_copy(obs))
        self._actions.append(_copy(action))
        for values, value in zip(self._steps.values(), (float(reward), terminated, truncated), strict=True):
            values.append(value)
        if terminated or truncated:
            parts = {"observations": _columns(self._observations), "actions": _columns(self._actions)}
            self._writer.write(self.env, {"seed": self._seed, **parts, **self._steps})
        return obs, reward, terminated, truncated, info


def _copy(value: Any) -> Any:
    """A copy of an observation or action: environments reuse their arrays."""
    if isinstance(value, dict):
        return {name: _copy(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_copy, value))
    return np.array(value) if isinstance(value, np.ndarray) else value


def _columns(rows: Sequence[Any]) -> Any:
    """A list for each part of the observations or actions of an episode, as Minari keeps them."""
    first = rows[0]
    if isinstance(first, dict):
        return {name: _columns([row[name] for row in rows]) for name in first}
    if isinstance(first, tuple):
        return tuple(_columns([row[place] for row in rows]) for place in range(len(first)))
    return list(rows)


def _spec_of(env: gymnasium.Env[Any, Any]) -> Any:
    """What Gymnasium makes the environment from; None if it knows no such one, or makes one with other spaces."""
    spec = env.unwrapped.spec
    if spec is None or spec.id not in gymnasium.registry or not isinstance(spec.entry_point, str):
        return None
    made = gymnasium.make(spec)
    is_same = made.observation_space == env.observation_space and made.action_space == env.action_space
    made.close()
    return spec if is_same else None


def _describe(checkpoint: Path, policy: Policy, deterministic: bool) -> str:
    kind = "deterministic" if deterministic else "sampled"
    steps = f"{policy.env_steps:,}" if policy.env_steps is not None else "an unknown number of"
    return (
        f"Episodes in {policy.config.env_id} of a policy that asyncrl {asyncrl.__version__} has trained by "
        f"{policy.config.algorithm.name.upper()} for {steps} environment steps ({checkpoint.name}), {kind} actions."
    )
