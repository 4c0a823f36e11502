"""Values of settings that `--critic` stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.config.algorithms import Algorithm

PAPERS: dict[str, dict[str, Any]] = {
    "simba": {  # Lee et al. 2024 (arXiv:2410.09754), table 2 and their code
        "residual_blocks": True,
        "encoder_mlp_layers": [128],
        "critic_mlp_layers": [128, 128],
        "normalize_input": True,
        "learning_rate": 1e-4,
        "weight_decay": 0.01,
        "initial_ent_coef": 0.01,
        "target_entropy_per_dim": -0.5,
        "initial_stddev": 0.018,
    },
    "simba_v2": {  # Lee et al. 2025 (arXiv:2502.15280) and their code
        "residual_blocks": True,
        "hyperspherical_weights": True,
        "encoder_mlp_layers": [128],
        "critic_mlp_layers": [96, 96],
        "value_bins": 101,
        "normalize_input": True,
        "normalize_rewards": True,
        "learning_rate": 1e-4,
        "initial_ent_coef": 0.01,
        "target_entropy_per_dim": -0.5,
        "initial_stddev": 0.018,
    },
    "crossq": {  # Bhatt et al. 2024 (arXiv:1902.05605v4) and their code
        "batch_renorm": True,
        "use_target_critics": False,
        "critic_mlp_layers": [512, 512],
        "learning_rate": 1e-3,
        "adam_beta1": 0.5,
        "policy_delay": 3,
    },
}
"""With widths for a CPU."""
_WIDTHS_ON_GPU = {"simba": [512, 512], "simba_v2": [512, 512], "crossq": [2048, 2048]}
"""The critics' widths of the papers."""


def values_of(critic: str, algorithm: Algorithm, trains_on_gpu: bool) -> Mapping[str, Any]:
    """The values, by the names of the settings; empty for perceptrons, and for other algorithms than SAC."""
    if algorithm.name != "sac" or critic not in PAPERS:
        return {}
    return {**PAPERS[critic], **({"critic_mlp_layers": _WIDTHS_ON_GPU[critic]} if trains_on_gpu else {})}
