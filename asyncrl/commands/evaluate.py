"""`asyncrl evaluate`: plays a trained policy for a fixed number of episodes and prints its mean return.

    asyncrl evaluate RUN --episodes=100

The policy does not learn: its weights and statistics are those of the checkpoint, and rewards are those of the
environment. The episodes are played twice, with sampled and with deterministic actions, because the two returns may
differ much.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt, PositiveInt

from asyncrl.commands.player_options import (
    DEVICE,
    ENV,
    ENV_ARGUMENTS,
    SEED,
    EnvArguments,
    given_player_options,
    options_of,
    with_player_options,
)
from asyncrl.commands.run_argument import RunCommand, RunOptions
from asyncrl.commands.runner import text_beside_json
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option
from asyncrl.config.hooks import load
from asyncrl.config.value_types import GivenPath
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.locating import find_checkpoint, find_given_checkpoint, run_of

if TYPE_CHECKING:
    from asyncrl.evaluation.comparison import Comparison, PlayedEpisodes
    from asyncrl.evaluation.episodes import EvaluationResult, MakeEnv
    from asyncrl.inference.policy import Policy

_MOST_NAMES = 4


class Options(RunOptions):
    """Options of the command, without those of features."""

    checkpoint: str = option(
        "newest",
        "newest or best of the run, a checkpoint's name in it, or the path of a checkpoint, which needs no RUN "
        "[default newest]",
    )
    episodes: PositiveInt = option(100, "number of episodes [default 100]")
    num_envs: PositiveInt = option(8, "environments that are played in parallel [default 8]")
    seed: NonNegativeInt = SEED
    device: str = DEVICE
    deterministic: bool | None = option(
        None,
        "only deterministic actions; --deterministic=False: only sampled ones [default: the episodes are played with "
        "both, but with --compare, --episodes_csv, --video, --render, --record or --opponents with sampled ones]",
    )
    env: str | None = ENV
    env_kwargs: EnvArguments = ENV_ARGUMENTS
    compare: str | None = option(
        None,
        "other policies that play the same episodes, separated by commas: newest, best or checkpoints of the run, "
        "paths, other runs, or all, which are all checkpoints of the run. The result is a table with the mean "
        "difference of each from the first policy, by pairs of episodes",
    )
    episodes_csv: GivenPath | None = option(
        None,
        "file to write every episode to, in the format of Stable-Baselines3's Monitor, whose reader finds names that "
        "end in monitor.csv",
    )
    video: GivenPath | None = option(None, "folder to record the episodes into as videos; needs imageio-ffmpeg")
    render: bool = option(False, "show the episodes in a window, one after the other")
    as_json: bool = option(False, "print one JSON object, and the text on standard error", flag="json")


class _Evaluate(RunCommand[Options]):
    usage = "asyncrl evaluate RUN"
    description = (
        "Play a trained policy for a fixed number of episodes and print its mean return. RUN is a run's folder, its "
        "name in train_dir, hf://user/name, or a checkpoint's folder."
    )
    examples = (
        "asyncrl evaluate my_run --episodes=50",
        "asyncrl evaluate train_dir/my_run --checkpoint=best --video=videos",
        "asyncrl evaluate train_dir/my_run/checkpoints/best",
        "asyncrl evaluate my_run --compare=best,my_older_run --episodes_csv=played.monitor.csv",
        *(each.examples["evaluate"] for each in options_of("evaluate")),
    )
    model = with_player_options(Options, "evaluate")

    def problems(self, given: Mapping[str, Any], options: Options | None) -> Iterator[str]:
        yield from super().problems(given, options)
        if options is None:
            return
        if options.render and options.video is not None:
            yield "--render shows episodes and --video records them: give one of the two."
        if options.compare is not None and (options.render or options.video is not None):
            yield "--compare plays several policies: record or show one of them, without --compare."
        if len(given_options := given_player_options(options)) > 1:
            yield f"{' and '.join(f'--{each.name}' for each in given_options)} are not possible together."
        for player in given_options[:1]:
            for name in player.excludes:
                if getattr(options, name) is not None:
                    yield f"--{name} is not possible with --{player.name}, which plays {player.plays}."

    def run(self, options: Options) -> int:
        with text_beside_json(options.as_json):
            data = self._play(options)
        if options.as_json:
            print(json.dumps(data), flush=True)
        return 0

    def _play(self, options: Options) -> dict[str, Any]:
        """Plays, prints the results, and returns them as JSON values."""
        if options.episodes_csv is not None:
            _check_can_write(options.episodes_csv)
        path = find_given_checkpoint(options.named_run, options.checkpoint, options.train_dir)
        try:
            given = given_player_options(options)
            if not given and options.compare is None:
                return _evaluate(path, options)
            result = load(given[0].evaluate)(path, options) if given else _compare(path, options)
            return _show(result, bool(options.deterministic))
        except EnvironmentFailed as error:
            if (finished := getattr(error, "result", None)) is not None:
                print(f"until the environment failed: {finished.to_text()}", flush=True)
            raise


def _check_can_write(path: Path) -> None:
    """Creates the file before the episodes are played, which may take long."""
    if path.is_dir():
        raise UsageError(f"Cannot write {path}: it is a folder. Choose another --episodes_csv.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}. Choose another --episodes_csv.") from error


def _show(result: Any, is_deterministic: bool) -> dict[str, Any]:
    """Prints a result below the kind of its actions, and returns both as JSON values."""
    kind = "deterministic" if is_deterministic else "sampled"
    print(f"{kind} actions\n{result.to_text()}", flush=True)
    return {**result.to_data(), "actions": kind}


def _evaluate(path: Path, options: Options) -> dict[str, Any]:
    """Plays with the kinds of actions that the options name, and where they name none, with both."""
    t_start = time.time()
    recorded_before = _recordings(options.video)

    from asyncrl.commands.playing import env_factory, load_to_play  # torch takes a second: mistakes are reported before

    policy = load_to_play(path, options)
    make = env_factory(policy.config, options.render, options.video)
    is_deterministic = bool(options.deterministic) or not policy.is_stochastic
    plays_once = options.episodes_csv is not None or options.video is not None or options.render
    _announce(policy, path, options)
    result = _play(policy, path, options, is_deterministic, make)
    data = _show(result, is_deterministic)
    if options.deterministic is None and not (is_deterministic or plays_once):
        data["deterministic"] = _show(_play(policy, path, options, True, make), True)
    if options.video is not None:
        recorded = sorted(path.name for path, _ in _recordings(options.video) - recorded_before)
        shown = ", ".join(recorded[:_MOST_NAMES]) + (", ..." if len(recorded) > _MOST_NAMES else "")
        print(f"recorded {len(recorded)} videos in {options.video}: {shown}", flush=True)
    from asyncrl.evaluation.comparison import PlayedEpisodes

    _write_episodes(options, policy, t_start, [PlayedEpisodes(str(path), result)])
    return data


def _compare(path: Path, options: Options) -> Comparison:
    """Plays all policies in the environment of the first one, that of `path`."""
    paths = _compared(path, options)

    from asyncrl.commands.playing import load_to_play  # torch takes a second: mistakes are reported before
    from asyncrl.evaluation.comparison import Comparison, PlayedEpisodes
    from asyncrl.evaluation.episodes import make_checked_env
    from asyncrl.evaluation.team import same_spaces

    names = list(map(_name_of, paths))
    t_start = time.time()
    policies = [load_to_play(path, options) for path in paths]
    first = policies[0]
    for path, policy in zip(paths, policies, strict=True):
        if not same_spaces(policy.spec, first.spec):
            raise UsageError(f"--compare: {path} was trained in {policy.spec.env_id}, with other spaces.")
    played = []
    for name, path, policy in zip(names, paths, policies, strict=True):
        started_s = time.time() - t_start
        _announce(policy, path, options)
        result = _play(policy, path, options, bool(options.deterministic), lambda _: make_checked_env(first.config))
        played.append(PlayedEpisodes(name, result, started_s))
    _write_episodes(options, first, t_start, played)
    return Comparison(tuple(names), tuple(each.result for each in played))


def _compared(path: Path, options: Options) -> list[Path]:
    """The checkpoints to compare, the first of which is `path`."""
    found = [path]
    is_kept = path.parent.name in (checkpoints.BEST, checkpoints.MILESTONES)
    folder = path.parent.parent if is_kept else path.parent  # with all checkpoints of the run's policy
    for name in filter(None, map(str.strip, str(options.compare).split(","))):
        if name == "all":
            places = (folder, folder / checkpoints.MILESTONES, folder / checkpoints.BEST)
            every = (path for place in places for path in checkpoints.newest_first(place))
            found += sorted(every, key=lambda path: path.name)
        elif name == "newest":
            found.append(find_checkpoint(folder))
        elif name == "best" or (folder / name).is_dir():
            found.append(find_checkpoint(folder / name))
        else:
            found.append(find_checkpoint(name, train_dir=options.train_dir))
    return list({path.resolve(): path for path in found}.values())


def _name_of(path: Path) -> str:
    """The name of a run and of its checkpoint; the path of a checkpoint that is in no run's folder."""
    run = run_of(path)
    if run is None:
        return str(path)
    return str(path.resolve().relative_to(run.parent)).replace("/checkpoints/", "/", 1)


def _play(
    policy: Policy, path: Path, options: Options, is_deterministic: bool, make: MakeEnv | None
) -> EvaluationResult:
    from asyncrl.evaluation.episodes import evaluate
    from asyncrl.evaluation.team import load_team

    team = load_team(policy, path, options.device, options.seed)
    result = evaluate(
        policy,
        episodes=options.episodes,
        num_envs=1 if options.render else options.num_envs,
        seed=options.seed,
        deterministic=is_deterministic,
        report=lambda done, steps: print(f"{done} of {options.episodes} episodes, {steps:,} steps", file=sys.stderr),
        make=make,
        others=team.others,
        choose=team.choose,
    )
    env_steps = checkpoints.saved_env_steps(path)
    return dataclasses.replace(result.for_agents(team.own), env_steps=env_steps, checkpoint=str(path))


def _announce(policy: Policy, path: Path, options: Options) -> None:
    env_steps = checkpoints.saved_env_steps(path)
    print(f"{policy.config.env}: {path} ({env_steps:,} environment steps), {options.episodes} episodes", flush=True)


def _write_episodes(options: Options, policy: Policy, t_start: float, played: Sequence[PlayedEpisodes]) -> None:
    if options.episodes_csv is None:
        return
    from asyncrl.evaluation.comparison import write_episodes

    try:
        write_episodes(options.episodes_csv, policy.config.env_id, t_start, played)
    except OSError as error:  # the result is still printed
        print(f"warning: {options.episodes_csv} cannot be written: {error.strerror or error}", file=sys.stderr)
    else:
        print(f"wrote {options.episodes_csv}", flush=True)


def _recordings(folder: Path | None) -> set[tuple[Path, int]]:
    """The videos in a folder, with the times of their last change."""
    return set() if folder is None else {(path, path.stat().st_mtime_ns) for path in folder.glob("*.mp4")}


main = _Evaluate().main
