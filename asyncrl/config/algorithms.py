"""What an algorithm's settings are where nobody says otherwise: below presets, files and flags."""

from __future__ import annotations

from typing import Any

OFF_POLICY = ("sac",)
"""Algorithms that learn from a replay; the general settings of a preset are for the others."""

SHORT_NAMES: dict[str, dict[str, Any]] = {
    "a3c": {"algo": "a2c", "backend": "hogwild", "hogwild_mode": "synced"},
}
"""What may be given for `algo`, and the settings that it stands for."""

DEFAULTS: dict[str, dict[str, Any]] = {
    # Without a ratio to clip, samples are used once, in larger minibatches.
    "a2c": {"batch_size": 512, "num_batches_per_epoch": 4, "num_epochs": 1, "target_kl": None},
    # Haarnoja et al. 2018 (arXiv:1812.05905), appendix D.
    "sac": {
        "batch_size": 256,
        "encoder_mlp_layers": [256, 256],
        "nonlinearity": "relu",
        "policy_initialization": "torch_default",
        "max_grad_norm": 0.0,
        "adam_eps": 1e-8,
        "normalize_input": False,
        "initial_stddev": 1.0,
    },
}
"""By algorithm, what differs from the defaults of the schema."""
