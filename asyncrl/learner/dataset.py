"""A dataset: the columns that one training iteration learns from, as tensors."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.losses import Mean
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.pinning import pin_arena
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.learner.slot_ledger import Columns
from asyncrl.models.encoders import Inputs
from asyncrl.monitoring.reports import LagMetrics


@dataclass(frozen=True)
class Dataset:
    """C columns of T rows; a column is one environment's part of one trajectory.

    Where an episode was truncated, the next row holds its final observation: `valid` is False there, `value` is its
    value, and the other fields mean nothing.

    Attributes:
        obs: [T+1, C, row_size], raw rows.
        rnn_state: [T / recurrence, C, S] float32, recurrent states before every first row of a sequence that is trained
            as one; S is 0 without a recurrent core.
        action: [T, C, A] float32 or [T, C] int64, as the distribution produced it.
        action_parameters: [T, C, P] float32, of the distribution that produced it.
        log_prob: [T, C] float32, of exactly that action.
        value: [T+1, C] float32, in units of (scaled) rewards.
        reward: [T, C] float32, as the environment gave it.
        terminated: [T, C] bool.
        truncated: [T, C] bool.
        valid: [T, C] bool.
        policy_version: [T, C] int64, of the policy that chose the action.
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

    @property
    def begins(self) -> Tensor:
        """[T+1, C] bool: rows that begin an episode, as far as the dataset shows it; the first rows may as well."""
        ends = self.terminated | ~self.valid
        return torch.cat((torch.zeros_like(ends[:1]), ends))

    @property
    def num_rows(self) -> int:
        """Rows T times columns C, valid or not."""
        return self.valid.numel()

    @property
    def num_valid(self) -> int:
        """Rows that are samples: environment steps."""
        return int(self.valid.sum())

    def to(self, device: torch.device) -> Dataset:
        """The same dataset on `device`; what is there already is not copied."""
        return Dataset(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


class Samples(NamedTuple):
    """Rows of a dataset, as the losses take them, or sequences of rows for a recurrent policy.

    Each field is `[N, ...]`, its rows samples without exception; or `[N, L, ...]`, sequences of L rows not all of which
    are samples, with the states before them, `[N, S]`.

    `log_prob` and `action_parameters` are of the policy that the trained one is compared with. `weight` multiplies the
    advantage once that is normalized, and is not part of minibatches. `share` is what each row counts in a mean, `[N]`
    float32 of sum 1; without it all count the same.
    """

    floats: Tensor
    action: Tensor
    action_parameters: Tensor
    log_prob: Tensor
    advantage: Tensor
    normalized_return: Tensor
    normalized_value: Tensor
    weight: Tensor | None = None
    pixels: Tensor | None = None
    rnn_state: Tensor | None = None
    begins: Tensor | None = None
    valid: Tensor | None = None
    share: Tensor | None = None

    @property
    def inputs(self) -> Inputs:
        """What the networks see."""
        return Inputs(self.floats, self.pixels)

    def of_samples(self, field: Tensor) -> Tensor:
        """One of the fields, without rows of sequences that are no samples."""
        return field if self.valid is None else field[self.valid]

    def at(self, indices: Tensor) -> Samples:
        """Some of them, `indices [K]` along the first dimension."""
        return self._replace(**{name: field.index_select(0, indices) for name, field in self.present()})

    def minibatches(self, num_batches: int) -> Iterator[Samples]:
        """Parts of nearly equal size; some are empty if there are too few samples."""
        names, fields = zip(*self.present(), strict=True)
        for parts in zip(*(field.tensor_split(num_batches) for field in fields), strict=True):
            yield self._replace(**dict(zip(names, parts, strict=True)))

    def filled_up(self, size: int) -> Samples:
        """The same samples in a minibatch of `size` rows, of which those that repeat others have no share."""
        num_samples = len(self.log_prob)
        rows = torch.arange(size, device=self.log_prob.device)
        share = (rows < num_samples).float() / num_samples
        return self.at(rows % num_samples)._replace(share=share)

    @property
    def mean(self) -> Mean:
        """Over the samples of a minibatch."""
        return torch.mean if self.share is None else functools.partial(torch.dot, self.share)

    def present(self) -> list[tuple[str, Tensor]]:
        """The fields that there are."""
        return [(name, field) for name, field in zip(self._fields, self, strict=True) if field is not None]


class Batcher:
    """Copies columns into a dataset. Owns the dataset's memory, which the next dataset overwrites."""

    def __init__(
        self, slots: DeviceSlots, columns_per_dataset: int, recurrence: int | None = None, steady_lag_bound: int = 0
    ) -> None:
        """Allocates room for one dataset.

        Args:
            slots: where the columns come from.
            columns_per_dataset: how many, C.
            recurrence: steps between the recurrent states that are kept; those of a whole trajectory if not given.
            steady_lag_bound: the largest lag that the plan expects while workers keep pace.
        """
        self._slots = slots
        self._steady_lag_bound = steady_lag_bound
        rollout = slots.slots.rollout
        num_rows = {"rnn_state": rollout // (recurrence or rollout), "policy_version": rollout}

        def room(name: str) -> torch.Tensor:
            field = slots.fields[name]
            shape = (num_rows.get(name, field.shape[1]), columns_per_dataset, *field.shape[3:])
            return torch.zeros(shape, dtype=field.dtype, device=slots.device)

        self._targets = {field.name: room(field.name) for field in fields(Dataset)}
        self._dataset = Dataset(**self._targets)
        self._columns: Sequence[Columns] = ()

    def collect(self, columns: Sequence[Columns]) -> Dataset:
        """Copies the columns into the dataset, side by side in their order."""
        self._slots.gather(columns, self._targets)
        self._columns = columns
        return self._dataset

    def lag(self, learner_version: int) -> LagMetrics:
        """Age of the dataset's valid samples now that training on it begins, before its slots are given back."""
        slots, now = self._slots.slots, time.monotonic()
        lags, ages_s = [], []
        for part in self._columns:
            rows = slots.valid[part.slot, :, part.start : part.stop].nonzero()[0]
            lags.append(learner_version - slots.policy_version[part.slot, rows])
            ages_s.append(now - slots.chosen_at[part.slot, rows])
        lag = np.concatenate(lags)
        return LagMetrics(
            mean=float(lag.mean()),
            p95=float(np.percentile(lag, 95)),
            max=int(lag.max()),
            age_ms=1000.0 * float(np.concatenate(ages_s).mean()),
            over_bound=float((lag > self._steady_lag_bound).mean()),
        )


FIELDS = (
    "obs",
    "rnn_state",
    "action",
    "action_parameters",
    "log_prob",
    "value",
    "reward",
    "terminated",
    "truncated",
    "valid",
    "policy_version",
)


class DeviceSlots:
    """Fields of all slots as tensors on one device.

    Attributes:
        device: where they are.
        slots: the slots in shared memory.
        fields: by name, `[slots, T or T+1, E, ...]`; `policy_version` is `[slots, T+1]`.
    """

    def __init__(self, slots: TrajectorySlots, device: torch.device | None = None, arena: Arena | None = None) -> None:
        """Takes slots, and the arena that they are in, to be page-locked; `device` is a CPU if it is not given."""
        device = device or torch.device("cpu")
        self.device = device
        self.slots = slots
        self._shared = {name: torch.from_numpy(getattr(slots, name)) for name in FIELDS}
        self.fields = self._shared
        self._is_copied = device.type == "cuda"
        if self._is_copied:
            if arena is not None:
                pin_arena(arena, self)
            self.fields = {name: torch.zeros_like(field, device=device) for name, field in self._shared.items()}
            self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._copied: dict[int, torch.cuda.Event] = {}
        self._gathered: dict[int, torch.cuda.Event] = {}

    def start_copy(self, slot: int) -> None:
        """Copies a slot that is ready; does not wait for it."""
        if not self._is_copied:
            return
        torch.cuda.set_device(self._stream.device)  # of this thread, which would go back to the first device otherwise
        with torch.cuda.stream(self._stream):
            gathered = self._gathered.pop(slot, None)
            if gathered is not None:
                self._stream.wait_event(gathered)
            for name, field in self._shared.items():
                self.fields[name][slot].copy_(field[slot], non_blocking=True)
            self._copied[slot] = self._stream.record_event()

    def gather(self, columns: Sequence[Columns], targets: dict[str, Tensor]) -> None:
        """Puts columns side by side into `targets`, of the fields' names, `[rows, C, ...]` on the device.

        Rows are every `n`-th of the field's, where `targets` has fewer: the first ones of sequences.
        """
        slots = {part.slot for part in columns}
        if self._is_copied:
            current = torch.cuda.current_stream(self.device)
            for slot in slots:
                current.wait_event(self._copied[slot])
        for name, target in targets.items():
            torch.cat(list(self._parts(name, columns, len(target))), dim=1, out=target)
        if self._is_copied:
            done = torch.cuda.current_stream(self.device).record_event()
            for slot in slots:
                self._gathered[slot] = done

    def settle(self, slot: int) -> None:
        """Waits until nothing reads the slot's shared memory any more: it is about to be freed."""
        copied = self._copied.get(slot)
        if copied is not None:
            copied.synchronize()

    def _parts(self, name: str, columns: Sequence[Columns], num_rows: int) -> Iterator[Tensor]:
        field, rollout = self.fields[name], self.slots.rollout
        for part in columns:
            rows = field[part.slot]
            if name == "policy_version":
                yield rows[:rollout, None].expand(-1, part.stop - part.start)
            elif num_rows < rollout:
                yield rows[: rollout : rollout // num_rows, part.start : part.stop]
            else:
                yield rows[:num_rows, part.start : part.stop]
