"""What a recorded run of sentinels must have given to the learner, row by row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from probe_envs import Sentinel
from run_helper import FinishedRun


class Row(NamedTuple):
    obs: tuple[int, int, int]
    valid: bool
    terminated: bool
    truncated: bool


class RowsOfOneEnvironment:
    """What must be stored of one sentinel, row by row, however the rows are divided into trajectories."""

    def __init__(self, number: int) -> None:
        self._rows = self._play(number)
        self._next = next(self._rows)

    @staticmethod
    def _play(number: int) -> Iterator[Row]:
        for episode in itertools.count():
            length = Sentinel.length(number, episode)
            is_cut = Sentinel.is_truncated(number, episode)
            for step in range(length):
                is_last = step == length - 1
                yield Row((number, episode, step), True, is_last and not is_cut, is_last and is_cut)
            if is_cut:
                yield Row((number, episode, length), False, False, False)

    def take(self, num_rows: int) -> tuple[list[Row], Row]:
        """The rows of the next trajectory, and the one that its last observation shows.

        A final observation there has served its purpose; the next trajectory begins after it.
        """
        rows = []
        for _ in range(num_rows):
            rows.append(self._next)
            self._next = next(self._rows)
        shown = self._next
        if not shown.valid:
            self._next = next(self._rows)
        return rows, shown


def check_rows(finished: FinishedRun) -> set[int]:
    """All rows of an environment follow one another without a gap, and each has the action that was taken.

    Returns:
        The environments' numbers.
    """
    environments: dict[int, RowsOfOneEnvironment] = {}
    for data in finished.datasets:
        for column in range(data["reward"].shape[1]):
            number = int(data["obs"][0, column, 0])
            rows, shown = environments.setdefault(number, RowsOfOneEnvironment(number)).take(finished.plan.rollout)
            np.testing.assert_array_equal(data["obs"][:, column], [row.obs for row in rows] + [shown.obs])
            for name in ("valid", "terminated", "truncated"):
                np.testing.assert_array_equal(data[name][:, column], [getattr(row, name) for row in rows], name)
        valid = data["valid"]
        taken = np.float32(Sentinel.BOUND) * np.clip(data["action"][valid], -1.0, 1.0)
        np.testing.assert_array_equal(data["reward"][valid], Sentinel.echo(taken))
    assert finished.outcome.env_steps == sum(int(data["valid"].sum()) for data in finished.datasets)
    return set(environments)
