"""How fast the environments are by themselves: the yardstick of every throughput figure.

The same number of processes and environments as a run, vectorized where the run's are, no policy, no shared memory.
Actions are drawn at random beforehand, or are those that a trained policy chose, with the seeds of its episodes
(`recording`): a body that walks costs more physics than one that falls.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gymnasium.vector import AutoresetMode

from asyncrl.analysis.benchmark.recording import Recording
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed, environment_traceback
from asyncrl.envs.factory import env_seed, make_run_env, make_run_vector_env, vector_env_seed
from asyncrl.runtime.processes import process_context

_NUM_ACTIONS = 1000
_STEPS_BETWEEN_LOOKS = 200
_WARM_UP_S = 1.0


def measure_pure_simulation(
    config: TrainConfig,
    num_workers: int,
    num_envs_per_worker: int,
    seconds: float,
    warm_up_s: float = _WARM_UP_S,
    recording: Path | None = None,
    is_vectorized: bool = False,
) -> float:
    """Steps environments in `num_workers` processes at once, and returns environment steps a second of all together.

    Args:
        config: says which environments.
        num_workers: processes.
        num_envs_per_worker: environments of each, stepped in turn or all at once.
        seconds: seconds that are counted.
        warm_up_s: seconds before them that are not.
        recording: file with the episodes to replay, one row for each environment at least; random actions if None.
        is_vectorized: whether those of a process are one vectorized environment, unless episodes are replayed.

    Raises:
        EnvironmentFailed: the environment raised, or does not repeat what was recorded.
    """
    context = process_context()
    pipes = [context.Pipe() for _ in range(num_workers)]
    processes = []
    for worker_idx, (_, child) in enumerate(pipes):
        player = _Player(config, worker_idx * num_envs_per_worker, num_envs_per_worker, recording, is_vectorized)
        arguments = (child, player, warm_up_s, seconds)
        processes.append(context.Process(target=_simulate, args=arguments, daemon=True))  # type: ignore[attr-defined]
    for process in processes:
        process.start()
    try:
        for parent, child in pipes:
            child.close()
            _receive(parent)
        for parent, _ in pipes:
            parent.send("go")
        return sum(float(_receive(parent)) for parent, _ in pipes)
    finally:
        for (parent, _), process in zip(pipes, processes, strict=True):
            parent.close()
            process.join(5.0)
            process.kill()
            process.join()
            process.close()


def _receive(pipe: Connection) -> Any:
    try:
        message = pipe.recv()
    except EOFError:
        raise EnvironmentFailed("A process of the pure simulation died.") from None
    if isinstance(message, EnvironmentFailed):
        raise message
    return message


@dataclass(frozen=True)
class _Player:
    """One process's share of the environments, and how it steps them."""

    config: TrainConfig
    first_env_idx: int
    num_envs: int
    recording: Path | None
    is_vectorized: bool = False

    def steps(self) -> Iterator[None]:
        """Makes the environments, then takes one step of one of them at a time, in turn, for ever."""
        if self.is_vectorized and self.recording is None:
            return self._vectorized_steps()
        envs = [make_run_env(self.config, in_training=True) for _ in range(self.num_envs)]
        if self.recording is None:
            return self._random_steps(envs)
        part = Recording.load(self.recording).part(self.first_env_idx, self.num_envs)
        return self._recorded_steps(envs, part)

    def _random_steps(self, envs: list[Any]) -> Iterator[None]:
        for env_idx, env in enumerate(envs):
            env.reset(seed=env_seed(0, self.first_env_idx + env_idx))
        actions = self._actions(envs[0])
        for env in itertools.cycle(envs):
            _, _, terminated, truncated, _ = env.step(next(actions))
            if terminated or truncated:
                env.reset()
            yield

    def _vectorized_steps(self) -> Iterator[None]:
        env = make_run_vector_env(self.config, self.num_envs)
        env.reset(seed=vector_env_seed(0, self.first_env_idx))
        resets_itself = env.metadata["autoreset_mode"] != AutoresetMode.DISABLED
        for actions in self._actions(env):
            _, _, terminated, truncated, _ = env.step(actions)
            if not resets_itself and (ended := terminated | truncated).any():
                env.reset(options={"reset_mask": ended})
            yield from itertools.repeat(None, self.num_envs)

    def _actions(self, env: Any) -> Iterator[Any]:
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


def _simulate(pipe: Connection, player: _Player, warm_up_s: float, seconds: float) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    try:
        steps = player.steps()
        next(steps)
        pipe.send("ready")
        pipe.recv()
        _rate(steps, warm_up_s)
        pipe.send(_rate(steps, seconds))
    except (EnvironmentFailed, UsageError) as error:
        pipe.send(EnvironmentFailed(str(error)))
    except Exception as error:
        pipe.send(EnvironmentFailed(f"The environment failed:\n{environment_traceback(error)}"))


def _rate(steps: Iterator[None], seconds: float) -> float:
    """Steps a second over about `seconds`."""
    num_steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or num_steps == 0:
        for _ in itertools.islice(steps, _STEPS_BETWEEN_LOOKS):
            num_steps += 1
    return num_steps / elapsed
