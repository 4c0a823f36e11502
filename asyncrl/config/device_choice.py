"""Where `--device=auto` computes: on the GPU if it is estimated to be faster than a core, not because there is one.

The estimates compare a core with a GPU of moderate speed. They ignore the width of the observation, which is not known
here, and may be wrong by a factor of a few; so a network trains or acts on the GPU only where that is faster by
`_MARGIN`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncrl.config.critic_kinds import critic_kind

if TYPE_CHECKING:  # roles that only read a plan need no pydantic
    from asyncrl.config.schema import TrainConfig

FLOPS_OF_CONVOLUTIONS = 2e7
"""Of one forward pass over a screen of 84 x 84."""

_CORE_FLOPS_PER_S = 4e10  # float32 products of networks of 64 to 512 on one core, measured: 4e10 to 8e10
_GPU_FLOPS_PER_S = 3e12  # of products that do not fill the device
_KERNEL_S = 3e-6  # between the beginnings of two small kernels of a CUDA graph
_KERNELS_OF_A_LAYER, _OTHER_KERNELS = 8, 40  # of an update: forward and backward passes; loss, clipping, Adam
_ACTING_OVERHEAD_S = 5e-5  # for each row of central inference: copies between processes, waiting for a batch
_MARGIN = 4.0
_ON_POLICY_PASSES, _SAC_PASSES = 3, 16  # forward passes through one network that an update is worth


@dataclass(frozen=True)
class Estimate:
    """Seconds that the same work takes.

    Attributes:
        core_s: on one core.
        gpu_s: on a CUDA device.
    """

    core_s: float
    gpu_s: float

    @property
    def favours_gpu(self) -> bool:
        return self.core_s > _MARGIN * self.gpu_s

    def __str__(self) -> str:
        return f"{1e3 * self.core_s:.2g} ms on a core and {1e3 * self.gpu_s:.2g} ms on the GPU"


def passes_of_update(config: TrainConfig) -> int:
    """Forward passes through one network that an update is worth."""
    return _SAC_PASSES if config.is_off_policy else _ON_POLICY_PASSES


def flops_of_pass(config: TrainConfig, observes_images: bool) -> float:
    """Of one sample's forward pass through the network that costs most: multiplications and additions."""
    widths = config.encoder_mlp_layers
    if config.is_off_policy and config.algorithm.actions != "choice" and config.critic_mlp_layers is not None:
        widths = config.critic_mlp_layers
    num_weights = sum(num_in * num_out for num_in, num_out in zip([*widths[:1], *widths[:-1]], widths, strict=True))
    if (block_weights := critic_kind(config).block_weights) is not None:
        num_weights = sum(block_weights * width * width for width in widths)
    return 2 * num_weights + (FLOPS_OF_CONVOLUTIONS if observes_images else 0)


def estimate_update(config: TrainConfig, observes_images: bool) -> Estimate:
    """One optimizer step."""
    num_networks = 2 if not (config.is_off_policy or config.actor_critic_share_weights) else 1
    flops = num_networks * passes_of_update(config) * config.batch_size * _flops_with_core(config, observes_images)
    steps = config.rollout if config.use_rnn else 1  # a recurrent core computes one step after the other
    layers = num_networks * (len(config.encoder_mlp_layers) + 1 + config.use_rnn * config.rnn_num_layers * steps)
    kernels = _OTHER_KERNELS + _KERNELS_OF_A_LAYER * layers * (2 if config.is_off_policy else 1)
    return Estimate(flops / _CORE_FLOPS_PER_S, kernels * _KERNEL_S + flops / _GPU_FLOPS_PER_S)


def estimate_acting(config: TrainConfig, observes_images: bool) -> Estimate:
    """The action of one environment, in a batch of all."""
    num_networks = 2 if not (config.is_off_policy or config.actor_critic_share_weights) else 1
    flops = num_networks * _flops_with_core(config, observes_images)
    return Estimate(flops / _CORE_FLOPS_PER_S, _ACTING_OVERHEAD_S + flops / _GPU_FLOPS_PER_S)


def _flops_with_core(config: TrainConfig, observes_images: bool) -> float:
    """Like `flops_of_pass`, with the recurrent core: four gates of an LSTM."""
    core = 2 * 8 * config.rnn_size**2 * config.rnn_num_layers if config.use_rnn else 0
    return flops_of_pass(config, observes_images) + core


def knows_networks(config: TrainConfig) -> bool:
    """Whether the networks are asyncrl's own, so that their work can be estimated."""
    return {config.encoder, config.core, config.model} == {"default"}
