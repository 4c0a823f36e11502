"""What an off-policy update learns from: transitions drawn from the replay, as tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transitions:
    """B transitions of one or more steps each.

    Attributes:
        obs: [B, D] float32 or uint8, raw.
        action: [B, A] float32 or [B] int64, as the distribution produced it (before squashing).
        reward: [B] float32, discounted sum over the transition's steps.
        next_obs: [B, D], raw, after its last step.
        discount: [B] float32, what the value of `next_obs` counts: gamma ** steps, and 0 where the episode terminated.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All fields in their order."""
        return [getattr(self, field.name) for field in fields(self)]

    def to(self, device: torch.device) -> Transitions:
        """The same transitions on `device`; what is there already is not copied."""
        return Transitions(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})
