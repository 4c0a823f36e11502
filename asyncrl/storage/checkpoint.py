"""Checkpoints: written completely or not at all, verified when read, and unable to run code.

A checkpoint is a folder `checkpoint_<env_steps>/` with safetensors files of model, optimizer and perhaps the replay,
`state.json`, and `SHA256SUMS` with the checksums of all of them (`sha256sum -c` reads it). It is written under a
temporary name, synced and renamed, so a folder of that name is complete even if the machine stops at any moment.

    checkpoints/checkpoint_*               the newest, from which a run resumes
    checkpoints/milestones/checkpoint_*    never deleted
    checkpoints/best/checkpoint_*          the policy with the best return
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from asyncrl.config.errors import UsageError
from asyncrl.config.hyperparameters import NO_CHANGES, Hyperparameters, saved_hyperparameters
from asyncrl.config.schema import TrainConfig

if TYPE_CHECKING:
    import torch

FORMAT_VERSION = 4
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
REPLAY_FILE = "replay.safetensors"
STATE_FILE = "state.json"
CHECKSUMS_FILE = "SHA256SUMS"
SHARED_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, CHECKSUMS_FILE)
"""Files that others need to use a checkpoint or to resume from it: all but the replay, which is large."""

MILESTONES = "milestones"
BEST = "best"

_NAME = re.compile(r"checkpoint_(\d{12,})")
_TEMPORARY_PREFIX = ".tmp_"
_REPLACED_PREFIX = f"{_TEMPORARY_PREFIX}replaced_"
_CHECKSUM = re.compile(r"([0-9a-f]{64})  (\S+)")
_CHUNK_BYTES = 1 << 22
_SAFETENSORS_DTYPES = {"float32": "F32", "int64": "I64", "uint8": "U8", "bool": "BOOL"}


class CheckpointError(Exception):
    """A checkpoint could not be written or cannot be used; the text is for the user."""


class ForeignCheckpointError(CheckpointError):
    """A file of a checkpoint has another format, such as pickle. It was not opened."""


@dataclass(frozen=True)
class _Manifest:
    """Contents of `state.json`, and the checksums of all files."""

    env_steps: int
    state: dict[str, Any]
    replay_lost: Sequence[int]
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class SavedReplay:
    """The replay, as views: it may fill half of the memory.

    Attributes:
        columns: arrays by name, each in consecutive parts. Workers may overwrite the oldest rows during the writing.
        count_lost: returns how many of the oldest rows were overwritten, by stripe; called after the last column.
    """

    columns: Mapping[str, Sequence[npt.NDArray[Any]]]
    count_lost: Callable[[], Sequence[int]]


@dataclass(frozen=True)
class Checkpoint:
    """The state from which a run resumes.

    Attributes:
        model: tensors of the model by name, including normalizer statistics.
        optimizer: tensors of the optimizer by name, and other tensors of the learner.
        state: JSON-able: counters, rates, versions; `config` and `spec` describe the model and its environment.
        replay: None if it was not kept.
    """

    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    replay: SavedReplay | None = None


def save(folder: Path, checkpoint: Checkpoint, env_steps: int, keep: int | None) -> Path:
    """Writes a checkpoint and deletes all but the newest ones.

    Args:
        folder: a folder of checkpoints; made if missing. Only one process may save into it.
        checkpoint: tensors may be on any device and views of one another.
        env_steps: environment steps trained so far, which name and order the checkpoints.
        keep: number of checkpoints to keep, at least the one written now; None for all.

    Returns:
        The checkpoint's folder, synced to the disk.

    Raises:
        CheckpointError: the file system refused. No part of the checkpoint is left, and older ones are unchanged.
    """
    target = folder / f"checkpoint_{env_steps:012d}"
    temporary = folder / f"{_TEMPORARY_PREFIX}{target.name}"
    replaced = folder / f"{_REPLACED_PREFIX}{target.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(f"{_REPLACED_PREFIX}*"):  # the run was killed before it renamed the successor
            successor = folder / path.name.removeprefix(_REPLACED_PREFIX)
            if not successor.exists():
                os.rename(path, successor)
        for path in folder.glob(f"{_TEMPORARY_PREFIX}*"):  # the run was killed while it saved
            shutil.rmtree(path, ignore_errors=True)
        temporary.mkdir()
        _write_files(temporary, checkpoint, env_steps)
        if target.exists():
            os.rename(target, replaced)
        os.rename(temporary, target)
        _sync_folder(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = error.strerror or str(error)
        raise CheckpointError(f"could not write the checkpoint {target}: {reason}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if keep is not None:
        found = _list(folder)
        # Checkpoints of later steps belong to a run that was resumed from an earlier one.
        kept = [path for steps, path in found if steps <= env_steps][-max(keep, 1) :]
        for _, path in found:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)
    return target


def newest_first(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder, those with the most environment steps first."""
    return [path for _, path in reversed(_list(folder))]


def latest(folder: Path) -> Path | None:
    """Returns the checkpoint with the most environment steps in a folder, None if it has none."""
    return next(iter(newest_first(folder)), None)


def checkpoint_of(folder: Path, env_steps: int) -> Path | None:
    """Returns the checkpoint with exactly these environment steps; None without one."""
    return dict(_list(folder)).get(env_steps)


def delete_after(folder: Path, env_steps: int) -> bool:
    """Deletes the checkpoints of later steps, which a resumed run has not reached; returns whether there were any."""
    later = [path for steps, path in _list(folder) if steps > env_steps]
    for path in later:
        shutil.rmtree(path, ignore_errors=True)
    return bool(later)


def as_best(content: Checkpoint, mean_return: float) -> Checkpoint:
    """The same checkpoint with the return that `best_return` reads."""
    return dataclasses.replace(content, state={**content.state, "mean_return": mean_return})


def save_best(folder: Path, content: Checkpoint, env_steps: int, mean_return: float) -> Path:
    """Saves the best checkpoint of the run whose checkpoints are in `folder`, in place of the previous one."""
    return save(folder / BEST, as_best(content, mean_return), env_steps, keep=1)


def copy_as_best(path: Path, folder: Path, mean_return: float) -> Path:
    """Saves the checkpoint at `path` again, as the best one."""
    return save_best(folder, load(path), saved_env_steps(path), mean_return)


def best_return(checkpoints: Path, config: TrainConfig | None = None) -> float | None:
    """Returns the mean return of the best checkpoint, None if none can be read.

    With the settings of a run, also None if that return cannot be compared with those of the run: of training and not
    of evaluations, or of an environment with other arguments.
    """
    for path in newest_first(checkpoints / BEST):
        with contextlib.suppress(CheckpointError, KeyError, TypeError, ValueError, UsageError):
            state = load_state(path)
            if config is None or _how_measured(TrainConfig.from_saved(state["config"])) == _how_measured(config):
                return float(state["mean_return"])
    return None


def _how_measured(config: TrainConfig) -> tuple[Any, ...]:
    takes_mode = config.best_metric == "eval" and config.eval_deterministic
    return config.best_metric, takes_mode, config.model_dump(mode="json", include={"env_kwargs"})


def load_state(path: Path) -> dict[str, Any]:
    """Returns the `state` of a checkpoint without reading its tensors."""
    return _read_manifest(path).state


def load_hyperparameters(path: Path | None, config: TrainConfig) -> Hyperparameters:
    """The changes by observers that were in effect in a checkpoint, see `saved_hyperparameters`; none without one."""
    return NO_CHANGES if path is None else saved_hyperparameters(load_state(path), config)


def saved_env_steps(path: Path) -> int:
    """Returns the environment steps of a checkpoint without reading its tensors."""
    return _read_manifest(path).env_steps


def load(path: Path, with_replay: bool = False) -> Checkpoint:
    """Reads a checkpoint and verifies its checksums.

    Args:
        path: a checkpoint's folder.
        with_replay: read the replay too, if it was kept; its columns are views of the file.

    Raises:
        CheckpointError: it is missing, incomplete, damaged or of another format version.
        ForeignCheckpointError: a file of tensors is not a safetensors file.
    """
    manifest = _read_manifest(path)
    has_replay = with_replay and REPLAY_FILE in manifest.checksums and (path / REPLAY_FILE).exists()
    return Checkpoint(
        model=_read_tensors(path / MODEL_FILE, manifest.checksums),
        optimizer=_read_tensors(path / OPTIMIZER_FILE, manifest.checksums),
        state=manifest.state,
        replay=_read_replay(path / REPLAY_FILE, manifest) if has_replay else None,
    )


def _write_files(folder: Path, checkpoint: Checkpoint, env_steps: int) -> None:
    sums = {
        MODEL_FILE: _write(folder / MODEL_FILE, [_serialize(checkpoint.model)]),
        OPTIMIZER_FILE: _write(folder / OPTIMIZER_FILE, [_serialize(checkpoint.optimizer)]),
    }
    manifest = {"format_version": FORMAT_VERSION, "env_steps": env_steps, "state": dict(checkpoint.state)}
    if checkpoint.replay is not None:
        sums[REPLAY_FILE] = _write(folder / REPLAY_FILE, _serialize_columns(checkpoint.replay.columns))
        manifest["replay_lost"] = list(checkpoint.replay.count_lost())
    sums[STATE_FILE] = _write(folder / STATE_FILE, [(json.dumps(manifest, indent=1) + "\n").encode()])
    _write(folder / CHECKSUMS_FILE, [f"{checksum}  {name}\n".encode() for name, checksum in sums.items()])
    _sync_folder(folder)


def _write(path: Path, pieces: Iterable[bytes]) -> str:
    """Writes a file to the disk; returns its checksum."""
    checksum = hashlib.sha256()
    with open(path, "wb") as file:
        for piece in pieces:
            checksum.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return checksum.hexdigest()


def _serialize(tensors: Mapping[str, torch.Tensor]) -> bytes:
    import safetensors.torch
    import torch

    # Parameters are views of one flat tensor; safetensors needs tensors that own their memory.
    owned = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return safetensors.torch.save(owned)


def _serialize_columns(columns: Mapping[str, Sequence[npt.NDArray[Any]]]) -> Iterator[bytes]:
    """Yields a safetensors file in pieces; safetensors itself would copy everything twice.

    Wide dtypes come first, so that every column is aligned.
    """
    ordered = sorted(columns.items(), key=lambda column: -column[1][0].itemsize)
    header, start = {}, 0
    for name, parts in ordered:
        shape = [sum(map(len, parts)), *parts[0].shape[1:]]
        stop = start + sum(part.nbytes for part in parts)
        dtype = _SAFETENSORS_DTYPES[parts[0].dtype.name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, parts in ordered:
        for part in parts:
            content = part.reshape(-1).view(np.uint8)
            for begin in range(0, len(content), _CHUNK_BYTES):
                yield content[begin : begin + _CHUNK_BYTES].tobytes()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _list(folder: Path) -> list[tuple[int, Path]]:
    """Returns (environment steps, path) of each checkpoint, oldest first.

    This includes a checkpoint whose successor of the same steps was never renamed, because the run was killed.
    """
    if not folder.is_dir():
        return []
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):  # replaced checkpoints sort first, so their successors win
        match = _NAME.fullmatch(path.name.removeprefix(_REPLACED_PREFIX))
        if match:
            found[int(match.group(1))] = path
    return sorted(found.items())


def _read_manifest(path: Path) -> _Manifest:
    content = _read(path / STATE_FILE)
    has_checksums = (path / CHECKSUMS_FILE).exists()  # older formats have none
    checksums = _read_checksums(path) if has_checksums else {}
    if has_checksums:
        _verify(path / STATE_FILE, [content], checksums)
    try:
        manifest = json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"Checkpoint {path} is damaged: its {STATE_FILE} is not JSON ({error}).") from None
    if not isinstance(manifest, dict) or "format_version" not in manifest:
        raise CheckpointError(f"{path / STATE_FILE} does not describe a checkpoint: it has no format_version.")
    version = manifest["format_version"]
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"Checkpoint {path} has format version {version}, but this asyncrl reads version {FORMAT_VERSION}: "
            "use the asyncrl that wrote it."
        )
    if not has_checksums:
        raise CheckpointError(f"Checkpoint {path} is damaged: it has no {CHECKSUMS_FILE}.")
    missing = {"env_steps", "state"} - manifest.keys()
    if missing:
        raise CheckpointError(f"Checkpoint {path} is damaged: {STATE_FILE} lacks {', '.join(sorted(missing))}.")
    lost = [int(count) for count in manifest.get("replay_lost", [])]
    return _Manifest(int(manifest["env_steps"]), manifest["state"], lost, checksums)


def _read_checksums(path: Path) -> dict[str, str]:
    *lines, rest = _read(path / CHECKSUMS_FILE).decode(errors="replace").split("\n")
    matches = [_CHECKSUM.fullmatch(line) for line in lines]
    if rest or not all(matches):
        raise CheckpointError(f"Checkpoint {path} is damaged: its {CHECKSUMS_FILE} is not a list of checksums.")
    checksums = {match.group(2): match.group(1) for match in matches if match}
    # A copy that was sent elsewhere has no replay; the run that resumes from it fills a new one.
    missing = [name for name in checksums if name != REPLAY_FILE and not (path / name).exists()]
    if missing:
        raise CheckpointError(f"Checkpoint {path} is damaged: it has no {missing[0]}.")
    return checksums


def _verify(path: Path, pieces: Iterable[bytes], checksums: Mapping[str, str]) -> None:
    checksum = hashlib.sha256()
    for piece in pieces:
        checksum.update(piece)
    if checksum.hexdigest() != checksums.get(path.name):
        raise CheckpointError(
            f"Checkpoint {path.parent} is damaged: the checksum of {path.name} is not the one that was saved; "
            "use an older checkpoint."
        )


def _read_tensors(path: Path, checksums: Mapping[str, str]) -> dict[str, torch.Tensor]:
    import safetensors.torch

    content = _read(path)
    _verify(path, [content], checksums)
    with _refusing_other_files(path):
        return safetensors.torch.load(content)


def _read_replay(path: Path, manifest: _Manifest) -> SavedReplay:
    import safetensors.torch

    try:
        with open(path, "rb") as file:
            _verify(path, iter(lambda: file.read(_CHUNK_BYTES), b""), manifest.checksums)
    except OSError as error:
        raise CheckpointError(f"Cannot read {path}: {error.strerror}.") from error
    with _refusing_other_files(path):
        columns = {name: [tensor.numpy()] for name, tensor in safetensors.torch.load_file(path).items()}
    return SavedReplay(columns, lambda: manifest.replay_lost)


@contextlib.contextmanager
def _refusing_other_files(path: Path) -> Iterator[None]:
    import safetensors

    try:
        yield
    except safetensors.SafetensorError as error:
        raise ForeignCheckpointError(
            f"{path} is not a safetensors file ({error}): asyncrl has not written it and does not open other files."
        ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        reason = f"it has no {path.name}" if path.parent.is_dir() else "there is no such folder"
        raise CheckpointError(f"{path.parent} is not a checkpoint: {reason}.") from None
    except OSError as error:
        raise CheckpointError(f"Cannot read {path}: {error.strerror}.") from error
