"""A dataset: the columns that one training iteration learns from, as tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


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
