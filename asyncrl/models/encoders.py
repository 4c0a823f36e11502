"""Encoders: from rows of observations to features.

Each image has a stack of convolutions. One multilayer perceptron takes the numbers of all keys and the features of all
images together, because the best action may depend on several of them at once: heads are linear, so features of
separate networks could only be added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import FLOAT_BYTES, ObservationLayout, ObservationPart, image_axes, image_size
from asyncrl.models.activations import ACTIVATIONS
from asyncrl.models.products import linear
from asyncrl.models.sizes import conv_architecture

_LARGEST_BYTE = 255.0
_IMAGE_VARIANCE_EPS = 1e-4
_IMPALA_CHANNELS = (16, 32, 32)
Layers = tuple[tuple[Tensor, Tensor], ...]


class Inputs(NamedTuple):
    """B observations as a model reads them.

    Attributes:
        floats: [B, F] float32, the numbers, normalized or raw, followed by the mask of actions.
        pixels: [B, pixels] uint8, the flattened images, concatenated; None if there are none.
    """

    floats: Tensor
    pixels: Tensor | None = None

    def slice(self, start: int, stop: int | None = None) -> Inputs:
        """The observations from `start` to `stop`, as views."""
        return Inputs(self.floats[start:stop], None if self.pixels is None else self.pixels[start:stop])

    def at(self, indices: Tensor) -> Inputs:
        """The observations at `indices [N]`."""
        pixels = None if self.pixels is None else self.pixels.index_select(0, indices)
        return Inputs(self.floats.index_select(0, indices), pixels)


def split_tensor(layout: ObservationLayout, rows: Tensor) -> Inputs:
    """Views of rows `[..., row_size]`."""
    if not layout.num_pixels:
        return Inputs(rows)
    num_bytes = FLOAT_BYTES * layout.num_floats
    floats = rows[..., :num_bytes].view(torch.float32)
    return Inputs(floats, rows[..., num_bytes : num_bytes + layout.num_pixels])


class MlpEncoder(nn.Module):
    """A multilayer perceptron over numbers.

    Attributes:
        output_size: width of the last layer, or of the input if there are no layers.
        layers: weight and bias of each layer. They are cached, because finding them in modules takes as long as the
            arithmetic of a small layer.
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
    """Convolutions over one image, followed by a layer.

    Nature: Mnih et al. 2015, "Human-level control through deep reinforcement learning". IMPALA: the residual stack of
    Espeholt et al. 2018 (arXiv:1802.01561), figure 3.
    """

    def __init__(self, part: ObservationPart, config: TrainConfig) -> None:
        super().__init__()
        self._shape = shape = part.shape
        self._scale = 1.0 / (part.largest or _LARGEST_BYTE)
        self._normalizes = config.normalize_images
        self._axes = (0, *(axis + 1 for axis in image_axes(shape, part.channels)))
        height, width = image_size(shape, part.channels)
        channels = math.prod(shape) // (height * width)
        self._size = channels, height, width
        is_nature = conv_architecture(part, config) == "nature"
        self.stack = _nature(channels) if is_nature else _impala(channels)
        with torch.no_grad():
            num_features = self.stack(torch.zeros(1, channels, height, width)).numel()
        self.head = MlpEncoder(num_features, config.encoder_conv_mlp_layers, config)
        self.output_size = self.head.output_size
        if config.policy_initialization == "orthogonal":
            _initialize_convolutions(self.stack)

    def forward(self, image: Tensor) -> Tensor:
        """From images `[B, height * width * channels]`, as the environment orders them, to `[B, out]`.

        Images of uint8 are scaled to [0, 1] by the bounds of their space; those of float32 are taken as they are. With
        `normalize_images` each then has a mean of 0 and a standard deviation of nearly 1, over all its pixels and
        channels.
        """
        batch = image.view(-1, *self._shape).permute(self._axes).reshape(-1, *self._size)
        if not batch.is_cuda:
            # On a CPU, convolutions and their gradients are 1.6 times as fast in this memory format.
            batch = batch.contiguous(memory_format=torch.channels_last)
        is_of_bytes = batch.dtype == torch.uint8
        if is_of_bytes:
            batch = batch.to(torch.float32).mul_(self._scale)  # bytes are a quarter of the numbers to reorder
        if self._normalizes:
            # A tenth of the time of `torch.var_mean`. Only numbers made above may be changed in place.
            mean = batch.mean((1, 2, 3), keepdim=True)
            square = torch.linalg.vector_norm(batch, dim=(1, 2, 3), keepdim=True).square() / math.prod(self._size)
            variance = (square - mean * mean).clamp(min=0.0)
            batch = batch.sub_(mean) if is_of_bytes else batch - mean
            batch = batch.mul_(torch.rsqrt(variance + _IMAGE_VARIANCE_EPS))
        # The gradient of the rectifier takes ten times as long where its arguments have different memory formats, so it
        # comes after `flatten`, which ends the format.
        return self.head(torch.relu(self.stack(batch).flatten(1)))  # type: ignore[no-any-return]


class ObservationEncoder(nn.Module):
    """The default encoder: convolutions over each image, then a perceptron over all numbers and the images' features.

    A single image without numbers has no perceptron but the layers after its convolutions.

    Attributes:
        output_size: features of an observation.
    """

    def __init__(self, layout: ObservationLayout, config: TrainConfig) -> None:
        super().__init__()
        self.encoders = nn.ModuleList()
        self._images: list[tuple[bool, slice]] = []
        self._columns: list[slice] = []
        num_features = 0
        for part, place in zip(layout.parts, layout.places, strict=True):
            if part.has_pixels:
                encoder = ConvEncoder(part, config)
                self.encoders.append(encoder)
                self._images.append((part.kind == "image", place))
                num_features += encoder.output_size
            elif part.kind != "mask":
                if self._columns and self._columns[-1].stop == place.start:
                    place = slice(self._columns.pop().start, place.stop)
                self._columns.append(place)
                num_features += part.size
        if self._columns or len(self._images) > 1:
            self.encoders.append(MlpEncoder(num_features, config.encoder_mlp_layers, config))
        self.output_size: int = self.encoders[-1].output_size  # type: ignore[assignment]
        self._is_single = not self._images and not layout.num_mask

    def forward(self, inputs: Inputs) -> Tensor:
        """Features `[B, output_size]`."""
        if self._is_single:
            return self.encoders[0](inputs.floats)  # type: ignore[no-any-return]
        features = [inputs.floats[:, columns] for columns in self._columns]
        for encoder, (takes_bytes, place) in zip(self.encoders, self._images, strict=False):
            if takes_bytes:
                assert inputs.pixels is not None
                image = inputs.pixels[:, place]
            else:
                image = inputs.floats[:, place]
            features.append(encoder(image))
        together = features[0] if len(features) == 1 else torch.cat(features, dim=1)
        has_perceptron = len(self.encoders) > len(self._images)
        return self.encoders[-1](together) if has_perceptron else together

    @property
    def perceptron(self) -> tuple[slice, Layers] | None:
        """Columns of numbers and the layers over them, which `ArrayPolicy` runs in NumPy; None if there are images."""
        own = self.encoders[0]
        return (self._columns[0], own.layers) if isinstance(own, MlpEncoder) else None


class PartialEncoder(nn.Module):
    """The actor's encoder where only the critic sees some parts of an observation.

    It passes on the numbers and pixels of the other parts, so that no encoder can read the hidden ones. Asymmetric
    actor and critic: Pinto et al. 2017 (arXiv:1710.06542).

    Attributes:
        encoder: made for the visible parts.
        output_size: features of an observation.
    """

    def __init__(self, encoder: Any, layout: ObservationLayout, visible: ObservationLayout) -> None:
        super().__init__()
        self.encoder = encoder
        self.output_size: int = encoder.output_size
        self._floats: list[slice] = []
        self._pixels: list[slice] = []
        for part, place in zip(layout.parts, layout.places, strict=True):
            if part in visible.parts:
                (self._pixels if part.kind == "image" else self._floats).append(place)

    def forward(self, inputs: Inputs) -> Tensor:
        """Features `[B, output_size]`."""
        pixels = None if inputs.pixels is None or not self._pixels else _columns_of(inputs.pixels, self._pixels)
        floats = _columns_of(inputs.floats, self._floats) if self._floats else inputs.floats[:, :0]
        return self.encoder(Inputs(floats, pixels))  # type: ignore[no-any-return]

    @property
    def perceptron(self) -> tuple[list[int], Layers] | None:
        """See `ObservationEncoder.perceptron`; None also if the encoder is another one."""
        inner = self.encoder.perceptron if type(self.encoder) is ObservationEncoder else None
        if inner is None:
            return None
        visible = [column for place in self._floats for column in range(place.start, place.stop)]
        return visible[inner[0]], inner[1]


def _columns_of(tensor: Tensor, places: Sequence[slice]) -> Tensor:
    return torch.cat([tensor[:, place] for place in places], dim=1)


def initialize_orthogonal(module: nn.Module, gain: float) -> None:
    """Sets orthogonal weights and zero biases of one layer (Saxe et al. 2014; gains: Andrychowicz et al. 2021)."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        nn.init.orthogonal_(module.weight, gain)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def layers_of(modules: Any) -> Layers:
    return tuple((module.weight, module.bias) for module in modules)


# A rectifier follows each stack.
def _nature(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1),
    )


def _impala(channels: int) -> nn.Sequential:
    blocks: list[nn.Module] = []
    for num_out in _IMPALA_CHANNELS:
        blocks += [nn.Conv2d(channels, num_out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        blocks += [_Residual(num_out), _Residual(num_out)]
        channels = num_out
    return nn.Sequential(*blocks)


def _initialize_convolutions(stack: nn.Sequential) -> None:
    """Sets orthogonal weights that keep the scale of the image's values through a stack of any depth.

    This matters because there is no normalization, and a saturated tanh after the stack passes no gradient. So residual
    blocks begin as identity (Zhang et al. 2019, arXiv:1901.09321), and a gain of sqrt(2) is used only for layers whose
    inputs are rectified.
    """
    has_residuals = any(isinstance(module, _Residual) for module in stack)
    for module in stack:
        if isinstance(module, _Residual):
            initialize_orthogonal(module.first, math.sqrt(2.0))
            initialize_orthogonal(module.second, 0.0)
        else:
            initialize_orthogonal(module, 1.0 if has_residuals else math.sqrt(2.0))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        change: Tensor = self.second(torch.relu(self.first(torch.relu(features))))
        return features + change
