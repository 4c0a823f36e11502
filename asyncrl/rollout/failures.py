"""What goes wrong with environments, and what a worker makes of it: a warning each, until there are too many.

step or reset raises            the environment is recreated; more than `max_env_failures` in a window end the run,
                                and so does any before the run's first finished episode
reward or observation is NaN    the step is dropped and the environment is reset, or the run ends (`nan_policy`)
observation out of its space    the run ends: that is a mistake in the environment
a debugger finds no terminal    the run ends, with a hint at serial mode
"""

from __future__ import annotations

import bdb
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncrl.buffers.control import RunControl
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import environment_traceback
from asyncrl.monitoring.reports import EnvironmentFailures
from asyncrl.runtime.restarts import RecentEvents

_WARN_EVERY_S = 60.0
_MOST_DROPS_IN_A_ROW = 10

log = logging.getLogger(__name__)


class EnvironmentTrouble(Exception):
    """An environment did what it should not. Where its own code raised, that exception is the cause.

    Attributes:
        env_idx: number of the environment in the run.
        step: environment steps it had made.
    """

    def __init__(self, env_idx: int, step: int, text: str, detail: str = "") -> None:
        super().__init__(f"environment {env_idx} {text} at its step {step}{detail and f': {detail}'}")
        self.env_idx = env_idx
        self.step = step

    @property
    def traceback(self) -> str:
        """The environment's own traceback, empty if none of its code raised."""
        return "" if self.__cause__ is None else environment_traceback(self.__cause__)


class EnvironmentCallFailed(EnvironmentTrouble):
    """The environment's own code raised."""


class NotFinite(EnvironmentTrouble):
    """A reward or an observation is infinite or not a number."""


class WrongObservation(EnvironmentTrouble):
    """An observation is not what the environment's space promises, so there is no room for it."""


class EnvironmentsKeepFailing(Exception):
    """Environments of one worker failed too often.

    Attributes:
        tracebacks: those of the first failure and of the last, as text.
    """

    def __init__(self, text: str, tracebacks: str) -> None:
        super().__init__(text)
        self.tracebacks = tracebacks


class FailureLog:
    """The failures of a worker's environments: decides whether the run goes on. Shared by the worker's groups."""

    def __init__(
        self, worker_idx: int, config: TrainConfig, control: RunControl, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts with none.

        Args:
            worker_idx: the worker.
            config: the run's settings.
            control: knows whether the run has finished an episode.
            clock: seconds that only go forward.
        """
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

    def note_episode(self, env_idx: int) -> None:
        """Notes that an environment has finished an episode, so environments work as they are meant to."""
        self._drops_in_a_row.pop(env_idx, None)
        self._control.has_finished_episode = True

    def note_failure(self, trouble: EnvironmentTrouble) -> None:
        """Notes that an environment is to be recreated.

        Raises:
            EnvironmentTrouble: the same, because the run cannot go on: no environment has ever finished an episode, or
                one cannot be helped.
            EnvironmentsKeepFailing: there were too many.
        """
        if not self._control.has_finished_episode or self._is_final(trouble):
            raise trouble
        now, limit, window_s = self._clock(), self._config.max_env_failures, self._config.restart_window_s
        self._recent.add(trouble, now)
        recent = self._recent.within_window(now)
        self._num_failures += 1
        if len(recent) > limit:
            raise EnvironmentsKeepFailing(
                f"environments of rollout worker {self._worker_idx} failed {len(recent)} times within "
                f"{window_s:g} s, --max_env_failures={limit} allows {limit}; the last: {trouble}",
                f"the first failure: {_details(recent[0])}\n\nthe last failure: {_details(trouble)}",
            )
        self.warn(
            f"{_details(trouble)}\nThe environment is recreated, and the samples of its unfinished episode are dropped."
        )

    def note_not_finite(self, trouble: NotFinite, episode_steps: int) -> bool:
        """Notes that a step is left out.

        Args:
            trouble: which one, and why.
            episode_steps: steps that were made before in its episode.

        Returns:
            Whether the environment has failed: it has given nothing else for a while.

        Raises:
            NotFinite: the same, if the user wants the run to end.
        """
        if self._is_final(trouble):
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

    def note_dropped(self, num_samples: int) -> None:
        """Notes that samples are not trained on."""
        self._num_dropped += num_samples

    def take(self) -> EnvironmentFailures:
        """What was noted since the last call."""
        taken = EnvironmentFailures(
            num_failures=self._num_failures,
            num_not_finite=self._num_not_finite,
            num_dropped=self._num_dropped,
            warnings=tuple(self._warnings),
        )
        self._num_failures = self._num_not_finite = self._num_dropped = 0
        self._warnings = []
        return taken

    def _is_final(self, trouble: EnvironmentTrouble) -> bool:
        if isinstance(trouble, NotFinite):
            return self._config.nan_policy == "fail"
        # A debugger without a terminal would stop every new environment in the same place.
        return isinstance(trouble, WrongObservation) or isinstance(trouble.__cause__, bdb.BdbQuit)

    def warn(self, text: str) -> None:
        """Has the user told something of an environment."""
        text = f"rollout worker {self._worker_idx}: {text}"
        log.info("%s", text)  # a child's log keeps it though the report that carries it may be dropped
        self._warnings.append(text)


@dataclass(frozen=True)
class LostStep:
    """A step that is no sample. Its environment was reset, and the row after it holds the first observation.

    Attributes:
        env: number of the environment in its group.
        episode_steps: steps that were made before in its episode.
        has_failed: the environment failed, so what is left of these is to be taken back, too.
    """

    env: int
    episode_steps: int
    has_failed: bool


@dataclass(frozen=True)
class Renewal:
    """How the environments of a group are recreated when they fail.

    Attributes:
        failures: decides whether they are.
        make: makes an environment, a vectorized one for a group that is vectorized.
        seed: of its first reset, from the environment's number in the run and the steps that were made in its place.
    """

    failures: FailureLog
    make: Callable[[], Any]
    seed: Callable[[int, int], int]


def _details(trouble: EnvironmentTrouble) -> str:
    return f"{trouble}\n{trouble.traceback}".rstrip()
