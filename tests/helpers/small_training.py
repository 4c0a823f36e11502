"""Settings of a small serial run of CartPole, which evaluates and saves."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "serial_mode": True,
    "async_rl": False,
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "rollout": 16,
    "batch_size": 64,
    "num_batches_per_epoch": 2,
    "num_epochs": 1,
    "learner_threads": 1,
    "encoder_mlp_layers": [8],
    "report_every_s": 0.1,
    "with_tensorboard": False,
    "eval_every_env_steps": 1000,
    "eval_episodes": 2,
}
