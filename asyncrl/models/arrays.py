"""A model as NumPy sees it: views of its parameters, which share the memory of its tensors on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from asyncrl.models.encoders import Layers, ObservationEncoder, PartialEncoder

FloatArray = npt.NDArray[np.float32]
ArrayLayer = tuple[FloatArray, FloatArray]
Columns = slice | list[int]
Encoder = tuple[Columns, list[ArrayLayer]]
ParametersOf = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
"""From outputs `[B, O]` of the policy's head, which it may overwrite, the head's inputs `[B, F]`, and normalized
observations `[B, D]`, to the distribution's parameters `[B, P]`."""


class ArrayCritic(NamedTuple):
    """The critic's encoder (None if shared with the actor), its head, mean and standard deviation `[1]` of returns."""

    encoder: Encoder | None
    head: ArrayLayer
    return_mean: FloatArray
    return_std: FloatArray


class ArrayNetworks(NamedTuple):
    """What `asyncrl.inference.acting.ArrayPolicy` acts with; `critic` is None if the policy gives no values."""

    actor: Encoder
    policy_head: ArrayLayer
    parameters_of: ParametersOf
    critic: ArrayCritic | None = None


def array_of(tensor: Tensor) -> FloatArray:
    """A view of a tensor on the CPU."""
    array: FloatArray = tensor.detach().numpy()
    return array


def has_perceptron(encoder: Any) -> bool:
    """Whether an encoder is one of the package's, over numbers; a subclass may compute more."""
    return type(encoder) in (ObservationEncoder, PartialEncoder) and encoder.perceptron is not None


def encoder_of(encoder: Any) -> Encoder:
    """Columns and layers of an encoder that `has_perceptron`."""
    columns, layers = encoder.perceptron
    return columns, weights_of(layers)


def weights_of(layers: Layers) -> list[ArrayLayer]:
    """Transposed weights `[in, out]` and biases of layers, as views."""
    return [(array_of(weight).T, array_of(bias)) for weight, bias in layers]
