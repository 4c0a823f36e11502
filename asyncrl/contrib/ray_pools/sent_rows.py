"""Rows of a replay on their way from a pool to the learner's arena.

    learner's machine                                      pool
    ReplayLimits -- rows that may be made --> RowReceiver ----> RowSender: limits of the pool's workers
    ReplayStripes <------------- rows ------- RowReceiver <---- RowSender: rows that the workers have written

The pool's stripes are short: a row has left before another one takes its place, because the limit of a split counts
the rows that the learner has. Row n of a stripe is row n in both arenas. So a permit names the rows of a split: it
means the same to a pool that takes the place of a dead one, which begins with the first row that the learner lacks.

A row travels as bytes: all fields of the step, the observation after it, and the flags `truncated` of the row before,
because a step that is lost ends the episode there (`asyncrl.rollout.sinks.StripeSink`).
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayLimits, ReplayStripes
from asyncrl.config.plan import ResourcePlan
from asyncrl.contrib.ray_pools.batches import (
    BATCH_BYTES,
    Bytes,
    PackedField,
    PackedRecord,
    Sender,
    SentRows,
    pack_observations,
)
from asyncrl.run.setup import RunSetup

FIELDS = ("action", "reward", "terminated", "truncated", "valid", "policy_version")
"""Arrays of a step that travel beside observations: `replay.NAME`, indexed [split, row, ...]."""

_SPARE_ROWS = 4
"""A row that closes a dead worker's episodes, the row before the oldest one that is sent, and two that are written."""


def rows_in_flight(plan: ResourcePlan) -> int:
    """Rows that a split of a pool may make before the learner has them: in sync mode one."""
    return plan.remote.rows_in_flight if plan.async_rl else 1


def pool_specs(specs: Sequence[ArraySpec], plan: ResourcePlan) -> tuple[ArraySpec, ...]:
    """The arrays of a pool, from those of the learner: stripes as long as rows may be under way, and no priorities."""
    num_rows = rows_in_flight(plan) + _SPARE_ROWS
    own = {f"replay.{name}" for name in ("obs", *FIELDS)}
    return tuple(
        dataclasses.replace(spec, shape=(spec.shape[0], num_rows, *spec.shape[2:])) if spec.name in own else spec
        for spec in specs
        if spec.name != "replay.priority"
    )


class RowCodec:
    """Copies rows between stripes and bytes.

    Attributes:
        row_bytes: size of a row.
    """

    def __init__(self, setup: RunSetup) -> None:
        arena = setup.arena
        self._truncated = arena.array("replay.truncated")
        self._num_splits: int
        self._capacity: int
        self._num_flags: int
        self._num_splits, self._capacity, self._num_flags = self._truncated.shape
        self._step = PackedRecord([PackedField(self._flat(arena, name)) for name in FIELDS])
        self._obs = pack_observations(self._flat(arena, "obs"), setup)
        self._stop = self._num_flags + self._step.num_bytes
        self.row_bytes = self._stop + self._obs.num_bytes

    def _flat(self, arena: Arena, name: str) -> npt.NDArray[Any]:
        array = arena.array(f"replay.{name}")
        return array.reshape(self._num_splits * self._capacity, *array.shape[2:])

    def pack(self, rows: Sequence[tuple[int, int]]) -> Bytes:
        """The bytes of rows, given by split and number: [rows, row_bytes]."""
        content = np.empty((len(rows), self.row_bytes), np.uint8)
        for out, (split_idx, row) in zip(content, rows, strict=True):
            out[: self._num_flags] = self._truncated[split_idx, (row - 1) % self._capacity]
            self._step.pack(self._place(split_idx, row), out[self._num_flags : self._stop])
            self._obs.pack(self._place(split_idx, row + 1), out[self._stop :])
        return content

    def unpack(self, content: Bytes, split_idx: int, row: int) -> None:
        """Writes the bytes of one row, [row_bytes]."""
        flags = content[: self._num_flags].view(np.bool_)
        self._truncated[split_idx, (row - 1) % self._capacity] |= flags
        self._step.unpack(content[self._num_flags : self._stop], self._place(split_idx, row))
        self._obs.unpack(content[self._stop :], self._place(split_idx, row + 1))

    def pack_obs(self, split_idx: int, row: int) -> Bytes:
        """The bytes of the observations of a row."""
        out = np.empty(self._obs.num_bytes, np.uint8)
        self._obs.pack(self._place(split_idx, row), out)
        return out

    def unpack_obs(self, content: Bytes, split_idx: int, row: int) -> None:
        """Writes the result of `pack_obs`."""
        self._obs.unpack(content, self._place(split_idx, row))

    def _place(self, split_idx: int, row: int) -> int:
        return split_idx * self._capacity + row % self._capacity


class RowReceiver:
    """Takes the place of a pool's rollout workers for the learner: reads their limits and writes their rows."""

    def __init__(self, setup: RunSetup, workers: Sequence[int]) -> None:
        """Closes the episodes of the pool before this one, if there was one."""
        arena, num_splits = setup.arena, setup.plan.worker_num_splits
        self._stripes = ReplayStripes(arena)
        self._codec = RowCodec(setup)
        self._limits = ReplayLimits(arena)
        self._splits = [split for idx in workers for split in range(idx * num_splits, (idx + 1) * num_splits)]
        if setup.steps_at_restart is not None:
            for split_idx in self._splits:
                self._stripes.close_episodes(split_idx)
        self._permitted = self.start

    @property
    def start(self) -> dict[int, int]:
        """Rows of each split that the learner has."""
        return {split_idx: self._stripes.num_rows[split_idx] for split_idx in self._splits}

    def take_permits(self) -> list[tuple[int, int]]:
        limits = {split_idx: self._limits.max_rows(split_idx) for split_idx in self._splits}
        permits = [(split_idx, limit) for split_idx, limit in limits.items() if limit > self._permitted[split_idx]]
        self._permitted.update(permits)
        return permits

    def write(self, payload: SentRows, offset_s: float) -> None:
        """Writes one row after the other, because the sampler expects that one is being overwritten.

        Raises:
            RuntimeError: a row is not the next of its split.
        """
        stripes = self._stripes
        for position, ((split_idx, row), content) in enumerate(zip(payload.rows, payload.content, strict=True)):
            if row != stripes.num_rows[split_idx]:
                raise RuntimeError(
                    f"row {row} of split {split_idx} came, but {stripes.num_rows[split_idx]} is the next"
                )
            if (first_obs := payload.first_obs.get(position)) is not None:
                self._codec.unpack_obs(first_obs, split_idx, row)
            self._codec.unpack(content, split_idx, row)
            num_steps = np.count_nonzero(stripes.valid[split_idx, row % stripes.capacity])
            stripes.publish(split_idx, int(num_steps))


class RowSender(Sender):
    """Limits the workers of the pool, and packs the rows that they have written.

    No sample is dropped: a row that a dying worker did not finish is not a sample.
    """

    def __init__(self, setup: RunSetup, waker: Waker, workers: Mapping[int, Waker], start: Mapping[int, int]) -> None:
        super().__init__(setup, waker, workers, start)
        self._stripes = ReplayStripes(setup.arena)
        self._limits = ReplayLimits(setup.arena)
        self._codec = RowCodec(setup)
        for split_idx, num_rows in start.items():
            self._stripes.begin_at(split_idx, num_rows)
        self._splits = deque(start)
        self._sent = dict(start)
        self._last_obs: dict[int, Bytes] = {}
        self._most = max(1, BATCH_BYTES // self._codec.row_bytes)
        self._row_limits = [start.get(split_idx, 0) for split_idx in range(self._stripes.num_splits)]
        self._limits.set(self._row_limits, None)

    def use(self, permits: Sequence[tuple[int, int]]) -> None:
        for split_idx, limit in permits:
            self._row_limits[split_idx] = max(self._row_limits[split_idx], limit)
        if self._limits.set(self._row_limits, None):
            for worker in self._workers.values():
                worker.wake()

    def take(self, timeout_s: float) -> SentRows | None:
        deadline = time.monotonic() + timeout_s
        while (sent := self._take_now()) is None and (left_s := deadline - time.monotonic()) > 0.0:
            self._waker.wait(left_s)
        return sent

    def _take_now(self) -> SentRows | None:
        rows: list[tuple[int, int]] = []
        first_obs: dict[int, Bytes] = {}
        self._splits.rotate(-1)  # a full batch begins with another split each time
        for split_idx in self._splits:
            first = self._sent[split_idx]
            stop = min(self._stripes.num_rows[split_idx], first + self._most - len(rows))
            if stop > first:
                obs, last_obs = self._codec.pack_obs(split_idx, first), self._last_obs.get(split_idx)
                if last_obs is None or not np.array_equal(obs, last_obs):
                    first_obs[len(rows)] = obs
                rows += [(split_idx, row) for row in range(first, stop)]
                self._last_obs[split_idx] = self._codec.pack_obs(split_idx, stop)
                self._sent[split_idx] = stop
        if not rows:
            return None
        content = self._codec.pack(rows)
        for split_idx, row in rows:
            if max(0, row - 1) < self._stripes.first_whole_row(split_idx):
                raise RuntimeError(f"row {row} of split {split_idx} was overwritten before it was sent")
        return SentRows(rows, content, first_obs)
