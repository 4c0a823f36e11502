"""Transitions as a replay would give them."""

from __future__ import annotations

import torch
from layouts import vector_observation
from torch import Tensor

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec

BOX = EnvSpec("Box", vector_observation(3, "float64"), BoxAction((2,), (-1.0,) * 2, (1.0,) * 2, "float32"), None)
CHOICE = EnvSpec("Choice", vector_observation(3, "float64"), DiscreteAction(4, 0), None)
CPU = torch.device("cpu")


def one_step(obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, discount: Tensor) -> Transitions:
    """Transitions without steps between."""
    size = len(obs)
    return Transitions(
        *(obs, action, reward, next_obs, discount, obs.new_empty(size, 0, obs.shape[1]), obs.new_empty(size, 0)),
        weight=torch.ones_like(reward),
    )


def draw(
    spec: EnvSpec, num: int, size: int = 12, seed: int = 5, dtype: torch.dtype = torch.float32, n_step: int = 1
) -> list[Transitions]:
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def action() -> Tensor:
        return torch.randint(4, (size,), generator=generator) if spec is CHOICE else randn(size, 2)

    def discount() -> Tensor:
        return 0.9 * (torch.rand(size, generator=generator, dtype=dtype) < 0.8)

    def between() -> tuple[Tensor, Tensor]:
        goes_on = (torch.rand(size, n_step - 1, generator=generator, dtype=dtype) < 0.7).cumprod(1)
        return randn(size, n_step - 1, 3), goes_on * 0.9 ** torch.arange(1, n_step, dtype=dtype)

    return [
        Transitions(
            *(randn(size, 3), action(), randn(size), randn(size, 3), discount(), *between()),
            weight=torch.ones(size, dtype=dtype),
        )
        for _ in range(num)
    ]
