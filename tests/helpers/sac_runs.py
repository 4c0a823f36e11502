"""Short runs of SAC, TD3 and DQN: their settings, and what the trained critics say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from run_helper import FinishedRun

from asyncrl.inference.policy import load_policy
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.state import LearnerState
from asyncrl.learner.td3 import Td3Learner
from asyncrl.models.encoders import Inputs
from asyncrl.models.sac import SacActor
from asyncrl.models.td3 import DeterministicActor
from asyncrl.storage import checkpoint

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
GREEDY: dict[str, Any] = {**SAC, "ent_coef": 1e-4}
"""So little entropy that values are those of rewards."""
TD3: dict[str, Any] = {**SAC, "algo": "td3", "policy_delay": 2}
DQN: dict[str, Any] = {**SAC, "algo": "dqn", "max_grad_norm": 10.0}


def learner_of(finished: FinishedRun) -> SacLearner | Td3Learner:
    """The learner of SAC or TD3, as the run's last checkpoint holds it."""
    content, config, spec = checkpoint.load(Path(finished.outcome.checkpoint)), finished.config, finished.spec
    learner: SacLearner | Td3Learner
    if config.algo == "sac":
        learner = SacLearner(SacActor(spec, config), config, spec, torch.device("cpu"))
    else:
        learner = Td3Learner(DeterministicActor(spec, config), config, spec, torch.device("cpu"))
    learner.load_state_dict(LearnerState(dict(content.model), dict(content.optimizer), dict(content.state)))
    return learner


@torch.no_grad()
def values(finished: FinishedRun, *observations: list[float]) -> np.ndarray:
    """What the critics, on average, say of observations, whose actions mean nothing."""
    obs = torch.tensor(observations)
    if finished.config.algo == "dqn":
        model: Any = load_policy(Path(finished.outcome.checkpoint))._model
        return model.values(Inputs(obs)).mean(1).numpy()
    actions = torch.zeros(len(obs), 1 if finished.config.algo == "td3" else 0)
    return learner_of(finished).critic.values(Inputs(obs), actions).mean((0, 2)).numpy()
