"""Environments whose right answer is known in advance; made as `probe_envs:NAME`."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv

from asyncrl.envs.factory import env_seed

Transition = tuple[np.ndarray, float, bool, bool, dict[str, Any]]

_NEVER_STORED = 1e4  # what a terminated episode returns last: no row may hold it


class _Probe(gymnasium.Env):
    """One observation in [-inf, inf]^n, and actions without a meaning unless the probe gives them one."""

    def __init__(self, observation_size: int = 1) -> None:
        self.observation_space = Box(-np.inf, np.inf, (observation_size,), np.float32)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._begin(), {}

    def _begin(self) -> np.ndarray:
        raise NotImplementedError

    def _end(self, reward: float) -> Transition:
        assert self.observation_space.shape is not None
        return np.full(self.observation_space.shape, _NEVER_STORED, np.float32), reward, True, False, {}


def environment_number(run_seed: int, seed: int) -> int:
    """Which environment of the run is seeded with `seed`, -1 if none is: somebody else tries the environment out."""
    return next((number for number in range(64) if env_seed(run_seed, number) == seed), -1)


class ConstantReward(_Probe):
    """One step, reward 1: V = 1."""

    def _begin(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def step(self, action: int) -> Transition:
        return self._end(1.0)


class RewardIsObservation(_Probe):
    """One step whose reward is what was seen: V(-1) = -1, V(1) = 1."""

    def _begin(self) -> np.ndarray:
        self._seen = float(self.np_random.choice([-1.0, 1.0]))
        return np.array([self._seen], np.float32)

    def step(self, action: int) -> Transition:
        return self._end(self._seen)


class DelayedReward(_Probe):
    """Observation 0, reward 0; observation 1, reward 1: V(0) = gamma, V(1) = 1."""

    def _begin(self) -> np.ndarray:
        self._second = False
        return np.zeros(1, np.float32)

    def step(self, action: int) -> Transition:
        if self._second:
            return self._end(1.0)
        self._second = True
        return np.ones(1, np.float32), 0.0, False, False, {}


class ContextualBandit(_Probe):
    """One step, reward 1 for the action that the one-hot observation shows; actions count from `start`."""

    def __init__(self, num_actions: int = 2, start: int = 0) -> None:
        super().__init__(num_actions)
        self.action_space = Discrete(num_actions, start=start)

    def _begin(self) -> np.ndarray:
        self._context = int(self.np_random.integers(self.action_space.n))
        return np.eye(self.action_space.n, dtype=np.float32)[self._context]

    def step(self, action: int) -> Transition:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        return self._end(float(action - self.action_space.start == self._context))


class HiddenOffset(gymnasium.Env):
    """A bandit of four arms. The reward of 1 for the arm that `shown` names is lost in `scale` times a hidden sign.

    So an advantage tells how good an arm is only if the critic sees the hidden sign, which is not a help for choosing.
    """

    action_space = Discrete(4)

    def __init__(self, scale: float = 50.0, shows_offset: bool = True) -> None:
        self._scale, self._shows_offset = scale, shows_offset
        hidden = {"offset": Box(-1.0, 1.0, (1,), np.float32)} if shows_offset else {}
        self.observation_space = Dict({**hidden, "shown": Discrete(4)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self._scale * self._offset + float(self._shown == action)
        return self._draw(), reward, True, False, {}

    def _draw(self) -> dict[str, Any]:
        self._offset, self._shown = float(self.np_random.choice([-1.0, 1.0])), int(self.np_random.integers(4))
        hidden = {"offset": np.float32([self._offset])} if self._shows_offset else {}
        return {**hidden, "shown": np.int64(self._shown)}


class EndlessReward(_Probe):
    """Reward -5 for leaving the reset observation [1, 0], 1 for each step after it.

    Cut off after `length` steps, it continues as far as the values are concerned: the observation is [0, 0] and
    V([0, 0]) = 1 / (1 - gamma), V([1, 0]) = -5 + gamma / (1 - gamma). Terminated, the observation shows the step t as
    [0, t], and the value is the finite sum that is left. The final observation is never the reset one.
    """

    FIRST_REWARD = -5.0

    def __init__(self, terminates: bool, length: int = 4, is_continuous: bool = False) -> None:
        super().__init__(2)
        if is_continuous:
            self.action_space = Box(-1.0, 1.0, (1,))
        self._terminates = terminates
        self._length = length

    def _begin(self) -> np.ndarray:
        self._step = 0
        return np.array([1.0, 0.0], np.float32)

    def step(self, action: int) -> Transition:
        reward = self.FIRST_REWARD if self._step == 0 else 1.0
        self._step += 1
        is_last = self._step == self._length
        if self._terminates:
            return self._end(reward) if is_last else (np.array([0.0, self._step], np.float32), reward, False, False, {})
        return np.zeros(2, np.float32), reward, False, is_last, {}


class DistantTarget(_Probe):
    """One step with an action in [-2, 6], reward -(a - 5)^2: the best mean action is 5."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(-2.0, 6.0, (1,), np.float32)

    def _begin(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def step(self, action: np.ndarray) -> Transition:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        return self._end(-float((action[0] - 5.0) ** 2))


class Still(_Probe):
    """Always observes 1; episodes have five steps, and every second one is truncated."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self._num_episodes = 0

    def _begin(self) -> np.ndarray:
        self._steps = 0
        self._num_episodes += 1
        return np.ones(1, np.float32)

    def step(self, action: np.ndarray) -> Transition:
        self._steps += 1
        if self._steps == 5 and self._num_episodes % 2:
            return self._end(0.0)
        return np.ones(1, np.float32), 0.0, False, self._steps == 5, {}


class Reach(_Probe):
    """Observes a goal; the reward of an action is how far from it it is, both in the unit of the bounds."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.action_space = Box(low, high, (1,), np.float64)
        self._low, self._high = low, high

    def _begin(self) -> np.ndarray:
        self._goal = float(np.float32(self.np_random.uniform(-0.8, 0.8)))
        return np.array([self._goal], np.float32)

    def step(self, action: np.ndarray) -> Transition:
        assert self.action_space.contains(action)
        in_unit = (2.0 * float(action[0]) - self._low - self._high) / (self._high - self._low)
        return self._end(-abs(in_unit - self._goal))


class Sentinel(_Probe):
    """Observes [environment, episode, step] and echoes the action as reward, so that every row can be checked.

    An environment finds its number from the seed of its first reset. Both the length of an episode and how it ends
    follow from environment and episode. Steps take `delay_s` now and then, on average every fifth one.
    """

    BOUND = 0.5

    def __init__(self, run_seed: int, delay_s: float = 0.0) -> None:
        super().__init__(3)
        self.action_space = Box(-self.BOUND, self.BOUND, (2,), np.float32)
        self._run_seed = run_seed
        self._delay_s = delay_s
        self._number: int | None = None
        self._episode = -1

    @staticmethod
    def length(number: int, episode: int) -> int:
        """Steps of an episode: 1 to 11."""
        return 1 + (3 * number + 5 * episode) % 11

    @staticmethod
    def is_truncated(number: int, episode: int) -> bool:
        """How an episode ends."""
        return (number + episode) % 2 == 1

    @classmethod
    def echo(cls, actions: np.ndarray) -> np.ndarray:
        """The reward of actions `[..., 2]` as the environment gets them: both elements and their order show in it."""
        seen = actions.astype(np.float64)
        return (seen[..., 0] + 3.0 * seen[..., 1]).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            if self._number is not None:
                raise ValueError("seeded twice")
            self._number = environment_number(self._run_seed, seed)
            self._delays = random.Random(seed)
        return super().reset(seed=seed)

    def _begin(self) -> np.ndarray:
        self._episode, self._step = self._episode + 1, 0
        return self._observe()

    def _observe(self) -> np.ndarray:
        return np.array([self._number, self._episode, self._step], np.float32)

    def step(self, action: np.ndarray) -> Transition:
        if self._delay_s > 0.0 and self._delays.random() < 0.2:
            time.sleep(self._delays.random() * 2 * self._delay_s)
        reward = float(self.echo(action))
        self._step += 1
        assert self._number is not None
        if self._step < self.length(self._number, self._episode):
            return self._observe(), reward, False, False, {}
        if self.is_truncated(self._number, self._episode):
            return self._observe(), reward, False, True, {}
        return self._end(reward)


class KeepsPace(ConstantReward):
    """Steps only as far as all environments of the run have come, so none is ever two steps ahead of another.

    They share their counts of steps in `counts`, a file of `num_envs` int64. One split to a worker: with more, one
    would wait for the other inside its step for ever.
    """

    def __init__(self, run_seed: int, counts: str, num_envs: int) -> None:
        super().__init__()
        self._run_seed = run_seed
        self._counts = np.memmap(counts, np.int64, "r+", shape=(num_envs,))
        self._number = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            self._number = environment_number(self._run_seed, seed)
        return super().reset(seed=seed)

    def step(self, action: int) -> Transition:
        while self._counts.min() < self._counts[self._number]:
            time.sleep(0.0002)
        self._counts[self._number] += 1
        return super().step(action)


class Failing(_Probe):
    """Raises in its step number `fail_at`, counted from 0, in its first episode."""

    def __init__(self, fail_at: int) -> None:
        super().__init__()
        self._fail_at = fail_at
        self._steps = 0

    def _begin(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def step(self, action: int) -> Transition:
        if self._steps == self._fail_at:
            raise ZeroDivisionError("the probe was asked to fail")
        self._steps += 1
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Unreliable(_Probe):
    """Episodes of five steps with a reward of 1, in which faults are injected.

    `faults` says what is wrong (step, reward, observation, shape, huge) at which step of an environment's life; with
    `every` the step raises again and again. `markers` is a folder in which each fault is noted, so that it happens to
    one environment and once.
    """

    _LENGTH = 5

    def __init__(self, faults: dict[str, int], markers: str | None = None, every: int = 0) -> None:
        super().__init__(2)
        self._faults, self._every = faults, every
        self._markers = None if markers is None else Path(markers)
        self._made = self._step = 0

    def _begin(self) -> np.ndarray:
        self._step = 0
        return np.zeros(2, np.float32)

    def step(self, action: int) -> Transition:
        self._made += 1
        self._step += 1
        if self._happens("step") or (self._every and self._made % self._every == 0):
            raise ZeroDivisionError("the probe was asked to fail")
        obs, reward = np.full(2, float(self._step), np.float32), 1.0
        if self._happens("observation"):
            obs[1] = np.nan
        if self._happens("reward"):
            reward = np.inf
        if self._happens("shape"):
            obs = np.zeros(3, np.float32)
        if self._made >= self._faults.get("huge", self._made + 1):
            reward = 3e38  # finite, but no two of them add up to a number
        return (obs, reward, False, False, {}) if self._step < self._LENGTH else self._end(reward)

    def _happens(self, fault: str) -> bool:
        if self._made < self._faults.get(fault, self._made + 1):
            return False
        if self._markers is None:
            return True
        try:
            (self._markers / fault).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class SignOf(gymnasium.Env):
    """Shows `offset` plus or minus `size` beside a constant; the action of that sign has reward `reward`, others 0."""

    def __init__(
        self, size: float = 1.0, offset: float = 0.0, reward: float = 1.0, is_discrete: bool = True, dtype: str = "f8"
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.dtype(dtype).type)
        self.action_space = Discrete(2) if is_discrete else Box(-1.0, 1.0, (1,))
        self._size, self._offset, self._reward = size, offset, reward

    def _observe(self) -> np.ndarray:
        self._sign = self.np_random.choice([-1.0, 1.0])
        return np.array([self._offset + self._sign * self._size, 5.0], self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Transition:
        is_positive = action == 1 if isinstance(self.action_space, Discrete) else action[0] > 0.0
        reward = self._reward * (is_positive == (self._sign > 0.0))
        self._steps += 1
        return self._observe(), reward, False, self._steps == 10, {}


for _environment in (
    SignOf,
    ConstantReward,
    RewardIsObservation,
    DelayedReward,
    ContextualBandit,
    HiddenOffset,
    EndlessReward,
    DistantTarget,
    Still,
    Reach,
    Sentinel,
    KeepsPace,
    Failing,
    Unreliable,
):
    gymnasium.register(f"{_environment.__name__}-v0", entry_point=_environment)


def _endless_rewards(num_envs: int, autoreset_mode: str, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: EndlessReward(**kwargs)] * num_envs, autoreset_mode=autoreset_mode)


gymnasium.register(
    "VectorEndlessReward-v0",
    entry_point=lambda autoreset_mode, **kwargs: EndlessReward(**kwargs),
    vector_entry_point=_endless_rewards,
)
