"""Transitions as a replay would give them."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec, vector_observation
from asyncrl.learner.transitions import Transitions

BOX = EnvSpec("Box", vector_observation(3, "float64"), BoxAction((2,), (-1.0,) * 2, (1.0,) * 2, "float32"), None)
CHOICE = EnvSpec("Choice", vector_observation(3, "float64"), DiscreteAction(4, 0), None)
CPU = torch.device("cpu")


def draw(
    spec: EnvSpec, num: int, size: int = 12, seed: int = 5, dtype: torch.dtype = torch.float32
) -> list[Transitions]:
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def action() -> Tensor:
        return torch.randint(4, (size,), generator=generator) if spec is CHOICE else randn(size, 2)

    def discount() -> Tensor:
        return 0.9 * (torch.rand(size, generator=generator, dtype=dtype) < 0.8)

    return [Transitions(randn(size, 3), action(), randn(size), randn(size, 3), discount()) for _ in range(num)]
