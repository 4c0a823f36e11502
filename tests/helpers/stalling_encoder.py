"""An encoder whose first pass of training never ends; it makes the file `stalled` before."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from asyncrl.models.encoders import Inputs, ObservationEncoder
from asyncrl.models.registry import register_encoder


@register_encoder("stalling")
class StallingEncoder(ObservationEncoder):
    def forward(self, inputs: Inputs) -> torch.Tensor:
        if torch.is_grad_enabled():
            Path("stalled").touch()
            time.sleep(1e6)
        return super().forward(inputs)
