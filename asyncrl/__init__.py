"""asyncrl trains a policy on a Gymnasium environment with high throughput.

    from asyncrl import TrainConfig, Trainer, load_policy

    result = Trainer(TrainConfig(env="CartPole-v1", train_for_env_steps=100_000)).run()
    policy = load_policy(result.folder)
    action = policy.act(observation)

`Trainer` runs a training, and an `Observer` watches or steers it; callbacks are ready-made observers. `register_env`,
`register_encoder`, `register_core` and `register_model` add environments and networks. `load_policy` loads the policy
of a run or a checkpoint; its `export` writes it to a file that runs without asyncrl.

The path of a sample, from a step of an environment to a gradient:

    environment --step--> rollout worker --row--> slot (shared memory) --ready--> learner --dataset--> PPO or A2C
                             ^                       ^                                |
                             | actions               | values, log-probs              | versioned weights
                             +------ policy: in the worker, or in inference workers <-+

Rollout workers step environments and write rows into slots of one shared arena. The policy that chooses actions runs in
each worker (`local`) or in inference workers that batch requests (`central`). The learner takes full slots, trains, and
publishes weights. Processes exchange only integers: numbers of slots and splits. `docs/architecture.md` explains why.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from asyncrl.config.algorithms import Algorithm, register_algorithm
    from asyncrl.config.errors import UsageError
    from asyncrl.config.hyperparameters import Hyperparameters
    from asyncrl.config.schema import TrainConfig
    from asyncrl.envs.errors import EnvironmentFailed
    from asyncrl.envs.registry import register_env
    from asyncrl.inference.policy import Policy
    from asyncrl.models.registry import register_core, register_encoder, register_model
    from asyncrl.observers.callbacks import (
        EnvironmentCurriculum,
        EveryNTimesteps,
        StopTrainingOnNoModelImprovement,
        StopTrainingOnRewardThreshold,
    )
    from asyncrl.observers.observer import Observer, Run
    from asyncrl.observers.progress import ProgressBar
    from asyncrl.processes.children import RunFailed
    from asyncrl.run.result import RunResult
    from asyncrl.run.trainer import Trainer
    from asyncrl.storage.checkpoint import CheckpointError

__version__ = "0.2.0"

# Names are imported when they are first used, because most of these modules import torch.
_MODULES = {
    "Algorithm": "config.algorithms",
    "CheckpointError": "storage.checkpoint",
    "EnvironmentCurriculum": "observers.callbacks",
    "EnvironmentFailed": "envs.errors",
    "EveryNTimesteps": "observers.callbacks",
    "Hyperparameters": "config.hyperparameters",
    "Observer": "observers.observer",
    "Policy": "inference.policy",
    "ProgressBar": "observers.progress",
    "Run": "observers.observer",
    "RunFailed": "processes.children",
    "RunResult": "run.result",
    "StopTrainingOnNoModelImprovement": "observers.callbacks",
    "StopTrainingOnRewardThreshold": "observers.callbacks",
    "TrainConfig": "config.schema",
    "Trainer": "run.trainer",
    "UsageError": "config.errors",
    "register_algorithm": "config.algorithms",
    "register_core": "models.registry",
    "register_encoder": "models.registry",
    "register_env": "envs.registry",
    "register_model": "models.registry",
}
__all__ = [
    "Algorithm",
    "CheckpointError",
    "EnvironmentCurriculum",
    "EveryNTimesteps",
    "StopTrainingOnNoModelImprovement",
    "StopTrainingOnRewardThreshold",
    "EnvironmentFailed",
    "Hyperparameters",
    "RunFailed",
    "UsageError",
    "Observer",
    "Policy",
    "ProgressBar",
    "Run",
    "RunResult",
    "TrainConfig",
    "Trainer",
    "load_policy",
    "register_algorithm",
    "register_core",
    "register_encoder",
    "register_env",
    "register_model",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    if name.isupper():  # Stable-Baselines3 and others have a class for each algorithm
        from asyncrl.config.algorithms import known_names

        if (algo := name.lower()) in known_names():
            instead = f'Trainer(TrainConfig(env=..., algo="{algo}")).run()'
            raise AttributeError(f"{__name__} has no {name} class: {instead}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_policy(
    path: str | Path,
    which: Literal["newest", "best"] = "newest",
    device: str = "cpu",
    seed: int = 0,
    policy: int = 0,
) -> Policy:
    """Loads a trained policy; its environment need not be installed.

    Args:
        path: a run's folder, its name (in `train_dir`), its address on the Hugging Face Hub (`hf://user/name` or
            `hf://user/name@revision`), or a checkpoint's folder.
        which: of a run, the newest checkpoint or the best one (`save_best_metric`).
        device: device of the policy: cpu, cuda or cuda:N.
        seed: seed of the sampled actions.
        policy: number of the policy, of a run that trains several.

    Returns:
        The policy: `policy.act(obs, deterministic=False)`, and `policy.reset()` where an episode begins.

    Raises:
        asyncrl.UsageError: there is no such policy, or no such device.
        asyncrl.storage.checkpoint.CheckpointError: the checkpoint is damaged.
    """
    from asyncrl.inference.policy import load_policy as load  # here, because it imports torch

    return load(path, which, device, seed, policy)
