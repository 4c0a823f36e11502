"""The critic of REPPO: action values as distributions over returns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import ObservationLayout
from asyncrl.models.encoders import Inputs
from asyncrl.models.registry import DEFAULT, make_encoder
from asyncrl.processes.seeding import Stream, derive_seed, restoring_global_generators, seed_global_generators

LARGEST_RETURN = 20.0
NUM_BINS = 201
_SMOOTHING = 0.75  # standard deviation of a target's Gaussian, in bins (Farebrother et al. 2024, arXiv:2403.03950)


class ActionValues(nn.Module):
    """A perceptron over observation and action whose outputs are a distribution over normalized returns.

    It has one hidden layer more than the policy. The distribution has `NUM_BINS` equal intervals of [-LARGEST_RETURN,
    LARGEST_RETURN]; returns outside are clipped.
    """

    _edges: Tensor
    _centers: Tensor

    def __init__(self, layout: ObservationLayout, num_actions: int, config: TrainConfig) -> None:
        """Initial weights follow from `config.seed` alone; the first values are 0."""
        super().__init__()
        edges = torch.linspace(-LARGEST_RETURN, LARGEST_RETURN, NUM_BINS + 1)
        self.register_buffer("_edges", edges, persistent=False)
        self.register_buffer("_centers", (edges[1:] + edges[:-1]) / 2.0, persistent=False)
        self._spread = _SMOOTHING * float(edges[1] - edges[0]) * math.sqrt(2.0)
        widths = config.encoder_mlp_layers
        with restoring_global_generators():
            seed_global_generators(derive_seed(config.seed, Stream.CRITIC_WEIGHTS))
            needs_encoder = layout.num_pixels > 0 or config.encoder != DEFAULT
            self.encoder = make_encoder(layout, config) if needs_encoder else None
            num_features = layout.num_floats if self.encoder is None else self.encoder.output_size
            self.hidden = _hidden([num_features + num_actions, *widths, widths[-1]])
            self.head = nn.Linear(widths[-1], NUM_BINS)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def logits(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Logits `[B, NUM_BINS]` for normalized observations and actions `[B, A]` in [-1, 1]."""
        observed = inputs.floats if self.encoder is None else self.encoder(inputs)
        outputs: Tensor = self.head(self.hidden(torch.cat((observed, action), dim=-1)))
        return outputs

    def mean(self, logits: Tensor) -> Tensor:
        """The normalized returns `[B]` that logits expect."""
        return logits.softmax(-1) @ self._centers

    def target(self, returns: Tensor) -> Tensor:
        """The distribution `[B, NUM_BINS]` around each normalized return `[B]`: what a Gaussian has in each bin."""
        returns = returns.clamp(-LARGEST_RETURN, LARGEST_RETURN).unsqueeze(-1)
        below = torch.erf((self._edges - returns) / self._spread)
        return (below[:, 1:] - below[:, :-1]) / (below[:, -1:] - below[:, :1])


def _hidden(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.SiLU()]
    return nn.Sequential(*layers)
