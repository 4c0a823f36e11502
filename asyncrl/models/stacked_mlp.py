"""Several multilayer perceptrons of one shape as one module: each layer is one batched product for all of them.

Twin critics are two of them, an actor is one. `forward` can be differentiated by autograd; `asyncrl.models.mlp_pass`
trains the same layers without autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from asyncrl.models.activations import ACTIVATIONS
from asyncrl.models.precision import without_autocast

LAYER_NORM_EPS = 1e-5


class StackedLayer(NamedTuple):
    """One layer of K networks.

    Attributes:
        weight: [K, in, out] of a hidden layer; [K, out, in] of the last one: with one output, the other layout takes
            more than four times as long on a CPU.
        bias: [K, 1, out] of a hidden layer, [K, out, 1] of the last one.
        norm_weight, norm_bias: [K, 1, out] of a layer normalization between product and activation.
    """

    weight: Tensor
    bias: Tensor
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None


class StackedMlp(nn.Module):
    """K perceptrons with hidden layers of the given widths; parameters of the last layer come last.

    The weights of each network are drawn separately from torch's global generator.

    Args:
        num_networks: K.
        widths: of input, hidden layers and output.
        nonlinearity: tanh, relu or elu.
        head_gain: gain of the last layer's orthogonal weights; that of hidden layers is sqrt(2). With None all layers
            are initialized as `nn.Linear`.
        layer_norm: whether hidden layers are normalized (Ba et al. 2016, arXiv:1607.06450).

    Attributes:
        num_hidden_parameters: number of parameters before those of the last layer.
    """

    def __init__(
        self,
        num_networks: int,
        widths: Sequence[int],
        nonlinearity: str,
        head_gain: float | None,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.nonlinearity = nonlinearity
        self._activation = ACTIVATIONS[nonlinearity]
        self._layers = nn.ModuleList()
        num_hidden = len(widths) - 2
        for depth, (num_in, num_out) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
            is_head = depth == num_hidden
            gain = None if head_gain is None else (head_gain if is_head else math.sqrt(2.0))
            linears = [_make_linear(num_in, num_out, gain) for _ in range(num_networks)]
            weight = torch.stack([linear.weight.detach() for linear in linears])
            bias = torch.stack([linear.bias.detach() for linear in linears])
            tensors = [weight, bias.unsqueeze(2)] if is_head else [weight.transpose(1, 2), bias.unsqueeze(1)]
            if layer_norm and not is_head:
                tensors += [torch.ones(num_networks, 1, num_out), torch.zeros(num_networks, 1, num_out)]
            self._layers.append(nn.ParameterList([nn.Parameter(tensor.contiguous()) for tensor in tensors]))
        self.num_hidden_parameters = sum(parameter.numel() for parameter in self._layers[:-1].parameters())

    @property
    def head_bias(self) -> Tensor:
        """Bias of the last layer, `[K, out]`."""
        return self.layers()[-1].bias[..., 0]

    def layers(self) -> tuple[StackedLayer, ...]:
        return tuple(StackedLayer(*layer.parameters()) for layer in self._layers)

    def layers_in(self, flat: Tensor) -> tuple[StackedLayer, ...]:
        """Views of `flat: [N]`, one number for each parameter, in the order of `parameters`."""
        layers, start = [], 0
        for layer in self._layers:
            views = []
            for parameter in layer.parameters():
                views.append(flat[start : start + parameter.numel()].view(parameter.shape))
                start += parameter.numel()
            layers.append(StackedLayer(*views))
        return tuple(layers)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs `[K, B, out]` for inputs `[B, in]`, which all networks share; autocast rounds none of the outputs."""
        *hidden, head = self.layers()
        features = inputs.expand(head.weight.shape[0], *inputs.shape)
        for layer in hidden:
            features = torch.baddbmm(layer.bias, features, layer.weight)
            if layer.norm_weight is not None and layer.norm_bias is not None:
                normalized = nn.functional.layer_norm(features, features.shape[-1:], eps=LAYER_NORM_EPS)
                features = torch.addcmul(layer.norm_bias, normalized, layer.norm_weight)
            features = self._activation(features)
        with without_autocast(features):
            return torch.baddbmm(head.bias, head.weight, features.to(head.weight).transpose(1, 2)).transpose(1, 2)


def _make_linear(num_in: int, num_out: int, gain: float | None) -> nn.Linear:
    linear = nn.Linear(num_in, num_out)
    if gain is not None:
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
    return linear
