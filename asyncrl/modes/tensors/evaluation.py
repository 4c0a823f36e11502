"""Evaluation in environments of the training simulator, which are stepped with those that train.

consumes  published weights; the steps of its environments
produces  evaluation reports, and the best checkpoint if evaluations choose it
waits     never: `EvaluatingGroup` steps it; after training it steps the simulator until its last episodes have ended
stops     as `EvaluationWorker`
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.weights import Publication
from asyncrl.config.value_types import ActionMapping
from asyncrl.envs.spec import EnvSpec, stored_action
from asyncrl.evaluation.episodes import MOST_STEPS, EvaluationResult, endless_episode
from asyncrl.evaluation.worker import EvaluationWorker, PublishedTeam
from asyncrl.models.actor_critic import ActResult
from asyncrl.modes.tensors.env_group import EpisodeEnds, TensorEnvGroup, TensorStep
from asyncrl.observers.reports import EvaluationFailed, Report
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.processes.seeding import Stream, derive_seed
from asyncrl.rollout.failures import EnvironmentTrouble

_LOOK_EVERY = 16  # steps: to see whether the episodes have ended, the host waits for the device


class SimulatorEvaluation(EvaluationWorker):
    """Plays a fixed copy of the policy in N environments, each the same number of whole episodes.

    Episodes that were open when an evaluation began do not count, because an earlier copy played their first steps. As
    all environments play equally many, short episodes do not count more often than long ones.

    Attributes:
        num_envs: N.
    """

    @with_own_settings
    def __init__(
        self,
        team: PublishedTeam,
        control: RunControl,
        checkpoints: Path,
        env_steps: int,
        num_envs: int,
        device: torch.device,
    ) -> None:
        super().__init__(team, control, checkpoints, env_steps)
        self.num_envs = num_envs
        self._num_episodes = -(-self._config.eval_episodes // num_envs)  # of each environment
        self._model = copy.deepcopy(team.policy.model).to(device)
        seed = derive_seed(self._config.seed, Stream.EVALUATION)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._state = torch.zeros((num_envs, self._model.rnn_state_size), device=device)
        # Column 0 is for the open episodes, the last one for those after the evaluation.
        self._returns = torch.zeros((num_envs, self._num_episodes + 2), device=device)
        self._lengths = torch.zeros_like(self._returns, dtype=torch.int64)
        self._num_ended = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._news: Publication | None = None  # the weights that are being evaluated
        self._started = 0.0
        self._num_steps = 0
        self._is_complete = False
        self.step_alone: Callable[[], None] = lambda: None
        """Steps the simulator without training; set by the group that owns it."""

    @property
    def is_due(self) -> bool:
        """Whether results wait to be reported, or the last evaluation is left to be played."""
        if self._is_complete or self._is_endless:
            return True
        return self._control.ended and (self._news is not None or super().is_due)

    @property
    def _is_endless(self) -> bool:
        """Whether some environment has had an episode of more than `MOST_STEPS` steps since the evaluation began."""
        return self._num_steps > MOST_STEPS * (self._num_episodes + 1)

    @with_own_settings
    def act(self, rows: Tensor) -> Tensor:
        """Actions for rows `[N, row_size]`, of the newest policy if an evaluation begins, else of the present copy."""
        if self._news is None and super().is_due:
            self._begin()
        acted = self._model.act(rows, self._generator, self._state, self._config.eval_deterministic)
        if isinstance(acted, ActResult):
            self._state = acted.rnn_state
        return acted.action

    def record(self, ends: EpisodeEnds, begins: Tensor) -> None:
        """Notes the episodes that ended in a step, and where the next observation begins one, `[N]` bool."""
        self._state = self._state.masked_fill(begins.unsqueeze(-1), 0.0)
        if self._news is None or self._is_complete:
            return
        column = self._num_ended.clamp(max=self._num_episodes + 1).unsqueeze(-1)
        for kept, values in ((self._returns, ends.episode_return), (self._lengths, ends.episode_length)):
            values = torch.where(ends.ended.unsqueeze(-1), values.unsqueeze(-1), kept.gather(1, column))
            kept.scatter_(1, column, values)
        self._num_ended += ends.ended
        self._num_steps += 1
        if self._num_steps % _LOOK_EVERY == 0:
            self._is_complete = bool((self._num_ended > self._num_episodes).all())

    def run(self, look: Callable[[], None] | None = None) -> list[Report]:
        """The reports of an evaluation that is complete; after training also of the last one, which it plays."""
        reports: list[Report] = []
        while self.is_due and not self._control.stop_requested:
            try:
                while not (self._is_complete or self._is_endless or self._control.stop_requested):
                    self.step_alone()
                    if look is not None and self._num_steps % _LOOK_EVERY == 0:
                        look()
            except EnvironmentTrouble as error:
                return [*reports, EvaluationFailed(str(error))]
            if self._is_complete:
                reports += self._finish()
            elif self._is_endless:
                reports.append(EvaluationFailed(endless_episode(MOST_STEPS)))
                self._news, self._num_steps = None, 0
        return reports

    def _begin(self) -> None:
        self._num_requests = self._control.num_evaluations
        self._news = self._team.read()
        self._schedule.record(self._news)
        self._model.load_state_dict(self._policy.model.state_dict())
        self._num_ended.zero_()
        self._num_steps, self._started = 0, time.monotonic()

    def _finish(self) -> list[Report]:
        assert self._news is not None
        whole = slice(1, self._num_episodes + 1)
        returns, lengths = (kept[:, whole].flatten().tolist() for kept in (self._returns, self._lengths))
        news, self._news, self._is_complete, self._num_steps = self._news, None, False, 0
        if not all(map(math.isfinite, returns)):
            return [EvaluationFailed("The simulator returned a reward that is not finite.")]
        return self.reports_of(news, EvaluationResult(tuple(returns), tuple(lengths)), self._started)


class EvaluatingGroup(TensorEnvGroup):
    """A group whose last environments evaluate; what it takes and returns is of the others, which train."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        seed: int,
        spec: EnvSpec,
        mapping: ActionMapping,
        device: torch.device,
        evaluation: SimulatorEvaluation,
    ) -> None:
        super().__init__(env, seed, spec, mapping, device)
        self.num_envs -= evaluation.num_envs
        self._evaluation = evaluation
        self._own_rows = torch.empty(0)
        dtype, shape = stored_action(spec.action)
        idle = torch.zeros((self.num_envs, *shape), dtype=getattr(torch, dtype), device=device)
        evaluation.step_alone = lambda: self._step_without_training(idle)

    def reset(self) -> Tensor:
        """See `TensorEnvGroup`."""
        rows = super().reset()
        self._own_rows = rows[self.num_envs :]
        return rows[: self.num_envs]

    def step(self, actions: Tensor) -> TensorStep:
        """See `TensorEnvGroup`."""
        own = self._evaluation.act(self._own_rows)
        step = super().step(torch.cat((actions, own.to(actions.dtype))))
        rows, begins = step.next_rows, step.ends.ended
        # The observations in which the environments are now: unlike those that train, these need no final ones.
        if self._mode == AutoresetMode.NEXT_STEP:
            begins = ~step.valid
        elif self._reset_rows is not None:
            is_reset = begins if self._mode == AutoresetMode.DISABLED else torch.ones_like(begins)
            rows = torch.where(is_reset.unsqueeze(-1), self._reset_rows, rows)
        train, evaluate = slice(self.num_envs), slice(self.num_envs, None)
        self._own_rows = rows[evaluate]
        self._evaluation.record(_ends_of(step.ends, evaluate), begins[evaluate])
        own_fields = (step.reward[train], step.terminated[train], step.truncated[train], step.valid[train])
        return TensorStep(step.next_rows[train], *own_fields, _ends_of(step.ends, train))

    def start_trajectory(self, last_rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `TensorEnvGroup`."""
        rows, restarted = super().start_trajectory(torch.cat((last_rows, self._own_rows)))
        return rows[: self.num_envs], restarted[: self.num_envs]

    def _step_without_training(self, idle: Tensor) -> None:
        self.step(idle)


def _ends_of(ends: EpisodeEnds, envs: slice) -> EpisodeEnds:
    extra_stats = {name: values[envs] for name, values in ends.extra_stats.items()}
    return EpisodeEnds(ends.ended[envs], ends.episode_return[envs], ends.episode_length[envs], extra_stats)
