"""A replay whose every number says where it belongs, and those who write it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from layouts import vector_observation

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.replay import ReplayStripes, replay_specs
from asyncrl.envs.spec import DiscreteAction, EnvSpec

SPEC = EnvSpec("Tagged", vector_observation(4), DiscreteAction(2, 0), None)
RESET = -1.0


def new_replay(num_splits: int, num_envs: int, rows: int, is_prioritized: bool = False) -> tuple[Arena, ReplayStripes]:
    """An empty replay with that many readable rows in each stripe."""
    size = rows * num_splits * num_envs
    specs = replay_specs(SPEC, num_splits, num_envs, size, is_prioritized)
    arena = Arena.create(specs)
    return arena, ReplayStripes(arena)


class TaggedWriter:
    """Writes a stripe as `StripeSink` does: observations are [split, environment, episode, step].

    A step's reward is 1000 times its episode and its step; its action the parity of that. Episodes end at random.
    """

    def __init__(self, stripes: ReplayStripes, split_idx: int, seed: int, end_probability: float = 0.3) -> None:
        self._stripes, self._split, self._random = stripes, split_idx, random.Random(seed)
        self._end_probability = end_probability
        self._row = stripes.num_rows[split_idx]
        self._episodes = [0] * stripes.num_envs
        self._steps = [0] * stripes.num_envs
        self._holds_final = [False] * stripes.num_envs
        for env in range(stripes.num_envs):
            stripes.obs_at((split_idx, self._row))[env] = self._obs(env)

    def begin_life(self, number: int) -> TaggedWriter:
        """Counts the episodes from another number on, so that this writer's steps differ from those of one before."""
        self._episodes = [500 * number] * len(self._episodes)
        for env in range(len(self._episodes)):
            self._stripes.obs_at((self._split, self._row))[env] = self._obs(env)
        return self

    def write_rows(self, count: int) -> None:
        for _ in range(count):
            self._write_row()

    def _write_row(self) -> None:
        stripes, split, num_steps = self._stripes, self._split, 0
        rows = stripes.rows(split, self._row)
        rows.terminated[:] = rows.truncated[:] = False
        rows.valid[:] = True
        action = stripes.action[split, self._row % stripes.capacity]
        for env in range(stripes.num_envs):
            if self._holds_final[env]:
                rows.valid[env], rows.reward[env] = False, np.nan
                self._holds_final[env] = False
                self._begin(env)
            else:
                rows.reward[env] = 1000 * self._episodes[env] + self._steps[env]
                action[env] = int(rows.reward[env]) % 2
                self._steps[env] += 1
                num_steps += 1
                end = self._random.random()
                if end < self._end_probability / 2:
                    rows.terminated[env] = True
                    self._begin(env)
                elif end < self._end_probability:
                    rows.truncated[env] = self._holds_final[env] = True
            rows.next_obs[env] = self._obs(env)
        stripes.publish(split, num_steps)
        self._row += 1

    def _begin(self, env: int) -> None:
        self._episodes[env] += 1
        self._steps[env] = 0

    def _obs(self, env: int) -> Sequence[float]:
        return self._split, env, self._episodes[env], self._steps[env]


def check_one_step(batch: Transitions, gamma: float) -> None:
    """Fails unless each transition is one that a `TaggedWriter` made."""
    obs, after = batch.obs.numpy(), batch.next_obs.numpy()
    episode, step = obs[:, 2], obs[:, 3]
    assert (batch.reward.numpy() == 1000 * episode + step).all()
    assert (batch.action.numpy() == batch.reward.numpy() % 2).all()
    goes_on = batch.discount.numpy() > 0
    assert np.isin(batch.discount.numpy(), np.array([0.0, gamma], np.float32)).all()
    expected = obs + np.array([0.0, 0.0, 0.0, 1.0], np.float32)
    assert (after[goes_on] == expected[goes_on]).all()
    assert (after[~goes_on, 2] == episode[~goes_on] + 1).all()  # terminated: the next episode's reset, which counts 0


def write_until(arena: Arena, split_idx: int, num_rows: int) -> None:
    """Body of a process that writes as fast as it can, until all of its stripe's rows are written."""
    stripes = ReplayStripes(arena)
    writer = TaggedWriter(stripes, split_idx, seed=split_idx)
    while stripes.num_rows[split_idx] < num_rows:
        writer.write_rows(100)
