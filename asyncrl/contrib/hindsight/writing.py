"""Stores other goals for the steps of an episode that has ended (HER, Andrychowicz et al. 2017, arXiv:1707.01495).

For each step k goals are drawn among those that the same episode achieved at this step or later (the strategy
`future`), with the rewards that the environment computes for them. They are stored beside the row of the step
(`asyncrl.contrib.hindsight.stripes`), and the sampler replaces the desired goals of what it draws.

This is done where the environment is. So the learner never runs the user's code, and `info` is at hand, which rewards
may depend on. Rows of their own would have to be written as columns of their own, because all environments of a stripe
share its cursor; beside the row they need no further observations, are no steps, and follow no other row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayLimits, StepRows
from asyncrl.contrib.hindsight.goals import ACHIEVED_GOAL, COMPUTE_REWARD, COMPUTE_TERMINATED
from asyncrl.contrib.hindsight.stripes import GoalStripes
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS
from asyncrl.envs.interface import find_method
from asyncrl.processes.seeding import derive_seed
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.sinks import Place, StripeSink

_STREAM = 10  # see `asyncrl.processes.seeding.Stream`


class GoalStep(NamedTuple):
    """What a step has achieved, as the environment returned it: copies, because it may change its arrays later."""

    achieved_goal: npt.NDArray[Any]
    info: dict[str, Any]


class GoalEnvGroup(EnvGroup):
    """Single environments with goals.

    Attributes:
        last_steps: the newest step of each environment, by its position.
        first_seed: seed of the first environment.
    """

    def __init__(self, envs: Sequence[Any], seeds: Sequence[int], *args: Any) -> None:
        """Takes the arguments of `EnvGroup`."""
        super().__init__(envs, seeds, *args)
        self.first_seed = seeds[0]
        self.last_steps: dict[int, GoalStep] = {}
        self._methods: dict[int, dict[str, Callable[..., Any] | None]] = {}
        for env in range(len(self._envs)):
            self._keep_steps(env)

    def judge(self, env: int, step: GoalStep, goal: npt.NDArray[Any]) -> tuple[float, bool]:
        """The reward of a step if `goal` had been desired, and whether it would have ended the episode.

        Raises:
            EnvironmentTrouble: the environment raised.
        """
        results = []
        for name, method in self._methods[env].items():
            try:
                found = False if method is None else method(step.achieved_goal, goal, step.info)
                results.append(np.asarray(found, dtype=np.float32).item())
            except ENVIRONMENT_EXCEPTIONS as error:
                raise self._call_failed(env, name, error) from error
        reward, is_over = results
        return reward, bool(is_over)

    def _keep_steps(self, env: int) -> None:
        names = (COMPUTE_REWARD, COMPUTE_TERMINATED)
        self._methods[env] = {name: find_method(self._envs[env], name) for name in names}
        step = self._steps[env]

        def keeping_step(action: Any) -> Any:
            result = step(action)
            self.last_steps[env] = GoalStep(np.array(result[0][ACHIEVED_GOAL]), _info_copy(result[4]))
            return result

        self._steps[env] = keeping_step

    def _recreate(self, position: int) -> None:
        super()._recreate(position)
        self._keep_steps(position)


def _info_copy(info: dict[str, Any]) -> dict[str, Any]:
    """A deep copy; objects that cannot be copied, such as locks, stay the environment's own."""
    try:
        return dict(copy.deepcopy(info))
    except Exception:
        return {name: _copy_if_possible(value) for name, value in info.items()}


def _copy_if_possible(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


class HindsightSink(StripeSink):
    """Writes rows of environments with goals, and other goals for the steps of each episode when it ends."""

    _group: GoalEnvGroup

    def __init__(
        self,
        split_idx: int,
        group: GoalEnvGroup,
        stripes: GoalStripes,
        limits: ReplayLimits,
        learner: Waker | None = None,
    ) -> None:
        """Resets the environments as `StripeSink` does."""
        super().__init__(split_idx, group, stripes, limits, learner)
        self._goals, self._rewards, self._ends = stripes.goal, stripes.goal_reward, stripes.goal_terminated
        self._random = np.random.default_rng(derive_seed(group.first_seed, _STREAM))
        self._episodes: list[list[GoalStep]] = [[] for _ in range(stripes.num_envs)]

    def close_row(self, place: Place, rows: StepRows, num_steps: int) -> None:
        """Stores goals before the row is published: a learner that sees an episode's end sees its goals."""
        row = self.num_rows
        self._rewards[self._split_idx, row % self._stripes.capacity] = np.nan
        for env, episode in enumerate(self._episodes):
            if not rows.valid[env]:  # the final observation of an episode, or a step that was lost
                episode.clear()
                continue
            episode.append(self._group.last_steps[env])
            if len(episode) >= 2 * self._stripes.capacity:  # older rows are overwritten, also if no episode ends
                del episode[: -self._stripes.capacity]
            if rows.terminated[env] or rows.truncated[env]:
                self._store_goals(env, row, has_terminated=bool(rows.terminated[env]))
                episode.clear()
        super().close_row(place, rows, num_steps)

    def _store_goals(self, env: int, last_row: int, has_terminated: bool) -> None:
        """Draws goals for all steps of an episode whose rows are still there; its last step is in `last_row`."""
        stripes, split_idx, episode = self._stripes, self._split_idx, self._episodes[env]
        num_goals, first_row = self._rewards.shape[-1], last_row + 1 - len(episode)
        skipped = max(0, stripes.first_whole_row(split_idx) - first_row)
        for number, step in enumerate(episode[skipped:], start=skipped):
            place, is_last = (split_idx, (first_row + number) % stripes.capacity, env), number == len(episode) - 1
            later = self._random.integers(number, len(episode), size=(num_goals,)).tolist()
            goals = [episode[idx].achieved_goal for idx in later]
            judged = [self._group.judge(env, step, goal) for goal in goals]
            self._goals[place] = [goal.reshape(-1) for goal in goals]
            self._ends[place] = [is_over or (has_terminated and is_last) for _, is_over in judged]
            self._rewards[place] = [reward for reward, _ in judged]  # last: the learner may read meanwhile
