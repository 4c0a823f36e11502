"""Finds the run or the checkpoint that a user names, by path or by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asyncrl.config.algorithms import imported
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import nearest_hint
from asyncrl.config.hooks import hooks
from asyncrl.config.value_types import expand_user
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.run_folder import MARKER, RunFolder

TRAIN_DIR = "train_dir"
"""Default folder of all runs."""

_WHICH = ("newest", "best")


def locate(given: Path) -> Path:
    """Returns the path, or the folder of the run with this name in `TRAIN_DIR` if the path is missing or no run."""
    path, named = given.expanduser(), Path(TRAIN_DIR) / given
    is_named = not (path / MARKER).is_file() and (named / MARKER).is_file()
    return named if is_named or (not path.exists() and named.exists()) else path


def find_run(given: str | Path, train_dir: str = TRAIN_DIR) -> Path:
    """Returns the folder of a run.

    Args:
        given: the folder's path, the run's name in `train_dir`, or an address of a feature (`hf://user/name`).
        train_dir: folder that holds all runs.

    Raises:
        UsageError: there is no such run.
    """
    if (fetch := _fetcher_of(given)) is not None:
        return fetch(str(given))
    path = Path(given).expanduser()
    if (path / MARKER).is_file():
        return path
    if len(path.parts) > 1:
        if path.exists():
            raise UsageError(f"There is no run {path}: it is not a run's folder.")
        if not any(path.parent.glob(f"*/{MARKER}")):
            raise UsageError(f"There is no run {path}: no such path.")
        return RunFolder.open(str(path.parent), path.name).path  # says which runs there are
    return RunFolder.open(train_dir, str(given)).path


def _fetcher_of(given: str | Path) -> Callable[[str], Path] | None:
    """What downloads the run at an address, such as `hf://user/name`; None for a path or a name."""
    for start, function in hooks("LOCATIONS").items():
        if isinstance(given, str) and given.startswith(start):
            return imported(function)
    return None


def policy_folder(checkpoints: Path, policy_idx: int) -> Path:
    """The folder, inside a run's folder of checkpoints, with those of one of several policies."""
    return checkpoints / f"policy_{policy_idx}"


def checkpoint_folders(checkpoints: Path, num_policies: int) -> list[Path]:
    """The folders with the checkpoints of each policy; with one policy the run's own folder of checkpoints."""
    return [checkpoints] if num_policies == 1 else [policy_folder(checkpoints, idx) for idx in range(num_policies)]


def checkpoints_of(run: Path, policy_idx: int = 0) -> Path:
    """The folder with the checkpoints of a run's policy.

    Raises:
        UsageError: the run has no such policy.
    """
    folder = run / "checkpoints"
    own = policy_folder(folder, policy_idx)
    if own.is_dir():
        return own
    if policy_idx > 0:
        found = [idx for idx in range(policy_idx) if policy_folder(folder, idx).is_dir()]
        raise UsageError(f"{run} has no policy {policy_idx}: its policies are 0 to {max(found, default=0)}.")
    return folder


def find_checkpoint(given: str | Path, which: str = "newest", train_dir: str = TRAIN_DIR, policy_idx: int = 0) -> Path:
    """Returns the folder of a checkpoint.

    Args:
        given: path of a checkpoint, of a folder of checkpoints or of a run, the name of a run in `train_dir`, or the
            address of a run on the Hugging Face Hub (`hf://user/name[@revision]`).
        which: the checkpoint of a run to return: newest or best.
        train_dir: folder that holds all runs.
        policy_idx: which of a run's policies, if it has several.

    Raises:
        UsageError: there is no such run, policy or checkpoint, or the run has not saved one yet.
    """
    if which not in _WHICH:
        hint = nearest_hint(which, _WHICH)
        raise UsageError(f"There is no checkpoint {which!r} of a run: expected {' or '.join(_WHICH)}{hint}.")
    path = find_run(given) if _fetcher_of(given) is not None else Path(given).expanduser()
    if (path / checkpoints.STATE_FILE).exists():
        return path
    if not (path / "checkpoints").is_dir():
        found = checkpoints.newest_first(path)
        if found:
            return found[0]
        if path.exists() and len(path.parts) > 1:
            raise UsageError(f"{path} is neither a run's folder nor a checkpoint's.")
        path = find_run(given, train_dir)
    folder = checkpoints_of(path, policy_idx)
    found = checkpoints.newest_first(folder / checkpoints.BEST if which == "best" else folder)
    if not found:
        raise UsageError(f"{path} has no {which} checkpoint yet: let it train until it has saved one.")
    return found[0]


def source_of_policy(init_from: str, num_policies: int, policy_idx: int = 0) -> Path:
    """Returns the checkpoint with which a policy of a new run begins.

    Args:
        init_from: a checkpoint, or for several policies a run: policy k begins with the newest one of its policy k.
        num_policies: policies of the new run.
        policy_idx: the policy.

    Raises:
        UsageError: the run has no such policy, or no checkpoint of it.
    """
    return Path(init_from) if num_policies == 1 else find_checkpoint(init_from, policy_idx=policy_idx)


def find_checkpoint_of(run: Path, name: str, policy_idx: int = 0) -> Path:
    """Returns the checkpoint with this name of a run, such as checkpoint_000000100000, best or milestones."""
    folder = checkpoints_of(run, policy_idx)
    if (folder / name).is_dir():
        return find_checkpoint(folder / name)
    hint = nearest_hint(name, (*_WHICH, *(path.name for path in checkpoints.newest_first(folder))))
    raise UsageError(
        f"There is no checkpoint {name!r} of {run}: expected {', '.join(_WHICH)}, a checkpoint's name or path{hint}."
    )


def find_given_checkpoint(run: str | None, named: str, train_dir: str = TRAIN_DIR, policy_idx: int = 0) -> Path:
    """Returns the checkpoint that a command line names by RUN and --checkpoint.

    Args:
        run: a run, by its name in `train_dir` or its folder's path; None if it was not given.
        named: newest, best or a checkpoint's name, of the run; or the path of a checkpoint or a run.
        train_dir: folder that holds all runs.
        policy_idx: which of a run's policies, if it has several.

    Raises:
        UsageError: there is no such run, policy or checkpoint, or neither run nor path was given.
    """
    if named not in _WHICH:
        if run is None or expand_user(Path(named)).exists():
            return find_checkpoint(named, train_dir=train_dir, policy_idx=policy_idx)
        return find_checkpoint_of(find_run(run, train_dir), named, policy_idx)
    if run is None:
        raise UsageError("No run was given: give RUN, its folder or its name in --train_dir, or --checkpoint=PATH.")
    return find_checkpoint(run, named, train_dir, policy_idx)


def run_of(checkpoint: Path) -> Path | None:
    """The folder of the run that has this checkpoint; None if no run has it."""
    return next((folder for folder in checkpoint.resolve().parents if (folder / MARKER).is_file()), None)
