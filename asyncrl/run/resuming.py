"""The checkpoint from which a run resumes or starts, and the settings that may change then.

Flags override the saved settings, except for those in `FIXED`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.buffers.shared_tensors import saved_worker_steps
from asyncrl.config.dependencies import missing_for
from asyncrl.config.errors import Problem, UsageError
from asyncrl.config.flags import format_value
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import OF_ONE_START, TrainConfig
from asyncrl.envs.actions import has_own_unit
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.policy_mapping import specs_of_policies
from asyncrl.runtime import checkpoint
from asyncrl.runtime.locating import checkpoint_folders
from asyncrl.runtime.locating import find_checkpoint as locate_checkpoint
from asyncrl.runtime.run_folder import run_path

FIXED = (
    *("env", "algo", "critic", "critic_layer_norm", "dueling", "encoder", "core", "model"),
    *("critic_mlp_layers", "residual_blocks", "hyperspherical_weights", "batch_renorm", "use_target_critics"),
    *("value_bins", "value_limit", "normalize_rewards"),
    *("encoder_mlp_layers", "encoder_conv_architecture", "encoder_conv_mlp_layers"),
    *("use_rnn", "rnn_type", "rnn_size", "rnn_num_layers"),
    *("nonlinearity", "actor_critic_share_weights", "adaptive_stddev", "critic_only_keys"),
    *("action_unit", "squash_actions", "normalize_input", "normalize_returns", "num_policies"),
)
"""Settings that a resumed run keeps: its task, and those that give the numbers in a checkpoint their meaning."""

_MAY_CHANGE = "Environment, algorithm, network and normalization are fixed; all other settings may change."


@dataclass(frozen=True)
class Change:
    """A setting with another value than when the run was last started."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name}: {_as_given(self.before)} -> {_as_given(self.now)}"


@dataclass(frozen=True)
class Resumption:
    """The state from which a run resumes.

    Attributes:
        checkpoint: the checkpoint's folder.
        env_steps: environment steps trained before.
        elapsed_s: seconds of training before.
        skipped: one sentence for each newer checkpoint that cannot be used.
        updates_due: updates for these steps that are still to be made, from the replay in the checkpoint.
        worker_env_steps: environment steps of each worker, in the Hogwild backend.
        of_policies: of several policies, each one's checkpoint, None before its first, and its own environment steps.
        policy_env_steps: environment steps that the checkpoint's policy was trained on.
    """

    checkpoint: Path
    env_steps: int
    elapsed_s: float
    skipped: tuple[str, ...] = ()
    updates_due: int = 0
    worker_env_steps: tuple[int, ...] = ()
    of_policies: tuple[tuple[Path | None, int], ...] = ()
    policy_env_steps: int = 0


def changes(before: TrainConfig, now: TrainConfig) -> list[Change]:
    """The settings that differ, except for those of one start of the program."""
    old, new = before.model_dump(), now.model_dump()
    names = [name for name in old if name in new and name not in OF_ONE_START]
    return [Change(name, old[name], new[name]) for name in names if old[name] != new[name]]


def find_problems(loaded: LoadedConfig) -> list[Problem]:
    """Changed settings with which a run cannot be resumed; without a checkpoint all settings may change."""
    if loaded.saved is None:
        return []
    folders = checkpoint_folders(_checkpoints(loaded.config), loaded.saved.num_policies)
    if not checkpoint.newest_first(folders[0]):
        return []
    forbidden = _fixed_changes(loaded.saved, loaded.config)
    if not forbidden:
        return []
    text = f"Cannot resume: the checkpoint was made with {_contrast(forbidden, 'you gave')}. {_MAY_CHANGE}"
    fitting = ("--restart_behavior=restart", "another --experiment")
    return [Problem(tuple(change.name for change in forbidden), text, fitting)]


def find_problems_of_checkpoint(config: TrainConfig, spec: EnvSpec) -> list[Problem]:
    """Why the run's newest checkpoint cannot be resumed with this environment; loads no weights."""
    newest = _newest_to_resume(config)
    if newest is None:
        return []
    try:
        state = checkpoint.load_state(newest)
        _check_spaces(EnvSpec.from_data(state["spec"]), spec, newest)
    except UsageError as error:
        return [Problem(("experiment",), f"Cannot resume: {error}")]
    except (checkpoint.CheckpointError, KeyError, TypeError, ValueError):
        return []  # damaged: the run warns and takes the previous one
    return []


def find_checkpoint(checkpoints: Path, spec: EnvSpec, plan: ResourcePlan, mapping: str = "shared") -> Resumption | None:
    """Finds the newest checkpoint that can be used, of each policy; None if the run has saved none.

    Args:
        checkpoints: the run's folder of checkpoints.
        spec: the environment of the run now.
        plan: the plan of the run now.
        mapping: which policy plays which agents.

    Raises:
        CheckpointError: there are checkpoints, and none of them can be read.
        UsageError: the checkpoint has other spaces, or another program made it.
    """
    folders = checkpoint_folders(checkpoints, plan.num_policies)
    if len(folders) == 1:
        return _find_checkpoint(checkpoints, spec)
    specs = specs_of_policies(spec, mapping, plan.num_policies)
    found = [_find_checkpoint(folder, own) for folder, own in zip(folders, specs, strict=True)]
    usable = [each for each in found if each is not None]
    if not usable:
        return None
    of_policies = tuple((None, 0) if each is None else (each.checkpoint, each.policy_env_steps) for each in found)
    return dataclasses.replace(
        usable[0],
        env_steps=sum(env_steps for _, env_steps in of_policies),
        elapsed_s=max(each.elapsed_s for each in usable),
        skipped=tuple(text for each in usable for text in each.skipped),
        of_policies=of_policies,
    )


def _find_checkpoint(checkpoints: Path, spec: EnvSpec) -> Resumption | None:
    skipped: list[str] = []
    for path in checkpoint.newest_first(checkpoints):
        try:
            content = checkpoint.load(path, with_replay=True)
            state = content.state
            saved_spec = EnvSpec.from_data(state["spec"])
            updates_due = 0 if content.replay is None else int(state["updates_due"])
            env_steps, elapsed_s = int(state["env_steps"]), float(state["elapsed_s"])
            found = Resumption(path, env_steps, elapsed_s, tuple(skipped), updates_due, saved_worker_steps(state))
            found = dataclasses.replace(found, policy_env_steps=int(state.get("policy_env_steps", 0)))
        except checkpoint.ForeignCheckpointError as error:
            raise UsageError(str(error)) from error
        except checkpoint.CheckpointError as error:
            skipped.append(str(error))
            continue
        except (KeyError, TypeError, ValueError) as error:
            skipped.append(f"Checkpoint {path} is damaged: its state is incomplete ({error}).")
            continue
        _check_spaces(saved_spec, spec, path)
        return found
    if skipped:
        raise checkpoint.CheckpointError("Cannot resume: no checkpoint can be used. " + " ".join(skipped))
    return None


def resolve_source(config: TrainConfig) -> TrainConfig:
    """The settings with `init_from` replaced by the checkpoint's folder.

    Raises:
        UsageError: `init_from` names no run or checkpoint.
    """
    if config.init_from is None or _newest_to_resume(config) is not None:
        return config
    try:
        found = locate_checkpoint(config.init_from, "newest", config.train_dir)
    except UsageError as error:
        raise UsageError(f"--init_from={config.init_from}: {error}") from error
    return config.model_copy(update={"init_from": str(found)})


def find_problems_of_source(config: TrainConfig, spec: EnvSpec) -> list[Problem]:
    """Why a run cannot start from the checkpoint `init_from`; a resumed run does not read it."""
    if config.init_from is None or _newest_to_resume(config) is not None:
        return []
    path = Path(config.init_from)
    is_removed = config.experiment is not None and config.restart_behavior != "resume"
    if is_removed and _checkpoints(config).parent.resolve() in path.resolve().parents:
        text = f"--init_from={path} is in the run that --restart_behavior={config.restart_behavior} removes."
        return [Problem(("init_from", "restart_behavior"), text, ("another --experiment",))]
    try:
        content = checkpoint.load(path)
        before = TrainConfig.from_saved(content.state["config"])
        for own in spec.kinds:
            _check_spaces(EnvSpec.from_data(content.state["spec"]), own, path)
    except (checkpoint.CheckpointError, UsageError) as error:
        return [Problem(("init_from",), f"--init_from: {error}")]
    except (KeyError, TypeError, ValueError) as error:
        text = f"--init_from: Checkpoint {path} is damaged: its state is incomplete ({error})."
        return [Problem(("init_from",), text)]
    if not content.optimizer:
        text = f"--init_from={path} was saved by an evaluation, without an optimizer: give one that training saved."
        return [Problem(("init_from",), text)]
    irrelevant = {"env", "algo"} if has_own_unit(spec.action) else {"env", "algo", "action_unit"}
    differing = [change for change in _fixed_changes(before, config) if change.name not in irrelevant]
    makes_same_model = not config.is_off_policy or before.algorithm.make_model == config.algorithm.make_model
    if before.is_off_policy != config.is_off_policy or not makes_same_model:
        differing.append(Change("algo", before.algo, config.algo))
    if not differing:
        return []
    text = f"--init_from={path}: the checkpoint was made with {_contrast(differing, 'this run has')}."
    fitting = (" ".join(f"--{change.name}={format_value(change.before)}" for change in differing),)
    return [Problem(tuple(change.name for change in differing), text, fitting)]


def _fixed_changes(before: TrainConfig, now: TrainConfig) -> list[Change]:
    return [change for change in changes(before, now) if change.name in FIXED and missing_for(change.name, now) is None]


def _contrast(differing: list[Change], whose: str) -> str:
    """Each setting of the checkpoint beside its value now, as the end of a sentence."""
    each = (f"{change.name}={_as_given(change.before)}; {whose} {_as_given(change.now)}" for change in differing)
    return ", and with ".join(each)


def _as_given(value: Any) -> str:
    return str(value) if isinstance(value, list) else format_value(value)


def _checkpoints(config: TrainConfig) -> Path:
    return run_path(config.train_dir, config.experiment or "") / "checkpoints"


def _newest_to_resume(config: TrainConfig) -> Path | None:
    """The newest checkpoint of the run that is resumed; None for a new run."""
    is_resumed = config.experiment is not None and config.restart_behavior == "resume"
    folders = checkpoint_folders(_checkpoints(config), config.num_policies)
    return checkpoint.latest(folders[0]) if is_resumed else None


def _check_spaces(saved: EnvSpec, present: EnvSpec, path: Path) -> None:
    if _shape_of(saved) == _shape_of(present):
        return
    text = (
        f"Checkpoint {path} was trained on {saved.observation} and {saved.action}, "
        f"but {present.env_id} has {present.observation} and {present.action}."
    )
    channels = {part.channels for part in saved.observation.parts if part.has_pixels}
    if len(channels) == 1 and channels != {part.channels for part in present.observation.parts if part.has_pixels}:
        text += f" The flag --image_channels={channels.pop()} may be missing."
    raise UsageError(text)


def _shape_of(spec: EnvSpec) -> tuple[object, ...]:
    """The properties on which networks depend; the dtypes of numbers are not among them: all are stored as float32."""
    parts = [
        (part.path, part.kind, part.size, part.shape, part.channels if part.has_pixels else None)
        for part in spec.observation.parts
    ]
    return parts, spec.action
