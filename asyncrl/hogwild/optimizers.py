"""Optimizers whose parameters and state lie in shared memory, while gradients are each process's own.

The bias correction follows the number of steps that all processes have made. Python has no atomic addition across
processes, so each counts its own steps in a word that only it writes, and the count is the sum of the words.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.buffers.shared_tensors import SharedTensor
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import FlatAdam

_RMSPROP_ALPHA = 0.99


class SharedAdam(FlatAdam):
    """Adam on shared tensors, by the same fused kernel as elsewhere and without a lock.

    Attributes:
        steps: float32 scalars, steps of all processes as of the last `step` or `refresh`.
    """

    def __init__(
        self, shared: Sequence[SharedTensor], gradients: Sequence[Tensor], config: TrainConfig, owner: int
    ) -> None:
        """Takes tensors whose state was made before any process started.

        Args:
            shared: what is stepped.
            gradients: private, one for each.
            config: Adam's settings.
            owner: number of this process among those that step.
        """
        moments = [torch.from_numpy(s.first) for s in shared], [torch.from_numpy(s.second) for s in shared]
        super().__init__([torch.from_numpy(s.value) for s in shared], gradients, config, moments)
        self._shared = list(shared)
        self._owner = owner
        self.refresh()

    def refresh(self) -> None:
        """Brings `steps` to what all processes have made."""
        for tensor, steps in zip(self._shared, self.steps, strict=True):
            steps.fill_(tensor.num_steps)

    def step(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        """Takes one step; other processes may be taking theirs."""
        if found_inf:
            return
        self.refresh()
        for tensor in self._shared:
            tensor.steps[self._owner] += 1
        self._update(learning_rate, found_inf)

    def _update(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        super().step(learning_rate, found_inf)


class SharedRMSprop(SharedAdam):
    """RMSProp with shared statistics (Mnih et al. 2016, arXiv:1602.01783, equations 8 and 9)."""

    def _update(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        eps = self._config.adam_eps
        for value, square, gradient in zip(self.parameters, self.exp_avg_sqs, self._gradients, strict=True):
            square.mul_(_RMSPROP_ALPHA).addcmul_(gradient, gradient, value=1.0 - _RMSPROP_ALPHA)
            value.addcdiv_(gradient, (square + eps).sqrt_(), value=-float(learning_rate))
        for steps in self.steps:
            steps.add_(1.0)


def make_shared_optimizer(
    shared: Sequence[SharedTensor], gradients: Sequence[Tensor], config: TrainConfig, owner: int
) -> SharedAdam:
    """The optimizer that the settings name."""
    kind = SharedRMSprop if config.hogwild_optimizer == "rmsprop" else SharedAdam
    return kind(shared, gradients, config, owner)
