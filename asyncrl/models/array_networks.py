"""Forward and backward passes of an `ActorCritic` in NumPy, for what `ActorCritic.runs_in_arrays` allows.

Features are `[B, F]`, outputs of the policy `[P, B]`: NumPy is quick along long rows, and there are few actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.array_policy import FloatArray, array_of
from asyncrl.models.encoders import Layers, ObservationEncoder
from asyncrl.models.mlp_pass import ACTIVATION_GRADIENTS


class TrainedLayer(NamedTuple):
    """Views of a layer's parameters and of their gradients: `[out, in]` and `[out]`."""

    weight: FloatArray
    bias: FloatArray
    weight_gradient: FloatArray
    bias_gradient: FloatArray


class ArrayMlp:
    """Hidden layers. A backward pass is that of the latest forward pass."""

    def __init__(self, layers: Layers, nonlinearity: str) -> None:
        """Views the layers' parameters and their gradients, which must be flat already (`FlatParameters`)."""
        self._layers = [_trained(*layer) for layer in layers]
        self._activate = _ACTIVATIONS[nonlinearity]
        self._activation_gradient = ACTIVATION_GRADIENTS[nonlinearity]
        self._features = [np.empty((0, 0), np.float32)]
        self._gradients: list[FloatArray] = []
        self._ones = np.empty(0, np.float32)

    def forward(self, inputs: FloatArray) -> FloatArray:
        """From `[B, in]` to features `[B, out]`, which the next pass overwrites."""
        self._make_room(len(inputs))
        self._features[0] = inputs
        for depth, layer in enumerate(self._layers):
            features = np.dot(self._features[depth], layer.weight.T, out=self._features[depth + 1])
            features += layer.bias
            self._activate(features)
        return self._features[-1]

    def backward(self, gradient: FloatArray) -> None:
        """Writes the parameters' gradients; `gradient [B, out]` of the features is overwritten."""
        for depth in reversed(range(len(self._layers))):
            layer = self._layers[depth]
            self._activation_gradient(torch.from_numpy(gradient), torch.from_numpy(self._features[depth + 1]))
            np.dot(gradient.T, self._features[depth], out=layer.weight_gradient)
            np.dot(self._ones, gradient, out=layer.bias_gradient)  # a sum, in a fifth of the time
            if depth > 0:
                gradient = np.dot(gradient, layer.weight, out=self._gradients[depth])

    def _make_room(self, num_samples: int) -> None:
        """Keeps arrays from pass to pass: fresh ones of this size would be mapped into the process page by page."""
        if len(self._features) == 1 + len(self._layers) and len(self._features[-1]) == num_samples:
            return
        widths = [len(layer.bias) for layer in self._layers]
        self._features[1:] = [np.empty((num_samples, width), np.float32) for width in widths]
        self._gradients = [np.empty((num_samples, layer.weight.shape[1]), np.float32) for layer in self._layers]
        self._ones = np.ones(num_samples, np.float32)


class ArrayEncoder:
    """The perceptrons of an observation's keys, their features side by side."""

    def __init__(self, encoder: ObservationEncoder, nonlinearity: str) -> None:
        """Takes an encoder of numbers alone."""
        assert encoder.vector_keys is not None
        self._keys = [(places, ArrayMlp(layers, nonlinearity)) for places, layers in encoder.vector_keys]
        self._ends: list[int] = []

    def forward(self, floats: FloatArray) -> FloatArray:
        """From normalized numbers `[B, F]` to features `[B, out]`."""
        pieces = [mlp.forward(_columns(floats, places)) for places, mlp in self._keys]
        if len(pieces) == 1:
            return pieces[0]
        self._ends = np.cumsum([piece.shape[1] for piece in pieces])[:-1].tolist()
        return np.concatenate(pieces, axis=1)

    def backward(self, gradient: FloatArray) -> None:
        """Writes the parameters' gradients from that of the features, `[B, out]`, which is overwritten."""
        pieces = [gradient] if len(self._keys) == 1 else np.split(gradient, self._ends, axis=1)
        for piece, (_, mlp) in zip(pieces, self._keys, strict=True):
            mlp.backward(piece)


class ArrayActorCritic:
    """The networks of an `ActorCritic`, whose memory it shares."""

    def __init__(self, model: ActorCritic) -> None:
        """Views parameters and gradients of `model`, which must be flat already (`FlatParameters`)."""
        self._actor = ArrayEncoder(model.actor, model.nonlinearity)
        self._critic = None if model.critic is None else ArrayEncoder(model.critic, model.nonlinearity)
        self._policy_head, self._value_head = (_trained(*layer) for layer in model.heads)
        self._features = self._critic_features = np.empty((0, 0), np.float32)

    def forward(self, floats: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The policy's outputs `[P, B]` and normalized values `[B]` for normalized numbers `[B, F]`."""
        self._features = self._critic_features = self._actor.forward(floats)
        if self._critic is not None:
            self._critic_features = self._critic.forward(floats)
        outputs = np.dot(self._features, self._policy_head.weight.T).T.copy()
        outputs += self._policy_head.bias[:, None]
        values = np.dot(self._critic_features, self._value_head.weight[0])
        values += self._value_head.bias
        return outputs, values

    def backward(self, outputs_gradient: FloatArray, values_gradient: FloatArray) -> None:
        """Writes all parameters' gradients from those of the latest outputs `[P, B]` and values `[B]`."""
        np.dot(outputs_gradient, self._features, out=self._policy_head.weight_gradient)
        np.add.reduce(outputs_gradient, axis=1, out=self._policy_head.bias_gradient)
        np.dot(values_gradient, self._critic_features, out=self._value_head.weight_gradient[0])
        self._value_head.bias_gradient[0] = np.add.reduce(values_gradient)
        actor_gradient = np.dot(outputs_gradient.T, self._policy_head.weight)
        critic_gradient = np.dot(values_gradient[:, None], self._value_head.weight)
        if self._critic is None:
            actor_gradient += critic_gradient
        else:
            self._critic.backward(critic_gradient)
        self._actor.backward(actor_gradient)


def _columns(floats: FloatArray, places: list[slice]) -> FloatArray:
    if len(places) == 1:
        return floats[:, places[0]]
    return np.concatenate([floats[:, place] for place in places], axis=1)


def _tanh(features: FloatArray) -> None:
    np.tanh(features, out=features)  # three times as fast as PyTorch's quicker way


def _relu(features: FloatArray) -> None:
    torch.relu_(torch.from_numpy(features))


def _elu(features: FloatArray) -> None:
    torch.nn.functional.elu(torch.from_numpy(features), inplace=True)


_ACTIVATIONS: dict[str, Callable[[FloatArray], None]] = {"tanh": _tanh, "relu": _relu, "elu": _elu}
"""By the name in the settings; in place."""


def _trained(weight: Tensor, bias: Tensor) -> TrainedLayer:
    return TrainedLayer(array_of(weight), array_of(bias), gradient_of(weight), gradient_of(bias))


def gradient_of(parameter: Tensor) -> FloatArray:
    """A view of a parameter's gradient on the CPU."""
    if parameter.grad is None:
        raise RuntimeError("passes in arrays write gradients: make the parameters flat with gradients first")
    return array_of(parameter.grad)
