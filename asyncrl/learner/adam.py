"""Adam on flat tensors, by PyTorch's fused kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig


class FlatAdam:
    """Steps a few tensors down their gradients. Its call costs half of what the class in `torch.optim` takes.

    Attributes:
        parameters: what is stepped, each `[N]`.
        exp_avgs, exp_avg_sqs: Adam's moments, one for each.
        steps: float32 scalars, how many steps each has made.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        config: TrainConfig,
        moments: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    ) -> None:
        """Prepares for steps.

        Args:
            parameters: what is stepped.
            gradients: what is read at each step, one for each parameter.
            config: learning rate apart, Adam's settings.
            moments: `exp_avgs` and `exp_avg_sqs`, in whatever memory; zeros of its own if not given.
        """
        self.parameters = list(parameters)
        if moments is None:
            moments = [torch.zeros_like(p) for p in parameters], [torch.zeros_like(p) for p in parameters]
        self.exp_avgs, self.exp_avg_sqs = (list(tensors) for tensors in moments)
        self.steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]
        self._gradients = list(gradients)
        self._config = config

    def step(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        """Takes one step (Kingma and Ba 2015, arXiv:1412.6980).

        Args:
            learning_rate: its size.
            found_inf: float32 scalar on the parameters' device; where it is 1 the step is left out, and not counted.
        """
        torch._foreach_add_(self.steps, 1.0)
        torch._fused_adam_(
            self.parameters,
            self._gradients,
            self.exp_avgs,
            self.exp_avg_sqs,
            [],
            self.steps,
            found_inf=found_inf,
            amsgrad=False,
            beta1=self._config.adam_beta1,
            beta2=self._config.adam_beta2,
            lr=learning_rate,
            weight_decay=0.0,
            eps=self._config.adam_eps,
            maximize=False,
        )
        torch._foreach_sub_(self.steps, [found_inf] * len(self.steps))
