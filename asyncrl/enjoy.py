"""`python -m asyncrl.enjoy`: shows a trained policy in a window, or writes a video of it.

    python -m asyncrl.enjoy RUN [--checkpoint=best] [--video=FILE.mp4] [--opponents=random]

RUN is a run's folder, its name in train_dir, or a checkpoint's folder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Json, NonNegativeInt, PositiveInt

import asyncrl.runtime.one_blas_thread  # noqa: F401
from asyncrl.cli.opponents import OPPONENTS
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import format_help, option, option_flags, parse_options, separate_words, split_flags
from asyncrl.config.value_types import GivenPath, utf8_argument
from asyncrl.runtime import checkpoint as checkpoints
from asyncrl.runtime.ending import end_process
from asyncrl.runtime.locating import TRAIN_DIR, find_given_checkpoint
from asyncrl.runtime.reader import run_for_a_reader

if TYPE_CHECKING:
    import gymnasium

    from asyncrl.evaluation.episodes import Choose, EvaluationResult, Player
    from asyncrl.policy import Policy

_DEFAULT_VIDEO = Path("enjoy.mp4")
_DESCRIPTION = (
    "Show a trained policy in a window, or write a video of it. RUN is a run's folder, its name in train_dir, or a "
    "checkpoint's folder."
)
_EXAMPLES = (
    "python -m asyncrl.enjoy my_run --checkpoint=best --episodes=3",
    "python -m asyncrl.enjoy train_dir/my_run --video=my_run.mp4 --deterministic",
    "python -m asyncrl.enjoy my_game --opponents=random,my_older_game",
)


class _Options(BaseModel):
    run: str
    train_dir: str = option(TRAIN_DIR, "folder that holds all runs [default train_dir]")
    checkpoint: str = option("newest", "newest or best of the run, or a checkpoint's name in it [default newest]")
    policy: NonNegativeInt = option(0, "which of several policies [default 0]")
    video: GivenPath | None = option(
        None, "file to write all episodes to, in place of a window [default enjoy.mp4, without a screen]"
    )
    episodes: PositiveInt | None = option(None, "number of episodes [default 3; of matches, one for each pairing]")
    max_steps: PositiveInt | None = option(None, "end each episode after this many steps [default no limit]")
    env: str | None = option(None, "another environment with the same spaces, such as the run's in its new module")
    env_kwargs: Annotated[Json[dict[str, Any]], BeforeValidator(utf8_argument)] = option(
        {},
        "keyword arguments for the environment, as JSON, that differ from those of the run",
        'a JSON object, such as {"size": 3}',
    )
    opponents: str | None = option(
        None,
        f"with several agents: show matches against these, separated by commas: {OPPONENTS}. Opponents and the "
        "policy's place change with the episodes",
    )
    deterministic: bool = option(False, "take the most likely action instead of a sampled one")
    seed: NonNegativeInt = option(0, "seed of the episodes and of the sampled actions [default 0]")
    device: str = option("cpu", "device of the policy: cpu, cuda or cuda:N [default cpu]")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 2 for a user's mistake, 1 for an environment's failure."""
    from asyncrl.envs.errors import EnvironmentFailed

    arguments = sys.argv[1:] if argv is None else list(argv)
    flags = option_flags(_Options)
    if {"--help", "-h"} & set(arguments):
        print(format_help("python -m asyncrl.enjoy RUN", _DESCRIPTION, {}, flags, _EXAMPLES))
        return 0
    runs, flag_tokens = separate_words(arguments, flags)
    texts, wrong = split_flags(flag_tokens, {}, flags)
    options, refused = parse_options(_Options, {**texts, "run": runs[0] if runs else ""})
    problems = [problem.text for problem in wrong] + refused
    if len(runs) != 1:
        problems.append("Give one run, by its folder's path or its name in train_dir: python -m asyncrl.enjoy RUN.")
    if options is not None and options.video is not None and options.video.suffix.lower() != ".mp4":
        problems.append(f"--video={options.video} is not possible: expected a file name that ends in .mp4.")
    try:
        if options is None or problems:
            raise UsageError("\nerror: ".join(problems))
        _show(options)
    except (UsageError, checkpoints.CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except EnvironmentFailed as error:
        if isinstance(error.__cause__, SystemExit) and not error.__cause__.code:  # its window was closed
            return 0
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _show(options: _Options) -> None:
    path = find_given_checkpoint(options.run, options.checkpoint, options.train_dir, options.policy)
    env_steps = checkpoints.saved_env_steps(path)

    # Imports torch, which takes a second: mistakes of the user are reported before.
    import torch

    from asyncrl.cli.playing import change_env, load_opponents
    from asyncrl.envs.showing import can_open_window, make_shown_env
    from asyncrl.evaluation.episodes import evaluate
    from asyncrl.evaluation.matches import load_team, seats_of
    from asyncrl.policy import load_policy
    from asyncrl.runtime.seeding import role_seed, seed_global_generators

    torch.set_num_threads(1)
    seed_global_generators(role_seed(options.seed, "evaluate"))
    policy = load_policy(path, device=options.device, seed=options.seed)
    change_env(policy, options.env, options.env_kwargs)
    if options.opponents is None:
        opponents: dict[str, Sequence[Player]] = {}
        team = load_team(policy, path, options.device, options.seed)
        players: list[Player] = [*team.others]
        seats = [team.own]
        choose: Choose = team.choose
    else:
        given = (options.opponents, options.train_dir, options.device, options.seed)
        opponents = load_opponents(policy, path, *given)
        players = [player for of_opponent in opponents.values() for player in of_opponent]
        seats = seats_of(policy.spec)
        choose = _choose(policy, len(opponents), seats)
    episodes = options.episodes or max(3, len(opponents) * len(seats))

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
        others=players,
        choose=choose,
        max_steps=options.max_steps,
    )
    for line in _lines(result, policy, list(opponents), seats):
        print(line)
    if video is not None:
        size = video.stat().st_size / 1024
        print(f"wrote {video}, {size:,.0f} KB" + (" (replaced)" if existed else ""), flush=True)


def _pairing(episode: int, num_opponents: int, seats: Sequence[Sequence[int]]) -> tuple[int, Sequence[int]]:
    """The opponent and the policy's agents of an episode: each opponent once, then all again in the next seat."""
    return episode % num_opponents, seats[episode // num_opponents % len(seats)]


def _choose(policy: Policy, num_opponents: int, seats: Sequence[Sequence[int]]) -> Choose:
    spec = policy.spec

    def choose(agent: int, episode: int) -> int:
        opponent, seat = _pairing(episode, num_opponents, seats)
        return 0 if agent in seat else 1 + opponent * len(spec.kinds) + spec.kind_of(agent)

    return choose


def _lines(
    result: EvaluationResult, policy: Policy, opponents: Sequence[str], seats: Sequence[Sequence[int]]
) -> list[str]:
    """What is printed of each episode."""
    lines = []
    for episode, (episode_return, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
        text = f"return {episode_return:.2f}"
        if result.returns_by_agent:
            named = {agent: returns[episode] for agent, returns in result.returns_by_agent.items()}
            seat: Sequence[int] = seats[0]
            other = "its run"
            if opponents:
                opponent, seat = _pairing(episode, len(opponents), seats)
                other = opponents[opponent]
            own = {policy.spec.agents[agent] for agent in seat}
            text = ", ".join(
                f"{agent} ({'policy' if agent in own else other}) {own_return:.2f}"
                for agent, own_return in named.items()
            )
        lines.append(f"episode {episode + 1}: {text}, {length} steps")
    return lines


if __name__ == "__main__":
    end_process(run_for_a_reader(main))
