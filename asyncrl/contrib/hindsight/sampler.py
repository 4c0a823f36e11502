"""Draws transitions of which a share has another goal: one that the same episode achieved later (HER).

Andrychowicz et al. 2017, "Hindsight Experience Replay" (arXiv:1707.01495), with the strategy `future`. Rollout workers
have stored the goals and the rewards for them (`asyncrl.contrib.hindsight.writing`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.contrib.hindsight.goals import desired_goal_place
from asyncrl.contrib.hindsight.stripes import GoalStripes
from asyncrl.envs.spec import FLOAT_BYTES, ObservationLayout
from asyncrl.learner.replay_sampler import IntArray, ReplaySampler


class HindsightSampler(ReplaySampler):
    """Takes each transition with its own goal or with one of the k stored for its step, all equally likely.

    Steps of episodes that have not ended yet have their own goal only.
    """

    def __init__(self, stripes: GoalStripes, layout: ObservationLayout, **settings: Any) -> None:
        """`layout` is that of observations; `settings` are further arguments of `ReplaySampler`, with one step."""
        super().__init__(stripes, **settings)
        assert self._n_step == 1
        fields = (stripes.goal_reward, stripes.goal, stripes.goal_terminated)
        self._goal_reward, self._goal, self._goal_terminated = (torch.from_numpy(each).flatten(0, 2) for each in fields)
        place = desired_goal_place(layout)
        self._goal_columns = place
        if layout.num_pixels:  # rows of bytes
            self._goal_columns = slice(FLOAT_BYTES * place.start, FLOAT_BYTES * place.stop)

    def _gather(self, *where: IntArray) -> Transitions:
        batch = super()._gather(*where)
        place = torch.from_numpy(self._places(*where))
        num_goals = self._goal_reward.shape[1]
        choice = torch.randint(num_goals + 1, (len(place),), generator=self.generator)
        index = choice.clamp(max=num_goals - 1)
        # The worker writes the reward last, so it is read first.
        reward = self._goal_reward[place, index]
        has_other = (choice < num_goals) & reward.isfinite()
        goal, terminated = self._goal[place, index], self._goal_terminated[place, index]
        discount = torch.where(terminated, 0.0, self.gamma)
        return batch._replace(
            obs=self._with_goal(batch.obs, goal, has_other),
            reward=torch.where(has_other, self._scaled(reward), batch.reward),
            next_obs=self._with_goal(batch.next_obs, goal, has_other),
            discount=torch.where(has_other, discount, batch.discount),
        )

    def _with_goal(self, rows: Tensor, goal: Tensor, has_other: Tensor) -> Tensor:
        """Replaces the desired goals of some of the rows `[N, row_size]`, in place, by those of `goal: [N, G]`."""
        columns = rows[:, self._goal_columns]
        columns.copy_(torch.where(has_other.unsqueeze(1), goal.view(rows.dtype), columns))
        return rows
