"""Failures of environments, and the decision whether a run continues: a warning for each, until there are too many.

step or reset raises, or step   the environment is recreated; more than `max_env_failures` in a window end the run.
returns a wrong value           Before the run's first finished episode, the same failure `FATAL_IN_A_ROW` times in a
                                row in one place, at the same step or in the first steps, ends it, too
reward or observation is NaN    the step is dropped and the environment is reset, or the run ends (`nan_policy`)
observation out of its space,   the run ends: this is a mistake in the environment
or agents without their values
a debugger finds no terminal    the run ends, with a hint at serial mode
"""

from __future__ import annotations

import bdb
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncrl.buffers.control import RunControl
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import FATAL_IN_A_ROW, FIRST_STEPS, environment_traceback, kind_of
from asyncrl.observers.reports import EnvironmentFailures
from asyncrl.processes.restarts import RecentEvents

_WARN_EVERY_S = 60.0
_MOST_DROPS_IN_A_ROW = 10

log = logging.getLogger(__name__)


class EnvironmentTrouble(Exception):
    """An environment failed. If its own code raised, `__cause__` is that exception.

    Attributes:
        env_idx: number of the environment in the run.
        step: environment steps that it had made.
    """

    def __init__(self, env_idx: int, step: int, text: str, detail: str = "") -> None:
        super().__init__(f"environment {env_idx} {text} at its step {step}{detail and f': {detail}'}")
        self.env_idx = env_idx
        self.step = step

    @property
    def traceback(self) -> str:
        """Traceback of the environment's own code, empty if it did not raise."""
        return "" if self.__cause__ is None else environment_traceback(self.__cause__)

    @property
    def kind(self) -> tuple[object, ...]:
        """What failures that are the same have in common: the type of the exception and its place."""
        return (type(self).__name__,) if self.__cause__ is None else kind_of(self.__cause__)


class EnvironmentCallFailed(EnvironmentTrouble):
    """The environment's own code raised."""


class NotFinite(EnvironmentTrouble):
    """A reward or an observation contains NaN or infinity."""


class WrongObservation(EnvironmentTrouble):
    """An observation does not fit the environment's observation space, so it cannot be stored."""


class WrongAgents(EnvironmentTrouble):
    """An environment of several agents returned a key that is not an agent, omitted an agent, or gave a wrong value."""


class WrongResult(EnvironmentTrouble):
    """`step` returned a value that cannot be read, such as a reward that is not a number."""


class EnvironmentsKeepFailing(Exception):
    """Environments of one worker failed too often.

    Attributes:
        tracebacks: of the last failure, and of the first one if it is of another kind, both with their texts then.
    """

    def __init__(self, text: str, tracebacks: str) -> None:
        super().__init__(text)
        self.tracebacks = tracebacks


class FailureLog:
    """Counts the failures of one worker's environments and decides whether the run continues.

    All groups of a worker share it.

    Attributes:
        count_turn: records that an environment was made or reset: the worker has not hung, however long all of them
            take.
    """

    def __init__(
        self, worker_idx: int, config: TrainConfig, control: RunControl, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.count_turn = functools.partial(control.count_turn, worker_idx)
        self._worker_idx = worker_idx
        self._config = config
        self._control = control
        self._clock = clock
        self._recent: RecentEvents[EnvironmentTrouble] = RecentEvents(config.restart_window_s)
        self._num_failures = 0
        self._num_not_finite = 0
        self._num_dropped = 0
        self._warnings: list[str] = []
        self._warned_at: float | None = None
        self._not_finite_since_warning = 0
        self._drops_in_a_row: dict[int, int] = {}
        self._last_failure: dict[int, _LastFailure] = {}  # by environment
        self._counts: dict[tuple[object, ...], _KindCount] = {}

    def record_episode(self, env_idx: int) -> None:
        """Records that an environment has finished an episode, so environments work in principle."""
        self._drops_in_a_row.pop(env_idx, None)
        self._control.has_finished_episode = True

    def record_failure(self, trouble: EnvironmentTrouble) -> None:
        """Counts a failure after which the environment is recreated.

        Raises:
            EnvironmentTrouble: the given one, because the run cannot continue: a new environment fails in the same way.
            EnvironmentsKeepFailing: there were too many failures.
        """
        if self._is_fatal(trouble) or (self._fails_again_at_once(trouble) and not self._control.has_finished_episode):
            raise trouble
        now, limit, window_s = self._clock(), self._config.max_env_failures, self._config.restart_window_s
        self._recent.add(trouble, now)
        recent = self._recent.within_window(now)
        self._num_failures += 1
        if len(recent) > limit:
            raise EnvironmentsKeepFailing(
                f"environments of rollout worker {self._worker_idx} failed {len(recent)} times within "
                f"{window_s:g} s, --max_env_failures={limit} allows {limit}; the last: {trouble}",
                _tracebacks_of(recent[0], trouble),
            )
        seen = self._counts.get(trouble.kind)
        if seen is None:
            self._counts[trouble.kind] = _KindCount(now)
            kept = "stay in the replay" if self._config.is_off_policy else "are dropped"
            text = f"{trouble}; the environment is recreated, and the samples of its unfinished episode {kept}"
            self.warn(f"{text}\n{trouble.traceback}".rstrip())
            return
        seen.count += 1
        if now - seen.warned_at >= _WARN_EVERY_S:
            cause = type(trouble.__cause__ or trouble).__name__
            self.warn(f"{trouble} ({cause}); {seen.count} such failures since the last warning of this kind")
            seen.count, seen.warned_at = 0, now

    def _fails_again_at_once(self, trouble: EnvironmentTrouble) -> bool:
        """Whether an environment and its replacements fail in the same way, and at the same step or at once."""
        last = self._last_failure.get(trouble.env_idx, _LastFailure((), 0, -1, 0))
        num_steps = trouble.step - last.step
        is_same = trouble.kind == last.kind and (num_steps <= FIRST_STEPS or num_steps == last.num_steps)
        in_a_row = last.in_a_row + 1 if is_same else 1
        self._last_failure[trouble.env_idx] = _LastFailure(trouble.kind, trouble.step, num_steps, in_a_row)
        return in_a_row >= FATAL_IN_A_ROW

    def record_not_finite(self, trouble: NotFinite, episode_steps: int) -> bool:
        """Counts a step that is dropped; True if the environment must be recreated: all its recent episodes began so.

        Args:
            trouble: the environment and the value.
            episode_steps: steps of the same episode before the dropped one.

        Raises:
            NotFinite: the given one, if the run ends in this case (`nan_policy`).
        """
        if self._is_fatal(trouble):
            raise trouble
        self._num_not_finite += 1
        self._num_dropped += 1
        in_a_row = 1 if episode_steps > 0 else self._drops_in_a_row.get(trouble.env_idx, 0) + 1
        self._drops_in_a_row[trouble.env_idx] = in_a_row
        self._not_finite_since_warning += 1
        now = self._clock()
        if self._warned_at is None or now - self._warned_at >= _WARN_EVERY_S:
            count, self._not_finite_since_warning, self._warned_at = self._not_finite_since_warning, 0, now
            others = f" ({count} since the last such warning)" if count > 1 else ""
            self.warn(f"{trouble}{others}; the step is dropped and the environment is reset (--nan_policy=drop)")
        return in_a_row > _MOST_DROPS_IN_A_ROW

    def record_dropped(self, num_samples: int) -> None:
        """Counts samples that are not trained on."""
        self._num_dropped += num_samples

    def take(self) -> EnvironmentFailures:
        """Counts and warnings since the last call."""
        taken = EnvironmentFailures(
            num_failures=self._num_failures,
            num_not_finite=self._num_not_finite,
            num_dropped=self._num_dropped,
            warnings=tuple(self._warnings),
        )
        self._num_failures = self._num_not_finite = self._num_dropped = 0
        self._warnings = []
        return taken

    def warn(self, text: str) -> None:
        """Adds a warning for the user to the next report."""
        text = f"rollout worker {self._worker_idx}: {text}"
        log.info("%s", text)  # the log of a child process keeps it even if the report is dropped
        self._warnings.append(text)

    def _is_fatal(self, trouble: EnvironmentTrouble) -> bool:
        if isinstance(trouble, NotFinite):
            return self._config.nan_policy == "fail"
        # A debugger without a terminal would stop every new environment in the same place.
        return isinstance(trouble, (WrongObservation, WrongAgents)) or isinstance(trouble.__cause__, bdb.BdbQuit)


@dataclass
class _KindCount:
    """When failures of one kind were reported last, and how many there were since."""

    warned_at: float
    count: int = 0


@dataclass(frozen=True)
class _LastFailure:
    """The last failure of an environment, or of the one that it replaced.

    Attributes:
        kind: type of the exception and its place.
        step: steps of all environments that were made in this place.
        num_steps: steps of the environment that failed.
        in_a_row: number of such failures one after another.
    """

    kind: tuple[object, ...]
    step: int
    num_steps: int
    in_a_row: int


@dataclass(frozen=True)
class LostStep:
    """A step that is not a sample. The environment was reset, and the next row holds the first observation.

    Attributes:
        env: number of the environment in its group.
        episode_steps: steps of the same episode before the lost one.
        has_failed: the environment failed, so the samples of these steps are dropped as well.
    """

    env: int
    episode_steps: int
    has_failed: bool


@dataclass(frozen=True)
class Recovery:
    """How a group recreates an environment that failed.

    Attributes:
        failures: decides whether it is recreated.
        make: makes an environment, or a vectorized one for a vectorized group.
        seed: seed of the first reset, from the environment's number in the run and the steps made in its place.
    """

    failures: FailureLog
    make: Callable[[], Any]
    seed: Callable[[int, int], int]


def _tracebacks_of(first: EnvironmentTrouble, last: EnvironmentTrouble) -> str:
    if first.kind == last.kind:
        return last.traceback
    return f"the first failure: {_details(first)}\n\nthe last failure: {_details(last)}"


def _details(trouble: EnvironmentTrouble) -> str:
    return f"{trouble}\n{trouble.traceback}".rstrip()
