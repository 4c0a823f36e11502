"""Networks of residual blocks, hyperspherical layers or batch-renormalized layers, for SAC's actor and critics.

Like `StackedMlp`, each is K networks of one shape, and a layer is one batched product for all of them. Activations are
`[K, B, width]`. `UnitLinear` and `BatchRenorm` need more than the gradient's step (`SteppedLayer`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.critics.settings import CriticSettings
from asyncrl.models.activations import ACTIVATIONS
from asyncrl.models.precision import without_autocast
from asyncrl.models.sac import LOG_STD_RANGE, LogStdRange
from asyncrl.models.stacked_mlp import LAYER_NORM_EPS
from asyncrl.models.stepped_layer import SteppedLayer

EXPANSION = 4
"""Width of a residual block's hidden layer, in widths of the block."""

SHIFT = 3.0
"""Additional element of hyperspherical inputs, so that their length is not lost when they are normalized."""

WIDE_LOG_STD_RANGE = LogStdRange(middle=-4.0, half_range=6.0, scale=1.0)
"""In [-10, 2] from the outputs of blocks, which move six times as far as an output near 0 (SimBa).

The outputs of hyperspherical layers are small, and move slowly.
"""

RENORM_MOMENTUM = 0.01
RENORM_WARMUP_UPDATES = 100_000
RENORM_MOST_SCALE, RENORM_MOST_SHIFT = 3.0, 5.0
_RENORM_EPS = 1e-3
_SMALLEST_NORM = 1e-8


class BlockNetwork(nn.Module):
    """K networks with hidden layers as `residual_blocks`, `hyperspherical_weights` and `batch_renorm` say.

    With `residual_blocks` each hidden width is that of a block, and all are equal. Residual and hyperspherical layers
    have the initial weights of their papers; other layers are initialized as `policy_initialization` says.

    Args:
        num_networks: K.
        widths: of input, hidden layers or blocks, and output.
        config: the settings.

    Attributes:
        log_std_range: of a policy with this network.
    """

    def __init__(self, num_networks: int, widths: Sequence[int], config: TrainConfig) -> None:
        super().__init__()
        num_in, *hidden, num_out = widths
        own = CriticSettings.of(config)
        self.log_std_range = LOG_STD_RANGE
        if own.residual_blocks or own.hyperspherical_weights:
            self.log_std_range = WIDE_LOG_STD_RANGE
        if own.hyperspherical_weights:
            layers, head = _hyperspherical(num_networks, num_in, hidden, num_out, config)
        elif own.residual_blocks:
            layers, head = _residual(num_networks, num_in, hidden, num_out, config)
        else:
            layers, head = _renormalized(num_networks, num_in, hidden, num_out, config)
        self.num_networks = num_networks
        self.hidden = nn.Sequential(*layers)
        self.head: StackedLinear = head

    @property
    def head_bias(self) -> Tensor:
        """Bias of the last layer, `[K, out]`."""
        assert self.head.bias is not None
        return self.head.bias[:, 0]

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs `[K, B, out]` for inputs `[B, in]`, which all networks share; autocast rounds none of the outputs."""
        features = self.hidden(inputs.expand(self.num_networks, *inputs.shape))
        with without_autocast(features):
            outputs: Tensor = self.head(features.to(self.head.weight))
        return outputs


class StackedLinear(nn.Module):
    """A linear layer of K networks: weight `[K, out, in]`, and bias `[K, 1, out]` or None."""

    bias: nn.Parameter | None

    def __init__(self, linears: Sequence[nn.Linear], has_bias: bool = True) -> None:
        """Stacks K layers of one shape."""
        super().__init__()
        self.weight = nn.Parameter(torch.stack([linear.weight.detach() for linear in linears]))
        self.bias = None
        if has_bias:
            self.bias = nn.Parameter(torch.stack([linear.bias.detach() for linear in linears]).unsqueeze(1))

    def forward(self, features: Tensor) -> Tensor:
        weight = self.weight.transpose(1, 2)
        return torch.bmm(features, weight) if self.bias is None else torch.baddbmm(self.bias, features, weight)


class Activation(nn.Module):
    """The activation function of the settings, in place."""

    def __init__(self, nonlinearity: str) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[nonlinearity]

    def forward(self, features: Tensor) -> Tensor:
        return self._activation(features)


class StackedLayerNorm(nn.Module):
    """Layer normalization of K networks (Ba et al. 2016, arXiv:1607.06450)."""

    def __init__(self, num_networks: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_networks, 1, width))
        self.bias = nn.Parameter(torch.zeros(num_networks, 1, width))

    def forward(self, features: Tensor) -> Tensor:
        normalized = nn.functional.layer_norm(features, features.shape[-1:], eps=LAYER_NORM_EPS)
        return torch.addcmul(self.bias, normalized, self.weight)


class BatchRenorm(SteppedLayer):
    """Batch renormalization (Ioffe 2017, arXiv:1702.03275, algorithm 1), with the constants of CrossQ (1902.05605 v4).

    It normalizes with the running statistics, or where `uses_batch` is set with those of the batch, corrected towards
    the running ones: the first `RENORM_WARMUP_UPDATES` updates without the correction. The running statistics are
    parameters without a gradient, so they are published, saved and averaged into target networks as the others are.

    Attributes:
        running_mean, running_variance: [K, 1, width].
        num_updates: [1], updates of the statistics.
        uses_batch: whether to normalize with the statistics of the batch, and to keep them in `batch_moments`.
    """

    def __init__(self, num_networks: int, width: int) -> None:
        super().__init__()
        shape = num_networks, 1, width
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.running_mean, self.running_variance = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.ones(shape))
        self.num_updates = nn.Parameter(torch.zeros(1))
        self.uses_batch = False

    @property
    def statistics(self) -> tuple[nn.Parameter, ...]:
        return self.running_mean, self.running_variance, self.num_updates

    def forward(self, features: Tensor) -> Tensor:
        features = features.to(self.weight.dtype)
        running_mean, running_variance = self.running_mean.detach(), self.running_variance.detach()
        if not self.uses_batch:
            scale = (running_variance + _RENORM_EPS).rsqrt() * self.weight
            return torch.addcmul(self.bias, features - running_mean, scale)
        with torch.no_grad():
            mean = features.mean(1, keepdim=True)
            variance = (features - mean).square_().mean(1, keepdim=True)  # `var_mean` takes ten times as long
            self.batch_moments = mean, variance
            stddev, running_stddev = (variance + _RENORM_EPS).sqrt(), (running_variance + _RENORM_EPS).sqrt()
            ratio = (stddev / running_stddev).clamp(1.0 / RENORM_MOST_SCALE, RENORM_MOST_SCALE)
            shift = ((mean - running_mean) / running_stddev).clamp(-RENORM_MOST_SHIFT, RENORM_MOST_SHIFT)
            is_warm = self.num_updates >= RENORM_WARMUP_UPDATES
            ratio, shift = torch.where(is_warm, ratio, 1.0), torch.where(is_warm, shift, 0.0)
        # PyTorch's kernel takes a fifth of the time of the formula; the correction goes into its weight and bias.
        weight, bias = ratio * self.weight, shift * self.weight + self.bias
        networks = zip(features, weight, bias, strict=True)
        return torch.stack([batch_norm(x, None, None, w[0], b[0], True, eps=_RENORM_EPS) for x, w, b in networks])

    @torch.no_grad()
    def after_step(self, is_skipped: Tensor) -> None:
        """Moves the running statistics towards `batch_moments`, unless the step was skipped."""
        for running, batch in zip((self.running_mean, self.running_variance), self.batch_moments, strict=True):
            running.copy_(torch.where(is_skipped, running, torch.lerp(running, batch, RENORM_MOMENTUM)))
        self.num_updates.add_(is_skipped.logical_not())


@contextlib.contextmanager
def normalizing_by_batch(network: nn.Module) -> Iterator[None]:
    """Inside, batch renormalization takes the batch's statistics; the next optimizer step moves the running ones."""
    layers = [layer for layer in network.modules() if isinstance(layer, BatchRenorm)]
    for layer in layers:
        layer.uses_batch = True
    try:
        yield
    finally:  # a failed capture of a graph is survived
        for layer in layers:
            layer.uses_batch = False


class UnitLinear(StackedLinear, SteppedLayer):
    """A layer whose weights of each output have length 1 (SimbaV2, 2502.15280)."""

    def __init__(self, linears: Sequence[nn.Linear], has_bias: bool = False) -> None:
        super().__init__(linears, has_bias)
        self.project()

    @torch.no_grad()
    def project(self) -> None:
        """Gives the weights length 1."""
        self.weight.copy_(unit(self.weight))

    def after_step(self, is_skipped: Tensor) -> None:
        self.project()


class Scale(nn.Module):
    """Multiplies each element by a learned factor that begins at `initial`.

    The parameter begins at `size`, which decides how fast an optimizer whose steps do not depend on the gradient's size
    changes the factor (SimbaV2).
    """

    def __init__(self, num_networks: int, width: int, initial: float, size: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((num_networks, 1, width), size))
        self._unit = initial / size

    def forward(self, features: Tensor) -> Tensor:
        return features * (self.factor * self._unit)


class Unit(nn.Module):
    """Gives each vector length 1, if `appended` is given with this element more."""

    def __init__(self, appended: float | None = None) -> None:
        super().__init__()
        self._appended = appended

    def forward(self, features: Tensor) -> Tensor:
        if self._appended is not None:
            features = nn.functional.pad(features, (0, 1), value=self._appended)
        return unit(features)


class ResidualBlock(nn.Module):
    """Adds what two layers make of the normalized input (SimBa, 2410.09754)."""

    def __init__(self, num_networks: int, width: int, config: TrainConfig) -> None:
        super().__init__()
        self.change = nn.Sequential(
            _make_norm(num_networks, width, config),
            StackedLinear(_linears(num_networks, width, EXPANSION * width, _he)),
            Activation(config.nonlinearity),
            StackedLinear(_linears(num_networks, EXPANSION * width, width, _he)),
        )

    def forward(self, features: Tensor) -> Tensor:
        change: Tensor = self.change(features)
        return features + change


class HypersphericalBlock(nn.Module):
    """Moves a unit vector towards what two layers make of it, by learned shares (SimbaV2).

    Args:
        num_networks: K.
        width: of the vectors.
        config: the settings.
        share: the shares at the start.
    """

    def __init__(self, num_networks: int, width: int, config: TrainConfig, share: float) -> None:
        super().__init__()
        size = math.sqrt(2.0 / (EXPANSION * width))
        self.change = nn.Sequential(
            UnitLinear(_linears(num_networks, width, EXPANSION * width, _orthogonal)),
            Scale(num_networks, EXPANSION * width, size, size),
            Activation(config.nonlinearity),
            UnitLinear(_linears(num_networks, EXPANSION * width, width, _orthogonal)),
            Unit(),
        )
        self.share = Scale(num_networks, width, share, 1.0 / math.sqrt(width))

    def forward(self, features: Tensor) -> Tensor:
        return unit(features + self.share(self.change(features) - features))


def unit(vectors: Tensor) -> Tensor:
    """The vectors `[..., N]` with length 1; zeros stay zeros."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / lengths.clamp(min=_SMALLEST_NORM)


_Parts = tuple[list[nn.Module], StackedLinear]


def _residual(count: int, num_in: int, widths: Sequence[int], num_out: int, config: TrainConfig) -> _Parts:
    """A linear layer, blocks, and a normalization (SimBa)."""
    layers: list[nn.Module] = [StackedLinear(_linears(count, num_in, widths[0], _orthogonal))]
    if CriticSettings.of(config).batch_renorm:
        layers.insert(0, BatchRenorm(count, num_in))
    layers += [ResidualBlock(count, width, config) for width in widths]
    layers.append(_make_norm(count, widths[-1], config))
    return layers, StackedLinear(_linears(count, widths[-1], num_out, _orthogonal))


def _hyperspherical(count: int, num_in: int, widths: Sequence[int], num_out: int, config: TrainConfig) -> _Parts:
    """Unit vectors between all layers; a block for each width, or without `residual_blocks` a layer (SimbaV2)."""
    layers: list[nn.Module] = [Unit(appended=SHIFT)]
    num_before, has_blocks = num_in + 1, CriticSettings.of(config).residual_blocks
    for width in widths[:1] if has_blocks else widths:
        size = math.sqrt(2.0 / width)
        layers += [UnitLinear(_linears(count, num_before, width, _orthogonal)), Scale(count, width, size, size)]
        layers += [Unit()] if has_blocks else [Activation(config.nonlinearity), Unit()]
        num_before = width
    if has_blocks:
        layers += [HypersphericalBlock(count, width, config, 1.0 / (len(widths) + 1)) for width in widths]
    layers += [UnitLinear(_linears(count, num_before, num_before, _orthogonal)), Scale(count, num_before, 1.0, 1.0)]
    return layers, UnitLinear(_linears(count, num_before, num_out, _orthogonal), has_bias=True)


def _renormalized(count: int, num_in: int, widths: Sequence[int], num_out: int, config: TrainConfig) -> _Parts:
    """Batch renormalization of the inputs and after each activation (CrossQ)."""
    initialize = _orthogonal if config.policy_initialization == "orthogonal" else None
    layers: list[nn.Module] = [BatchRenorm(count, num_in)]
    for num_before, width in zip([num_in, *widths], widths, strict=False):
        layers += [StackedLinear(_linears(count, num_before, width, initialize)), Activation(config.nonlinearity)]
        layers.append(BatchRenorm(count, width))
    return layers, StackedLinear(_linears(count, widths[-1], num_out, initialize))


def _make_norm(count: int, width: int, config: TrainConfig) -> nn.Module:
    has_renorm = CriticSettings.of(config).batch_renorm
    return BatchRenorm(count, width) if has_renorm else StackedLayerNorm(count, width)


def _linears(count: int, num_in: int, num_out: int, initialize: Callable[[nn.Linear], None] | None) -> list[nn.Linear]:
    """Layers whose weights are drawn separately; initialized as `nn.Linear` with None."""
    linears = [nn.Linear(num_in, num_out) for _ in range(count)]
    if initialize is not None:
        for linear in linears:
            initialize(linear)
            nn.init.zeros_(linear.bias)
    return linears


def _orthogonal(linear: nn.Linear) -> None:
    nn.init.orthogonal_(linear.weight)


def _he(linear: nn.Linear) -> None:
    nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
