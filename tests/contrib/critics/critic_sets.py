"""Settings of SAC's critics that differ from plain perceptrons, small enough for tests."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.contrib.critics.papers import PAPERS


def critic_set(name: str, width: int = 16) -> dict[str, Any]:
    """What `--critic=NAME` stands for, with narrow networks."""
    values = PAPERS[name]
    widths = [width, width] if "residual_blocks" in values else [width]
    networks = {"encoder_mlp_layers": [width], "critic_mlp_layers": widths, "nonlinearity": "relu"}
    return {"algo": "sac", **values, "critic": name, **networks}


CRITICS = pytest.mark.parametrize("critic", ["simba", "simba_v2", "crossq"])
