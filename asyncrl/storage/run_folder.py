"""The folder of one run: its files, who may write there, and what may be deleted.

TRAIN_DIR/EXPERIMENT/
    config.yaml         every setting of the run, except those of one start of the program
    environment.json    versions, git commit, machine, number of ranks
    metrics.jsonl       one record a line
    tensorboard/        the same records as event files
    checkpoints/
    logs/<role>.log
    episodes/           every training episode as CSV, with --episodes_csv
    videos/             videos during training, by environment steps, with --video_every_env_steps
    trackers/           ids of the run in experiment trackers, with --track
    episodes.json       the last training episodes when the newest checkpoint was saved
    summary.json        how the run ended
    ranks/<r>/          the same files of each rank except rank 0, if several ranks train together
    NAME/               what a feature keeps, by its hook FOLDERS (`asyncrl.config.hooks`)
    .asyncrl-run        marks the folder as a run: only a marked folder is ever deleted
    .lock               locked while the run lives; contains its process id
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import hooks
from asyncrl.storage.checkpoint import BEST

if TYPE_CHECKING:
    from asyncrl.config.schema import TrainConfig

RestartBehavior = Literal["resume", "restart", "overwrite"]

RANKS = "ranks"
"""Folder of the folders of all ranks except rank 0, in the run's folder."""

VIDEOS = "videos"
"""Folder of the videos during training, in the run's folder."""

UNFINISHED = ".part"
"""End of the name of a video that is being written."""

EPISODE_COLUMNS = ("r", "l", "t", "env_steps")
"""The first columns of the files of episodes."""

MARKER = ".asyncrl-run"
_LOCK = ".lock"
_MAX_NAME_BYTES = 200
_VIDEO_NAME = re.compile(r"step_(\d+)")


class RunFolder:
    """Paths of one run and, from `create` to `close`, the right to write there.

    The lock belongs to the process that called `create`; its children get paths, not this object.

    Attributes:
        path: the folder; `config` to `summary` are its files and folders as the module lists them.
    """

    def __init__(self, path: Path, lock: int | None = None) -> None:
        """Locks nothing; `lock` is the descriptor of `create`."""
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.videos = path / VIDEOS
        self.logs = path / "logs"
        self.episodes = path / "episodes.json"
        self.summary = path / "summary.json"
        self._lock = lock

    @classmethod
    def create(cls, train_dir: str, experiment: str, restart_behavior: RestartBehavior) -> RunFolder:
        """Makes the folder of a run, or takes over the folder of an ended one, and locks it.

        Args:
            train_dir: folder that holds all runs; made if missing.
            experiment: name of the run.
            restart_behavior: what to do with an ended run of that name: `resume` keeps its files, `restart` moves it to
                NAME_old (NAME_old2, ...), `overwrite` deletes all of it.

        Raises:
            UsageError: the name is not possible, or the folder is in use, is not a run, or cannot be written.
        """
        path = checked_run_path(train_dir, experiment)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _check_is_run_or_empty(path)
            lock = _lock(path)
            try:
                contents = [entry for entry in path.iterdir() if entry.name not in (MARKER, _LOCK)]
                if restart_behavior == "restart" and contents:
                    old_lock = lock
                    _move_aside(path)
                    lock = _lock(path)
                    _unlock(old_lock)
                elif restart_behavior == "overwrite":
                    for entry in contents:
                        if entry.is_dir() and not entry.is_symlink():
                            shutil.rmtree(entry)
                        else:
                            entry.unlink()
                text = "an asyncrl run: --restart_behavior=overwrite deletes it\n"
                (path / MARKER).write_text(text, encoding="utf-8")
                for name in ("logs", "checkpoints"):
                    (path / name).mkdir(exist_ok=True)
            except BaseException:
                _unlock(lock)
                raise
        except OSError as error:
            raise UsageError(
                f"Cannot use {path} as the run's folder: {error.strerror or error}. "
                "Choose another --train_dir or --experiment."
            ) from error
        return cls(path.absolute(), lock)  # an environment may change the working directory

    @classmethod
    def open(cls, train_dir: str, experiment: str) -> RunFolder:
        """Returns the folder of an existing run, for reading; the run may be alive.

        Raises:
            UsageError: there is no such run.
        """
        path = checked_run_path(train_dir, experiment)
        if not (path / MARKER).is_file():
            raise UsageError(_no_such_run(path))
        return cls(path)

    @property
    def rank_metrics(self) -> list[Path]:
        """The records of each rank of the last start, those of the run first."""
        num_ranks = None
        with contextlib.suppress(OSError, ValueError, AttributeError):
            num_ranks = json.loads(self.environment.read_text(encoding="utf-8")).get("num_ranks")
        ranks = range(1, num_ranks) if isinstance(num_ranks, int) else ()
        return [self.metrics, *(self.path / RANKS / str(rank) / self.metrics.name for rank in ranks)]

    def log(self, role: str) -> Path:
        """Returns the log file of a process, for example `rollout-0`; its folder is made if missing."""
        self.logs.mkdir(exist_ok=True)
        return self.logs / f"{role}.log"

    def elapsed_s(self, env_steps: int) -> float:
        """Seconds since the command that the records up to these environment steps show; 0 without a record."""
        lines = self.metrics.read_text(encoding="utf-8").splitlines() if self.metrics.exists() else []
        records = [json.loads(line) for line in lines if _record_step(line) <= env_steps]
        return max((float(record.get("time/time_elapsed", 0.0)) for record in records), default=0.0)

    def forget_after(self, env_steps: int) -> None:
        """Deletes what describes steps after the checkpoint from which a run resumes; all of it for -1."""
        with self._writing():
            self.summary.unlink(missing_ok=True)
            if env_steps < 0:
                self.episodes.unlink(missing_ok=True)
                for folder in (self.checkpoints, *self.checkpoints.glob("policy_*")):
                    shutil.rmtree(folder / BEST, ignore_errors=True)
                for name in hooks("FOLDERS"):
                    shutil.rmtree(self.path / name, ignore_errors=True)
            for video in self.videos.glob("*"):
                match = _VIDEO_NAME.search(video.name)
                if match is not None and (int(match[1]) > env_steps or video.suffix == UNFINISHED):
                    video.unlink()
            if self.metrics.exists():
                lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
                kept = [line for line in lines if _record_step(line) <= env_steps]
                if len(kept) < len(lines):
                    write_text_atomically(self.metrics, "".join(kept))
            for path in (self.path / "episodes").glob("*.monitor.csv"):
                _forget_episodes_after(path, env_steps)

    def write_config(self, config: TrainConfig) -> None:
        """Writes every setting of the run, default values too, except the settings of one start of the program."""
        from asyncrl.config.schema import OF_ONE_START
        from asyncrl.config.settings import dump_mapping

        with self._writing():
            values = config.model_dump(mode="json", exclude=set(OF_ONE_START))
            write_text_atomically(self.config, dump_mapping(values))

    def read_config(self) -> TrainConfig:
        """Reads the settings of the run; those of one start of the program have their defaults.

        Raises:
            UsageError: the file is missing or is not what `write_config` wrote.
        """
        from asyncrl.config.schema import TrainConfig
        from asyncrl.config.settings import read_saved_values

        values = read_saved_values(self.config)
        try:
            return TrainConfig.from_saved(values)
        except (UsageError, ValueError) as error:
            raise UsageError(f"{self.config} does not hold the settings of a run: {str(error).rstrip('.')}.") from error

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        """Writes a file of the run: what `describe` returned (provenance), or the fields of a `Summary`."""
        with self._writing():
            write_text_atomically(path, json.dumps(content, indent=2) + "\n")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Raises a `UsageError` if the folder cannot be written."""
        try:
            yield
        except OSError as error:
            raise UsageError(f"Cannot write to {self.path}: {error.strerror or error}.") from error

    def close(self) -> None:
        """Releases the lock; another run may then overwrite the folder."""
        if self._lock is not None:
            _unlock(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _lock(folder: Path) -> int:
    """Locks the folder of a run; returns the descriptor. The kernel releases the lock when the process ends.

    Raises:
        UsageError: another process has the lock.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _flock(descriptor, folder, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unlock(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that a callback forked has the descriptor, too
    os.close(descriptor)


def _flock(descriptor: int, folder: Path, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise UsageError(
            f"{folder} is in use by another run (process {holder}): wait for it, stop it, "
            "or choose another --experiment."
        ) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file that takes the place of another once it is written; a reader never sees a part of it."""
    temporary = path.with_name(f".tmp_{path.name}_{uuid.uuid4().hex}")  # several machines may write to this folder
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text_atomically(path: Path, text: str) -> None:
    """Writes a small file; a reader sees the old one or the new one, never a part."""
    with replacing(path) as file:
        file.write(text.encode())


def has_broken_line(path: Path) -> bool:
    """Whether the last line of a file has no end, as a killed process leaves it."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def shown_path(path: Path) -> str:
    """A path as text, relative if it is in the working directory."""
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)


def find_saved_config(train_dir: str, experiment: str) -> Path | None:
    """Returns the config.yaml of a run, None if there is no such run or it has none."""
    if _name_problem(_name_of(train_dir, experiment)):
        return None
    folder = RunFolder(run_path(train_dir, experiment))
    return folder.config if (folder.path / MARKER).is_file() and folder.config.is_file() else None


def as_folder_name(text: str) -> str:
    """Returns an environment's id without characters that do not belong into the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "run"


def default_experiment(env: str, algo: str, now: Callable[[], float] = time.time) -> str:
    """Returns the default name of a run: environment, algorithm and local time."""
    return f"{as_folder_name(env)}_{algo}_{datetime.fromtimestamp(now()):%Y%m%d-%H%M%S}"


def run_path(train_dir: str, experiment: str) -> Path:
    """Returns the path of a run's folder.

    Args:
        train_dir: folder that holds all runs.
        experiment: the run's name, or the path of its folder in `train_dir`, as the program prints it.
    """
    return Path(train_dir).expanduser() / _name_of(train_dir, experiment)


def _name_of(train_dir: str, experiment: str) -> str:
    given = Path(experiment).expanduser()
    is_path = "/" in experiment and given.parent.resolve() == Path(train_dir).expanduser().resolve()
    return given.name if is_path else experiment.rstrip("/")  # which completion by a shell adds


def find_problem(train_dir: str, experiment: str) -> str | None:
    """Returns why a run cannot have this folder, None if it can; writes nothing."""
    path = run_path(train_dir, experiment)
    try:
        path = checked_run_path(train_dir, experiment)
        if path.is_dir():
            _check_is_run_or_empty(path)
            if os.access(path / _LOCK, os.R_OK):
                with open(path / _LOCK, "rb") as lock:
                    _flock(lock.fileno(), path, fcntl.LOCK_SH)
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
    except UsageError as error:
        return str(error)
    except OSError as error:
        return f"{path} cannot be the run's folder: {error.strerror or error}."
    if not existing.is_dir():
        return f"{path} cannot be the run's folder: {existing} is not a folder."
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{path} cannot be the run's folder: {existing} is not writable."
    return None


def checked_run_path(train_dir: str, experiment: str) -> Path:
    """Returns `run_path` after checking that it is a folder directly in `train_dir`.

    Raises:
        UsageError: it is not.
    """
    problem = _name_problem(_name_of(train_dir, experiment))
    if problem:
        given = Path(experiment).expanduser()
        if "/" in experiment and (given / MARKER).is_file():
            problem = (
                f"that run is not in --train_dir={train_dir}: give --train_dir={given.parent} --experiment={given.name}"
            )
        raise UsageError(f"--experiment={experiment!r} cannot name a run: {problem}.")
    path = run_path(train_dir, experiment)
    if path.is_symlink():
        raise UsageError(f"{path} is a link: a run's folder must lie in --train_dir itself.")
    return path


def _name_problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if "/" in name or "\\" in name:
        return "it must be the name of one folder inside --train_dir without / and \\"
    if name.startswith((".", "-")) or name != name.strip():
        return "it must not start with a dot or a dash, nor start or end with a space"
    if not name.isprintable():
        return "it contains a character that cannot be printed"
    if len(name.encode(errors="replace")) > _MAX_NAME_BYTES:
        return f"it is longer than {_MAX_NAME_BYTES} bytes"
    return None


def _check_is_run_or_empty(path: Path) -> None:
    """Refuses a folder with files that are not of a run, before anything is written there."""
    names = {entry.name for entry in path.iterdir()}
    if MARKER not in names and names - {_LOCK}:
        raise UsageError(f"{path} exists and is not an asyncrl run (it has no {MARKER}): choose another --experiment.")


def _move_aside(path: Path) -> None:
    """Renames a locked run, and makes an empty folder in its place."""
    number, old = 1, path.with_name(f"{path.name}_old")
    while old.exists():
        number += 1
        old = path.with_name(f"{path.name}_old{number}")
    path.rename(old)
    path.mkdir()


def _record_step(line: str) -> int:
    """Returns the environment steps of a record; of an incomplete last line, more than any run has."""
    try:
        return int(json.loads(line)["env_steps"])
    except (ValueError, KeyError, TypeError):
        return 2**62


def _forget_episodes_after(path: Path, env_steps: int) -> None:
    """Deletes the episodes of later steps, and an unfinished last line; deletes a file without episodes."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if len(lines) > 1 and not lines[1].startswith(",".join(EPISODE_COLUMNS)):
        return  # of a version that did not write the steps
    column = EPISODE_COLUMNS.index("env_steps")
    kept = [row for row in lines[2:] if row.endswith("\n") and int(row.split(",")[column]) <= env_steps]
    if not kept:
        path.unlink()
    elif len(kept) < len(lines) - 2:
        write_text_atomically(path, "".join((*lines[:2], *kept)))


def _no_such_run(path: Path) -> str:
    folder = path.parent
    text = f"There is no run {path.name!r} in {folder}"
    if not folder.is_dir():
        return f"{text}: that folder does not exist; give the run's path."
    runs = [entry for entry in folder.iterdir() if (entry / MARKER).is_file()]
    runs.sort(key=lambda entry: (entry / MARKER).stat().st_mtime, reverse=True)
    if not runs:
        return f"{text}, and no other run."
    return f"{text}; the newest there: {', '.join(entry.name for entry in runs[:5])}."
