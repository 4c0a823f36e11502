"""From columns of slots to a dataset: one copy out of shared memory, and how old the samples are."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.slot_ledger import Columns
from asyncrl.monitoring.reports import LagMetrics

_COPIED = [field.name for field in fields(Dataset) if field.name != "policy_version"]


class Batcher:
    """Copies columns into a dataset. Owns the dataset's memory, which the next dataset overwrites."""

    def __init__(self, slots: TrajectorySlots, columns_per_dataset: int, recurrence: int | None = None) -> None:
        """Allocates room for one dataset.

        Args:
            slots: where the columns come from.
            columns_per_dataset: how many, C.
            recurrence: steps between the states of memory that are kept; those of a whole trajectory if not given.
        """
        self._slots = slots
        rollout = slots.rollout
        sources = {name: getattr(slots, name) for name in _COPIED}
        sources["rnn_state"] = slots.rnn_state[:, : rollout : recurrence or rollout]

        def room(field: npt.NDArray[Any]) -> torch.Tensor:
            shape = (field.shape[1], columns_per_dataset, *field.shape[3:])
            return torch.from_numpy(np.zeros(shape, dtype=field.dtype))

        self._dataset = Dataset(
            obs=room(slots.obs),
            rnn_state=room(sources["rnn_state"]),
            action=room(slots.action),
            action_parameters=room(slots.action_parameters),
            log_prob=room(slots.log_prob),
            value=room(slots.value),
            reward=room(slots.reward),
            terminated=room(slots.terminated),
            truncated=room(slots.truncated),
            valid=room(slots.valid),
            policy_version=torch.zeros((rollout, columns_per_dataset), dtype=torch.int64),
        )
        self._fields = [(source, getattr(self._dataset, name).numpy()) for name, source in sources.items()]
        self._versions = self._dataset.policy_version.numpy()
        self._chosen_at = np.zeros((rollout, columns_per_dataset))

    def collect(self, columns: list[Columns]) -> Dataset:
        """Copies the columns into the dataset, side by side in their order."""
        position = 0
        for part in columns:
            place = slice(position, position + part.stop - part.start)
            for source, target in self._fields:
                target[:, place] = source[part.slot, :, part.start : part.stop]
            self._versions[:, place] = self._slots.policy_version[part.slot, :-1, np.newaxis]
            self._chosen_at[:, place] = self._slots.chosen_at[part.slot, :-1, np.newaxis]
            position = place.stop
        return self._dataset

    def lag(self, learner_version: int) -> LagMetrics:
        """Age of the dataset's valid samples now that training on it begins."""
        valid = self._dataset.valid.numpy()
        lags = learner_version - self._versions[valid]
        ages_s = time.monotonic() - self._chosen_at[valid]
        return LagMetrics(
            mean=float(lags.mean()),
            p95=float(np.percentile(lags, 95)),
            max=int(lags.max()),
            age_ms=1000.0 * float(ages_s.mean()),
        )
