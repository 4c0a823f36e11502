"""Collects datasets, or rows of a replay, on the learner's device, in turn with the learner, in its process.

                 datasets                                       replay
consumes  no shared data: it acts with the learner's     limits (words of the learner); otherwise the same
          own model
produces  a dataset, of as many consecutive              rows of a `DeviceReplay`
          trajectories as it holds
waits     while the dataset is trained on                while updates are due
stops     when the run has ended
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.layout import trajectory_fields
from asyncrl.buffers.replay import ReplayLimits
from asyncrl.config.plan import ResourcePlan
from asyncrl.envs.spec import EnvSpec, ObservationLayout
from asyncrl.inference.acting import eval_mode
from asyncrl.learner.dataset import CountedDataset, Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.learner.slot_ledger import Columns
from asyncrl.models.encoders import split_tensor
from asyncrl.models.exploration import ActionNoise
from asyncrl.models.uniform import UniformPolicy
from asyncrl.modes.tensors.env_group import TensorEnvGroup
from asyncrl.modes.tensors.replay import DeviceReplay
from asyncrl.observers.reports import LagMetrics, Phase, PhaseTimer
from asyncrl.processes.own_settings import own_settings, with_own_settings
from asyncrl.rollout.worker import WAIT_S, RolloutWorkerBase


class DeviceWorker(RolloutWorkerBase):
    """Fills a dataset and passes it to `TrajectoryLoop`. Owns the environments and the dataset, which it reuses.

    Environments, the learner's model and the dataset are on `device`; `seed` is for drawing actions.
    """

    waiting_for = Phase.WAIT_SLOTS
    ready = ()  # there are no slots

    def __init__(
        self,
        group: TensorEnvGroup,
        learner: OnPolicyLearner,
        spec: EnvSpec,
        plan: ResourcePlan,
        device: torch.device,
        seed: int,
        control: RunControl,
    ) -> None:
        super().__init__(0, [group], control, PhaseTimer())
        self._group = group
        self._learner = learner
        self._layout = spec.observation
        self._recurrence = plan.recurrence or plan.rollout
        self._generator = torch.Generator(device).manual_seed(seed)
        self._dataset = _allocate_dataset(spec, plan, device)
        self._num_columns, self._num_valid, self._is_full = 0, 0, False
        self._version = learner.policy_version  # of the dataset's rows
        self._max_lag = plan.max_policy_lag
        self.dropped_samples = 0
        self._last_rows = group.reset()
        self._last_state = torch.zeros((group.num_envs, plan.rnn_state_size), dtype=torch.float32, device=device)

    def poll(self) -> float:
        """Collects one trajectory of each environment unless the dataset is full; returns seconds to wait."""
        if self._is_full:
            return WAIT_S
        start, stop = self._num_columns, self._num_columns + self._group.num_envs
        columns = {name: field[:, start:stop] for name, field in self._dataset.tensors().items()}
        with eval_mode(self._learner.model):
            self._collect(Dataset(**columns))
        self._num_columns = stop
        self._is_full = stop == self._dataset.valid.shape[1]
        return 0.0

    # The methods that `TrajectoryLoop` calls (`DatasetSource` and `DatasetRoom`).

    def take_dataset(self, learner_version: int, timeout_s: float) -> list[Columns] | None:
        """The dataset if it is full; what was collected before other weights were taken over is dropped."""
        if self._num_columns > 0 and self._version < learner_version - self._max_lag:
            self.dropped_samples += self._num_valid
            self.release([])
        return [] if self._is_full else None

    def collect(self, columns: Sequence[Columns]) -> Dataset:
        return CountedDataset(**self._dataset.tensors(), counted_valid=self._num_valid, version=self._version)

    def begin_dataset(self) -> None:
        pass

    def lag(self, learner_version: int) -> LagMetrics:
        """Zero: each trajectory was collected with the newest weights."""
        return LagMetrics(mean=0.0, p95=0.0, max=0, age_ms=0.0)

    def release(self, columns: list[Columns]) -> None:
        """Allows the dataset to be overwritten."""
        self._num_columns, self._num_valid, self._is_full = 0, 0, False

    def _collect(self, part: Dataset) -> None:
        """Fills columns with one trajectory of each environment. Waits for the device at its end, at most twice."""
        rollout, ends = len(part.valid), []
        rows, restarted = self._group.start_trajectory(self._last_rows)
        state = self._last_state.masked_fill(restarted.unsqueeze(-1), 0.0)
        self._version = self._learner.policy_version
        part.policy_version.fill_(self._version)
        for row in range(rollout):
            part.obs[row].copy_(rows)
            if row % self._recurrence == 0:
                part.rnn_state[row // self._recurrence].copy_(state)
            with own_settings():
                acted = self._learner.model.act(part.obs[row], self._generator, state)
            self.phases.charge(Phase.FORWARD)
            for name in ("action", "action_parameters", "log_prob", "value"):
                getattr(part, name)[row].copy_(getattr(acted, name))
            step = self._group.step(part.action[row])
            for name in ("reward", "terminated", "truncated", "valid"):
                getattr(part, name)[row].copy_(getattr(step, name))
            rows = step.next_rows
            state = acted.rnn_state.masked_fill((step.terminated | ~step.valid).unsqueeze(-1), 0.0)
            ends.append(step.ends)
            self.phases.charge(Phase.STEP)
        part.obs[rollout].copy_(rows)
        with own_settings():
            part.value[rollout].copy_(self._learner.model.act(part.obs[rollout], self._generator, state).value)
        self._last_rows, self._last_state = part.obs[rollout].clone(), state
        num_ended = torch.stack([each.ended for each in ends]).sum()
        is_finite = _are_finite(self._layout, part.reward, part.obs)
        *counts, is_finite = torch.stack((part.valid.sum(), num_ended, is_finite)).tolist()
        if not is_finite:
            raise self._group.not_finite()
        self._num_valid += counts[0]
        self._control.count_steps(0, counts[0])
        self._group.record_ends(ends, counts[1])
        self.phases.charge(Phase.OTHER)


class DeviceReplayWorker(RolloutWorkerBase):
    """Writes rows of a replay as far as the learner's limits allow. Owns the environments.

    Environments, the learner's model and the replay are on `device`; `seed` is for drawing actions.
    """

    waiting_for = Phase.WAIT_UPDATES

    def __init__(
        self,
        group: TensorEnvGroup,
        learner: ReplayLearner,
        replay: DeviceReplay,
        limits: ReplayLimits,
        device: torch.device,
        seed: int,
        control: RunControl,
        exploration: ActionNoise | None = None,
    ) -> None:
        super().__init__(0, [group], control, PhaseTimer())
        self._group = group
        self._learner = learner
        self._exploration = exploration
        self._replay = replay
        self._limits = limits
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._uniform = UniformPolicy(learner.model.distribution, seed, learner.model.layout)
        replay.obs_at((0, replay.num_rows[0])).copy_(group.reset())

    def poll(self) -> float:
        """Writes one row if the learner allows it; returns seconds to wait."""
        replay = self._replay
        row = replay.num_rows[0]
        if not self._limits.may_step(0, row, replay.total_env_steps()):
            return WAIT_S
        obs: Tensor = replay.obs_at((0, row))
        rows: Any = replay.rows(0, row)
        replay.policy_version[0, row % replay.capacity] = self._learner.policy_version
        action = replay.action[0, row % replay.capacity]
        with own_settings():
            action.copy_(self._act(obs))
        self.phases.charge(Phase.FORWARD)
        step = self._group.step(action)
        for name in ("reward", "terminated", "truncated"):
            getattr(rows, name).copy_(getattr(step, name))
        rows.next_obs.copy_(step.next_rows)
        is_finite = _are_finite(self._learner.model.layout, step.reward, step.next_rows)
        flags = torch.cat((step.valid, step.ends.ended, is_finite.view(1))).cpu().numpy()
        if not flags[-1]:
            raise self._group.not_finite()
        rows.valid[:] = flags[: replay.num_envs]
        num_steps = int(rows.valid.sum())
        replay.publish(0, num_steps)
        self._control.count_steps(0, num_steps)
        self._group.record_ends([step.ends], int(flags[replay.num_envs : -1].sum()))
        self.phases.charge(Phase.STEP)
        return 0.0

    def _act(self, obs: Tensor) -> Tensor:
        """Actions of the newest policy; until the first update they are drawn from the whole range."""
        if self._learner.policy_version == 0:
            return torch.from_numpy(self._uniform.act(obs.cpu().numpy()).action).to(self._device)
        with eval_mode(self._learner.model):
            acted = self._learner.model.act(obs, self._generator)
        if self._exploration is None:
            return acted.action
        return self._exploration.explored(acted.action, acted.action_parameters)


def _are_finite(layout: ObservationLayout, reward: Tensor, rows: Tensor) -> Tensor:
    """Whether all rewards and numbers of observations are finite, as a bool on their device."""
    return torch.isfinite(reward).all() & torch.isfinite(split_tensor(layout, rows).floats).all()


@with_own_settings
def _allocate_dataset(spec: EnvSpec, plan: ResourcePlan, device: torch.device) -> Dataset:
    num_states = plan.rollout // (plan.recurrence or plan.rollout)
    tensors = {}
    for field in trajectory_fields(spec, plan.rnn_state_size):
        num_rows = num_states if field.name == "rnn_state" else plan.rollout + int(field.has_extra_row)
        shape = (num_rows, plan.columns_per_dataset, *field.row_shape)
        tensors[field.name] = torch.zeros(shape, dtype=getattr(torch, field.dtype), device=device)
    versions = torch.zeros((plan.rollout, plan.columns_per_dataset), dtype=torch.int64, device=device)
    return Dataset(policy_version=versions, **tensors)
