"""Environments and policies that leave their marks in every row, so that a test sees who played what."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from asyncrl.buffers.slots import TrajectorySlots

VERSION_OF_POLICY_0 = 100


class Episodes:
    """Gives every episode of a test a number, and remembers which policy was chosen for it."""

    def __init__(self, num_policies: int, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self._numbers = itertools.count(1)
        self._num_policies = num_policies
        self._newest: dict[int, int] = {}
        self.policy_of: dict[int, int] = {}

    def begin(self, env_idx: int) -> int:
        self._newest[env_idx] = next(self._numbers)
        return self._newest[env_idx]

    def choose(self, agent: str, env_idx: int, episode: int) -> int:
        number = self._newest[env_idx]
        assert number not in self.policy_of, "chosen twice in one episode"
        self.policy_of[number] = int(self._generator.integers(self._num_policies))
        return self.policy_of[number]


class NumberedEpisodes(gymnasium.Env[Any, Any]):
    """Observes [number of the episode, step]. Episodes have 1 to 4 steps; every second one is truncated."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-0.5, 0.5, (1,), np.float32)

    def __init__(self, episodes: Episodes, env_idx: int) -> None:
        self._episodes = episodes
        self._env_idx = env_idx

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._number, self._step = self._episodes.begin(self._env_idx), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        is_over = self._step == 1 + self._number % 4
        is_cut = (self._number // 4) % 2 == 0
        return self._observe(), float(self._step), is_over and not is_cut, is_over and is_cut, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._number, self._step], np.float64)


class MarkingPolicies:
    """Gives every column an action that no other one gets, and its policy as value, log-probability and version."""

    def __init__(self, slots: TrajectorySlots) -> None:
        self._slots = slots
        self._numbers = itertools.count(1)

    def refresh(self) -> None: ...

    def pop_warning(self) -> None: ...

    def answer(self, places: Sequence[tuple[int, int]]) -> None:
        slots = self._slots
        assert slots.policy_idx is not None
        for place in places:
            policy_idx = slots.policy_idx[place]
            slots.value[place] = policy_idx
            slots.policy_version[place] = VERSION_OF_POLICY_0 + policy_idx
            if place[1] < slots.rollout:
                slots.log_prob[place] = policy_idx
                slots.action[place].T[...] = [next(self._numbers) for _ in policy_idx]


def check_rows(slots: TrajectorySlots, slot: int, episodes: Episodes) -> None:
    """Every row of a slot was played by the policy of the episode whose observation it holds."""
    assert slots.policy_idx is not None
    expected = np.vectorize(episodes.policy_of.get)(slots.obs[slot, :, :, 0].astype(int))
    np.testing.assert_array_equal(slots.policy_idx[slot], expected)
    np.testing.assert_array_equal(slots.value[slot], expected)
    np.testing.assert_array_equal(slots.policy_version[slot], VERSION_OF_POLICY_0 + expected)
    np.testing.assert_array_equal(slots.log_prob[slot], expected[:-1])


def sum_of_all(agent: str, env_idx: int, episode: int) -> int:
    """A policy mapping that shows what it was given."""
    return len(agent) + env_idx + episode
