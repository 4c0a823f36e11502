"""Settings of short runs of SAC."""

from __future__ import annotations

from typing import Any

SAC: dict[str, Any] = {
    "algo": "sac",
    "num_envs_per_worker": 2,
    "batch_size": 32,
    "encoder_mlp_layers": [32],
    "nonlinearity": "relu",
    "policy_initialization": "torch_default",
    "max_grad_norm": 0.0,
    "precision": "float32",
    "replay_size": 3000,
    "warmup_env_steps": 200,
    "train_for_env_steps": 1500,
    "learning_rate": 0.005,
    "lr_schedule": "constant",
    "tau": 0.05,
    "gamma": 0.8,
}
