"""What the commands that play a trained policy share: arguments of its environment, and its opponents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import hooks, load
from asyncrl.envs.spaces import read_spec
from asyncrl.evaluation.episodes import Player, make_checked_env
from asyncrl.evaluation.matches import RandomPlayer, load_players, same_spaces
from asyncrl.policy import Policy, load_policy
from asyncrl.runtime.locating import find_checkpoint


def change_env(policy: Policy, env: str | None, env_kwargs: Mapping[str, Any]) -> None:
    """Lets a policy play in another environment, or in its own with other arguments.

    Args:
        policy: the policy.
        env: None for the environment of the run.
        env_kwargs: its arguments; those of the run that are not given stay.

    Raises:
        UsageError: the environment does not take the arguments, or has other spaces than the policy was trained with.
        EnvironmentFailed: the environment's own code raised.
    """
    if env is None and not env_kwargs:
        return
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


def load_opponents(
    policy: Policy, checkpoint: Path, names: str, train_dir: str, device: str, seed: int
) -> dict[str, Sequence[Player]]:
    """The opponents that --opponents names, separated by commas; of each the players of all kinds of spaces.

    Args:
        policy: the policy that plays against them.
        checkpoint: where it was loaded from.
        names: names of `asyncrl.cli.opponents`.
        train_dir: folder of runs that are named without a path.
        device: device of the opponents.
        seed: seed of their sampled actions; each gets another one.

    Raises:
        UsageError: the environment has one agent, or there is no such opponent, or it has other spaces.
    """
    found: dict[str, Path | None] = {}
    named = hooks("OPPONENTS")
    for name in filter(None, map(str.strip, names.split(","))):
        if name in named:
            found |= load(named[name][0])(checkpoint)
        else:
            found[name] = None if name == "random" else find_checkpoint(name, train_dir=train_dir)
    if not policy.spec.agents:
        raise UsageError(f"--opponents needs an environment of several agents, and {policy.config.env} has one.")
    opponents: dict[str, Sequence[Player]] = {}
    for number, (name, path) in enumerate(found.items(), start=1):
        if path is None:
            kinds = enumerate(policy.spec.kinds)
            opponents[name] = [RandomPlayer(kind, policy.config, seed + number + idx) for idx, kind in kinds]
            continue
        opponent = load_policy(path, device=device, seed=seed + number)
        if not same_spaces(opponent.spec, policy.spec):
            raise UsageError(f"--opponents: {path} was trained in {opponent.spec.env_id}, with other spaces.")
        opponents[name] = load_players(opponent, path, device, seed + number)
    return opponents
