"""How far rollout workers on other machines may step ahead of the rows that the learner's replay has."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable

from asyncrl.buffers.replay import ReplayLimiter, ReplayLimits, ReplayStripes
from asyncrl.config.plan import ReplayPlan, ResourcePlan
from asyncrl.contrib.ray_pools.sent_rows import rows_in_flight

LOST_AFTER_S = 60.0
"""Rows that a split was given this long ago, without one that has arrived since, do not hold back the others."""


class RemoteReplayLimiter(ReplayLimiter):
    """Limits rows of remote splits, one by one, where `ReplayLimiter` limits the steps of all splits together.

    In async mode a worker of another machine cannot see how many steps the others have made. So the learner gives each
    remote split rows in advance, at most `rows_in_flight` that it does not have yet, and counts each of them as a step
    of every environment of the split until it arrives. The steps of local workers and of rows in advance together stay
    below the limit, so the ratio of updates holds with any network. The slack is larger by all rows that can be given
    in advance: neither a slow network nor a pool that has died, whose rows do not arrive, lets the other workers wait.

    While updates are due, which means that workers wait for the learner, a remote split that has more rows than all
    local splits gets none, so local workers get their share.

    Rows that do not arrive for `LOST_AFTER_S`, because their pool is gone, are not counted any more: the others finish
    the run. If they arrive later, the run is longer by these rows.

    In sync mode every split, local or remote, makes one row in each round, as without other machines.
    """

    def __init__(
        self,
        limits: ReplayLimits,
        replay: ReplayPlan,
        stripes: ReplayStripes,
        is_async: bool,
        most_env_steps: int,
        num_local_splits: int,
        rows_in_flight: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The splits from number `num_local_splits` on are remote; other arguments are those of `ReplayLimiter`."""
        super().__init__(limits, replay, stripes, is_async, most_env_steps)
        self._local, self._remote = range(num_local_splits), range(num_local_splits, stripes.num_splits)
        self._rows_in_flight = rows_in_flight
        self._slack += math.ceil(self._ratio * rows_in_flight * len(self._remote) * stripes.num_envs)
        self._given = {split: self._first_rows[split] for split in self._remote}
        self._clock = clock
        self._arrived = {split: (self._first_rows[split], clock()) for split in self._remote}  # rows, and since when

    @classmethod
    def from_plan(
        cls, limits: ReplayLimits, replay: ReplayPlan, stripes: ReplayStripes, plan: ResourcePlan, most_env_steps: int
    ) -> RemoteReplayLimiter:
        remote = plan.num_local_splits, rows_in_flight(plan)
        return cls(limits, replay, stripes, plan.async_rl, most_env_steps, *remote)

    def release(self) -> bool:
        if not self._is_async:
            return super().release()
        stripes, num_envs, given, now = self._stripes, self._stripes.num_envs, self._given, self._clock()
        # Rows are read before steps: one that arrives in between is counted twice, so the limit is kept.
        in_flight, num_in_flight = {}, 0
        for split in self._remote:
            num_rows = stripes.num_rows[split]
            given[split] = max(given[split], num_rows)  # a row that closes episodes is not given
            in_flight[split] = given[split] - num_rows
            arrived, since = self._arrived[split]
            if num_rows != arrived or in_flight[split] == 0:
                self._arrived[split] = num_rows, now
                since = now
            if now - since < LOST_AFTER_S:
                num_in_flight += in_flight[split]
        limit = self._start + math.floor((self.num_updates + self._slack) / self._ratio)
        limit = min(limit, self._most_env_steps)
        room = limit - stripes.total_env_steps() - num_envs * num_in_flight
        most_local_rows = max((stripes.num_rows[split] - self._first_rows[split] for split in self._local), default=0)
        is_behind = len(self._local) > 0 and self.due > 0
        # Splits with the fewest rows in flight are first, and among these the ones with the fewest rows.
        order = [
            (count, given[split] - self._first_rows[split], split)
            for split, count in in_flight.items()
            if count < self._rows_in_flight
        ]
        heapq.heapify(order)
        while room > 0 and order:
            count, num_given, split = heapq.heappop(order)
            if num_given > most_local_rows and is_behind:
                continue
            room -= num_envs
            num_in_flight += 1
            given[split] += 1
            if count + 1 < self._rows_in_flight:
                heapq.heappush(order, (count + 1, num_given + 1, split))
        row_limits = [None if split in self._local else given[split] for split in range(stripes.num_splits)]
        return self._limits.set(row_limits, limit - num_envs * num_in_flight)
