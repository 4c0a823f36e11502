"""From columns of slots to a dataset on the learner's device, and how old the samples are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch

from asyncrl.learner.dataset import Dataset
from asyncrl.learner.device_slots import DeviceSlots
from asyncrl.learner.slot_ledger import Columns
from asyncrl.monitoring.reports import LagMetrics


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
