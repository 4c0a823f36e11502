"""Where autocast must not round: outputs of networks, and what is computed from them."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor


def without_autocast(features: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context in which products are computed in the dtype of their arguments, on the device of `features`.

    bfloat16 has 8 significant bits: a value of 200.6 would be 201, and so would one of 200.7.
    """
    if not torch.is_autocast_enabled(features.device.type):
        return contextlib.nullcontext()
    return torch.autocast(features.device.type, enabled=False)
