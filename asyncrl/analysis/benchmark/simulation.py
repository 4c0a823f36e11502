"""How fast the environments are without a policy: every throughput is compared with this speed.

It has the same processes and environments as a run, vectorized if the run's are, and no shared memory. Actions are
random; they are drawn before the measurement, unless the observations have a mask of allowed actions. Or a trained
policy is recorded, and its actions are replayed with the seeds of its episodes: the simulation of a body that walks may
take longer than that of one that has fallen.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.agents import AgentsEnv
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS, EnvironmentFailed, environment_traceback
from asyncrl.envs.factory import env_seed, gives_tensors, make_run_env, make_run_vector_env, vector_env_seed
from asyncrl.envs.interface import allowed_action
from asyncrl.envs.observations import ObservationCodec
from asyncrl.envs.spaces import ACTION_MASK, has_action_mask, seed_spaces
from asyncrl.processes.children import ChildFailure, ProcessManager, RunFailed, process_context
from asyncrl.storage.run_folder import replacing

_NUM_ACTIONS = 1000
_STEPS_BETWEEN_CLOCKS = 200
_WARM_UP_S = 1.0
# Far from the indices of a run's own environments and of evaluation episodes.
_FIRST_SEED_IDX = 2_000_000_000
_STEPS_PER_ENV = 1_000_000


@dataclass(frozen=True)
class Recording:
    """Episodes of a policy in N environments for K steps each, to be replayed without the policy.

    Attributes:
        actions: [N, K, ...] as the environments got them.
        ended: [N, K] bool; whether the episode ended with this step.
        seeds: [N, K + 1] int64; entry 0 is the seed of the first reset, entry k + 1 that of the reset after step k.
    """

    actions: npt.NDArray[Any]
    ended: npt.NDArray[np.bool_]
    seeds: npt.NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Writes the file; an interruption leaves no partial file."""
        with replacing(path) as file:
            np.savez(file, actions=self.actions, ended=self.ended, seeds=self.seeds)

    @staticmethod
    def load(path: Path, envs: slice) -> Recording:
        """Reads the rows of some environments."""
        with np.load(path, allow_pickle=False) as content:
            return Recording(content["actions"][envs], content["ended"][envs], content["seeds"][envs])


def record(config: TrainConfig, checkpoint: Path, num_envs: int, num_steps: int, seed: int = 0) -> Recording:
    """Plays a policy in `num_envs` environments for `num_steps` each, with sampled actions as in training.

    Raises:
        UsageError: the checkpoint does not fit the settings, or the environment has actions that are not arrays.
        EnvironmentFailed: the environment's own code raised.
    """
    # Imports torch, which processes that only replay do not need.
    from asyncrl.inference.policy import load_policy
    from asyncrl.storage.checkpoint import CheckpointError

    try:
        policy = load_policy(checkpoint, seed=seed)
    except CheckpointError as error:
        raise UsageError(f"--from_run: {error}") from error
    if policy.spec.agents:
        raise UsageError(f"--from_run cannot replay {policy.spec.env_id}: it has several agents.")
    envs = [make_run_env(config, in_training=True) for _ in range(num_envs)]
    ended = np.zeros((num_envs, num_steps), dtype=np.bool_)
    seeds = np.zeros((num_envs, num_steps + 1), dtype=np.int64)
    actions = []
    codec = ObservationCodec(policy.spec.observation)
    rows = np.zeros((num_envs, policy.spec.observation.row_size), policy.spec.observation.row_dtype)
    state = policy.initial_state(num_envs)
    try:
        seeds[:, 0] = [_seed_after(seed, row, 0) for row in range(num_envs)]
        for row, env in enumerate(envs):
            codec.write(env.reset(seed=int(seeds[row, 0]))[0], rows[row])
        for step in range(num_steps):
            chosen, state = policy.step(rows, state, deterministic=False)
            if not isinstance(chosen, np.ndarray):
                raise UsageError(f"--from_run cannot replay {policy.spec.env_id}: its actions are not one array.")
            actions.append(chosen)
            for row, env in enumerate(envs):
                obs, _, terminated, truncated, _ = env.step(chosen[row])
                if terminated or truncated:
                    ended[row, step] = True
                    seeds[row, step + 1] = _seed_after(seed, row, step + 1)
                    obs, _ = env.reset(seed=int(seeds[row, step + 1]))
                    state[row] = 0.0
                codec.write(obs, rows[row])
    except UsageError:
        raise
    except ENVIRONMENT_EXCEPTIONS as error:
        raise EnvironmentFailed(f"The environment failed:\n{environment_traceback(error)}") from error
    finally:
        for env in envs:
            env.close()
    return Recording(np.stack(actions, axis=1), ended, seeds)


def _seed_after(seed: int, row: int, num_steps: int) -> int:
    """Returns the seed of the episode that environment `row` begins after `num_steps` of its steps."""
    return env_seed(seed, _FIRST_SEED_IDX + row * _STEPS_PER_ENV + num_steps)


def measure_pure_simulation(
    config: TrainConfig,
    num_workers: int,
    num_envs_per_worker: int,
    seconds: float,
    warm_up_s: float = _WARM_UP_S,
    recording: Path | None = None,
    is_vectorized: bool = False,
) -> float:
    """Steps environments in `num_workers` processes at once and returns the environment steps per second of all.

    Args:
        config: settings that name the environment.
        num_workers: number of processes.
        num_envs_per_worker: environments of each process, stepped in turn or all at once.
        seconds: duration of the measurement.
        warm_up_s: seconds before it.
        recording: file with the episodes to replay, with a row for each environment; None for random actions.
        is_vectorized: whether each process steps one vectorized environment; recordings are not vectorized.

    Raises:
        EnvironmentFailed: the environment raised, or a replay differs from the recording.
    """
    context = process_context()
    all_are_ready = context.Barrier(num_workers)
    processes = ProcessManager(context, lambda name: Path(os.devnull))
    total = 0.0
    try:
        for worker in range(num_workers):
            first_env_idx = worker * num_envs_per_worker
            player = _Player(config, first_env_idx, num_envs_per_worker, recording, is_vectorized)
            processes.start(f"simulation-{worker}", _simulate, player, all_are_ready, warm_up_s, seconds)
        while processes.running:
            for outcome in processes.wait(1.0):
                if isinstance(outcome, ChildFailure):
                    died = "A process of the pure simulation died."
                    raise EnvironmentFailed(died if outcome.is_death else outcome.summary)
                total += outcome.value
        return total
    finally:
        processes.end(0.0)


@dataclass(frozen=True)
class _Player:
    """The environments of one process."""

    config: TrainConfig
    first_env_idx: int
    num_envs: int
    recording: Path | None
    is_vectorized: bool = False

    def steps(self) -> Iterator[None]:
        """Makes the environments and steps them in turn without end; yields after each step of one environment."""
        if self.is_vectorized and self.recording is None:
            return self._vectorized_steps()
        envs = [make_run_env(self.config, in_training=True) for _ in range(self.num_envs)]
        if self.recording is None:
            is_masked = any(has_action_mask(observation_space) for observation_space, _ in _spaces(envs[0]))
            return self._allowed_steps(envs) if is_masked else self._random_steps(envs)
        rows = slice(self.first_env_idx, self.first_env_idx + self.num_envs)
        return self._recorded_steps(envs, Recording.load(self.recording, rows))

    def _random_steps(self, envs: list[Any]) -> Iterator[None]:
        for env_idx, env in enumerate(envs):
            env.reset(seed=env_seed(0, self.first_env_idx + env_idx))
        actions = self._actions(envs[0])
        for env in itertools.cycle(envs):
            _, _, terminated, truncated, _ = env.step(next(actions))
            if terminated or truncated:
                env.reset()
            yield

    def _allowed_steps(self, envs: list[Any]) -> Iterator[None]:
        """Steps with random actions that the masks in the observations allow."""
        seen = []
        for env_idx, env in enumerate(envs):
            seed_spaces(env, self.first_env_idx + env_idx)
            seen.append(env.reset(seed=env_seed(0, self.first_env_idx + env_idx))[0])
        for env_idx in itertools.cycle(range(len(envs))):
            env = envs[env_idx]
            seen[env_idx], _, terminated, truncated, _ = env.step(_random_action(env, seen[env_idx]))
            if terminated or truncated:
                seen[env_idx], _ = env.reset()
            yield

    def _vectorized_steps(self) -> Iterator[None]:
        env = make_run_vector_env(self.config, self.num_envs)
        if gives_tensors(env):
            from asyncrl.envs.tensors import ArraysOfTensors

            env = ArraysOfTensors(env)
        obs, _ = env.reset(seed=vector_env_seed(0, self.first_env_idx))
        resets_itself = env.metadata["autoreset_mode"] != AutoresetMode.DISABLED
        spaces = env.single_observation_space, env.single_action_space
        is_masked = has_action_mask(spaces[0])
        drawn = self._actions(env)
        while True:
            actions = _allowed_actions(spaces, obs) if is_masked else next(drawn)
            obs, _, terminated, truncated, _ = env.step(actions)
            if not resets_itself and (ended := terminated | truncated).any():
                obs, _ = env.reset(options={"reset_mask": ended})
            yield from itertools.repeat(None, self.num_envs)

    def _actions(self, env: Any) -> Iterator[Any]:
        if isinstance(env, AgentsEnv):
            seed_spaces(env, self.first_env_idx)
            return itertools.cycle([[space.sample() for _, space in env.spaces] for _ in range(_NUM_ACTIONS)])
        env.action_space.seed(self.first_env_idx)
        return itertools.cycle([env.action_space.sample() for _ in range(_NUM_ACTIONS)])

    def _recorded_steps(self, envs: list[Any], part: Recording) -> Iterator[None]:
        actions = [list(rows) for rows in part.actions]
        ended, seeds = part.ended.tolist(), part.seeds.tolist()
        for step in itertools.cycle(range(part.ended.shape[1])):
            for env, env_actions, env_ended, env_seeds in zip(envs, actions, ended, seeds, strict=True):
                if step == 0:
                    env.reset(seed=env_seeds[0])
                _, _, terminated, truncated, _ = env.step(env_actions[step])
                if (terminated or truncated) != env_ended[step]:
                    raise EnvironmentFailed(
                        f"{self.config.env} does not repeat its episodes from the same seeds and actions, so it "
                        "cannot be replayed."
                    )
                if env_ended[step]:
                    env.reset(seed=env_seeds[step + 1])
                yield


def _spaces(env: Any) -> Sequence[tuple[Any, Any]]:
    """The spaces of observations and of actions, of each agent."""
    return env.spaces if isinstance(env, AgentsEnv) else [(env.observation_space, env.action_space)]


def _random_action(env: Any, seen: Any) -> Any:
    """A random action that is allowed after an observation, of each agent that has one."""
    if not isinstance(env, AgentsEnv):
        return _action((env.observation_space, env.action_space), seen)
    return [None if obs is None else _action(spaces, obs) for spaces, obs in zip(env.spaces, seen.obs, strict=True)]


def _allowed_actions(spaces: tuple[Any, Any], obs: Any) -> npt.NDArray[Any]:
    """A random allowed action for each observation of a vectorized environment."""
    return np.array([_action(spaces, {ACTION_MASK: mask}) for mask in obs[ACTION_MASK]])


def _action(spaces: tuple[Any, Any], obs: Any) -> Any:
    """A random action that the observation allows; any one if the space cannot sample with a mask."""
    action = allowed_action(spaces, obs)
    return spaces[1].sample() if action is None else action


def _simulate(player: _Player, all_are_ready: Barrier, warm_up_s: float, seconds: float, reports: object) -> float:
    try:
        steps = player.steps()
        next(steps)
        all_are_ready.wait()
        _rate(steps, warm_up_s)
        return _rate(steps, seconds)
    except (EnvironmentFailed, UsageError) as error:
        raise RunFailed(str(error)) from error
    except ENVIRONMENT_EXCEPTIONS as error:
        raise RunFailed(f"The environment failed:\n{environment_traceback(error)}") from error


def _rate(steps: Iterator[None], seconds: float) -> float:
    """Returns steps per second over about `seconds`."""
    num_steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or num_steps == 0:
        for _ in itertools.islice(steps, _STEPS_BETWEEN_CLOCKS):
            num_steps += 1
    return num_steps / elapsed
