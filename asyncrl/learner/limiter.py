"""Keeps the ratio of updates to environment steps in learning from a replay.

S environment steps were collected, counting began at S0, and U updates were made since. With the ratio r

    the learner waits while    floor(r * (S - S0)) - U < 1       nothing is due
    a worker waits while       S >= S0 + (U + slack) / r         learning is too far behind

Both never wait for each other at the same time. If the learner waits, r * (S - S0) < U + 1; with a slack of more than
1 this is less than U + slack, so some worker may step. The slack is two steps of every environment, one update and
`replay_ratio_tolerance`, so that a worker that may step still may after all others have stepped at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from asyncrl.buffers.replay import ReplayLimits, ReplayStripes
from asyncrl.config.plan import ReplayPlan


class ReplayLimiter:
    """Counts updates, and limits how far workers may step. Used by the learner alone."""

    def __init__(
        self, limits: ReplayLimits, replay: ReplayPlan, stripes: ReplayStripes, is_async: bool, most_env_steps: int
    ) -> None:
        """Starts with the warm-up, before any worker starts; for restored rows call `load_state_dict`.

        Without `is_async`, workers step in rounds of one row for each split, not while updates are made. They stop at
        `most_env_steps`, counted as by the stripes.
        """
        self._limits = limits
        self._stripes = stripes
        self._ratio = Fraction(str(replay.updates_per_env_step))
        num_envs = stripes.num_splits * stripes.num_envs
        self._slack = math.ceil(self._ratio * 2 * num_envs + 1 + Fraction(str(replay.tolerance)))
        self._is_async = is_async
        self._most_env_steps = most_env_steps
        self._start = replay.warmup_env_steps
        self._updates = 0
        self._first_rows = [stripes.num_rows[split] for split in range(stripes.num_splits)]
        self._round = 0

    @property
    def due(self) -> int:
        """Updates that may be made now. In sync mode there are none before every split has made its step."""
        env_steps = self._stripes.total_env_steps()
        if not self._is_async and not self._is_round_over and env_steps < self._most_env_steps:
            return 0
        return max(0, math.floor(self._ratio * (env_steps - self._start)) - self._updates)

    def count(self, num_updates: int) -> None:
        """Counts updates that were made or skipped."""
        self._updates += num_updates

    @property
    def achieved_ratio(self) -> float | None:
        """Updates for each environment step since the warm-up, None before its end."""
        env_steps = self._stripes.total_env_steps()
        return self._updates / (env_steps - self._start) if env_steps > self._start else None

    def release(self) -> bool:
        """Lets the workers step as far as they may now: in sync mode one row further when no updates are due.

        Returns:
            Whether they may step further than before.
        """
        if self._is_async:
            limit = self._start + math.floor((self._updates + self._slack) / self._ratio)
            return self._limits.set(None, min(limit, self._most_env_steps))
        if self._is_round_over and self.due == 0:
            self._round += 1
        return self._limits.set([first + self._round for first in self._first_rows], self._most_env_steps)

    @property
    def _is_round_over(self) -> bool:
        rows = (self._stripes.num_rows[split] - first for split, first in enumerate(self._first_rows))
        return min(rows) >= self._round

    def state_dict(self) -> dict[str, int | float]:
        """The counts that continue with a saved replay: updates, steps at which counting began, and the ratio."""
        return {"updates": self._updates, "start": self._start, "ratio": float(self._ratio)}

    def load_state_dict(self, counters: Mapping[str, int | float]) -> None:
        """Continues the counts of a restored replay; with another ratio counting begins again."""
        if Fraction(str(counters["ratio"])) == self._ratio:
            self._updates, self._start = int(counters["updates"]), int(counters["start"])
        else:
            self._updates, self._start = 0, self._stripes.total_env_steps()
