"""Command line: play a trained policy for a fixed number of episodes and say how well it does.

    python -m asyncrl.evaluate --train_dir=train_dir --experiment=NAME --episodes=100

Nothing is learned and nothing changes: weights and statistics are the checkpoint's, rewards are the environment's own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag, split_flags
from asyncrl.runtime import checkpoint as checkpoints
from asyncrl.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    from asyncrl.config.schema import TrainConfig
    from asyncrl.envs.spec import EnvSpec
    from asyncrl.evaluation import EvaluationResult
    from asyncrl.models.actor_critic import ActorCritic

_FLAGS = (
    ExtraFlag("train_dir", "folder that holds all runs [default train_dir]", is_bool=False),
    ExtraFlag("experiment", "the run; not needed with --checkpoint", is_bool=False),
    ExtraFlag("checkpoint", "a checkpoint's folder [default the run's newest]", is_bool=False),
    ExtraFlag("episodes", "number of episodes [default 100]", is_bool=False),
    ExtraFlag("num_envs", "environments that are played side by side [default 8]", is_bool=False),
    ExtraFlag("seed", "seed of the episodes and of the policy's draws [default 0]", is_bool=False),
    ExtraFlag("device", "device of the policy: cpu, cuda or cuda:N [default cpu]", is_bool=False),
    ExtraFlag("deterministic", "take the policy's most likely action instead of drawing one"),
    ExtraFlag("json", "print the result as one JSON object on the last line"),
)


class _Options(BaseModel):
    """The command line's flags, as values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_dir: str = "train_dir"
    experiment: str | None = None
    checkpoint: Path | None = None
    episodes: PositiveInt = 100
    num_envs: PositiveInt = 8
    seed: int = 0
    device: str = "cpu"
    deterministic: bool = False
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
    folder, path = _find(options)
    config = folder.read_config()
    env_steps = checkpoints.saved_env_steps(path)

    # Imports torch, which takes a second: what a user got wrong is answered before.
    from asyncrl.evaluation import EvaluationResult, evaluate

    model, spec = _load_model(config, path, options.device)
    print(f"{config.env}: {path} ({env_steps:,} environment steps), {options.episodes} episodes", flush=True)
    result = evaluate(
        model,
        spec,
        config,
        episodes=options.episodes,
        num_envs=options.num_envs,
        seed=options.seed,
        deterministic=options.deterministic,
        report=lambda done, steps: print(f"{done} of {options.episodes} episodes, {steps:,} steps", file=sys.stderr),
    )
    return EvaluationResult(result.returns, result.lengths, env_steps, str(path))


def _find(options: _Options) -> tuple[RunFolder, Path]:
    """Finds the run and the checkpoint; a checkpoint lies two folders below the run's."""
    if options.experiment is None and options.checkpoint is None:
        raise UsageError("which run? Give --experiment=NAME (and --train_dir), or --checkpoint=PATH")
    if options.experiment is not None:
        folder = RunFolder.open(options.train_dir, options.experiment)
    else:
        assert options.checkpoint is not None
        checkpoints.saved_env_steps(options.checkpoint)
        run = options.checkpoint.resolve().parent.parent
        folder = RunFolder.open(str(run.parent), run.name)
    path = options.checkpoint or checkpoints.latest(folder.checkpoints)
    if path is None:
        raise UsageError(f"{folder.path} has no checkpoint yet: let it train until it has saved one")
    return folder, path


def _load_model(config: TrainConfig, path: Path, device: str) -> tuple[ActorCritic, EnvSpec]:
    import torch

    from asyncrl.models.actor_critic import ActorCritic

    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise UsageError(f"--device={device} is none of cpu, cuda, cuda:N")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"--device={device}: PyTorch finds no CUDA device here; use --device=cpu")
    spec = _read_spec(config)
    model = ActorCritic(spec, config)
    try:
        model.load_state_dict(dict(checkpoints.load(path).model))
    except RuntimeError as error:
        raise UsageError(f"the checkpoint {path} does not fit the run's config.yaml: {error}") from error
    return model.to(device).eval(), spec


def _read_spec(config: TrainConfig) -> EnvSpec:
    from asyncrl.envs.errors import EnvironmentFailed, environment_traceback
    from asyncrl.envs.making import make_env
    from asyncrl.envs.spaces import read_spec

    try:
        env = make_env(config.env, config.env_kwargs)
    except UsageError:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"{config.env} could not be made:\n{environment_traceback(error)}") from error
    try:
        return read_spec(env, config.env)
    finally:
        env.close()


def _read_options(argv: Sequence[str]) -> _Options:
    flags = split_flags(argv, {}, _FLAGS)
    problems = [str(problem) for problem in flags.problems]
    texts = {"json_" if name == "json" else name: text for name, text in flags.texts.items()}
    try:
        options = _Options.model_validate(texts)
    except ValidationError as error:
        for item in error.errors():
            name = str(item["loc"][0]).rstrip("_")
            problems.append(f"--{name}={item['input']}: {item['msg'][0].lower()}{item['msg'][1:]}")
    if problems:
        raise UsageError("\nerror: ".join(problems))
    return options


def _help() -> str:
    lines = [f"  --{flag.name + ('' if flag.is_bool else '=VALUE'):<22}{flag.description}" for flag in _FLAGS]
    usage = "usage: python -m asyncrl.evaluate --experiment=NAME [--name=value ...]"
    return "\n".join([usage, "", "Plays a trained policy for a fixed number of episodes.", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
