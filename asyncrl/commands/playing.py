"""What the commands that play a trained policy share: loading it, and making its environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import Env

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.showing import make_shown_env
from asyncrl.envs.spaces import read_spec
from asyncrl.evaluation.episodes import MakeEnv, make_checked_env
from asyncrl.evaluation.team import same_spaces
from asyncrl.inference.policy import Policy, load_policy
from asyncrl.processes.seeding import role_seed, seed_global_generators

if TYPE_CHECKING:
    from asyncrl.commands import enjoy, evaluate


def load_to_play(path: Path, options: evaluate.Options | enjoy.Options) -> Policy:
    """Loads the policy of a checkpoint, and prepares this process and the policy's environment for playing.

    Raises:
        UsageError: the environment does not take the arguments, or has other spaces than the policy was trained with.
        EnvironmentFailed: the environment's own code raised.
    """
    torch.set_num_threads(1)  # a few observations are too little work for more threads
    seed_global_generators(role_seed(options.seed, "evaluate"))
    policy = load_policy(path, device=options.device, seed=options.seed)
    env, env_kwargs = options.env, options.env_kwargs
    if env is None and not env_kwargs:
        return policy
    changed = {"env": env or policy.config.env, "env_kwargs": {**policy.config.env_kwargs, **env_kwargs}}
    config = policy.config.model_copy(update=changed)
    made = make_checked_env(config)
    try:
        spec = read_spec(made, config.env_id, config.image_channels, config.image_keys)
    finally:
        made.close()
    if not same_spaces(spec, policy.spec):
        given = f"--env={env}" if env is not None else f"--env_kwargs={config.env_kwargs}"
        text = f"{given} gives {config.env_id} spaces that the policy was not trained with"
        raise UsageError(f"{text}: {spec} instead of {policy.spec}.")
    policy.config = config
    return policy


def env_factory(config: TrainConfig, render: bool, video: Path | None, prefix: str = "") -> MakeEnv | None:
    """Makes environments that are shown, or recorded into files in the folder `video`; None without both.

    Names of files begin with `prefix`.
    """
    if video is None and not render:
        return None

    def make(number: int) -> Env[Any, Any]:
        if video is None:
            return make_shown_env(config, "human", None, number)
        name = f"{prefix}env-{number}-episode"
        return make_shown_env(config, "rgb_array", lambda idx: video / f"{name}-{idx}.mp4", number)

    return make
