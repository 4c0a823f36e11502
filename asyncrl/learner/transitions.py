"""What an off-policy update learns from: transitions drawn from the replay, as tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transitions:
    """B transitions of n steps each, or fewer where an episode ends before.

    Attributes:
        obs: [B, D] float32 or uint8, raw.
        action: [B, A] float32 or [B] int64, as the distribution produced it (before squashing).
        reward: [B] float32, discounted sum over the transition's steps.
        next_obs: [B, D], raw, after its last step.
        discount: [B] float32, what the value of `next_obs` counts: gamma ** steps, and 0 where the episode terminated.
        between_obs: [B, n - 1, D], raw, before the second and each later step; any other where there is no such step.
        between_discount: [B, n - 1] float32, what the policy's entropy there counts: gamma ** k before step k + 1, and
            0 where there is no such step.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    between_obs: Tensor
    between_discount: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All fields in their order."""
        return [getattr(self, field.name) for field in fields(self)]

    def to(self, device: torch.device) -> Transitions:
        """The same transitions on `device`; what is there already is not copied."""
        return Transitions(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})
