"""Networks that a learner trains or moves: parameters in one tensor, and copies of layers for matrix products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import ParameterStore, clip_gradient
from asyncrl.models.block_network import BatchRenorm, UnitLinear
from asyncrl.models.flat import FlatParameters
from asyncrl.models.stacked_mlp import StackedLayer, StackedMlp


def matmul_dtype(precision: Literal["auto", "float32", "bf16"], device: torch.device) -> torch.dtype:
    """The dtype of matrix products: auto is bfloat16 where the hardware has instructions for it; others are slower."""
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float32
    # AVX512-BF16 and AMX. A version of PyTorch that cannot check for one of them does not use it.
    checks = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    has_instructions = device.type == "cpu" and any(check() for check in checks if check is not None)
    return torch.bfloat16 if has_instructions else torch.float32


class LayerCopy:
    """Layers of a flat tensor `[N]` for matrix products.

    Attributes:
        layers: views of the tensor; hidden layers of a copy if the products have another dtype.
        hidden: the parts of tensor and copy that have the hidden layers; None without a copy.
    """

    def __init__(self, mlp: StackedMlp, flat: Tensor, dtype: torch.dtype) -> None:
        size = mlp.num_hidden_parameters
        copied = flat if flat.dtype == dtype else flat.to(dtype)
        self.layers = (*mlp.layers_in(copied)[:-1], mlp.layers_in(flat)[-1])
        self.hidden = None if copied is flat else (flat[:size], copied[:size])

    def refresh(self) -> None:
        """Updates the copy from the flat tensor."""
        if self.hidden is not None:
            flat, copied = self.hidden
            copied.copy_(flat)


class TrainedNetwork:
    """A module with its gradient and optimizer.

    Attributes:
        flat: all parameters and their gradients.
        weights: the layers for the products; None without passes.
        layers: weights for hand-written passes; empty without passes.
        gradients: where passes write gradients.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        mlp: StackedMlp | None,
        config: TrainConfig,
        dtype: torch.dtype,
        storage: ParameterStore,
        others: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        """Makes the parameters of the module flat, under `name` in `storage`.

        `mlp` has all layers of a module with hand-written passes, whose matrix products of hidden layers have `dtype`;
        None if autograd trains the module. `others` are further tensors of the same optimizer and their gradients,
        which are never clipped, by name in `storage`.
        """
        others = others or {}
        self.flat = FlatParameters(module, hold=lambda initial: storage.allocate(name, initial))
        self._gradient = self.flat.require_grad()
        self.weights: LayerCopy | None = None
        self._weight_gradients: LayerCopy | None = None
        self.layers: tuple[StackedLayer, ...] = ()
        self.gradients: tuple[StackedLayer, ...] = ()
        if mlp is not None:
            self.weights, self._weight_gradients = (
                LayerCopy(mlp, flat, dtype) for flat in (self.flat.data, self._gradient)
            )
            self.layers, self.gradients = self.weights.layers, self._weight_gradients.layers
        self.max_grad_norm = config.max_grad_norm
        self._unit_layers = [layer for layer in module.modules() if isinstance(layer, UnitLinear)]
        self._renorms = [layer for layer in module.modules() if isinstance(layer, BatchRenorm)]
        self._weight_decay = config.weight_decay
        statistics = {id(each) for layer in self._renorms for each in layer.statistics}
        self._decayed = [each.data for each in module.parameters() if self._weight_decay and id(each) not in statistics]
        self._ranks = storage.ranks
        tensors, gradients = zip((self.flat.data, self._gradient), *others.values(), strict=True)
        self._gradients = list(gradients)
        self._optimizer = storage.optimizer([name, *others], tensors, gradients, config)

    def step(self, learning_rate: float | Tensor, figures: Tensor) -> Tensor:
        """Takes one step down the gradients, or skips it if a figure or the gradients' norm is not finite.

        Returns the figures and the norm before clipping, [K + 1].

        Args:
            learning_rate: a scalar tensor on the parameters' device may change between replays of a CUDA graph.
            figures: [K], means over the batch that must be finite; means over all ranks afterwards.
        """
        if self._weight_gradients is not None and self._weight_gradients.hidden is not None:
            flat, copied = self._weight_gradients.hidden
            flat.copy_(copied)
        if self._ranks.num_ranks > 1:
            moments = [each for layer in self._renorms for each in layer.batch_moments]
            self._ranks.average([*self._gradients, *moments, figures])
        norm = clip_gradient(self._gradient, self.max_grad_norm)
        figures = torch.cat((figures, norm.unsqueeze(0)))
        is_skipped = torch.isfinite(figures).all().logical_not()
        if self._decayed:  # decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101)
            factor = 1.0 - is_skipped.logical_not() * (learning_rate * self._weight_decay)
            torch._foreach_mul_(self._decayed, factor.to(figures.dtype))
        self._optimizer.step(learning_rate, is_skipped.float())
        for unit_layer in self._unit_layers:
            unit_layer.project()
        for renorm in self._renorms:
            renorm.update_statistics(is_skipped)
        if self.weights is not None:
            self.weights.refresh()
        return figures

    @contextlib.contextmanager
    def normalizing_by_batch(self) -> Iterator[None]:
        """Inside, batch renormalization takes the batch's statistics; the next `step` moves the running ones."""
        for layer in self._renorms:
            layer.uses_batch = True
        yield
        for layer in self._renorms:
            layer.uses_batch = False

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that continue the training; after writing to them call `weights.refresh`."""
        kinds = {
            "value": self._optimizer.parameters,
            "exp_avg": self._optimizer.exp_avgs,
            "exp_avg_sq": self._optimizer.exp_avg_sqs,
            "step": self._optimizer.steps,
        }
        return {f"{name}.{number}": tensor for name, kind in kinds.items() for number, tensor in enumerate(kind)}


class TargetNetwork:
    """A module that follows a trained network of the same shape.

    Attributes:
        flat: [N], all parameters.
        weights: the layers for the products; None without passes.
        layers: weights for hand-written passes; empty without passes.
    """

    def __init__(
        self, name: str, module: nn.Module, mlp: StackedMlp | None, dtype: torch.dtype, storage: ParameterStore
    ) -> None:
        """As `TrainedNetwork`; `mlp` is any with the layers of the module."""
        self._storage = storage
        self.flat = FlatParameters(module, with_grad=False, hold=lambda initial: storage.allocate(name, initial)).data
        self.weights = None if mlp is None else LayerCopy(mlp, self.flat, dtype)
        self.layers = () if self.weights is None else self.weights.layers

    def follow(self, trained: TrainedNetwork, share: float) -> None:
        """Moves towards the trained network by a share of the difference."""
        self._storage.polyak_update(self.flat, trained.flat.data, share)
        if self.weights is not None:
            self.weights.refresh()


def perceptron_of(network: nn.Module) -> StackedMlp | None:
    """The network, if hand-written passes know it."""
    return network if isinstance(network, StackedMlp) else None
