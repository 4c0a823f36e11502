"""Environments that keep a ledger of every step they make, so that each trained row can be compared with its step.

Made as `ledger_envs:Ledgered-v0`, one by one or vectorized in one of Gymnasium's autoreset modes.
"""

from __future__ import annotations

import functools
import itertools
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

TIME_LIMIT = 8
"""Steps after which an episode is truncated; some episodes end before by themselves, in either way."""

STEPS_BEFORE_GATE = 40
"""Steps that an environment may make before its gate is open; then it waits, so that the run cannot end without it."""

PAUSE_S = 0.003

_RECORD_SIZE = 7


class Ledgered(gymnasium.Env):
    """Observes [life, episode, step, the action that it received last].

    A life is one environment object from its first reset on; its number is unique in the run. Length and end of an
    episode follow from life and episode, the reward from life, episode, step and action. Each step is in the life's
    file of `folder` before `step` returns, so it is there also when the process is killed.
    """

    def __init__(self, folder: str, gate: str | None = None) -> None:
        """Steps take `PAUSE_S` until the file `gate` is there, and only `STEPS_BEFORE_GATE` are made before it."""
        self.observation_space = Box(-np.inf, np.inf, (5,), np.float32)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self._folder = Path(folder)
        self._gate = None if gate is None else Path(gate)
        self._num_steps = 0
        self._life: int | None = None
        self._episode, self._step = -1, 0

    @staticmethod
    def length(life: int, episode: int) -> int:
        """Steps of an episode without the time limit: 1 to 11."""
        return 1 + (3 * life + 5 * episode) % 11

    @staticmethod
    def is_cut(life: int, episode: int) -> bool:
        """Whether the environment truncates the episode at its length; otherwise the episode terminates there."""
        return (life + episode) % 2 == 1

    @staticmethod
    def reward_of(life: int, episode: int, step: int, action: np.ndarray) -> float:
        """A number that no other step gives; both elements of the action and their order show in it."""
        own = (7919 * life + 104_729 * episode + 1_299_709 * step) % 10_007 / 10_007
        return float(np.float32(own + 0.5 * float(action[0]) + 0.25 * float(action[1])))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begins the next episode, and a life at the first call."""
        super().reset(seed=seed)
        if self._life is None:
            self._begin_life()
        self._episode, self._step = self._episode + 1, 0
        self._received = np.zeros(2, np.float32)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Makes a step and writes it down."""
        self._pause()
        assert self._life is not None
        assert action.dtype == np.float32 and action.shape == (2,) and self.action_space.contains(action)
        self._received = np.array(action)
        reward = self.reward_of(self._life, self._episode, self._step, self._received)
        is_last = self._step == self.length(self._life, self._episode) - 1
        is_cut = is_last and self.is_cut(self._life, self._episode)
        record = [self._episode, self._step, *self._received, reward, is_last and not is_cut, is_cut]
        self._ledger.write(np.array(record, np.float32).tobytes())
        self._step += 1
        return self._observe(), reward, is_last and not is_cut, is_cut, {}

    def close(self) -> None:
        """Closes the ledger."""
        if self._life is not None:
            self._ledger.close()

    def _begin_life(self) -> None:
        for self._life in itertools.count():
            try:
                self._ledger = (self._folder / f"{self._life}.ledger").open("xb", buffering=0)
                return
            except FileExistsError:
                continue

    def _observe(self) -> np.ndarray:
        return np.array([self._life, self._episode, self._step, *self._received], np.float32)

    def _pause(self) -> None:
        if self._gate is None:
            return
        self._num_steps += 1
        while not self._gate.exists():
            time.sleep(PAUSE_S)
            if self._num_steps <= STEPS_BEFORE_GATE:
                return
        self._gate = None


class Step(NamedTuple):
    """A step as its environment made it; `truncated` is False where the episode terminated."""

    received: np.ndarray
    reward: np.float32
    terminated: bool
    truncated: bool

    @property
    def ended(self) -> bool:
        """Whether it was its episode's last."""
        return self.terminated or self.truncated


class Life:
    """All steps that one environment made."""

    def __init__(self, number: int, path: Path) -> None:
        """Reads its ledger."""
        content = np.fromfile(path, np.float32)
        records = content[: len(content) // _RECORD_SIZE * _RECORD_SIZE].reshape(-1, _RECORD_SIZE)
        self.number = number
        self._steps: dict[tuple[int, int], Step] = {}
        for record in records:
            episode, step, terminated = int(record[0]), int(record[1]), bool(record[5])
            truncated = not terminated and (bool(record[6]) or step == TIME_LIMIT - 1)
            self._steps[episode, step] = Step(record[2:4], record[4], terminated, truncated)
        assert len(self._steps) == len(records), "no step was made twice"
        self._truncate_shortened_episode()

    def _truncate_shortened_episode(self) -> None:
        """The first episode was shortened if another followed before its own end."""
        last_steps: dict[int, int] = {}
        for episode, step in self._steps:
            last_steps[episode] = max(step, last_steps.get(episode, 0))
        newest = max(last_steps, default=0)
        unended = [place for place in last_steps.items() if not self._steps[place].ended and place[0] != newest]
        assert unended in ([], [(0, last_steps.get(0))]), "only the first episode of an environment is shortened"
        for place in unended:
            self._steps[place] = self._steps[place]._replace(truncated=True)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def num_rows(self) -> int:
        """Rows that its steps take where environments are stepped one by one: a truncation takes another one."""
        return len(self._steps) + sum(step.truncated for step in self._steps.values())

    def made(self, episode: int, step: int) -> bool:
        """Whether the environment made this step."""
        return (episode, step) in self._steps

    def step(self, episode: int, step: int) -> Step:
        """One of its steps.

        Raises:
            AssertionError: it never made that step.
        """
        assert self.made(episode, step), f"environment {self.number} made no step {step} in episode {episode}"
        return self._steps[episode, step]

    def observation(self, episode: int, step: int) -> np.ndarray:
        """What it observed before a step, or after the last one of an episode."""
        received = np.zeros(2, np.float32) if step == 0 else self.step(episode, step - 1).received
        return np.array([self.number, episode, step, *received], np.float32)


def read_ledgers(folder: Path) -> dict[int, Life]:
    """The lives of a run by their numbers; one that somebody else tried out, or that died at once, made no step."""
    return {int(path.stem): Life(int(path.stem), path) for path in folder.glob("*.ledger")}


def count_started(folder: Path) -> int:
    """Environments that have made a step so far."""
    return sum(path.stat().st_size > 0 for path in folder.glob("*.ledger"))


def _vectorized(num_envs: int, autoreset_mode: str, max_episode_steps: int, **kwargs: Any) -> SyncVectorEnv:
    make = functools.partial(Ledgered, **kwargs)
    return SyncVectorEnv([lambda: TimeLimit(make(), max_episode_steps)] * num_envs, autoreset_mode=autoreset_mode)


gymnasium.register(
    "Ledgered-v0",
    entry_point=lambda autoreset_mode=None, **kwargs: Ledgered(**kwargs),
    vector_entry_point=_vectorized,
    max_episode_steps=TIME_LIMIT,
)
