"""Forward and backward passes of a `StackedMlp` without autograd, in buffers that are reused.

An update of SAC is about twenty products of medium-sized matrices. Autograd's nodes, new memory for every result, and
unneeded gradients (of the critics' weights in the actor's loss) would take a third of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncrl.models import products
from asyncrl.models.activations import ACTIVATIONS
from asyncrl.models.stacked_mlp import LAYER_NORM_EPS, StackedLayer

_aten: Any = torch.ops.aten
ACTIVATION_GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": lambda grad, activated: _aten.tanh_backward.grad_input(grad, activated, grad_input=grad),
    "relu": lambda grad, activated: _aten.threshold_backward.grad_input(grad, activated, 0, grad_input=grad),
    "elu": lambda grad, activated: _aten.elu_backward.grad_input(grad, 1, 1, 1, True, activated, grad_input=grad),
}
"""By the name in the settings: from the gradient after the activation to the gradient before it, in place."""


def _relu_(features: Tensor) -> Tensor:
    """In place. A bfloat16 is negative if its bits as an integer are: 4 instead of 22 microseconds on a CPU.

    NaN may become 0 here; inputs are checked elsewhere.
    """
    if features.dtype == torch.bfloat16:
        features.view(torch.int16).clamp_min_(0)
        return features
    return torch.relu_(features)


@dataclass
class _Tape:
    """Results of a hidden layer's forward pass for the backward pass, and a buffer for its gradient.

    Attributes:
        product: [K, B, out], before a layer normalization; otherwise the same tensor as `features`.
        features: [K, B, out], after the activation.
        gradient: [K, B, out].
        normalized, mean, scale: of the layer normalization.
    """

    product: Tensor
    features: Tensor
    gradient: Tensor
    normalized: Tensor | None = None
    mean: Tensor | None = None
    scale: Tensor | None = None


class MlpPass:
    """Runs networks for any weights of one shape. A backward pass belongs to the latest forward pass.

    Hidden layers compute in the dtype of their weights, and the last layer in that of its weights. So hidden layers may
    be bfloat16 copies while the outputs are float32. None of the tensors may require autograd's gradients.
    """

    def __init__(self, nonlinearity: str) -> None:
        self._activate = _relu_ if nonlinearity == "relu" else ACTIVATIONS[nonlinearity]
        self._activation_gradient = ACTIVATION_GRADIENTS[nonlinearity]
        self._buffers: dict[int, tuple[list[_Tape], Tensor]] = {}
        self._current: list[_Tape] = []
        self._inputs = torch.empty(0)
        self._last = torch.empty(0)

    def forward(self, layers: Sequence[StackedLayer], inputs: Tensor) -> Tensor:
        """Outputs `[K, B, out]` for inputs `[B, in]`, which must not change before the backward pass."""
        *hidden, head = layers
        self._inputs = features = inputs.expand(head.weight.shape[0], *inputs.shape)
        batch_size = inputs.shape[0]
        if batch_size not in self._buffers:
            # Reused, because mapping new memory of this size into the process takes as long as the product.
            last = head.weight.new_empty(head.weight.shape[0], batch_size, head.weight.shape[2])
            self._buffers[batch_size] = [_make_tape(layer, batch_size) for layer in hidden], last
        self._current, self._last = self._buffers[batch_size]
        for layer, tape in zip(hidden, self._current, strict=True):
            product = products.baddbmm(layer.bias, features, layer.weight, out=tape.product)
            if layer.norm_weight is None:
                tape.features = product
            tape.product = product
            if layer.norm_weight is not None and layer.norm_bias is not None:
                normalized = torch.native_layer_norm(tape.product, tape.product.shape[-1:], None, None, LAYER_NORM_EPS)
                tape.normalized, tape.mean, tape.scale = normalized
                torch.addcmul(layer.norm_bias, tape.normalized, layer.norm_weight, out=tape.features)
            features = self._activate(tape.features)
        if features.dtype == head.weight.dtype:
            self._last = features
        else:
            self._last.copy_(features)
        return torch.baddbmm(head.bias, head.weight, self._last.transpose(1, 2)).transpose(1, 2)

    def backward(
        self,
        layers: Sequence[StackedLayer],
        output_gradient: Tensor,
        gradients: Sequence[StackedLayer] | None = None,
        inputs: slice | None = None,
    ) -> Tensor | None:
        """Backward pass of the latest forward pass; returns the gradient `[K, R, columns]` of `inputs`, if given.

        Args:
            layers: those of the forward pass.
            output_gradient: [K, R, out], of the first R rows; the gradient of the other rows is 0.
            gradients: written to; without it, gradients of parameters are not computed.
            inputs: columns of the inputs whose gradient is returned.
        """
        rows = output_gradient.shape[1]
        features = [self._inputs[:, :rows], *(tape.features[:, :rows] for tape in self._current)]
        if gradients is not None:
            torch.bmm(output_gradient.transpose(1, 2), self._last[:, :rows], out=gradients[-1].weight)
            torch.sum(output_gradient.transpose(1, 2), 2, keepdim=True, out=gradients[-1].bias)
        if not self._current:
            return None if inputs is None else torch.bmm(output_gradient, layers[-1].weight[:, :, inputs])
        gradient, weight = self._current[-1].gradient[:, :rows], layers[-1].weight
        product = torch.mul if weight.shape[1] == 1 else torch.bmm  # one output: an elementwise product
        product(output_gradient.to(gradient.dtype), weight.to(gradient.dtype), out=gradient)
        for depth in reversed(range(len(self._current))):
            layer, own = layers[depth], None if gradients is None else gradients[depth]
            self._activation_gradient(gradient, features[depth + 1])
            if layer.norm_weight is not None:
                gradient = _through_norm(gradient, layer.norm_weight, self._current[depth], own)
            if own is not None:
                products.bmm(features[depth].transpose(1, 2), gradient, out=own.weight)
                torch.sum(gradient, 1, keepdim=True, out=own.bias)
            if depth > 0:
                below = self._current[depth - 1].gradient[:, :rows]
                gradient = products.bmm(gradient, layer.weight.transpose(1, 2), out=below)
        return None if inputs is None else torch.bmm(gradient, layers[0].weight[:, inputs].transpose(1, 2))


def _make_tape(layer: StackedLayer, batch_size: int) -> _Tape:
    product = layer.weight.new_empty(layer.weight.shape[0], batch_size, layer.weight.shape[2])
    features = product if layer.norm_weight is None else torch.empty_like(product)
    return _Tape(product, features, torch.empty_like(product))


def _through_norm(gradient: Tensor, weight: Tensor, tape: _Tape, own: StackedLayer | None) -> Tensor:
    """The gradient before a layer normalization from that after it; writes its parameters' gradients to `own`."""
    assert tape.normalized is not None and tape.mean is not None and tape.scale is not None
    rows = gradient.shape[1]
    if own is not None and own.norm_weight is not None and own.norm_bias is not None:
        torch.sum(gradient * tape.normalized[:, :rows], 1, keepdim=True, out=own.norm_weight)
        torch.sum(gradient, 1, keepdim=True, out=own.norm_bias)
    scaled = gradient.mul_(weight)
    product = tape.product[:, :rows]
    mean, scale = tape.mean[:, :rows].contiguous(), tape.scale[:, :rows].contiguous()  # the operator reads them so
    shape, wanted = product.shape[-1:], [True, False, False]
    before: Tensor = _aten.native_layer_norm_backward(scaled, product, shape, mean, scale, None, None, wanted)[0]
    return before
