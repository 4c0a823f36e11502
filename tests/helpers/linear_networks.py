"""The networks of a `StackedMlp` one by one, of PyTorch's own modules, for tests to compare with."""

from __future__ import annotations

from torch import nn

from asyncrl.models.stacked_mlp import StackedMlp


def networks_of_linear_layers(mlp: StackedMlp) -> list[nn.Sequential]:
    """The same networks one by one, of PyTorch's own modules."""
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}[mlp.nonlinearity]
    *hidden, head = mlp.layers()
    networks = []
    for number in range(len(head.weight)):
        modules: list[nn.Module] = []
        for layer in hidden:
            linear = nn.Linear(layer.weight.shape[1], layer.weight.shape[2], dtype=head.weight.dtype)
            linear.load_state_dict({"weight": layer.weight[number].t(), "bias": layer.bias[number, 0]})
            modules.append(linear)
            if layer.norm_weight is not None and layer.norm_bias is not None:
                norm = nn.LayerNorm(layer.weight.shape[2], dtype=head.weight.dtype)
                norm.load_state_dict({"weight": layer.norm_weight[number, 0], "bias": layer.norm_bias[number, 0]})
                modules.append(norm)
            modules.append(activation())
        linear = nn.Linear(head.weight.shape[2], head.weight.shape[1], dtype=head.weight.dtype)
        linear.load_state_dict({"weight": head.weight[number], "bias": head.bias[number, :, 0]})
        networks.append(nn.Sequential(*modules, linear))
    return networks
