"""The replay: a stripe of rows for each split, written by its worker, read by the learner; and how far each may go.

A stripe has R rows of E environments, which step together, so all environments share one cursor. Row r is at index
r % R and holds an observation and the step taken from it. Rows follow the rule of `asyncrl.buffers.layout`; one that is
not `valid` is never the start of a transition.

A worker writes row c and the observation of row c + 1, then moves the cursor to c + 1. Meanwhile it overwrites row
c - R and the observation of row c + 1 - R: with the cursor at c, the rows from c + 2 - R on are complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.buffers.inference_buffer import ActorOutput, Beginnings
from asyncrl.buffers.replay_blocks import deal_blocks, rows_of
from asyncrl.buffers.words import Words
from asyncrl.config.plan import ReplayPlan, ResourcePlan
from asyncrl.envs.spec import EnvSpec, stored_action
from asyncrl.storage.checkpoint import SavedReplay

_UNLIMITED = 2**62
_SPARE_ROWS = 2  # the row that is being written, and the one whose observation is being written
FIELDS = ("obs", "action", "reward", "terminated", "truncated", "valid")


UNKNOWN_VERSION = -1


class StepRows(NamedTuple):
    """Views of a slot or a stripe, into which one step of a split is written: `[E]`, and `next_obs [E, D]`.

    `idle` and `is_env_step` are for several agents (`asyncrl.buffers.layout`).
    """

    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    next_obs: npt.NDArray[Any]
    idle: npt.NDArray[np.bool_] | None = None
    is_env_step: npt.NDArray[np.bool_] | None = None


def rows_per_stripe(num_splits: int, envs_per_split: int, replay_size: int) -> int:
    """R: rows of a stripe, including those that cannot be read while the worker writes."""
    return -(-replay_size // (num_splits * envs_per_split)) + _SPARE_ROWS


def replay_limit_specs(num_splits: int) -> list[ArraySpec]:
    """Arrays of `ReplayLimits`."""
    return [ArraySpec("replay.row_limits", "int64", (num_splits,)), ArraySpec("replay.step_limit", "int64", (1,))]


def replay_specs(
    spec: EnvSpec,
    num_splits: int,
    envs_per_split: int,
    replay_size: int,
    is_prioritized: bool = False,
) -> list[ArraySpec]:
    """Arrays of a replay of `replay_size` environment steps, of the mailbox for actions, and of `ReplayLimits`."""
    envs = (num_splits, envs_per_split)
    rows = (num_splits, rows_per_stripe(num_splits, envs_per_split, replay_size), envs_per_split)
    action_dtype, action_shape = stored_action(spec.action)
    return [
        ArraySpec("replay.obs", spec.observation.row_dtype, (*rows, spec.observation.row_size)),
        ArraySpec("replay.action", action_dtype, (*rows, *action_shape)),
        ArraySpec("replay.reward", "float32", rows),
        *([ArraySpec("replay.priority", "float32", rows)] if is_prioritized else ()),
        *(ArraySpec(f"replay.{name}", "bool", rows) for name in ("terminated", "truncated", "valid")),
        ArraySpec("replay.policy_version", "int32", rows[:2]),
        *(ArraySpec(f"replay.{name}", "int64", (num_splits,)) for name in ("rows", "env_steps")),
        ArraySpec("mailbox.action", action_dtype, (*envs, *action_shape)),
        *replay_limit_specs(num_splits),
    ]


class ReplayStripes:
    """All stripes of a run, indexed `[split, row, env, ...]`.

    Attributes:
        num_splits, capacity, num_envs: stripes K, rows of each R, environments of a split E.
        num_rows: [K], the cursors: complete rows of each stripe. They never fall; only this class writes them.
        priority: with prioritized replay, what the learner draws by, 0 where it draws nothing; only the learner
            writes it.
        policy_version: [K, R] int32, of the policy that acted; `UNKNOWN_VERSION` in rows of a saved replay.
        obs, action, reward, terminated, truncated, valid: arrays `[K, R, E, ...]`; of a replay on a device all but
            `valid` are tensors (`asyncrl.modes.tensors.replay`).
    """

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    valid: npt.NDArray[np.bool_]
    num_rows: Words | list[int]
    _fields: dict[str, Any]
    _env_steps: Words | list[int]

    def __init__(self, arena: Arena) -> None:
        self._fields = {name: arena.array(f"replay.{name}") for name in FIELDS}
        self.obs, self.action, self.reward, self.terminated, self.truncated, self.valid = self._fields.values()
        self.priority = arena.find_array("replay.priority")
        if self.priority is not None:
            self._fields["priority"] = self.priority
        self.policy_version: npt.NDArray[np.int32] = arena.array("replay.policy_version")
        self.num_rows = arena.words("replay.rows")
        self._env_steps = arena.words("replay.env_steps")
        self._mail = arena.array("mailbox.action")
        self.num_splits: int
        self.capacity: int
        self.num_envs: int
        self.num_splits, self.capacity, self.num_envs = self.reward.shape
        self._no_state = np.empty((self.num_envs, 0), dtype=np.float32)

    def first_whole_row(self, split_idx: int) -> int:
        """Returns the oldest row that the worker cannot be overwriting now."""
        return max(0, self.num_rows[split_idx] + _SPARE_ROWS - self.capacity)

    def total_env_steps(self) -> int:
        """Environment steps of all complete rows, including overwritten ones."""
        return sum(self._env_steps)

    @property
    def num_held_steps(self) -> int:
        """Rows that can be read, times environments: environment steps, and a few rows that are not steps."""
        rows = (self.num_rows[split] - self.first_whole_row(split) for split in range(self.num_splits))
        return sum(rows) * self.num_envs

    def rows(self, split_idx: int, row: int) -> StepRows:
        """Views of a row, for its step (worker)."""
        at, after = row % self.capacity, (row + 1) % self.capacity
        return StepRows(
            reward=self.reward[split_idx, at],
            terminated=self.terminated[split_idx, at],
            truncated=self.truncated[split_idx, at],
            valid=self.valid[split_idx, at],
            next_obs=self.obs[split_idx, after],
        )

    def store_action(self, split_idx: int, row: int) -> npt.NDArray[Any]:
        """Copies the actions from the mailbox to a row and returns them (worker)."""
        action: npt.NDArray[Any] = self.action[split_idx, row % self.capacity]
        action[...] = self._mail[split_idx]
        return action

    def publish(self, split_idx: int, num_steps: int) -> None:
        """Completes the stripe's next row (worker); `num_steps` of its environments were stepped.

        The row comes first: a learner that sees the last step of the run saves all rows.
        """
        self.num_rows[split_idx] += 1
        self._env_steps[split_idx] += num_steps

    def begin_at(self, split_idx: int, num_rows: int) -> None:
        """Makes `num_rows` the number of the first row of an empty stripe, before its worker starts."""
        self.num_rows[split_idx] = num_rows

    def obs_at(self, place: tuple[int, int]) -> Any:
        """Returns the observations `[E, D]` of a (split, row), as a view."""
        return self.obs[place[0], place[1] % self.capacity]

    def inputs_at(self, place: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """See `InferenceBuffer`; states are `[E, 0]`."""
        return self.obs_at(place), self._no_state

    def beginnings(self, place: tuple[int, int]) -> Beginnings:
        """See `InferenceBuffer` and `TrajectorySlots.beginnings`."""
        (split_idx, row), begins = place, np.zeros(self.num_envs, dtype=np.bool_)
        if row > 0:
            before = split_idx, (row - 1) % self.capacity
            begins = self.terminated[before] | self.truncated[before] | ~self.valid[before]
        return Beginnings(split_idx, begins, takes_action=True)

    def answer(self, place: tuple[int, int], envs: slice, answer: ActorOutput, version: int, now: float) -> None:
        """See `InferenceBuffer`; writes the actions into the split's mailbox. The time is not kept."""
        self._mail[place[0]] = answer.action[envs]
        self.policy_version[place[0], place[1] % self.capacity] = version

    def close_episodes(self, split_idx: int) -> None:
        """Ends the open episodes of a worker that died (its successor, before its first row).

        The row after the last complete one becomes a final observation, at which no transition starts. So no transition
        leads from the dead worker's episodes into new ones, and its unpublished row is dropped. If none starts at the
        last complete row, nothing is open: a worker that dies before its first row leaves no row behind.
        """
        num_rows = self.num_rows[split_idx]
        if num_rows > 0 and self.valid[split_idx, (num_rows - 1) % self.capacity].any():
            self._close_after(split_idx, num_rows)
            self.num_rows[split_idx] = num_rows + 1

    def content(self) -> SavedReplay:
        """Returns all complete rows as views, oldest first (learner); workers may continue to write.

        Columns are named by field and stripe and have one observation more than rows; `env_steps` has the counters.
        """
        columns: dict[str, list[npt.NDArray[Any]]] = {"env_steps": [np.array(self._env_steps, dtype=np.int64)]}
        spans = []
        for split_idx in range(self.num_splits):
            stop = self.num_rows[split_idx]
            start = min(self.first_whole_row(split_idx), stop)
            spans.append((start, stop))
            for name, field in self._fields.items():
                columns[f"{name}.{split_idx}"] = _unwrap(field[split_idx], start, stop + (name == "obs"))

        def count_lost() -> list[int]:
            # Rows that were overwritten while they were read, at most all; the observation after them remains.
            return [
                min(max(0, self.first_whole_row(split_idx) - start), stop - start)
                for split_idx, (start, stop) in enumerate(spans)
            ]

        return SavedReplay(columns, count_lost)

    def restore(self, kept: SavedReplay) -> None:
        """Fills an empty replay with what `content` returned, before any worker starts.

        Open episodes are closed: the row after the last holds their last observation and starts no transition, so no
        transition leads into new episodes. If the saved replay has another number of splits or environments, its rows
        are dealt to the stripes (`asyncrl.buffers.replay_blocks`). Of more rows than fit the newest are kept.
        """
        self.policy_version.fill(UNKNOWN_VERSION)
        (counts,) = kept.columns["env_steps"]
        # Some fields may not have been saved, or with another size.
        shapes = {name: field.shape[3:] for name, field in self._fields.items()}
        columns = {
            name: parts
            for name, parts in kept.columns.items()
            if shapes.get(name.rpartition(".")[0]) == parts[0].shape[2:]
        }
        lost = kept.count_lost()
        lengths = [sum(map(len, columns[f"reward.{split_idx}"])) - lost[split_idx] for split_idx in range(len(counts))]
        num_envs = columns["reward.0"][0].shape[1]
        if (len(counts), num_envs) != (self.num_splits, self.num_envs):
            self._deal(columns, lengths, num_envs)
            self._env_steps[0] = int(counts.sum())
            return
        for split_idx, saved in enumerate(lengths):
            num_rows = min(saved, self.capacity - _SPARE_ROWS - 1)
            for name, field in self._fields.items():
                if f"{name}.{split_idx}" in columns:
                    _copy_newest(columns[f"{name}.{split_idx}"], field[split_idx, : num_rows + (name == "obs")])
            if num_rows > 0:
                self._close_after(split_idx, num_rows)
            self._env_steps[split_idx] = int(counts[split_idx])
            self.num_rows[split_idx] = num_rows + (num_rows > 0)

    def _deal(self, columns: Mapping[str, Sequence[npt.NDArray[Any]]], lengths: Sequence[int], num_envs: int) -> None:
        """Fills the stripes from those of another layout, of which the last `lengths` rows count.

        Columns of a stripe end at the same row; the first rows of shorter ones stay invalid.
        """
        dealt = deal_blocks(lengths, num_envs, self.num_splits * self.num_envs, self.capacity - _SPARE_ROWS)
        saved = {name: np.concatenate(parts) if len(parts) > 1 else parts[0] for name, parts in columns.items()}
        for split_idx in range(self.num_splits):
            of_stripe = dealt[split_idx * self.num_envs : (split_idx + 1) * self.num_envs]
            num_rows = self.num_rows[split_idx] = max(map(rows_of, of_stripe))
            for env, blocks in enumerate(of_stripe):
                row = num_rows - rows_of(blocks)
                for block in blocks:
                    for name, field in self._fields.items():
                        if (column := saved.get(f"{name}.{block.split}")) is None:
                            continue
                        is_obs = name == "obs"
                        found = column[len(column) - lengths[block.split] - is_obs :, block.env]
                        part = found[block.start : block.stop + is_obs]
                        field[split_idx, row : row + len(part), env] = part
                    row += block.stop - block.start + 1
                    self._close_after(split_idx, row - 1, env)

    def _close_after(self, split_idx: int, num_rows: int, envs: int | slice = slice(None)) -> None:
        """Truncates the episodes that are open after `num_rows` rows; the next row starts no transition."""
        last, after = (num_rows - 1) % self.capacity, num_rows % self.capacity
        was_open = self.valid[split_idx, last, envs] & ~self.terminated[split_idx, last, envs]
        self.truncated[split_idx, last, envs] |= was_open
        self.valid[split_idx, after, envs] = False


def _unwrap(column: npt.NDArray[Any], start: int, stop: int) -> list[npt.NDArray[Any]]:
    """Returns the rows `start:stop` of a ring as two consecutive views."""
    at = start % len(column)
    older = column[at : at + stop - start]
    return [older, column[: stop - start - len(older)]]


def _copy_newest(parts: Sequence[npt.NDArray[Any]], out: npt.NDArray[Any]) -> None:
    """Fills `out` with the last rows of a column."""
    rest = len(out)
    for part in reversed(parts):
        count = min(rest, len(part))
        out[rest - count : rest] = part[len(part) - count :]
        rest -= count


class ReplayLimits:
    """Words of the learner that limit how far workers may step."""

    def __init__(self, arena: Arena) -> None:
        self._rows = arena.words("replay.row_limits")
        self._steps = arena.words("replay.step_limit")

    def set(self, row_limits: Sequence[int | None] | None, step_limit: int | None) -> bool:
        """Sets the limits (learner); returns whether one of them rose.

        Args:
            row_limits: rows that each split may have, None where only steps are limited; None if they are everywhere.
            step_limit: environment steps of all splits together; None if only rows are limited.
        """
        step_limit = _UNLIMITED if step_limit is None else step_limit
        has_risen = step_limit > self._steps[0]
        self._steps[0] = step_limit
        for split_idx in range(len(self._rows)):
            limit = None if row_limits is None else row_limits[split_idx]
            limit = _UNLIMITED if limit is None else limit
            has_risen |= limit > self._rows[split_idx]
            self._rows[split_idx] = limit
        return has_risen

    def max_rows(self, split_idx: int) -> int:
        """Rows that a split may have."""
        return int(self._rows[split_idx])

    def may_step(self, split_idx: int, num_rows: int, total_env_steps: int) -> bool:
        """Whether a split with `num_rows` rows may make another one (worker); `total_env_steps` is of all splits."""
        return num_rows < self._rows[split_idx] and total_env_steps < self._steps[0]


class ReplayLimiter:
    """Keeps the ratio of updates to environment steps. Used by the learner alone.

    S environment steps were collected, counting began at S0, and U updates were made since. With the ratio r

        the learner waits while    floor(r * (S - S0)) - U < 1       nothing is due
        a worker waits while       S >= S0 + (U + slack) / r         learning is too far behind

    Both never wait for each other at the same time. If the learner waits, r * (S - S0) < U + 1; with a slack of more
    than 1 this is less than U + slack, so some worker may step. The slack is two steps of every environment, one update
    and `replay_ratio_tolerance`, so that a worker that may step still may after all others have stepped at the same
    time.

    Attributes:
        num_updates: U, updates that were made or skipped; the learner adds them.
    """

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
        self.num_updates = 0
        self._first_rows = [stripes.num_rows[split] for split in range(stripes.num_splits)]
        self._round = 0

    @classmethod
    def from_plan(
        cls, limits: ReplayLimits, replay: ReplayPlan, stripes: ReplayStripes, plan: ResourcePlan, most_env_steps: int
    ) -> ReplayLimiter:
        """The limiter of a run with this plan."""
        return cls(limits, replay, stripes, plan.async_rl and not plan.serial_mode, most_env_steps)

    @property
    def due(self) -> int:
        """Updates that may be made now. In sync mode every split makes its step first."""
        env_steps = self._stripes.total_env_steps()
        if not self._is_async and not self._is_round_over and env_steps < self._most_env_steps:
            return 0
        return max(0, math.floor(self._ratio * (env_steps - self._start)) - self.num_updates)

    @property
    def achieved_ratio(self) -> float | None:
        """Updates for each environment step since the warm-up, None before its end."""
        env_steps = self._stripes.total_env_steps()
        return self.num_updates / (env_steps - self._start) if env_steps > self._start else None

    def release(self) -> bool:
        """Lets the workers step as far as they may now: in sync mode one row further when no updates are due.

        Returns whether they may step further than before.
        """
        if self._is_async:
            limit = self._start + math.floor((self.num_updates + self._slack) / self._ratio)
            return self._limits.set(None, min(limit, self._most_env_steps))
        is_over = self._stripes.total_env_steps() >= self._most_env_steps
        if self._is_round_over and self.due == 0 and not is_over:
            self._round += 1
        return self._limits.set([first + self._round for first in self._first_rows], self._most_env_steps)

    @property
    def _is_round_over(self) -> bool:
        rows = (self._stripes.num_rows[split] - first for split, first in enumerate(self._first_rows))
        return min(rows) >= self._round

    def state_dict(self) -> dict[str, int | float]:
        """The counts that continue with a saved replay: updates, steps at which counting began, and the ratio."""
        return {"updates": self.num_updates, "start": self._start, "ratio": float(self._ratio)}

    def load_state_dict(self, counters: Mapping[str, int | float]) -> None:
        """Continues the counts of a restored replay; with another ratio counting begins again."""
        if Fraction(str(counters["ratio"])) == self._ratio:
            self.num_updates, self._start = int(counters["updates"]), int(counters["start"])
        else:
            self.begin_after(0)

    def begin_after(self, env_steps: int) -> None:
        """Counts updates from so many further environment steps on, or from the end of the warm-up if it is later."""
        self.num_updates, self._start = 0, max(self._start, self._stripes.total_env_steps() + env_steps)
