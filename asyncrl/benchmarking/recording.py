"""Plays a trained policy and records the seeds and actions, for `asyncrl.benchmarking.simulation` to play again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.benchmarking.recorded import Recording
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed, environment_traceback
from asyncrl.envs.making import env_seed, make_run_env
from asyncrl.policy import Policy, load_policy
from asyncrl.runtime import checkpoint as checkpoints

# Far from the indices of a run's own environments and of evaluation episodes.
_FIRST_SEED_IDX = 2_000_000_000
_STEPS_PER_ENV = 1_000_000


def record(config: TrainConfig, checkpoint: Path, num_envs: int, num_steps: int, seed: int = 0) -> Recording:
    """Plays `num_envs` environments side by side for `num_steps` each, with drawn actions as in training.

    Args:
        config: settings of the run that the policy comes from.
        checkpoint: the policy.
        num_envs: environments, N.
        num_steps: steps of each, K.
        seed: of the episodes and the policy's draws.

    Raises:
        UsageError: the checkpoint does not fit the settings.
        EnvironmentFailed: the environment's own code raised.
    """
    try:
        policy = load_policy(checkpoint, seed=seed)
    except checkpoints.CheckpointError as error:
        raise UsageError(f"--from_run: {error}") from error
    envs = [make_run_env(config) for _ in range(num_envs)]
    try:
        return _play(envs, policy, num_steps, seed)
    finally:
        for env in envs:
            env.close()


def _play(envs: list[Any], policy: Policy, num_steps: int, seed: int) -> Recording:
    ended = np.zeros((len(envs), num_steps), dtype=np.bool_)
    seeds = np.zeros((len(envs), num_steps + 1), dtype=np.int64)
    seeds[:, 0] = [_seed_after(seed, row, 0) for row in range(len(envs))]
    actions = []
    try:
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
    return Recording(np.stack(actions, axis=1), ended, seeds)


def _seed_after(seed: int, row: int, num_steps: int) -> int:
    """Seed of the episode that environment `row` begins after `num_steps` of its steps."""
    return env_seed(seed, _FIRST_SEED_IDX + row * _STEPS_PER_ENV + num_steps)
