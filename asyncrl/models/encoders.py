"""Encoders: from rows of observations to features.

Every top-level key of an observation has an encoder of its own: a multilayer perceptron over its numbers, and a stack
of convolutions over each of its images. What they say is put side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import FLOAT_BYTES, ObservationLayout, ObservationPart, image_axes, image_size
from asyncrl.models.activations import ACTIVATIONS

_BYTE_SCALE = 1.0 / 255.0
_SMALLEST_FOR_NATURE = 36
_IMPALA_CHANNELS = (16, 32, 32)
Layers = tuple[tuple[Tensor, Tensor], ...]


class Inputs(NamedTuple):
    """What a model sees of B observations.

    Attributes:
        floats: [B, F] float32, the numbers, normalized or not, and behind them the mask of actions.
        pixels: [B, pixels] uint8, images one behind the other, if there are any.
    """

    floats: Tensor
    pixels: Tensor | None = None

    def at(self, indices: Tensor) -> Inputs:
        """The rows of these numbers `[N]`."""
        pixels = None if self.pixels is None else self.pixels.index_select(0, indices)
        return Inputs(self.floats.index_select(0, indices), pixels)


class FeatureEncoder(Protocol):
    """What an encoder is, a user's own as well: an `nn.Module` with these.

    Attributes:
        output_size: features F of an observation.
    """

    output_size: int

    def __call__(self, inputs: Inputs) -> Tensor:
        """Features `[B, F]`."""


def split_tensor(layout: ObservationLayout, rows: Tensor) -> Inputs:
    """Views of rows `[..., row_size]` as what a model sees."""
    if not layout.num_pixels:
        return Inputs(rows)
    num_bytes = FLOAT_BYTES * layout.num_floats
    floats = rows[..., :num_bytes].view(torch.float32)
    return Inputs(floats, rows[..., num_bytes : num_bytes + layout.num_pixels])


class MlpEncoder(nn.Module):
    """A multilayer perceptron over numbers.

    Attributes:
        output_size: width of the last layer, or of the input if there are no layers.
        layers: weight and bias of each layer, at hand: looking them up costs as much as a small layer's arithmetic.
    """

    def __init__(self, input_size: int, widths: Sequence[int], config: TrainConfig) -> None:
        super().__init__()
        sizes = [input_size, *widths]
        self.linears = nn.ModuleList(
            nn.Linear(num_in, num_out) for num_in, num_out in zip(sizes[:-1], sizes[1:], strict=True)
        )
        if config.policy_initialization == "orthogonal":
            for module in self.linears:
                initialize_orthogonal(module, math.sqrt(2.0))
        self.output_size = sizes[-1]
        self._activation = ACTIVATIONS[config.nonlinearity]
        self._refresh()

    def forward(self, features: Tensor) -> Tensor:
        """From `[B, in]` to `[B, out]`."""
        for weight, bias in self.layers:
            features = self._activation(linear(features, weight, bias))
        return features

    def _apply(self, fn: Any, recurse: bool = True) -> MlpEncoder:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._refresh()
        return self

    def _refresh(self) -> None:
        self.layers: Layers = layers_of(self.linears)


class ConvEncoder(nn.Module):
    """Convolutions over one image, and a layer behind them.

    Nature: Mnih et al. 2015, "Human-level control through deep reinforcement learning". IMPALA: the residual stack of
    Espeholt et al. 2018 (arXiv:1802.01561), figure 3.
    """

    def __init__(self, part: ObservationPart, config: TrainConfig) -> None:
        super().__init__()
        self._shape = shape = part.shape
        self._axes = (0, *(axis + 1 for axis in image_axes(shape, part.channels)))
        height, width = image_size(shape, part.channels)
        channels = math.prod(shape) // (height * width)
        self._size = channels, height, width
        self.stack = _nature(channels) if _takes_nature(config, height, width) else _impala(channels)
        with torch.no_grad():
            num_features = self.stack(torch.zeros(1, channels, height, width)).numel()
        self.head = MlpEncoder(num_features, config.encoder_conv_mlp_layers, config)
        self.output_size = self.head.output_size
        if config.policy_initialization == "orthogonal":
            _initialize_convolutions(self.stack)

    def forward(self, image: Tensor) -> Tensor:
        """From float32 images `[B, height * width * channels]`, as the environment orders them, to `[B, out]`."""
        batch = image.view(-1, *self._shape).permute(self._axes).reshape(-1, *self._size)
        if not batch.is_cuda:
            # A CPU's convolutions with their gradients are 1.6 times as fast so.
            batch = batch.contiguous(memory_format=torch.channels_last)
        return self.head(self.stack(batch).flatten(1))  # type: ignore[no-any-return]


class ObservationEncoder(nn.Module):
    """The encoders of all keys.

    Attributes:
        output_size: features of an observation.
        vector_keys: the columns of numbers of each key, and the layers over them, if that is all there is; None with
            images. Roles that act on a CPU run these in NumPy.
    """

    def __init__(self, layout: ObservationLayout, config: TrainConfig) -> None:
        super().__init__()
        self.encoders = nn.ModuleList()
        self._sources: list[tuple[bool, list[slice]]] = []
        for columns, images in _keys_of(layout):
            if columns:
                num_columns = sum(place.stop - place.start for place in columns)
                self._add(MlpEncoder(num_columns, config.encoder_mlp_layers, config), False, columns)
            for part, place in images:
                self._add(ConvEncoder(part, config), part.kind == "image", [place])
        self.output_size = sum(_size_of(encoder) for encoder in self.encoders)
        self._is_single = len(self.encoders) == 1 and not layout.num_mask and layout.num_pixels == 0

    def _add(self, encoder: nn.Module, takes_bytes: bool, places: list[slice]) -> None:
        self.encoders.append(encoder)
        self._sources.append((takes_bytes, places))

    def forward(self, inputs: Inputs) -> Tensor:
        """Features `[B, output_size]`."""
        if self._is_single:
            return self.encoders[0](inputs.floats)  # type: ignore[no-any-return]
        features = []
        for encoder, (takes_bytes, places) in zip(self.encoders, self._sources, strict=True):
            if takes_bytes:
                assert inputs.pixels is not None
                own = inputs.pixels[:, places[0]].to(torch.float32).mul_(_BYTE_SCALE)
            else:
                own = torch.cat([inputs.floats[:, place] for place in places], dim=1)
            features.append(encoder(own))
        return features[0] if len(features) == 1 else torch.cat(features, dim=1)

    @property
    def vector_keys(self) -> list[tuple[list[slice], Layers]] | None:
        """See above; recreated at each look, for the layers may have moved."""
        if not all(isinstance(encoder, MlpEncoder) for encoder in self.encoders):
            return None
        return [
            (places, encoder.layers)
            for encoder, (_, places) in zip(self.encoders, self._sources, strict=True)
            if isinstance(encoder, MlpEncoder)
        ]


def initialize_orthogonal(module: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases (Saxe et al. 2014; gains as in Andrychowicz et al. 2021) of a single layer."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        nn.init.orthogonal_(module.weight, gain)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def layers_of(modules: Any) -> Layers:
    """Weight and bias of each module."""
    return tuple((module.weight, module.bias) for module in modules)


def _size_of(encoder: nn.Module) -> int:
    assert isinstance(encoder, (MlpEncoder, ConvEncoder))
    return encoder.output_size


def _keys_of(layout: ObservationLayout) -> list[tuple[list[slice], list[tuple[ObservationPart, slice]]]]:
    """By top-level key: columns of numbers, and images."""
    keys: dict[Any, tuple[list[slice], list[tuple[ObservationPart, slice]]]] = {}
    for part, place in zip(layout.parts, layout.places, strict=True):
        if part.kind == "mask":
            continue
        columns, images = keys.setdefault(part.path[:1], ([], []))
        if part.has_pixels:
            images.append((part, place))
        elif columns and columns[-1].stop == place.start:
            columns[-1] = slice(columns[-1].start, place.stop)
        else:
            columns.append(place)
    return list(keys.values())


def _takes_nature(config: TrainConfig, height: int, width: int) -> bool:
    if config.encoder_conv_architecture != "auto":
        return config.encoder_conv_architecture == "nature"
    return min(height, width) >= _SMALLEST_FOR_NATURE


def _nature(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1),
        nn.ReLU(),
    )


def _impala(channels: int) -> nn.Sequential:
    blocks: list[nn.Module] = []
    for num_out in _IMPALA_CHANNELS:
        blocks += [nn.Conv2d(channels, num_out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        blocks += [_Residual(num_out), _Residual(num_out)]
        channels = num_out
    return nn.Sequential(*blocks, nn.ReLU())


def _initialize_convolutions(stack: nn.Sequential) -> None:
    """Orthogonal weights that keep features at the size of the image's values, however deep the stack is.

    Nothing else does so: there is no normalization, and a tanh behind the stack passes no gradient once saturated.
    So residual blocks begin as no change (Zhang et al. 2019, arXiv:1901.09321), and the gain of a layer is that of what
    it sees: twice the variance is for rectified features alone.
    """
    has_residuals = any(isinstance(module, _Residual) for module in stack)
    for module in stack:
        if isinstance(module, _Residual):
            initialize_orthogonal(module.first, math.sqrt(2.0))
            initialize_orthogonal(module.second, 0.0)
        else:
            initialize_orthogonal(module, 1.0 if has_residuals else math.sqrt(2.0))


class _Residual(nn.Module):
    """Adds a change to what comes in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        change: Tensor = self.second(torch.relu(self.first(torch.relu(features))))
        return features + change
