"""Environments that misbehave when they are told to; made as `faulty_envs:NAME`."""

from __future__ import annotations

import ctypes
import random
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from probe_envs import ConstantReward, Transition, environment_number

_DAY_S = 86_400.0


def _wait_for(*files: Path) -> None:
    deadline = time.monotonic() + 60.0
    while not all(map(Path.exists, files)):
        assert time.monotonic() < deadline, "another environment did not come as far"
        time.sleep(0.005)


class _Marked(ConstantReward):
    """Knows whether it is one of those that begin a run, and does something in its step number `at`.

    One that follows a dead one, or that somebody else tries out, does nothing.
    """

    def __init__(self, at: int = 20, only: int | None = None, run_seed: int = 0) -> None:
        super().__init__()
        self._at = at
        self._only = only
        self._run_seed = run_seed
        self._number = -1
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            self._number = environment_number(self._run_seed, seed)
        return super().reset(seed=seed)

    def step(self, action: int) -> Transition:
        self._steps += 1
        if self._steps == self._at and self._is_marked:
            self._misbehave()
        return super().step(action)

    @property
    def _is_marked(self) -> bool:
        return self._number >= 0 and self._only in (None, self._number)

    def _misbehave(self) -> None:
        raise NotImplementedError


class Stands(_Marked):
    """Never returns from its step; makes the file `sign` before."""

    def __init__(self, sign: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sign = sign

    def _misbehave(self) -> None:
        if self._sign is not None:
            Path(self._sign).touch()
        self._stand_for_ever()

    @staticmethod
    def _stand_for_ever() -> None:
        time.sleep(1e6)


class HoldsTheInterpreter(_Marked):
    """Never returns from its step, in a library that lets no other thread run; makes the file `sign` before."""

    def __init__(self, sign: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sign = sign

    def _misbehave(self) -> None:
        Path(self._sign).touch()
        ctypes.PyDLL(None).sleep(100_000)


class Crashes(_Marked):
    """Reads memory that is not there."""

    def _misbehave(self) -> None:
        ctypes.string_at(0)


class KeepsCrashing(ConstantReward):
    """Reads memory that is not there in its step number `at`, whoever it follows."""

    def __init__(self, at: int = 20) -> None:
        super().__init__()
        self._at = at
        self._steps = 0

    def step(self, action: int) -> Transition:
        self._steps += 1
        if self._steps == self._at:
            ctypes.string_at(0)
        return super().step(action)


class FailsToReset(_Marked):
    """Raises in its first reset; with a `folder` once those numbered 0 and 4, of two workers, are in theirs."""

    def __init__(self, folder: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._folder = folder

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        observation = super().reset(seed=seed)
        if self._is_marked:
            if self._folder is not None:
                Path(self._folder, f"resets-{self._number}").touch()
                _wait_for(Path(self._folder, "resets-0"), Path(self._folder, "resets-4"))
            raise ValueError("the arm is not calibrated")
        return observation


class Limps(_Marked):
    """Takes 400 times as long as others for each step, if it is marked; the others wait for the file `sign` of it."""

    QUICK_S = 0.0002

    def __init__(self, sign: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sign = Path(sign)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        observation = super().reset(seed=seed)
        if self._is_marked:
            self._sign.touch()
        elif self._number >= 0:
            _wait_for(self._sign)
        return observation

    def step(self, action: int) -> Transition:
        time.sleep(400 * self.QUICK_S if self._is_marked else self.QUICK_S)
        return ConstantReward.step(self, action)


class TurnsTheClock(ConstantReward):
    """Lets the wall clock of its process jump."""

    def _begin(self) -> np.ndarray:
        time.time = jumping_time
        return super()._begin()


_true_time = time.time


def jumping_time() -> float:
    """A wall clock that jumps by months, forth and back, at every look."""
    return _true_time() + random.uniform(-300.0, 300.0) * _DAY_S


for _environment in (
    Stands,
    HoldsTheInterpreter,
    Crashes,
    KeepsCrashing,
    FailsToReset,
    Limps,
    TurnsTheClock,
):
    gymnasium.register(f"{_environment.__name__}-v0", entry_point=_environment)
