"""What a run goes on from: its newest usable checkpoint, and what its settings were before.

Settings may be changed on the way, for a flag is above what was saved, but for those that the checkpoint is made of.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.problems import Problem
from asyncrl.config.reading import missing_for
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.actions import has_own_unit
from asyncrl.envs.spec import EnvSpec
from asyncrl.hogwild.clock import saved_worker_steps
from asyncrl.runtime import checkpoint

FIXED = (
    "env",
    "critic_layer_norm",
    "encoder",
    "core",
    "model",
    "encoder_mlp_layers",
    "encoder_conv_architecture",
    "encoder_conv_mlp_layers",
    "use_rnn",
    "rnn_type",
    "rnn_size",
    "rnn_num_layers",
    "nonlinearity",
    "actor_critic_share_weights",
    "adaptive_stddev",
    "action_unit",
    "squash_actions",
    "normalize_input",
    "normalize_returns",
)
"""Settings that decide what the numbers in a checkpoint mean, for the algorithms that read them."""

_NOT_OF_THE_RUN = ("train_dir", "experiment", "restart_behavior", "quiet")


@dataclass(frozen=True)
class Change:
    """A setting that is not what it was when the run was last started."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.before} -> {self.now}"


@dataclass(frozen=True)
class Resumption:
    """Where a run goes on.

    Attributes:
        checkpoint: the folder that it goes on from.
        env_steps: environment steps that it was trained on.
        elapsed_s: seconds that it has taken.
        skipped: one sentence for each newer checkpoint that cannot be used.
        updates_due: updates that are still to be made for these steps, from the replay that the checkpoint holds.
        worker_env_steps: environment steps of each worker, in the Hogwild backend.
    """

    checkpoint: Path
    env_steps: int
    elapsed_s: float
    skipped: tuple[str, ...] = ()
    updates_due: int = 0
    worker_env_steps: tuple[int, ...] = ()


def changes(before: TrainConfig, now: TrainConfig) -> list[Change]:
    """The settings that differ, without those that only say where a run lies or how it is watched."""
    old, new = before.model_dump(), now.model_dump()
    return [
        Change(name, old[name], new[name]) for name in old if old[name] != new[name] and name not in _NOT_OF_THE_RUN
    ]


def find_problems(loaded: LoadedConfig) -> list[Problem]:
    """Changes that a run cannot go on with; a run that has saved nothing yet begins with any settings."""
    if loaded.saved is None or not checkpoint.newest_first(_checkpoints(loaded.config)):
        return []
    forbidden = _fixed_changes(loaded.saved, loaded.config)
    if loaded.saved.is_off_policy != loaded.config.is_off_policy:
        forbidden.append(Change("algo", loaded.saved.algo, loaded.config.algo))
    if not forbidden:
        return []
    listed = "; ".join(str(change) for change in forbidden)
    text = f"the run goes on from a checkpoint, to which other settings belong ({listed})."
    fitting = ("--restart_behavior=restart", "another --experiment")
    return [Problem(tuple(change.name for change in forbidden), text, fitting)]


def find_checkpoint(checkpoints: Path, spec: EnvSpec) -> Resumption | None:
    """The newest checkpoint that can be used, None if the run never saved one.

    Args:
        checkpoints: the run's folder of checkpoints.
        spec: what the environment is now.

    Raises:
        CheckpointError: there are checkpoints, and none of them can be read.
        UsageError: the environment's spaces are not those of the checkpoint, or it is none of ours.
    """
    skipped: list[str] = []
    for path in checkpoint.newest_first(checkpoints):
        try:
            content = checkpoint.load(path, with_replay=True)
            state = content.state
            saved_spec = EnvSpec.from_data(state["spec"])
            updates_due = 0 if content.replay is None else int(state["updates_due"])
            done = int(state["env_steps"]), float(state["elapsed_s"])
            found = Resumption(path, *done, tuple(skipped), updates_due, saved_worker_steps(state))
        except checkpoint.ForeignCheckpointError as error:
            raise UsageError(str(error)) from error
        except checkpoint.CheckpointError as error:
            skipped.append(str(error))
            continue
        except (KeyError, TypeError, ValueError) as error:
            skipped.append(f"the checkpoint {path} is damaged: its state is incomplete ({error})")
            continue
        _check_spaces(saved_spec, spec, path)
        return found
    if skipped:
        raise checkpoint.CheckpointError("no checkpoint can be used: " + "; ".join(skipped))
    return None


def check_replay(resumption: Resumption | None, plan: ResourcePlan) -> None:
    """Looks whether a saved replay fits the plan.

    Raises:
        UsageError: it is of other workers or environments.
    """
    if resumption is None or plan.replay is None or not (resumption.checkpoint / checkpoint.REPLAY_FILE).exists():
        return
    state = checkpoint.load_state(resumption.checkpoint)
    saved = int(state["replay_splits"]), int(state["replay_envs"])
    if saved != (plan.num_splits, plan.envs_per_split):
        raise UsageError(
            f"cannot go on from {resumption.checkpoint}: its replay is of {saved[0]} groups of {saved[1]} "
            f"environments, the run has {plan.num_splits} of {plan.envs_per_split}: give --num_workers and "
            "--num_envs_per_worker as before"
        )


def find_problems_of_source(config: TrainConfig, spec: EnvSpec) -> list[Problem]:
    """Why a run cannot start from the checkpoint that `init_from` names."""
    if config.init_from is None:
        return []
    path = Path(config.init_from)
    if config.restart_behavior != "resume" and _run_of(config) in path.resolve().parents:
        text = f"--init_from={path} lies in the run that --restart_behavior={config.restart_behavior} takes away."
        return [Problem(("init_from", "restart_behavior"), text, ("another --experiment",))]
    try:
        content = checkpoint.load(path)
        before = TrainConfig.from_saved(content.state["config"])
        _check_spaces(EnvSpec.from_data(content.state["spec"]), spec, path)
    except (checkpoint.CheckpointError, UsageError) as error:
        return [Problem(("init_from",), f"--init_from: {error}")]
    except (KeyError, TypeError, ValueError) as error:
        text = f"--init_from: the checkpoint {path} is damaged: its state is incomplete ({error})"
        return [Problem(("init_from",), text)]
    if not content.optimizer:
        text = f"--init_from={path} is the policy of an evaluation, without an optimizer: take one that training saved."
        return [Problem(("init_from",), text)]
    irrelevant = {"env"} if has_own_unit(spec.action) else {"env", "action_unit"}
    differing = [change for change in _fixed_changes(before, config) if change.name not in irrelevant]
    if before.is_off_policy != config.is_off_policy:
        differing.append(Change("algo", before.algo, config.algo))
    if not differing:
        return []
    text = f"--init_from={path} has a model of other settings ({'; '.join(map(str, differing))})."
    return [Problem(tuple(change.name for change in differing), text)]


def announce(resumption: Resumption | None, loaded: LoadedConfig) -> None:
    """Tells the user where the run goes on and what is different, on standard output; skipped checkpoints on stderr."""
    if resumption is None and loaded.saved is None:
        return
    for sentence in resumption.skipped if resumption is not None else ():
        print(f"warning: {sentence}", file=sys.stderr)
    if loaded.config.quiet:
        return
    if resumption is None:
        print("the run has saved nothing yet: it begins anew, with its saved settings")
    else:
        print(f"going on from {resumption.checkpoint} ({resumption.env_steps:,} steps)")
    if loaded.saved is not None:
        for change in changes(loaded.saved, loaded.config):
            print(f"  {change}")
    sys.stdout.flush()


def _fixed_changes(before: TrainConfig, now: TrainConfig) -> list[Change]:
    return [change for change in changes(before, now) if change.name in FIXED and missing_for(change.name, now) is None]


def _run_of(config: TrainConfig) -> Path:
    return (Path(config.train_dir).expanduser() / (config.experiment or "")).resolve()


def _checkpoints(config: TrainConfig) -> Path:
    return _run_of(config) / "checkpoints"


def _check_spaces(saved: EnvSpec, present: EnvSpec, path: Path) -> None:
    if _shape_of(saved) == _shape_of(present):
        return
    text = (
        f"cannot go on from {path}: it was trained on {saved.observation} and {saved.action}, "
        f"but {present.env_id} has {present.observation} and {present.action}"
    )
    channels = {part.channels for part in saved.observation.parts if part.has_pixels}
    if len(channels) == 1 and channels != {part.channels for part in present.observation.parts if part.has_pixels}:
        text += f"; --image_channels={channels.pop()} may be what is missing"
    raise UsageError(text)


def _shape_of(spec: EnvSpec) -> tuple[object, ...]:
    """What networks depend on: not the dtypes of numbers, which are stored as float32 in any case."""
    parts = [
        (part.path, part.kind, part.size, part.shape, part.channels if part.has_pixels else None)
        for part in spec.observation.parts
    ]
    return parts, spec.action
