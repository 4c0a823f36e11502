"""`python -m asyncrl.evaluate`: plays a trained policy for a fixed number of episodes and prints its mean return.

    python -m asyncrl.evaluate --train_dir=train_dir --experiment=NAME --episodes=100

Nothing is learned: weights and statistics are those of the checkpoint, rewards are those of the environment.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, PositiveInt

import asyncrl.runtime.one_blas_thread  # noqa: F401
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import format_help, option, option_flags, parse_options, split_flags
from asyncrl.runtime import checkpoint as checkpoints
from asyncrl.runtime.locating import TRAIN_DIR, find_checkpoint, find_checkpoint_of, find_pool, find_run
from asyncrl.runtime.reader import run_for_a_reader

if TYPE_CHECKING:
    import gymnasium

    from asyncrl.config.schema import TrainConfig
    from asyncrl.evaluation.episodes import EvaluationResult
    from asyncrl.evaluation.matches import MatchResult

_MOST_NAMES = 4
_DESCRIPTION = "Play a trained policy for a fixed number of episodes and print its mean return."
_EXAMPLES = (
    "python -m asyncrl.evaluate --experiment=my_run --episodes=50",
    "python -m asyncrl.evaluate --experiment=train_dir/my_run --checkpoint=best --video=videos",
    "python -m asyncrl.evaluate --checkpoint=train_dir/my_run/checkpoints/best",
    "python -m asyncrl.evaluate --experiment=my_game --opponents=random,my_older_game --episodes=200",
)


class _Options(BaseModel):
    experiment: str | None = option(None, "run, by its name in train_dir, its folder's path, or hf://user/name")
    train_dir: str = option(TRAIN_DIR, "folder that holds all runs [default train_dir]")
    checkpoint: str = option(
        "newest",
        "newest or best of the run, a checkpoint's name in it, or the path of a checkpoint or a run, which needs no "
        "--experiment [default newest]",
    )
    episodes: PositiveInt = option(100, "number of episodes [default 100]")
    num_envs: PositiveInt = option(8, "environments that are played in parallel [default 8]")
    seed: int = option(0, "seed of the episodes and of the sampled actions [default 0]")
    device: str = option("cpu", "device of the policy: cpu, cuda or cuda:N [default cpu]")
    deterministic: bool = option(False, "take the most likely action instead of a sampled one")
    video: Path | None = option(None, "folder to record the episodes into as videos; needs moviepy")
    render: bool = option(False, "show the episodes in a window, one after the other")
    opponents: str | None = option(
        None,
        "with several agents: play matches against these, separated by commas: random, runs and checkpoints, or pool, "
        "which are all members of the run's self-play pool; the policy plays each agent in --episodes episodes, the "
        "opponent all others",
    )
    as_json: bool = option(False, "print the result as one JSON object on the last line", flag="json")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 2 for a user's mistake, 1 for an environment's failure."""
    from asyncrl.envs.errors import EnvironmentFailed

    arguments = sys.argv[1:] if argv is None else list(argv)
    flags = option_flags(_Options)
    if {"--help", "-h"} & set(arguments):
        usage = "python -m asyncrl.evaluate --experiment=NAME"
        print(format_help(usage, _DESCRIPTION, {}, flags, _EXAMPLES))
        return 0
    texts, wrong = split_flags(arguments, {}, flags)
    options, refused = parse_options(_Options, texts)
    problems = [problem.text for problem in wrong] + refused
    if options is not None and options.render and options.video is not None:
        problems.append("--render shows episodes and --video records them: give one of the two.")
    try:
        if options is None or problems:
            raise UsageError("\nerror: ".join(problems))
        result = _evaluate(options) if options.opponents is None else _play_matches(options)
    except (UsageError, checkpoints.CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except EnvironmentFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(result.to_text())
    if options.as_json:
        print(result.to_json(), flush=True)
    return 0


def _evaluate(options: _Options) -> EvaluationResult:
    path = _find_checkpoint(options)
    env_steps = checkpoints.saved_env_steps(path)

    # Imports torch, which takes a second: mistakes of the user are reported before.
    import torch

    from asyncrl.evaluation.episodes import evaluate
    from asyncrl.evaluation.matches import load_players
    from asyncrl.policy import load_policy

    torch.set_num_threads(1)  # a few observations are too little work for more threads
    policy = load_policy(path, device=options.device, seed=options.seed)
    spec = policy.spec
    players = load_players(policy, path, options.device, options.seed) if spec.spaces else []
    print(f"{policy.config.env}: {path} ({env_steps:,} environment steps), {options.episodes} episodes", flush=True)
    recorded_before = _recordings(options.video)
    result = evaluate(
        policy,
        episodes=options.episodes,
        num_envs=1 if options.render else options.num_envs,
        seed=options.seed,
        deterministic=options.deterministic,
        report=lambda done, steps: print(f"{done} of {options.episodes} episodes, {steps:,} steps", file=sys.stderr),
        make=_env_factory(policy.config, options),
        others=players,
        choose=lambda agent, _: 1 + spec.kind_of(agent) if spec.spaces else 0,
    )
    if spec.spaces:
        result = result.of_agents([spec.agents[agent] for agent in spec.own_agents])
    if options.video is not None:
        recorded = sorted(path.name for path, _ in _recordings(options.video) - recorded_before)
        shown = ", ".join(recorded[:_MOST_NAMES]) + (", ..." if len(recorded) > _MOST_NAMES else "")
        print(f"recorded {len(recorded)} videos in {options.video}: {shown}", flush=True)
    return dataclasses.replace(result, env_steps=env_steps, checkpoint=str(path))


def _play_matches(options: _Options) -> _Matches:
    path = _find_checkpoint(options)
    names = [name.strip() for name in str(options.opponents).split(",") if name.strip()]
    found: dict[str, Path | None] = {}
    for name in names:
        if name == "pool":
            found |= {f"pool {checkpoints.saved_env_steps(member):,}": member for member in find_pool(path)}
        else:
            found[name] = None if name == "random" else find_checkpoint(name, train_dir=options.train_dir)

    import torch

    from asyncrl.evaluation.episodes import Player
    from asyncrl.evaluation.matches import RandomPlayer, load_players, play_matches, same_spaces
    from asyncrl.policy import load_policy

    torch.set_num_threads(1)
    policy = load_policy(path, device=options.device, seed=options.seed)
    if not policy.spec.agents:
        raise UsageError(f"--opponents needs an environment of several agents, and {policy.config.env} has one.")
    opponents: dict[str, Sequence[Player]] = {}
    for number, (name, checkpoint) in enumerate(found.items(), start=1):
        if checkpoint is None:
            config, seed = policy.config, options.seed + number
            opponents[name] = [RandomPlayer(kind, config, seed + idx) for idx, kind in enumerate(policy.spec.kinds)]
            continue
        opponent = load_policy(checkpoint, device=options.device, seed=options.seed + number)
        if not same_spaces(opponent.spec, policy.spec):
            raise UsageError(f"--opponents: {checkpoint} was trained in {opponent.spec.env_id}, with other spaces.")
        opponents[name] = load_players(opponent, checkpoint, options.device, options.seed + number)
    agents = len(policy.spec.agents)
    seats = f"all its {len(policy.spec.own_agents)}" if policy.spec.spaces else "each"
    print(f"{policy.config.env}: {path}, {options.episodes} episodes as {seats} of {agents} agents", flush=True)
    return _Matches(
        play_matches(
            policy,
            opponents,
            episodes=options.episodes,
            num_envs=1 if options.render else options.num_envs,
            seed=options.seed,
            deterministic=options.deterministic,
            make=_env_factory(policy.config, options),
        )
    )


class _Matches:
    """What is shown of matches."""

    def __init__(self, results: list[MatchResult]) -> None:
        self._results = results

    def to_text(self) -> str:
        rows = [["opponent", "plays", "won", "drawn", "lost", "share won (95 %)", "return"]]
        for result in self._results:
            low, high = result.won_ci95
            share = f"{result.won / len(result.returns):.3f} [{low:.3f}, {high:.3f}]"
            counts = [str(count) for count in (result.won, result.drawn, result.lost)]
            rows.append([result.opponent, result.agent, *counts, share, f"{result.mean_return:.2f}"])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def to_json(self) -> str:
        return json.dumps({"matches": [result.to_data() for result in self._results]})


def _find_checkpoint(options: _Options) -> Path:
    named, run = options.checkpoint, options.experiment
    if named not in ("newest", "best"):
        if run is None or Path(named).exists():
            return find_checkpoint(named, train_dir=options.train_dir)
        return find_checkpoint_of(find_run(run, options.train_dir), named)
    if run is None:
        raise UsageError("No run was given: give --experiment=NAME (of a run in --train_dir), or --checkpoint=PATH.")
    return find_checkpoint(run, named, options.train_dir)


def _recordings(folder: Path | None) -> set[tuple[Path, int]]:
    """The videos in a folder, with the times of their last change."""
    return set() if folder is None else {(path, path.stat().st_mtime_ns) for path in folder.glob("*.mp4")}


def _env_factory(config: TrainConfig, options: _Options) -> Callable[[int], gymnasium.Env[Any, Any]] | None:
    """Makes environments that are shown or recorded; None without --render and --video."""
    if options.video is None and not options.render:
        return None
    from asyncrl.envs.showing import make_shown_env

    video, render_mode = options.video, "human" if options.render else "rgb_array"
    return lambda number: make_shown_env(config, render_mode, video, number)


if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))
