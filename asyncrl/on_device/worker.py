"""Collects datasets on the learner's device, in turn with the learner, in its process.

consumes  nothing: it acts with the learner's own model
produces  a dataset, of as many trajectories one after the other as it takes
waits     while the dataset is being trained on
stops     when the run has ended
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.layout import trajectory_fields
from asyncrl.config.plan import ResourcePlan
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.slot_ledger import Columns
from asyncrl.models.encoders import split_tensor
from asyncrl.monitoring.phases import Phase, PhaseTimer
from asyncrl.monitoring.reports import LagMetrics
from asyncrl.on_device.env_group import TensorEnvGroup
from asyncrl.rollout.worker import WAIT_S, WorkerReports


class DeviceWorker(WorkerReports):
    """Owns the environments and the dataset, which the next one overwrites. Gives it to `TrajectoryLoop`."""

    num_ready = dropped_samples = 0  # there are no slots

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
        """Resets the environments and allocates the dataset.

        Args:
            group: the environments, E.
            learner: whose model acts.
            spec: spaces of the environments.
            plan: sizes.
            device: of all of this.
            seed: of the actions that are drawn.
            control: counts the steps of the run.
        """
        super().__init__(0, [group], control, PhaseTimer())
        self._group = group
        self._learner = learner
        self._layout = spec.observation
        self._recurrence = plan.recurrence or plan.rollout
        self._generator = torch.Generator(device).manual_seed(seed)
        self._dataset = _room_for_dataset(spec, plan, device)
        self._num_columns, self._is_full = 0, False
        self._last_rows = group.reset()
        self._last_state = torch.zeros((len(group), plan.rnn_state_size), device=device)

    @property
    def waiting_for(self) -> Phase:
        """What keeps it from collecting."""
        return Phase.WAIT_SLOTS

    def poll(self) -> float:
        """Collects one trajectory of each environment unless the dataset is full; returns seconds to wait."""
        if self._is_full:
            return WAIT_S
        columns = slice(self._num_columns, self._num_columns + len(self._group))
        model = self._learner.model.eval()
        self._collect(_columns_of(self._dataset, columns))
        model.train()
        self._num_columns = columns.stop
        self._is_full = self._num_columns == self._dataset.valid.shape[1]
        return 0.0

    def take_dataset(self, learner_version: int, timeout_s: float) -> list[Columns] | None:
        """Nothing to copy if the dataset is full, see `asyncrl.learner.trajectory_loop.DatasetSource`."""
        return [] if self._is_full else None

    def collect(self, columns: Sequence[Columns]) -> Dataset:
        """The dataset, which is full."""
        return self._dataset

    def begin_dataset(self) -> None:
        """Nothing: samples are collected and trained in turn."""

    def lag(self, learner_version: int) -> LagMetrics:
        """None: each trajectory was collected with the weights that were published last."""
        return LagMetrics(mean=0.0, p95=0.0, max=0, age_ms=0.0)

    def release(self, columns: list[Columns]) -> None:
        """Lets the dataset be filled again."""
        self._num_columns, self._is_full = 0, False

    def _collect(self, part: Dataset) -> None:
        """Fills columns with one trajectory of each environment, and looks at the device once, at their end."""
        rollout, ends = len(part.valid), []
        rows, begun = self._group.begin(self._last_rows)
        state = self._last_state.masked_fill(begun.unsqueeze(-1), 0.0)
        part.policy_version.fill_(self._learner.policy_version)
        for row in range(rollout):
            part.obs[row].copy_(rows)
            if row % self._recurrence == 0:
                part.rnn_state[row // self._recurrence].copy_(state)
            acted = self._learner.model.act(part.obs[row], self._generator, state)
            self.phases.charge(Phase.FORWARD)
            for name in ("action", "action_parameters", "log_prob", "value"):
                getattr(part, name)[row].copy_(getattr(acted, name))
            step = self._group.step(part.action[row])
            for name in ("reward", "terminated", "truncated", "valid"):
                getattr(part, name)[row].copy_(getattr(step, name))
            rows = step.next_rows
            state = acted.rnn_state.masked_fill((step.terminated | ~step.valid).unsqueeze(-1), 0.0)
            ends.append((step.ended, step.episode_return, step.episode_length))
            self.phases.charge(Phase.STEP)
        part.obs[rollout].copy_(rows)
        part.value[rollout].copy_(self._learner.model.act(part.obs[rollout], self._generator, state).value)
        self._last_rows, self._last_state = part.obs[rollout].clone(), state
        self._note(part, *(torch.stack(field) for field in zip(*ends, strict=True)))
        self.phases.charge(Phase.OTHER)

    def _note(self, part: Dataset, ended: Tensor, episode_return: Tensor, episode_length: Tensor) -> None:
        """Counts steps and episodes of columns; the arguments are `[T, E]`."""
        floats = split_tensor(self._layout, part.obs).floats
        if not bool(torch.isfinite(part.reward).all() & torch.isfinite(floats).all()):
            raise self._group.not_finite()
        self.count_steps(part.num_valid)
        self._group.note_episodes(episode_return[ended].tolist(), episode_length[ended].tolist())


def _room_for_dataset(spec: EnvSpec, plan: ResourcePlan, device: torch.device) -> Dataset:
    rows = {"rnn_state": plan.rollout // (plan.recurrence or plan.rollout)}
    room = {}
    for field in trajectory_fields(spec, plan.rnn_state_size):
        num_rows = rows.get(field.name, plan.rollout + int(field.has_extra_row))
        shape = (num_rows, plan.columns_per_dataset, *field.row_shape)
        room[field.name] = torch.zeros(shape, dtype=getattr(torch, field.dtype), device=device)
    versions = torch.zeros((plan.rollout, plan.columns_per_dataset), dtype=torch.int64, device=device)
    return Dataset(policy_version=versions, **room)


def _columns_of(dataset: Dataset, columns: slice) -> Dataset:
    """Views of some columns."""
    return Dataset(**{field.name: getattr(dataset, field.name)[:, columns] for field in fields(dataset)})
