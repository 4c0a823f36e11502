"""What the core must know of rollout workers on other machines (`Section.remote_workers`)."""

from __future__ import annotations

from typing import NamedTuple


class RemoteWorkers(NamedTuple):
    """Rollout workers in pools on other machines. For each pool a process of this machine, the bridge, takes its place.

    Attributes:
        num_pools: number of pools.
        workers_per_pool: rollout workers of each pool.
        slots_in_flight: slots that each of their splits holds at a time in async.
        rows_in_flight: rows of a replay that each of their splits may make in async before the learner has them.
        main: `module:function` of the process of a bridge. It gets the setup, the indices of the pool's workers, what
            wakes the bridge and the learner, and a `ReportSender`.
        limiter: `module:class` of a subclass of `asyncrl.buffers.replay.ReplayLimiter`.
        setting: name of the setting that is the number of pools.
    """

    num_pools: int = 0
    workers_per_pool: int = 0
    slots_in_flight: int = 1
    rows_in_flight: int = 1
    main: str = ""
    limiter: str = "asyncrl.buffers.replay:ReplayLimiter"
    setting: str = ""

    @property
    def num_workers(self) -> int:
        """Rollout workers of all pools."""
        return self.num_pools * self.workers_per_pool


NO_REMOTE_WORKERS = RemoteWorkers()
