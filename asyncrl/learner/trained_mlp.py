"""A network that SAC trains: flat weights, their optimizer, and for passes without autograd copies for the products."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import is_bad
from asyncrl.learner.storage import Storage
from asyncrl.models.flat import FlatParameters
from asyncrl.models.stacked_mlp import StackedLayer, StackedMlp


def mixed_layers(mlp: StackedMlp, hidden: Tensor, head: Tensor) -> tuple[StackedLayer, ...]:
    """Layers as views of flat tensors: hidden ones of `hidden`, the last one of `head`, both `[N]`."""
    return (*mlp.layers_in(hidden)[:-1], mlp.layers_in(head)[-1])


class LayerCopy:
    """A flat tensor's hidden layers in the dtype of the matrix products; the tensor itself where that is its own.

    Attributes:
        layers: what passes run on.
    """

    def __init__(self, mlp: StackedMlp, flat: Tensor, dtype: torch.dtype) -> None:
        self._size = mlp.num_hidden_parameters
        self._flat = flat
        self._copy = flat if flat.dtype == dtype else flat.to(dtype)
        self.layers = mixed_layers(mlp, self._copy, flat)

    def refresh(self) -> None:
        """Take over what has become of the flat tensor."""
        if self._copy is not self._flat:
            self._copy[: self._size].copy_(self._flat[: self._size])

    def write_back(self) -> None:
        """Bring what was written to the copies of hidden layers to the flat tensor."""
        if self._copy is not self._flat:
            self._flat[: self._size].copy_(self._copy[: self._size])


class TrainedNetwork:
    """A module with its gradient and Adam.

    Attributes:
        flat: all parameters and their gradients.
        layers: the weights that passes run on; empty without passes.
        gradients: where passes write gradients.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        mlp: StackedMlp | None,
        config: TrainConfig,
        dtype: torch.dtype,
        storage: Storage,
        others: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        """Makes the module's parameters flat.

        Args:
            name: of the module's weights in `storage`.
            module: on its device already.
            mlp: what passes run, which has all parameters of the module; None for one that is trained by autograd.
            config: Adam's settings and `max_grad_norm`.
            dtype: of the hidden layers' matrix products.
            storage: where they live.
            others: by name in `storage`, further tensors that are stepped along, and their gradients, never clipped.
        """
        others = others or {}
        self.flat = FlatParameters(module, hold=lambda initial: storage.hold(name, initial))
        self._gradient = self.flat.require_grad()
        self._weights: LayerCopy | None = None
        self._weight_gradients: LayerCopy | None = None
        self.layers: tuple[StackedLayer, ...] = ()
        self.gradients: tuple[StackedLayer, ...] = ()
        if mlp is not None:
            self._weights, self._weight_gradients = (
                LayerCopy(mlp, flat, dtype) for flat in (self.flat.data, self._gradient)
            )
            self.layers, self.gradients = self._weights.layers, self._weight_gradients.layers
        self._max_grad_norm = config.max_grad_norm
        self._ranks = storage.ranks
        tensors, gradients = zip((self.flat.data, self._gradient), *others.values(), strict=True)
        self._gradients = list(gradients)
        self._optimizer = storage.optimizer([name, *others], tensors, gradients, config)

    def step(self, learning_rate: float | Tensor, figures: Tensor) -> Tensor:
        """Take one step down the gradients, or leave it out if a figure or the gradients' norm is not finite.

        Args:
            learning_rate: as a scalar tensor on the parameters' device it may change between replays of a CUDA graph.
            figures: [K], means over the batch, losses and what else must be finite; means over all ranks afterwards.

        Returns:
            [K + 1]: the figures, and the norm before clipping.
        """
        if self._weight_gradients is not None:
            self._weight_gradients.write_back()
        if self._ranks.num_ranks > 1:
            self._ranks.average([*self._gradients, figures])
        norm: Tensor = torch.linalg.vector_norm(self._gradient)
        if self._max_grad_norm > 0.0:
            self._gradient.mul_((self._max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        figures = torch.cat((figures, norm.unsqueeze(0)))
        self._optimizer.step(learning_rate, is_bad(figures))
        self.refresh()
        return figures

    def tensors(self) -> dict[str, Tensor]:
        """All that continues the training, the tensors themselves: call `refresh` after writing to them."""
        kinds = {
            "value": self._optimizer.parameters,
            "exp_avg": self._optimizer.exp_avgs,
            "exp_avg_sq": self._optimizer.exp_avg_sqs,
            "step": self._optimizer.steps,
        }
        return {f"{name}.{number}": tensor for name, kind in kinds.items() for number, tensor in enumerate(kind)}

    def refresh(self) -> None:
        """Takes weights over into the copies for the products."""
        if self._weights is not None:
            self._weights.refresh()
