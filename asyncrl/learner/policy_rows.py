"""With several policies: copies the rows of one policy out of slots into datasets.

    slot --PolicyRows.add--> staging buffers (A + 1, a ring) --PolicyRows.take--> Dataset

A column of a slot that one policy plays is copied as it is. Of other columns the segments are copied: a segment is a
maximal run of rows of this policy. Segments are put behind one another into the columns of a dataset. After a segment
whose episode continues comes the observation and the value of its next row, in a row that is not `valid`, and the
last row of the segment is `truncated`; at the end of a column the extra row T holds them. A segment that does not fit
into the rest of a column is cut in the same way, and continues in another column.

The row after such an end begins an episode (`Dataset.begins`), so a recurrent state is zero there. A segment that
begins with another state begins at row 0 of a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.learner.dataset import Dataset, lag_metrics
from asyncrl.observers.reports import LagMetrics

_WITH_NEXT_ROW = ("obs", "value")
_FLAGS = ("valid", "terminated", "truncated", "idle", "is_env_step")


class _Piece(NamedTuple):
    """Rows of a slot, and their place in a dataset.

    Attributes:
        dataset: number of the dataset.
        row: first row in it.
        columns: columns in it.
        first: first row in the slot.
        source: columns in the slot.
        num_rows: number of rows.
        goes_on: whether the episode continues after the last row.
    """

    dataset: int
    row: int
    columns: slice
    first: int
    source: slice | npt.NDArray[np.intp]
    num_rows: int
    goes_on: bool = False


@dataclass
class _Cursor:
    """Where the next rows may go.

    Attributes:
        dataset: number of the dataset that is being collected.
        column: first column without rows.
        open: column and next row of the other columns that have room.
    """

    dataset: int = 0
    column: int = 0
    open: list[tuple[int, int]] = field(default_factory=list)

    def advance(self) -> None:
        """Goes on to the next dataset."""
        self.dataset, self.column, self.open = self.dataset + 1, 0, []


class _Staging:
    """The memory of one dataset.

    Attributes:
        fields: arrays `[T or T+1, C, ...]` by the names in `Dataset`.
        chosen_at: [T, C] float64.
        num_columns: columns that have rows, once the dataset is complete.
    """

    def __init__(self, shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self.fields = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
        self.chosen_at: npt.NDArray[np.float64] = np.zeros(self.fields["reward"].shape)
        self.num_columns = 0
        self._dataset = Dataset(**{name: torch.from_numpy(array) for name, array in self.fields.items()})

    def clear(self) -> None:
        """Marks all rows as unused; their other fields keep old values, which are finite."""
        for name in _FLAGS:
            if name in self.fields:
                self.fields[name].fill(False)
        self.num_columns = self.chosen_at.shape[1]

    @property
    def dataset(self) -> Dataset:
        if self.num_columns == self.chosen_at.shape[1]:
            return self._dataset
        tensors = self._dataset.tensors()
        return Dataset(**{name: tensor[:, : self.num_columns].contiguous() for name, tensor in tensors.items()})


class PolicyRows:
    """The rows of one policy, in datasets of at most C columns. One thread at a time may call it.

    Attributes:
        dropped_samples: valid rows dropped so far because they were too old.
    """

    def __init__(
        self,
        policy_idx: int,
        slots: Any,
        columns_per_dataset: int | None,
        num_datasets: int,
        recurrence: int | None = None,
        max_policy_lag: int = 0,
        steady_lag_bound: int = 0,
        row_shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Allocates the staging buffers.

        Args:
            policy_idx: number of the policy.
            slots: the slots, with `policy_idx` [S, T+1, C] int16 and `policy_version` [S, T+1, C] int64.
            columns_per_dataset: None in sync: one dataset holds the rows of all slots, and ends with `complete`.
            num_datasets: datasets that may wait or be collected while one is trained on; not read in sync.
            recurrence: steps between two recurrent states that are copied; None for a whole trajectory.
            max_policy_lag: older rows are dropped.
            steady_lag_bound: the largest lag that the plan expects while workers keep pace.
            row_shapes: the policy's own row of each field, which is the beginning of that in the slots; None if all
                policies have the same spaces.
        """
        self._policy_idx, self._slots = policy_idx, slots
        self._max_policy_lag, self._steady_lag_bound = max_policy_lag, steady_lag_bound
        num_slots, self._rollout, num_columns = slots.reward.shape
        self._recurrence = recurrence or self._rollout
        if columns_per_dataset is None:
            columns_per_dataset, num_buffers = _most_columns(num_slots * num_columns), 1
        else:
            # Besides the dataset that is being collected there is room for a slot, however its rows are packed.
            num_buffers = max(num_datasets, -(-_most_columns(num_columns) // columns_per_dataset)) + 1
        self._num_columns = columns_per_dataset
        self._sources = {item.name: getattr(slots, item.name) for item in fields(Dataset)}
        own = row_shapes or {}
        beginnings = {name: (..., *map(slice, shape)) for name, shape in own.items()}
        self._sources = {
            name: array[beginnings.get(name, ...)] for name, array in self._sources.items() if array is not None
        }
        num_rows = {
            "rnn_state": self._rollout // self._recurrence,
            **dict.fromkeys(_WITH_NEXT_ROW, self._rollout + 1),
        }
        shapes = {
            name: ((num_rows.get(name, self._rollout), self._num_columns, *array.shape[3:]), array.dtype)
            for name, array in self._sources.items()
        }
        self._staging = [_Staging(shapes) for _ in range(num_buffers)]
        self._cursor = _Cursor()
        self._num_begun = self._num_taken = self._num_released = 0
        self.dropped_samples = 0

    def add(self, slot: int) -> bool:
        """Copies all rows of the policy in a slot; copies nothing and returns False if there is no room for them.

        Raises:
            SlotStateError: a row of the slot was not written since its worker began it.
        """
        pieces, cursor = self._plan(slot)
        if pieces and pieces[-1].dataset - self._num_released >= len(self._staging):
            return False
        self._slots.require_written(slot)
        for piece in pieces:
            self._copy(slot, piece)
        self._cursor = cursor
        return True

    def complete(self) -> None:
        """Ends the dataset that is being collected, however many rows it has (sync)."""
        self._staging_of(self._cursor.dataset).num_columns = self._cursor.column
        self._cursor.advance()

    def take(self, learner_version: int) -> Dataset | None:
        """The oldest complete dataset, which keeps its memory until `release`; None without one.

        Drops rows that are more than `max_policy_lag` versions older than `learner_version`, which will train on them,
        each with the rest of its episode.
        """
        if self._num_taken == self._cursor.dataset:
            return None
        if self._num_taken > self._num_released:
            raise RuntimeError("a dataset was taken before the previous one was released")
        staging = self._staging_of(self._num_taken)
        self._num_taken += 1
        rows = staging.fields
        is_live = rows["valid"] | rows.get("idle", False)  # samples, and rows in which the agent waits
        is_dropped = is_live & (rows["policy_version"] < learner_version - self._max_policy_lag)
        if is_dropped.any():
            for row in range(1, self._rollout):
                is_dropped[row] |= is_dropped[row - 1] & is_live[row - 1] & ~rows["terminated"][row - 1]
            self.dropped_samples += int((is_dropped & rows["valid"]).sum())
            rows["truncated"][:-1] |= is_dropped[1:] & is_live[:-1]
            for name in _FLAGS:
                if name in rows:
                    rows[name][is_dropped] = False
            is_live &= ~is_dropped
        # A recurrent model also runs over the other rows, with the statistics of a version that must be known.
        rows["policy_version"][~is_live] = learner_version
        return staging.dataset

    def lag(self, learner_version: int) -> LagMetrics:
        """Age of the valid samples of the dataset that was taken; call it when training begins."""
        staging = self._staging_of(self._num_taken - 1)
        valid = staging.fields["valid"]
        lags = learner_version - staging.fields["policy_version"][valid]
        return lag_metrics(lags, staging.chosen_at[valid], self._steady_lag_bound)

    def release(self) -> None:
        """Allows the dataset that was taken to be overwritten."""
        self._num_released = self._num_taken

    def _plan(self, slot: int) -> tuple[list[_Piece], _Cursor]:
        """Where the rows of a slot go, in the order in which they are copied, and the cursor after that."""
        rollout = self._rollout
        is_own = self._slots.policy_idx[slot, :rollout] == self._policy_idx
        num_own = is_own.sum(0)
        cursor = replace(self._cursor, open=list(self._cursor.open))
        pieces: list[_Piece] = []
        whole = np.flatnonzero(num_own == rollout)
        while len(whole) > 0:
            count = min(len(whole), self._num_columns - cursor.column)
            if count == 0:  # part of a column may still fill an open one
                pieces += self._pieces(slot, int(whole[0]), 0, rollout, cursor)
                whole = whole[1:]
                continue
            columns = slice(cursor.column, cursor.column + count)
            pieces.append(_Piece(cursor.dataset, 0, columns, 0, _as_slice(whole[:count]), rollout))
            cursor.column, whole = columns.stop, whole[count:]
            if cursor.column == self._num_columns and not cursor.open:
                cursor.advance()
        for column in np.flatnonzero((num_own > 0) & (num_own < rollout)).tolist():
            edges = np.flatnonzero(np.diff(is_own[:, column], prepend=False, append=False)).tolist()
            for first, stop in zip(edges[::2], edges[1::2], strict=True):
                pieces += self._pieces(slot, column, first, stop, cursor)
        return pieces, cursor

    def _pieces(self, slot: int, source: int, first: int, stop: int, cursor: _Cursor) -> list[_Piece]:
        """Finds places for the rows `first` to `stop` of a column, and moves the cursor."""
        slots, pieces = self._slots, []
        while first < stop:
            may_follow = not slots.rnn_state[slot, first, source].any()
            ends = [
                (self._piece_end(slot, source, first, stop, self._rollout - row), row, column)
                for column, row in (cursor.open if may_follow else ())
            ]
            # The column that takes most of the rows, and of several the fullest: with the first one, recurrent policies
            # with episodes of half a rollout leave 24 % of their rows unused and not 9 %.
            end, row, column = max(ends, default=(first, 0, 0))
            if end > first:
                cursor.open.remove((column, row))
            else:
                if cursor.column == self._num_columns:
                    cursor.advance()
                column, row, end = cursor.column, 0, stop
                cursor.column += 1
            last = (slot, end - 1, source)
            is_live = slots.valid[last] or (slots.idle is not None and slots.idle[last])
            goes_on = bool(is_live and not slots.terminated[last])
            places = slice(column, column + 1), slice(source, source + 1)
            pieces.append(_Piece(cursor.dataset, row, places[0], first, places[1], end - first, goes_on))
            next_row = row + end - first + int(goes_on)
            if next_row < self._rollout:
                cursor.open.append((column, next_row))
            if cursor.column == self._num_columns and not cursor.open:
                cursor.advance()
            first = end
        return pieces

    def _piece_end(self, slot: int, source: int, first: int, stop: int, room: int) -> int:
        """Where a segment is cut so that it fits: not between an action and the rows in which the agent then waits."""
        end = min(stop, first + room)
        if end < stop and self._slots.idle is not None:
            while end > first and self._slots.idle[slot, end, source]:
                end -= 1
        return end

    def _staging_of(self, dataset: int) -> _Staging:
        """The memory of a dataset, cleared when it is asked for first."""
        while self._num_begun <= dataset:
            self._staging[self._num_begun % len(self._staging)].clear()
            self._num_begun += 1
        return self._staging[dataset % len(self._staging)]

    def _copy(self, slot: int, piece: _Piece) -> None:
        staging, num_rows = self._staging_of(piece.dataset), piece.num_rows
        row, first, stop, every = piece.row, piece.first, piece.row + num_rows, self._recurrence
        for name, target in staging.fields.items():
            rows = self._sources[name][slot]
            if name == "rnn_state":
                states = slice(-(-row // every), -(-stop // every))
                begin = first + states.start * every - row
                target[states, piece.columns] = rows[begin : first + num_rows : every, piece.source]
                continue
            count = num_rows + int(name in _WITH_NEXT_ROW)
            target[row : row + count, piece.columns] = rows[first : first + count, piece.source]
        staging.chosen_at[row:stop, piece.columns] = self._slots.chosen_at[slot, first : first + num_rows, None]
        if piece.goes_on and stop < self._rollout:
            staging.fields["truncated"][stop - 1, piece.columns] = True


def _most_columns(num_source_columns: int) -> int:
    """The most columns into which the rows of so many columns of slots are packed.

    Each one may begin a column in the middle of an episode and leave it unfinished; the rows would fill as many, and
    twice as many where a segment is not cut because the agent waits.
    """
    return 3 * num_source_columns + 1


def _as_slice(columns: npt.NDArray[np.intp]) -> slice | npt.NDArray[np.intp]:
    """The same ascending columns as a slice if their distances are equal: NumPy then copies them once and not twice."""
    steps = np.diff(columns)
    if len(steps) == 0 or (steps == steps[0]).all():
        step = int(steps[0]) if len(steps) > 0 else 1
        return slice(int(columns[0]), int(columns[-1]) + 1, step)
    return columns
