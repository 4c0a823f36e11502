"""Copies columns of slots into a dataset on the learner's device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.pinning import pin_arena
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.learner.slot_ledger import Columns
from asyncrl.observers.reports import LagMetrics


@dataclass(frozen=True)
class Dataset:
    """C columns of T rows; a column is one trajectory of one agent of one environment.

    Rows follow the rule of `asyncrl.buffers.layout`; of one that is not `valid` only `obs` and `value` are read.

    Attributes:
        obs: [T+1, C, row_size], raw rows.
        rnn_state: [T / recurrence, C, S] float32, recurrent states before the first row of each training sequence; S is
            0 without a recurrent core.
        action: [T, C, A] float32 or [T, C] int64, as the distribution produced it.
        action_parameters: [T, C, P] float32, of the distribution that produced it.
        log_prob: [T, C] float32, of exactly that action.
        value: [T+1, C] float32, in units of (scaled) rewards.
        reward: [T, C] float32, as the environment gave it.
        terminated: [T, C] bool.
        truncated: [T, C] bool.
        valid: [T, C] bool.
        policy_version: [T, C] int64, of the policy that chose the action.
        idle: [T, C] bool, steps in which the agent waited; None without several agents.
        is_env_step: [T, C] bool, True in one agent's row of each step of an environment; None without several agents.
    """

    obs: Tensor
    rnn_state: Tensor
    action: Tensor
    action_parameters: Tensor
    log_prob: Tensor
    value: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    policy_version: Tensor
    idle: Tensor | None = None
    is_env_step: Tensor | None = None

    @property
    def begins(self) -> Tensor:
        """[T+1, C] bool: rows that begin an episode. Of the first rows this is not known; they are False."""
        ends = self.terminated | ~(self.valid if self.idle is None else self.valid | self.idle)
        return torch.cat((torch.zeros_like(ends[:1]), ends))

    @property
    def num_valid(self) -> int:
        """Valid rows, the samples."""
        return int(self.valid.sum())

    @property
    def num_env_steps(self) -> int:
        """Steps of environments, which several agents make together."""
        return self.num_valid if self.is_env_step is None else int(self.is_env_step.sum())

    def valid_rows(self) -> Tensor:
        """[N] int64, ascending: the valid rows, of all rows in the order of `[T, C]`."""
        return self.valid.flatten().nonzero().squeeze(-1)

    def versions_in(self, rows: Tensor) -> list[int]:
        """The policy versions, ascending, that acted in rows `[N]`."""
        versions: list[int] = torch.unique(self.policy_version.flatten().index_select(0, rows)).tolist()
        return versions

    def to(self, device: torch.device) -> Dataset:
        """The same dataset on `device`; fields that are there already are not copied."""
        return Dataset(**{name: value.to(device) for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The fields that this dataset has, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class CountedDataset(Dataset):
    """A dataset of a device with numbers that the host knows; to read them from it, the host would wait for the device.

    Attributes:
        counted_valid: valid rows.
        version: policy version of all rows.
    """

    counted_valid: int = 0
    version: int = 0

    @property
    def num_valid(self) -> int:
        return self.counted_valid

    def valid_rows(self) -> Tensor:
        return places_of(self.valid.flatten(), self.counted_valid)

    def versions_in(self, rows: Tensor) -> list[int]:
        return [self.version]


def places_of(flags: Tensor, count: int) -> Tensor:
    """The places `[count]`, ascending, of the True elements of `flags: [N] bool`, whose number is known.

    `nonzero` would make the host wait for the device to learn the number.
    """
    return (~flags).to(torch.uint8).argsort(stable=True)[:count]


class Batcher:
    """Copies columns into a dataset, whose memory it owns; the next dataset overwrites it."""

    def __init__(
        self,
        slots: TrajectorySlots,
        columns_per_dataset: int,
        recurrence: int | None = None,
        steady_lag_bound: int = 0,
        copies: DeviceSlots | None = None,
    ) -> None:
        """Allocates room for one dataset.

        Args:
            slots: where the columns come from.
            columns_per_dataset: C.
            recurrence: steps between two recurrent states that are copied; None for a whole trajectory.
            steady_lag_bound: the largest lag that the plan expects while workers keep pace.
            copies: of the slots on the device of the dataset; None for a dataset on the CPU.
        """
        self._slots = slots
        self._copies = copies
        self._steady_lag_bound = steady_lag_bound
        self._fields = slot_tensors(slots) if copies is None else copies.fields
        num_rows = {"rnn_state": slots.rollout // (recurrence or slots.rollout), "policy_version": slots.rollout}
        self._targets = {}
        for name, field in self._fields.items():
            shape = (num_rows.get(name, field.shape[1]), columns_per_dataset, *field.shape[3:])
            self._targets[name] = torch.zeros(shape, dtype=field.dtype, device=field.device)
        self._dataset = Dataset(**self._targets)
        self._columns: Sequence[Columns] = ()

    def collect(self, columns: Sequence[Columns]) -> Dataset:
        """Copies the columns into the dataset, side by side in their order."""
        if self._copies is not None:
            self._copies.wait_for(columns)
        rollout = self._slots.rollout
        for name, target in self._targets.items():
            field, step = self._fields[name], max(1, rollout // len(target))
            rows = slice(0, step * len(target), step)
            if name == "policy_version":  # one for all columns of a slot
                parts = [field[part.slot, rows, None].expand(-1, part.stop - part.start) for part in columns]
            else:
                parts = [field[part.slot, rows, part.start : part.stop] for part in columns]
            torch.cat(parts, dim=1, out=target)
        if self._copies is not None:
            self._copies.record_read(columns)
        self._columns = columns
        return self._dataset

    def lag(self, learner_version: int) -> LagMetrics:
        """Age of the dataset's valid samples; call it when training begins, before the slots are freed."""
        slots, lags, chosen_at = self._slots, [], []
        for part in self._columns:
            rows = slots.valid[part.slot, :, part.start : part.stop].nonzero()[0]
            lags.append(learner_version - slots.policy_version[part.slot, rows])
            chosen_at.append(slots.chosen_at[part.slot, rows])
        return lag_metrics(np.concatenate(lags), np.concatenate(chosen_at), self._steady_lag_bound)


def lag_metrics(lags: npt.NDArray[Any], chosen_at: npt.NDArray[np.float64], steady_lag_bound: int) -> LagMetrics:
    """Figures of N samples now: their lags `[N]`, and when their actions were chosen, `[N]`."""
    return LagMetrics(
        mean=float(lags.mean()),
        p95=float(np.percentile(lags, 95)),
        max=int(lags.max()),
        age_ms=1000.0 * float((time.monotonic() - chosen_at).mean()),
        over_bound=float((lags > steady_lag_bound).mean()),
    )


def slot_tensors(slots: TrajectorySlots) -> dict[str, Tensor]:
    """By the names in `Dataset`, the fields of all slots `[slots, T or T+1, E, ...]`; versions are `[slots, T+1]`."""
    arrays = {field.name: getattr(slots, field.name) for field in fields(Dataset)}
    return {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}


class DeviceSlots:
    """Copies of all slots on a CUDA device, made on a separate stream while the previous dataset is trained on.

    The thread that receives ready slots starts their copies, from page-locked memory. Owners:

        slot (shared memory)   given by its state; a copy only reads it, and it is freed after its copy has ended
        copy (device)          written by the stream of copies after the datasets that read it

    Attributes:
        fields: as those of `slot_tensors`, on the device.
    """

    def __init__(self, slots: TrajectorySlots, device: torch.device, arena: Arena) -> None:
        """Allocates the copies, and page-locks the arena of the slots."""
        self._device = device
        self._shared = slot_tensors(slots)
        pin_arena(arena, self)
        self.fields = {name: torch.zeros_like(field, device=device) for name, field in self._shared.items()}
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._copied: dict[int, torch.cuda.Event] = {}
        self._read: dict[int, torch.cuda.Event] = {}

    def start_copy(self, slot: int) -> None:
        """Starts the copy of a ready slot and does not wait for it."""
        torch.cuda.set_device(self._stream.device)  # of this thread; without it CUDA uses the first device
        with torch.cuda.stream(self._stream):
            read = self._read.pop(slot, None)
            if read is not None:
                self._stream.wait_event(read)
            for name, field in self._shared.items():
                self.fields[name][slot].copy_(field[slot], non_blocking=True)
            self._copied[slot] = self._stream.record_event()

    def wait_for(self, columns: Sequence[Columns]) -> None:
        """Makes the current stream wait for the copies of these slots."""
        current = torch.cuda.current_stream(self._device)
        for slot in {part.slot for part in columns}:
            current.wait_event(self._copied[slot])

    def record_read(self, columns: Sequence[Columns]) -> None:
        """Records that the current stream reads the copies of these slots up to here; later they may be overwritten."""
        done = torch.cuda.current_stream(self._device).record_event()
        for part in columns:
            self._read[part.slot] = done

    def wait_for_copy(self, slot: int) -> None:
        """Waits until the copy of the slot has ended; the slot is about to be freed."""
        copied = self._copied.get(slot)
        if copied is not None:
            copied.synchronize()
