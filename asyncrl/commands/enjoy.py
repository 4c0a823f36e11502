"""`asyncrl enjoy`: shows a trained policy in a window, or writes a video of it.

    asyncrl enjoy RUN [--checkpoint=best] [--video=FILE.mp4]

RUN is a run's folder, its name in train_dir, or a checkpoint's folder.
"""

from __future__ import annotations

import itertools
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
from asyncrl.config.flags import option
from asyncrl.config.hooks import load
from asyncrl.config.value_types import GivenPath
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.locating import find_given_checkpoint

if TYPE_CHECKING:
    import gymnasium

    from asyncrl.evaluation.episodes import Choose, EvaluationResult
    from asyncrl.evaluation.team import Team

_DEFAULT_VIDEO = Path("enjoy.mp4")


class Options(RunOptions):
    """Options of the command, without those of features."""

    checkpoint: str = option("newest", "newest or best of the run, or a checkpoint's name in it [default newest]")
    policy: NonNegativeInt = option(0, "which of several policies [default 0]")
    video: GivenPath | None = option(
        None, "file to write all episodes to, in place of a window [default enjoy.mp4, without a screen]"
    )
    episodes: PositiveInt | None = option(None, "number of episodes [default 3]")
    max_steps: PositiveInt | None = option(None, "end each episode after this many steps [default no limit]")
    env: str | None = ENV
    env_kwargs: EnvArguments = ENV_ARGUMENTS
    deterministic: bool = option(False, "take the deterministic action instead of a sampled one")
    seed: NonNegativeInt = SEED
    device: str = DEVICE


class _Enjoy(RunCommand[Options]):
    usage = "asyncrl enjoy RUN"
    description = (
        "Show a trained policy in a window, or write a video of it. RUN is a run's folder, its name in train_dir, or a "
        "checkpoint's folder."
    )
    examples = (
        "asyncrl enjoy my_run --checkpoint=best --episodes=3",
        "asyncrl enjoy train_dir/my_run --video=my_run.mp4 --deterministic",
        *(each.examples["enjoy"] for each in options_of("enjoy")),
    )
    model = with_player_options(Options, "enjoy")

    def problems(self, given: Mapping[str, Any], options: Options | None) -> Iterator[str]:
        yield from super().problems(given, options)
        if options is not None and options.video is not None and options.video.suffix.lower() != ".mp4":
            yield f"--video={options.video} is not possible: expected a file name that ends in .mp4."

    def run(self, options: Options) -> int:
        try:
            _show(options)
        except EnvironmentFailed as error:
            if isinstance(error.__cause__, SystemExit) and not error.__cause__.code:  # its window was closed
                return 0
            raise
        return 0


def _show(options: Options) -> None:
    path = find_given_checkpoint(options.named_run, options.checkpoint, options.train_dir, options.policy)
    env_steps = checkpoints.saved_env_steps(path)

    # Imports torch, which takes a second: mistakes of the user are reported before.
    from asyncrl.commands.playing import load_to_play
    from asyncrl.envs.showing import can_open_window, make_shown_env
    from asyncrl.evaluation.episodes import evaluate
    from asyncrl.evaluation.team import load_team

    policy = load_to_play(path, options)
    if given := given_player_options(options):
        teams: list[Team] = load(given[0].make_teams)(policy, path, options)
    else:
        teams = [load_team(policy, path, options.device, options.seed)]
    episodes = options.episodes or max(3, len(teams))

    video = options.video
    if video is None and not can_open_window():
        video = _DEFAULT_VIDEO
        print(f"There is no screen for a window: the episodes are written to {video}.", flush=True)
    existed = video is not None and video.exists()
    print(f"{policy.config.env}: {path} ({env_steps:,} environment steps), {episodes} episodes", flush=True)

    def make(number: int) -> gymnasium.Env[Any, Any]:
        if (file := video) is None:
            return make_shown_env(policy.config, "human", None, number)
        return make_shown_env(policy.config, "rgb_array", lambda _: file, number)

    result = evaluate(
        policy,
        episodes=episodes,
        num_envs=1,
        seed=options.seed,
        deterministic=options.deterministic,
        make=make,
        others=[player for team in teams for player in team.others],
        choose=_choose_in_turn(teams),
        max_steps=options.max_steps,
    )
    for line in _lines(result, teams):
        print(line)
    if video is not None:
        size = video.stat().st_size / 1024
        print(f"wrote {video}, {size:,.0f} KB" + (" (replaced)" if existed else ""), flush=True)


def _choose_in_turn(teams: Sequence[Team]) -> Choose:
    """Lets each team play one episode, then all again; its players follow those of the teams before."""
    begins = list(itertools.accumulate((len(team.others) for team in teams), initial=0))

    def choose(agent: int, episode: int) -> int:
        number = episode % len(teams)
        player = teams[number].player_of[agent]
        return 0 if player == 0 else begins[number] + player

    return choose


def _lines(result: EvaluationResult, teams: Sequence[Team]) -> list[str]:
    """What is printed of each episode."""
    lines = []
    for episode, (episode_return, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
        text, team = f"return {episode_return:.2f}", teams[episode % len(teams)]
        if result.returns_by_agent:
            text = ", ".join(
                f"{name} ({'policy' if agent in team.own else team.name_of_others}) {returns[episode]:.2f}"
                for agent, (name, returns) in enumerate(result.returns_by_agent.items())
            )
        lines.append(f"episode {episode + 1}: {text}, {length} steps")
    return lines


main = _Enjoy().main
