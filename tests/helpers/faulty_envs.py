"""Environments that misbehave when they are told to; made as `faulty_envs:NAME`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
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
    """Raises in its first reset, and its replacements in the same process raise, too.

    With a `folder` the environments 0 and 4, of two workers, wait for each other before they raise.
    """

    _replacements_fail = False

    def __init__(self, folder: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._folder = folder

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        observation = super().reset(seed=seed)
        if self._is_marked or FailsToReset._replacements_fail:
            if self._folder is not None and self._is_marked:
                Path(self._folder, f"resets-{self._number}").touch()
                _wait_for(Path(self._folder, "resets-0"), Path(self._folder, "resets-4"))
            FailsToReset._replacements_fail = True
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


class StartsSimulator(ConstantReward):
    """Starts a process that ignores SIGTERM, and ends it in `close`; writes "worker simulator" into a file of `folder`.

    `forked`: the simulator is a fork, which holds all descriptors of its worker. `hangs`: the first one that makes 40
    steps never returns from the last of them.
    """

    def __init__(self, folder: str, forked: bool = False, hangs: bool = False) -> None:
        super().__init__()
        self._folder, self._hangs, self._steps = Path(folder), hangs, 0
        if forked:
            self._simulator = os.fork()
            if self._simulator == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.signal(signal.SIGIO, signal.SIG_IGN)
                time.sleep(600.0)
                os._exit(0)
        else:
            command = ["sh", "-c", "trap '' TERM HUP INT IO; exec sleep 600"]
            self._simulator = subprocess.Popen(command, stdin=subprocess.DEVNULL).pid
        (self._folder / f"{self._simulator}.simulator").write_text(f"{os.getpid()} {self._simulator}")

    def step(self, action: int) -> Transition:
        self._steps += 1
        if self._hangs and self._steps == 40:
            with contextlib.suppress(FileExistsError):
                (self._folder / "hangs").mkdir()
                time.sleep(1e6)
        return super().step(action)

    def close(self) -> None:
        os.kill(self._simulator, signal.SIGKILL)
        os.waitpid(self._simulator, 0)


for _environment in (
    Stands,
    HoldsTheInterpreter,
    Crashes,
    KeepsCrashing,
    FailsToReset,
    Limps,
    TurnsTheClock,
    StartsSimulator,
):
    gymnasium.register(f"{_environment.__name__}-v0", entry_point=_environment)
