"""A rollout worker for a replay: each split writes rows to its stripe, without slots or ends of trajectories.

consumes  actions (mailbox, written by a policy), limits (words of the learner)
produces  observations, actions, rewards, ends of episodes (rows of the replay), requests (table and ring)
waits     when no split may step or has its actions: until the learner or an inference worker wakes it, or for WAIT_S
stops     when the run has ended
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayLimits, ReplayStripes
from asyncrl.monitoring.phases import Phase, PhaseTimer
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.vector_env_group import VectorEnvGroup
from asyncrl.rollout.worker import WAIT_S, ActionSource, RolloutWorkerBase


class ReplaySplit:
    """A split's environments and the stripe that they fill.

    Attributes:
        num_rows: rows written to the stripe so far.
        has_asked: whether actions for the present row were requested.
    """

    def __init__(
        self,
        split_idx: int,
        group: EnvGroup | VectorEnvGroup,
        stripes: ReplayStripes,
        actions: ActionSource,
        phases: PhaseTimer | None = None,
    ) -> None:
        """Resets the environments into the row after the stripe's last one."""
        self.split_idx = split_idx
        self.group = group
        self._stripes = stripes
        self._actions = actions
        self._phases = phases or PhaseTimer()
        self.num_rows = stripes.num_rows[split_idx]
        self.has_asked = self._is_answered = False
        group.reset(stripes.obs_at((split_idx, self.num_rows)))

    @property
    def can_advance(self) -> bool:
        """Whether the actions of the present row are written."""
        return self.has_asked and (self._is_answered or self._actions.is_answered(self.split_idx))

    def ask(self) -> None:
        """Requests the actions of the present row. Call it when the row may be stepped: weights are then the newest."""
        self.has_asked = True
        self._is_answered = self._actions.request(self.split_idx, self.split_idx, self.num_rows)

    def advance(self) -> int:
        """Steps the environments with the actions of the present row and publishes the row.

        Returns:
            Environment steps made.
        """
        stripes, split_idx, row = self._stripes, self.split_idx, self.num_rows
        action = stripes.store_action(split_idx, row)
        num_steps = self.group.step(action, stripes.rows(split_idx, row))
        for lost in self.group.take_lost() if self.group.lost else ():
            # This row holds the final observation of the episode, which the previous step truncates.
            if lost.episode_steps > 0:
                stripes.rows(split_idx, row - 1).truncated[lost.env] = True
        stripes.publish(split_idx, num_steps)
        self._phases.charge(Phase.STEP)
        self.num_rows, self.has_asked = row + 1, False
        return num_steps


class ReplayWorker(RolloutWorkerBase):
    """Steps its splits as far as the learner's limits allow. Owns them; they measure time with the same `phases`."""

    def __init__(
        self,
        worker_idx: int,
        splits: Sequence[ReplaySplit],
        stripes: ReplayStripes,
        limits: ReplayLimits,
        learner: Waker,
        control: RunControl,
        phases: PhaseTimer | None = None,
    ) -> None:
        super().__init__(worker_idx, [split.group for split in splits], control, phases or PhaseTimer())
        self._splits = splits
        self._stripes = stripes
        self._limits = limits
        self._learner = learner
        self._is_limited = False

    def poll(self) -> float:
        """Advances every split that may step and has its actions by one row.

        Returns:
            Seconds to wait, unless woken, before the next call.
        """
        has_worked, self._is_limited = False, False
        for split in self._splits:
            if not split.has_asked:
                if not self._limits.may_step(split.split_idx, split.num_rows, self._stripes.total_env_steps()):
                    self._is_limited = True
                    continue
                split.ask()
                has_worked = True
            if split.can_advance:
                self.count_steps(split.advance())
                self._learner.wake()
                has_worked = True
        self.phases.charge(Phase.OTHER)
        return 0.0 if has_worked else WAIT_S

    @property
    def waiting_for(self) -> Phase:
        """What the worker waits for if `poll` advanced no split."""
        return Phase.WAIT_UPDATES if self._is_limited else Phase.WAIT_ACTIONS
