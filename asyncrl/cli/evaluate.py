"""Command line: play a trained policy for a fixed number of episodes and say how well it does.

    python -m asyncrl.evaluate --train_dir=train_dir --experiment=NAME --episodes=100

Nothing is learned and nothing changes: weights and statistics are the checkpoint's, rewards are the environment's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag, format_examples, format_flags, split_flags
from asyncrl.config.problems import refused_value
from asyncrl.runtime import checkpoint as checkpoints
from asyncrl.runtime.locating import find_checkpoint, find_checkpoint_of, find_run

if TYPE_CHECKING:
    import gymnasium

    from asyncrl.config.schema import TrainConfig
    from asyncrl.evaluation.episodes import EvaluationResult

_MOST_NAMES = 4

_FLAGS = (
    ExtraFlag("experiment", "run, by its name in train_dir or by its folder's path", is_bool=False),
    ExtraFlag("train_dir", "folder that holds all runs [default train_dir]", is_bool=False),
    ExtraFlag(
        "checkpoint",
        "newest or best of the run, a checkpoint's name in it, or the path of a checkpoint or a run, which needs no "
        "--experiment [default newest]",
        is_bool=False,
    ),
    ExtraFlag("episodes", "number of episodes [default 100]", is_bool=False),
    ExtraFlag("num_envs", "environments that are played in parallel [default 8]", is_bool=False),
    ExtraFlag("seed", "seed of the episodes and of the sampled actions [default 0]", is_bool=False),
    ExtraFlag("device", "device of the policy: cpu, cuda or cuda:N [default cpu]", is_bool=False),
    ExtraFlag("deterministic", "take the most likely action instead of a sampled one"),
    ExtraFlag("video", "folder to record the episodes into as videos; needs moviepy", is_bool=False),
    ExtraFlag("render", "show the episodes in a window, one after the other"),
    ExtraFlag("json", "print the result as one JSON object on the last line"),
)
_EXPECTED = {
    "episodes": "a whole number greater than 0",
    "num_envs": "a whole number greater than 0",
    "seed": "a whole number",
}
_EXAMPLES = (
    "python -m asyncrl.evaluate --experiment=my_run --episodes=50",
    "python -m asyncrl.evaluate --experiment=train_dir/my_run --checkpoint=best --video=videos",
    "python -m asyncrl.evaluate --checkpoint=train_dir/my_run/checkpoints/best",
)


class _Options(BaseModel):
    """The command line's flags, as values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_dir: str = "train_dir"
    experiment: str | None = None
    checkpoint: str = "newest"
    episodes: PositiveInt = 100
    num_envs: PositiveInt = 8
    seed: int = 0
    device: str = "cpu"
    deterministic: bool = False
    video: Path | None = None
    render: bool = False
    json_: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 2 for a user's mistake, 1 for an environment's failure."""
    from asyncrl.envs.errors import EnvironmentFailed

    arguments = sys.argv[1:] if argv is None else list(argv)
    if {"--help", "-h"} & set(arguments):
        print(_help())
        return 0
    try:
        options = _read_options(arguments)
        result = _evaluate_run(options)
    except (UsageError, checkpoints.CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except EnvironmentFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(result.to_text())
    if options.json_:
        print(result.to_json(), flush=True)
    return 0


def _evaluate_run(options: _Options) -> EvaluationResult:
    path = _find(options)
    env_steps = checkpoints.saved_env_steps(path)

    # Imports torch, which takes a second: what a user got wrong is answered before.
    import torch

    from asyncrl.evaluation.episodes import EvaluationResult, evaluate
    from asyncrl.policy import load_policy

    torch.set_num_threads(1)  # more only wait for one another over a few observations
    policy = load_policy(path, device=options.device, seed=options.seed)
    print(f"{policy.config.env}: {path} ({env_steps:,} environment steps), {options.episodes} episodes", flush=True)
    recorded_before = _recordings(options.video)
    result = evaluate(
        policy,
        episodes=options.episodes,
        num_envs=1 if options.render else options.num_envs,
        seed=options.seed,
        deterministic=options.deterministic,
        report=lambda done, steps: print(f"{done} of {options.episodes} episodes, {steps:,} steps", file=sys.stderr),
        make=_maker(policy.config, options),
    )
    if options.video is not None:
        recorded = sorted(path.name for path, _ in _recordings(options.video) - recorded_before)
        shown = ", ".join(recorded[:_MOST_NAMES]) + (", ..." if len(recorded) > _MOST_NAMES else "")
        print(f"recorded {len(recorded)} videos in {options.video}: {shown}", flush=True)
    return EvaluationResult(result.returns, result.lengths, env_steps, str(path))


def _find(options: _Options) -> Path:
    """Finds the checkpoint, without torch."""
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


def _maker(config: TrainConfig, options: _Options) -> Callable[[int], gymnasium.Env[Any, Any]] | None:
    """Makes environments that are shown or recorded; None where neither is asked for."""
    if options.video is None and not options.render:
        return None
    from asyncrl.envs.showing import make_shown_env

    video, render_mode = options.video, "human" if options.render else "rgb_array"
    return lambda number: make_shown_env(config, render_mode, video, number)


def _read_options(argv: Sequence[str]) -> _Options:
    flags = split_flags(argv, {}, _FLAGS)
    problems = [str(problem) for problem in flags.problems]
    texts = {"json_" if name == "json" else name: text for name, text in flags.texts.items()}
    try:
        options = _Options.model_validate(texts)
    except ValidationError as error:
        for item in error.errors():
            name = str(item["loc"][0]).rstrip("_")
            problems.append(refused_value(name, item["input"], _EXPECTED.get(name, "True or False")))
    if not problems and options.render and options.video is not None:
        problems.append("--render shows episodes and --video records them: give one of the two.")
    if problems:
        raise UsageError("\nerror: ".join(problems))
    return options


def _help() -> str:
    usage = "usage: python -m asyncrl.evaluate --experiment=NAME --name=value ..."
    description = "Play a trained policy for a fixed number of episodes and print its mean return."
    help_flag = ExtraFlag("help", "show this text")
    return "\n".join([usage, "", description, "", *format_examples(_EXAMPLES), "", *format_flags([help_flag, *_FLAGS])])
