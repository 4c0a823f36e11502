"""What `evaluate` and `enjoy` do with `--opponents`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.commands.playing import env_factory, load_to_play
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import hooks, load
from asyncrl.contrib.matches.option import OPTION
from asyncrl.contrib.matches.play import MatchResult, RandomPlayer, make_team, play_matches, seats_of
from asyncrl.evaluation.comparison import aligned
from asyncrl.evaluation.episodes import Player
from asyncrl.evaluation.team import Team, load_players, same_spaces
from asyncrl.inference.policy import Policy, load_policy
from asyncrl.storage.locating import find_checkpoint
from asyncrl.storage.run_folder import as_folder_name

if TYPE_CHECKING:
    from asyncrl.commands import enjoy
    from asyncrl.commands.evaluate import Options


class _Matches:
    """What `evaluate` prints."""

    def __init__(self, results: list[MatchResult]) -> None:
        self._results = results

    def to_text(self) -> str:
        rows = [["opponent", "plays", "won", "drawn", "lost", "share won (95 %)", "return"]]
        for result in self._results:
            low, high = result.won_ci95
            share = f"{result.won / len(result.returns):.3f} [{low:.3f}, {high:.3f}]"
            counts = [str(count) for count in (result.won, result.drawn, result.lost)]
            rows.append([result.opponent, result.agent, *counts, share, f"{result.mean_return:.2f}"])
        return aligned(rows)

    def to_data(self) -> dict[str, Any]:
        return {"matches": [result.to_data() for result in self._results]}


def evaluate(checkpoint: Path, options: Options) -> _Matches:
    """Plays the policy of a checkpoint against each opponent, as each agent in turn."""
    policy = load_to_play(checkpoint, options)
    opponents = _load_opponents(policy, checkpoint, options)
    agents = len(policy.spec.agents)
    seats = f"all its {len(policy.spec.own_agents)}" if policy.spec.spaces else "each"
    print(f"{policy.config.env}: {checkpoint}, {options.episodes} episodes as {seats} of {agents} agents", flush=True)
    return _Matches(
        play_matches(
            policy,
            opponents,
            episodes=options.episodes,
            num_envs=1 if options.render else options.num_envs,
            seed=options.seed,
            deterministic=bool(options.deterministic),
            make_envs=lambda match: env_factory(
                policy.config, options.render, options.video, f"{as_folder_name(match)}-"
            ),
        )
    )


def make_teams(policy: Policy, checkpoint: Path, options: enjoy.Options) -> list[Team]:
    """The pairings that are shown: each opponent once, then all again with the policy in the next seat."""
    opponents = _load_opponents(policy, checkpoint, options)
    spec = policy.spec
    return [make_team(spec, name, players, seat) for seat in seats_of(spec) for name, players in opponents.items()]


def _load_opponents(policy: Policy, checkpoint: Path, options: Options | enjoy.Options) -> dict[str, Sequence[Player]]:
    """The opponents that --opponents names, separated by commas; of each the players of all kinds of spaces.

    Args:
        policy: the policy that plays against them.
        checkpoint: where it was loaded from.
        options: those of the command. Each opponent samples actions by another seed.

    Raises:
        UsageError: the environment has one agent, or there is no such opponent, or it has other spaces.
    """
    names, seed = str(getattr(options, OPTION.name)), options.seed
    found: dict[str, Path | None] = {}
    named = hooks("OPPONENTS")
    for name in filter(None, map(str.strip, names.split(","))):
        if name in named:
            found |= load(named[name][0])(checkpoint)
        else:
            found[name] = None if name == "random" else find_checkpoint(name, train_dir=options.train_dir)
    if not found:
        raise UsageError("--opponents names no opponent: give random, runs or checkpoints.")
    if not policy.spec.agents:
        raise UsageError(f"--opponents needs an environment of several agents, and {policy.config.env} has one.")
    opponents: dict[str, Sequence[Player]] = {}
    for number, (name, path) in enumerate(found.items(), start=1):
        if path is None:
            kinds = enumerate(policy.spec.kinds)
            opponents[name] = [RandomPlayer(kind, policy.config, seed + number + idx) for idx, kind in kinds]
            continue
        opponent = load_policy(path, device=options.device, seed=seed + number)
        if not same_spaces(opponent.spec, policy.spec):
            raise UsageError(f"--opponents: {path} was trained in {opponent.spec.env_id}, with other spaces.")
        opponents[name] = load_players(opponent, path, options.device, seed + number)
    return opponents
