"""Episodes of a trained policy as seeds and actions: all that is needed to play them again without the policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed, environment_traceback
from asyncrl.envs.factory import env_seed, make_run_env

# Far from the indices of a run's own environments and of evaluation episodes.
_FIRST_SEED_IDX = 2_000_000_000
_STEPS_PER_ENV = 1_000_000


@dataclass(frozen=True)
class Recording:
    """What N environments were given for K steps each.

    Attributes:
        actions: [N, K, ...] as the environment got them.
        ended: [N, K] bool; the episode ended with this step.
        seeds: [N, K + 1] int64; entry 0 is the seed of the first reset, entry k + 1 that of the reset after step k.
    """

    actions: npt.NDArray[Any]
    ended: npt.NDArray[np.bool_]
    seeds: npt.NDArray[np.int64]

    def part(self, first: int, count: int) -> Recording:
        """Returns the rows of some environments.

        Raises:
            ValueError: there are not so many.
        """
        end = first + count
        if end > len(self.ended):
            raise ValueError(f"the recording holds {len(self.ended)} environments, asked for {first} to {end - 1}")
        return Recording(self.actions[first:end], self.ended[first:end], self.seeds[first:end])

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        temporary = path.with_name(f".tmp_{path.name}")
        with temporary.open("wb") as file:
            np.savez(file, actions=self.actions, ended=self.ended, seeds=self.seeds)
        temporary.replace(path)

    @staticmethod
    def load(path: Path) -> Recording:
        """Reads a file that `save` wrote."""
        with np.load(path, allow_pickle=False) as content:
            return Recording(content["actions"], content["ended"], content["seeds"])


def record(config: TrainConfig, checkpoint: Path, num_envs: int, num_steps: int, seed: int = 0) -> Recording:
    """Plays a policy in `num_envs` environments side by side for `num_steps` each, with drawn actions as in training.

    Raises:
        UsageError: the checkpoint does not fit the settings.
        EnvironmentFailed: the environment's own code raised.
    """
    # Imports torch, which the processes that only replay do not need.
    from asyncrl.policy import load_policy
    from asyncrl.runtime.checkpoint import CheckpointError

    try:
        policy = load_policy(checkpoint, seed=seed)
    except CheckpointError as error:
        raise UsageError(f"--from_run: {error}") from error
    envs = [make_run_env(config) for _ in range(num_envs)]
    ended = np.zeros((num_envs, num_steps), dtype=np.bool_)
    seeds = np.zeros((num_envs, num_steps + 1), dtype=np.int64)
    actions = []
    try:
        seeds[:, 0] = [_seed_after(seed, row, 0) for row in range(num_envs)]
        obs = np.stack([env.reset(seed=int(seeds[row, 0]))[0] for row, env in enumerate(envs)]).astype(np.float32)
        for step in range(num_steps):
            actions.append(policy.act(obs))
            for row, env in enumerate(envs):
                next_obs, _, terminated, truncated, _ = env.step(actions[-1][row])
                if terminated or truncated:
                    ended[row, step] = True
                    seeds[row, step + 1] = _seed_after(seed, row, step + 1)
                    next_obs, _ = env.reset(seed=int(seeds[row, step + 1]))
                obs[row] = next_obs
    except Exception as error:
        raise EnvironmentFailed(f"The environment failed:\n{environment_traceback(error)}") from error
    finally:
        for env in envs:
            env.close()
    return Recording(np.stack(actions, axis=1), ended, seeds)


def _seed_after(seed: int, row: int, num_steps: int) -> int:
    """Seed of the episode that environment `row` begins after `num_steps` of its steps."""
    return env_seed(seed, _FIRST_SEED_IDX + row * _STEPS_PER_ENV + num_steps)
