"""The checkpoint from which a run resumes or starts, and the settings that may change then.

Flags override the saved settings, except for those in `FIXED`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.buffers.shared_tensors import saved_worker_steps
from asyncrl.config.errors import Problem, UsageError
from asyncrl.config.fixed_settings import OF_NETWORKS, Change, as_given, fixed_changes
from asyncrl.config.flags import format_value
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.actions import has_own_unit
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.policy_mapping import specs_of_policies
from asyncrl.storage import checkpoint
from asyncrl.storage.locating import checkpoint_folders, find_run, source_of_policy
from asyncrl.storage.locating import find_checkpoint as locate_checkpoint
from asyncrl.storage.run_folder import run_path

_MOST_NAMES = 8  # of tensors in a message
_MAY_CHANGE = "Environment, algorithm, network and normalization are fixed; all other settings may change."


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


def find_problems(loaded: LoadedConfig) -> list[Problem]:
    """Changed settings with which a run cannot be resumed; without a checkpoint all settings may change."""
    if loaded.saved is None:
        return []
    folders = checkpoint_folders(_checkpoints(loaded.config), loaded.saved.num_policies)
    if not checkpoint.newest_first(folders[0]):
        return []
    forbidden = fixed_changes(loaded.saved, loaded.config)
    names = [change.name for change in forbidden]
    single_changes = _fixed_policy_changes(loaded.saved, loaded.config, names)
    forbidden, names = [*forbidden, *single_changes], [*names, *(["policies"] if single_changes else [])]
    if not forbidden:
        return []
    text = f"Cannot resume: the checkpoint was made with {_contrast(forbidden, 'you gave')}. {_MAY_CHANGE}"
    fitting = ("--restart_behavior=restart", "another --experiment")
    return [Problem(tuple(names), text, fitting)]


def _fixed_policy_changes(before: TrainConfig, now: TrainConfig, known: Sequence[str]) -> list[Change]:
    """Changes of fixed settings of single policies, but for those in `known`, which all policies have."""
    found = []
    for number in sorted({*before.policies, *now.policies}):
        try:
            own = fixed_changes(before.for_policy(number), now.for_policy(number))
        except UsageError:  # reported where settings are checked
            continue
        found += [
            dataclasses.replace(each, name=f"policy.{number}.{each.name}") for each in own if each.name not in known
        ]
    return found


def find_checkpoint_problems(config: TrainConfig, spec: EnvSpec) -> list[Problem]:
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
            found = Resumption(
                path,
                env_steps=int(state["env_steps"]),
                elapsed_s=float(state["elapsed_s"]),
                skipped=tuple(skipped),
                updates_due=0 if content.replay is None else int(state["updates_due"]),
                worker_env_steps=saved_worker_steps(state),
                policy_env_steps=int(state.get("policy_env_steps", 0)),
            )
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
    """The settings with `init_from` replaced by the checkpoint's folder, or for several policies by the run's folder.

    Raises:
        UsageError: `init_from` names no run or checkpoint, or one checkpoint for several policies.
    """
    if config.init_from is None or _newest_to_resume(config) is not None:
        return config
    try:
        found = locate_checkpoint(config.init_from, "newest", config.train_dir)
    except UsageError as error:
        raise UsageError(f"--init_from={config.init_from}: {error}") from error
    if config.num_policies > 1:
        try:
            found = find_run(config.init_from, config.train_dir)
        except UsageError as error:
            raise UsageError(
                f"--init_from={config.init_from} is a checkpoint of one policy, and --num_policies="
                f"{config.num_policies} needs one of each: give the run, of which policy k begins with policy k."
            ) from error
    return config.model_copy(update={"init_from": str(found)})


def find_source_problems(config: TrainConfig, spec: EnvSpec) -> list[Problem]:
    """Why a run cannot start from the checkpoints in `init_from`; a resumed run does not read them."""
    if config.init_from is None or _newest_to_resume(config) is not None:
        return []
    is_removed = config.experiment is not None and config.restart_behavior != "resume"
    differing: list[list[Change]] = []  # of each policy
    for policy_idx, (own, own_spec) in enumerate(_policies(config, spec)):
        path = Path(config.init_from)
        try:
            path = source_of_policy(config.init_from, config.num_policies, policy_idx)
            if is_removed and _checkpoints(config).parent.resolve() in path.resolve().parents:
                text = f"--init_from={path} is in the run that --restart_behavior={config.restart_behavior} removes."
                return [Problem(("init_from", "restart_behavior"), text, ("another --experiment",))]
            content = checkpoint.load(path)
            before = TrainConfig.from_saved(content.state["config"])
            saved = EnvSpec.from_data(content.state["spec"])
            if _image_axes(saved) != _image_axes(own_spec):
                _check_spaces(saved, own_spec, path)
        except (checkpoint.CheckpointError, UsageError) as error:
            return [Problem(("init_from",), f"--init_from: {error}")]
        except (KeyError, TypeError, ValueError) as error:
            text = f"--init_from: Checkpoint {path} is damaged: its state is incomplete ({error})."
            return [Problem(("init_from",), text)]
        differing.append(_changes_of_meaning(before, own, own_spec))
        if before.num_policies != config.num_policies:
            break  # reported; the source may not have the other policies
    common_changes = [change for change in differing[0] if all(change in others for others in differing)]
    single_changes = [
        dataclasses.replace(change, name=f"policy.{policy_idx}.{change.name}")
        for policy_idx, found in enumerate(differing)
        for change in found
        if change not in common_changes
    ]
    if not (common_changes or single_changes):
        return []
    found = [*common_changes, *single_changes]
    names = [*(change.name for change in common_changes), *(["policies"] if single_changes else [])]
    text = f"--init_from={config.init_from}: the checkpoint was made with {_contrast(found, 'this run has')}."
    fitting = (" ".join(f"--{change.name}={format_value(change.before)}" for change in found),)
    return [Problem(tuple(names), text, fitting)]


def _changes_of_meaning(before: TrainConfig, now: TrainConfig, spec: EnvSpec) -> list[Change]:
    """Settings with which the numbers in a checkpoint mean something else to a new run; `spec` is the run's."""
    irrelevant = {"env", "algo", "image_keys", *OF_NETWORKS}  # which parts are images is compared by the spaces
    if not has_own_unit(spec.action):
        irrelevant.add("action_unit")
    found = [change for change in fixed_changes(before, now) if change.name not in irrelevant]
    makes_same_model = not now.is_off_policy or before.algorithm.make_model == now.algorithm.make_model
    if before.is_off_policy != now.is_off_policy or not makes_same_model:
        found.append(Change("algo", before.algo, now.algo))
    return found


def find_source_misfits(config: TrainConfig, spec: EnvSpec) -> tuple[list[Problem], list[Problem]]:
    """What a run cannot take from the checkpoints in `init_from`, in which `find_source_problems` has found nothing.

    Returns:
        A problem for spaces of which no parameter of the policy fits, and a warning for those of which a part fits.
    """
    if config.init_from is None or _newest_to_resume(config) is not None:
        return [], []
    from asyncrl.learner.transfer import names_that_fit  # imports torch
    from asyncrl.models.factory import make_acting_model
    from asyncrl.processes.own_settings import own_settings
    from asyncrl.run.setup import has_same_networks

    problems, warnings = [], []
    for policy_idx, (own, own_spec) in enumerate(_policies(config, spec)):
        content = checkpoint.load(source_of_policy(config.init_from, config.num_policies, policy_idx))
        if content.optimizer and has_same_networks(content.state, own, own_spec):
            continue
        with own_settings():
            policy = make_acting_model(own_spec, own).state_dict()
        fitting = names_that_fit(policy, content.model)
        missing = [name for name in policy if name not in fitting]
        start = f"--init_from={config.init_from}"
        if config.num_policies > 1:
            start = f"Policy {policy_idx}: {start}"
        if not set(fitting) - {"statistics"}:
            observed = EnvSpec.from_data(content.state["spec"])
            text = f"{start}: no tensor of its policy fits; it was trained on {observed.observation}."
            problems.append(Problem(("init_from",), text))
            continue
        begin_new = []
        if missing:
            more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
            begin_new.append(f"{', '.join(missing[:_MOST_NAMES])}{more} of the policy")
        if own.is_off_policy and own.algorithm.actions != "choice":
            begin_new.append("the critics")
        begin_new.append("the optimizer's state")
        taken = f"{len(fitting)} of {len(policy)} tensors of the policy are taken"
        text = f"{start}: {taken}; what begins new: {', '.join(begin_new)}."
        warnings.append(Problem(("init_from",), text))
    return problems, warnings


def _policies(config: TrainConfig, spec: EnvSpec) -> list[tuple[TrainConfig, EnvSpec]]:
    """Settings and spaces of each policy."""
    found = []
    for policy_idx, own_spec in enumerate(specs_of_policies(spec, config.maps_policies, config.num_policies)):
        try:
            own = config.for_policy(policy_idx)
        except UsageError:  # reported where settings are checked
            own = config
        found.append((own, own_spec))
    return found


def _contrast(differing: list[Change], whose: str) -> str:
    """Each setting of the checkpoint beside its value now, as the end of a sentence."""
    each = (f"{change.name}={as_given(change.before)}; {whose} {as_given(change.now)}" for change in differing)
    return ", and with ".join(each)


def _checkpoints(config: TrainConfig) -> Path:
    return run_path(config.train_dir, config.experiment or "") / "checkpoints"


def _newest_to_resume(config: TrainConfig) -> Path | None:
    """The newest checkpoint of the run that is resumed; None for a new run."""
    is_resumed = config.experiment is not None and config.restart_behavior == "resume"
    folders = checkpoint_folders(_checkpoints(config), config.num_policies)
    return checkpoint.latest(folders[0]) if is_resumed else None


def _image_axes(spec: EnvSpec) -> set[str]:
    """Channel axes, without which convolutions of the same shape see something else."""
    return {part.channels for part in spec.observation.parts if part.has_pixels}


def _check_spaces(saved: EnvSpec, present: EnvSpec, path: Path) -> None:
    if saved.shape_of_networks == present.shape_of_networks:
        return
    text = (
        f"Checkpoint {path} was trained on {saved.observation} and {saved.action}, "
        f"but {present.env_id} has {present.observation} and {present.action}."
    )
    images, present_images = (
        [part.name for part in spec.observation.parts if part.has_pixels] for spec in (saved, present)
    )
    channels = _image_axes(saved)
    if images != present_images:
        text += f" The flag --image_keys={','.join(images)} may be missing." if images else ""
    elif len(channels) == 1 and channels != _image_axes(present):
        text += f" The flag --image_channels={channels.pop()} may be missing."
    raise UsageError(text)
