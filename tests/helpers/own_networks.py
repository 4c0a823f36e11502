"""Networks of a user's own, for SAC. Imported by every process of a run that names this module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import asyncrl
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec, ObservationLayout
from asyncrl.models.encoders import Inputs
from asyncrl.models.sac import SacActor
from asyncrl.models.stacked_mlp import StackedMlp


@asyncrl.register_encoder("sac_encoder")
class Scaled(nn.Module):
    """A layer over scaled numbers."""

    def __init__(self, layout: ObservationLayout, config: TrainConfig) -> None:
        super().__init__()
        self.output_size = config.encoder_mlp_layers[-1]
        self.scale = nn.Parameter(torch.ones(layout.num_features))
        self.layer = nn.Linear(layout.num_features, self.output_size)
        self._num_features = layout.num_features

    def forward(self, inputs: Inputs) -> Tensor:
        return torch.relu(self.layer(inputs.floats[:, : self._num_features] * self.scale))


@asyncrl.register_model("sac_model")
class OwnActor(SacActor):
    """A policy with its own encoder; its critics are the package's."""

    def build(self, spec: EnvSpec, config: TrainConfig) -> None:
        self.encoder: Any = Scaled(spec.observation, config)
        self.mlp = StackedMlp(1, [self.encoder.output_size, self.distribution.num_parameters], "relu", None)
