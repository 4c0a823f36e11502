"""Settings of short runs of SAC, and what their critics say at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from run_helper import FinishedRun

from asyncrl.learner.sac import SacLearner
from asyncrl.learner.state import LearnerState
from asyncrl.models.encoders import Inputs
from asyncrl.models.sac import SacActor
from asyncrl.runtime import checkpoint

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
GREEDY: dict[str, Any] = {"ent_coef": 1e-4}  # so little entropy that values are those of rewards


def learner_of(finished: FinishedRun) -> SacLearner:
    """The learner, as the run's last checkpoint holds it."""
    content = checkpoint.load(Path(finished.outcome.checkpoint))
    learner = SacLearner(SacActor(finished.spec, finished.config), finished.config, finished.spec, torch.device("cpu"))
    learner.load_state_dict(LearnerState(dict(content.model), dict(content.optimizer), dict(content.state)))
    return learner


def values(finished: FinishedRun, *observations: list[float]) -> np.ndarray:
    """What the critics, on average, say of observations, whose actions mean nothing."""
    with torch.no_grad():
        obs = torch.tensor(observations)
        return learner_of(finished).critic.values(Inputs(obs), obs.new_empty((len(obs), 0))).mean((0, 2)).numpy()
