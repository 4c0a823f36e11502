"""The arrays of goals beside the rows of a replay."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.buffers.replay import ReplayStripes
from asyncrl.contrib.hindsight.goals import desired_goal_place
from asyncrl.envs.spec import EnvSpec
from asyncrl.storage.checkpoint import SavedReplay


def goal_specs(num_goals: int, spec: EnvSpec, rows: tuple[int, ...]) -> list[ArraySpec]:
    """Arrays of goals, in addition to those of the plain replay."""
    place = desired_goal_place(spec.observation)
    return [
        ArraySpec("replay.goal_reward", "float32", (*rows, num_goals)),
        ArraySpec("replay.goal", "float32", (*rows, num_goals, place.stop - place.start)),
        ArraySpec("replay.goal_terminated", "bool", (*rows, num_goals)),
    ]


class GoalStripes(ReplayStripes):
    """All stripes of a run with k other goals of each step, and its results if they had been desired.

    Attributes:
        goal: [K, R, E, k, G] float32.
        goal_reward: [K, R, E, k] float32. While a reward is NaN, goal and `goal_terminated` are meaningless.
        goal_terminated: [K, R, E, k] bool.
    """

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.goal_reward: npt.NDArray[np.float32] = arena.array("replay.goal_reward")
        self.goal: npt.NDArray[np.float32] = arena.array("replay.goal")
        self.goal_terminated: npt.NDArray[np.bool_] = arena.array("replay.goal_terminated")
        # In this order they are saved: the worker writes a reward last, so it is read first.
        for name in ("goal_reward", "goal", "goal_terminated"):
            self._fields[name] = getattr(self, name)

    def restore(self, kept: SavedReplay) -> None:
        """See `ReplayStripes`; steps that were saved without goals, or with another number of them, have none."""
        self.goal_reward.fill(np.nan)
        super().restore(kept)
