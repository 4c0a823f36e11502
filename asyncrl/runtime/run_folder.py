"""The folder of one run: where each file lies, who may write there, and what may be deleted.

TRAIN_DIR/EXPERIMENT/
    config.yaml         every setting of the run, without those of one start of the program
    environment.json    versions, git commit, machine, number of ranks
    metrics.jsonl       one record a line
    tensorboard/        the same as event files
    checkpoints/
    logs/<role>.log
    episodes.json       the last training episodes when the newest checkpoint was saved
    summary.json        how the run ended
    ranks/<r>/          the same of each rank but the first, where several trained it together
    .asyncrl-run        marks the folder as a run: only what carries it is ever deleted
    .lock               locked, and holding the process id, while the run lives
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from asyncrl.config.errors import UsageError
from asyncrl.runtime.checkpoint import BEST

if TYPE_CHECKING:
    from asyncrl.config.schema import TrainConfig

RestartBehavior = Literal["resume", "restart", "overwrite"]

RANKS = "ranks"
"""In a run's folder, that of the folders of all ranks but the first."""

MARKER = ".asyncrl-run"
"""File that marks the folder of a run."""

_LOCK = ".lock"
_MAX_NAME_BYTES = 200


class RunFolder:
    """Paths of one run and, from `create` to `close`, the right to write there.

    The lock belongs to the process that called `create`; its children get paths, not this object.
    """

    def __init__(self, path: Path, lock: _Lock | None = None) -> None:
        """Use `create` or `open`."""
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, train_dir: str, experiment: str, restart_behavior: RestartBehavior) -> RunFolder:
        """Makes the folder of a run, or takes over that of an ended one, and locks it.

        Args:
            train_dir: folder that holds all runs; made if missing.
            experiment: name of the run.
            restart_behavior: what to do with an ended run of that name: `resume` keeps its files for the run that goes
                on, `restart` moves it to NAME_old (NAME_old2, ...), `overwrite` deletes all of it.

        Raises:
            UsageError: the name is not one, the folder is in use, holds something that is no run, or cannot be
                written.
        """
        path = checked_run_path(train_dir, experiment)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _check_is_run_or_empty(path)
            lock = _Lock.acquire(path)
            try:
                if restart_behavior == "restart" and _contents(path):
                    old_lock, path = lock, _move_aside(path)
                    lock = _Lock.acquire(path)
                    old_lock.release()
                _claim(path, restart_behavior)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise UsageError(
                f"Cannot use {path} as the run's folder: {error.strerror or error}. "
                "Choose another --train_dir or --experiment."
            ) from error
        return cls(path, lock)

    @classmethod
    def open(cls, train_dir: str, experiment: str) -> RunFolder:
        """Finds the folder of an existing run, to read it; the run may be alive.

        Raises:
            UsageError: there is no such run.
        """
        path = checked_run_path(train_dir, experiment)
        if not (path / MARKER).is_file():
            raise UsageError(_no_such_run(path))
        return cls(path)

    @property
    def config(self) -> Path:
        """Every setting of the run, as YAML."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Folder of event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Folder of log files."""
        return self.path / "logs"

    @property
    def environment(self) -> Path:
        """Versions and machine, as JSON."""
        return self.path / "environment.json"

    @property
    def episodes(self) -> Path:
        """The last training episodes at the newest checkpoint, as JSON."""
        return self.path / "episodes.json"

    @property
    def summary(self) -> Path:
        """How the run ended, as JSON."""
        return self.path / "summary.json"

    @property
    def num_ranks(self) -> int:
        """Learners that trained the run together when it was last started; 1 where nothing tells."""
        try:
            recorded = json.loads(self.environment.read_text(encoding="utf-8")).get("num_ranks")
        except (OSError, ValueError, AttributeError):
            return 1
        return recorded if isinstance(recorded, int) and recorded > 0 else 1

    @property
    def metrics_of_ranks(self) -> list[Path]:
        """The records of each rank, the run's own first."""
        others = (self.path / RANKS / str(rank) / self.metrics.name for rank in range(1, self.num_ranks))
        return [self.metrics, *others]

    def log(self, role: str) -> Path:
        """Log file of a process, for example `rollout_0`; its folder is made if missing."""
        self.logs.mkdir(exist_ok=True)
        return self.logs / f"{role}.log"

    def forget_after(self, env_steps: int) -> None:
        """Drops what tells of steps that a run trained after the checkpoint from which it goes on.

        Raises:
            UsageError: the folder cannot be written.
        """
        with self._writing():
            self.summary.unlink(missing_ok=True)
            if env_steps < 0:
                self.episodes.unlink(missing_ok=True)
                shutil.rmtree(self.checkpoints / BEST, ignore_errors=True)
            self._drop_records_after(env_steps)

    def _drop_records_after(self, env_steps: int) -> None:
        if not self.metrics.exists():
            return
        lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if _step_of_record(line) <= env_steps]
        if len(kept) < len(lines):
            write_text_atomically(self.metrics, "".join(kept))

    def write_config(self, config: TrainConfig) -> None:
        """Writes every setting of the run, default values too; settings of one start of the program are left out.

        Raises:
            UsageError: the folder cannot be written.
        """
        import yaml

        from asyncrl.config.schema import OF_ONE_START

        with self._writing():
            values = config.model_dump(mode="json", exclude=set(OF_ONE_START))
            write_text_atomically(self.config, yaml.safe_dump(values, sort_keys=False))

    def read_config(self) -> TrainConfig:
        """Reads the settings of the run; those of one start of the program have their defaults.

        Raises:
            UsageError: the file is missing or is not what `write_config` wrote.
        """
        import yaml

        from asyncrl.config.schema import TrainConfig

        try:
            return TrainConfig.from_saved(yaml.safe_load(self.config.read_text(encoding="utf-8")))
        except OSError as error:
            raise UsageError(f"Cannot read the settings of the run: {self.config}: {error.strerror}.") from error
        except (UsageError, ValueError, yaml.YAMLError) as error:
            raise UsageError(f"{self.config} does not hold the settings of a run: {str(error).rstrip('.')}.") from error

    def write_environment(self, environment: dict[str, Any]) -> None:
        """Writes what `asyncrl.runtime.provenance.describe` found.

        Raises:
            UsageError: the folder cannot be written.
        """
        with self._writing():
            write_text_atomically(self.environment, json.dumps(environment, indent=2) + "\n")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(f"Cannot write to {self.path}: {error.strerror or error}.") from error

    def close(self) -> None:
        """Gives the lock back; the folder may then be overwritten by another run."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Gives the lock back."""
        self.close()


class _Lock:
    """An advisory lock on a file: the kernel drops it with the process, so a killed run leaves no stale one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, folder: Path) -> _Lock:
        """Locks the folder of a run, or raises UsageError with the process that has it."""
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            cls._lock(descriptor, folder, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    @classmethod
    def check(cls, folder: Path) -> None:
        """Raises UsageError if another process has the lock; changes nothing."""
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDONLY)
        except OSError:  # nobody has locked it yet, or the folder cannot be read, which is said when it is used
            return
        try:
            cls._lock(descriptor, folder, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    @staticmethod
    def _lock(descriptor: int, folder: Path, kind: int) -> None:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise UsageError(
                f"{folder} is in use by another run (process {holder}): wait for it, stop it, "
                "or choose another --experiment."
            ) from None

    def release(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def write_text_atomically(path: Path, text: str) -> None:
    """Writes a small file so that a reader sees the old one or the new one, never a part."""
    temporary = path.with_name(f".tmp_{path.name}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def find_saved_config(train_dir: str, experiment: str) -> Path | None:
    """Returns the config.yaml of a run, None if there is no such run or it has none."""
    if _problem_of_name(_name_of(train_dir, experiment)):
        return None
    path = run_path(train_dir, experiment)
    config = path / "config.yaml"
    return config if (path / MARKER).is_file() and config.is_file() else None


def as_folder_name(text: str) -> str:
    """Returns an environment's id with characters replaced that the name of a folder should not have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "run"


def default_experiment(env: str, algo: str, now: Callable[[], float] = time.time) -> str:
    """Returns a name for a run that was given none: environment, algorithm and local time."""
    stem = as_folder_name(env)
    return f"{stem}_{algo}_{datetime.fromtimestamp(now()):%Y%m%d-%H%M%S}"


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
    return given.name if is_path else experiment


def find_problem(train_dir: str, experiment: str) -> str | None:
    """Says why a run cannot have this folder, None if it can; nothing is written."""
    path = run_path(train_dir, experiment)
    try:
        path = checked_run_path(train_dir, experiment)
        if path.is_dir():
            _check_is_run_or_empty(path)
            _Lock.check(path)
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
    """Returns `run_path` after checking that it is a folder right inside `train_dir`.

    Raises:
        UsageError: it is not.
    """
    problem = _problem_of_name(_name_of(train_dir, experiment))
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


def _problem_of_name(name: str) -> str | None:
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
    """Refuses a folder that somebody else filled, before anything is written there."""
    names = {entry.name for entry in path.iterdir()}
    if MARKER not in names and names - {_LOCK}:
        raise UsageError(f"{path} exists and is not an asyncrl run (it has no {MARKER}): choose another --experiment.")


def _contents(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if entry.name not in (MARKER, _LOCK)]


def _move_aside(path: Path) -> Path:
    """Gives a locked run another name and returns its old path, an empty folder now."""
    number, old = 1, path.with_name(f"{path.name}_old")
    while old.exists():
        number += 1
        old = path.with_name(f"{path.name}_old{number}")
    path.rename(old)
    path.mkdir()
    return path


def _claim(path: Path, restart_behavior: RestartBehavior) -> None:
    """Makes a locked folder the run's own."""
    for entry in _contents(path) if restart_behavior == "overwrite" else []:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (path / MARKER).write_text("an asyncrl run: --restart_behavior=overwrite deletes it\n", encoding="utf-8")
    for name in ("logs", "checkpoints"):
        (path / name).mkdir(exist_ok=True)


def _step_of_record(line: str) -> int:
    """Environment steps of a record; a line that a killed run had begun is of none that stays."""
    try:
        return int(json.loads(line)["env_steps"])
    except (ValueError, KeyError, TypeError):
        return 2**62


def _no_such_run(path: Path) -> str:
    """Says that there is no run, and which ones there are."""
    folder = path.parent
    text = f"There is no run {path.name!r} in {folder}"
    if not folder.is_dir():
        return f"{text}: that folder does not exist; give the folder of your runs as --train_dir."
    runs = [entry for entry in folder.iterdir() if (entry / MARKER).is_file()]
    runs.sort(key=lambda entry: (entry / MARKER).stat().st_mtime, reverse=True)
    if not runs:
        return f"{text}, and no other run."
    return f"{text}; the newest there: {', '.join(entry.name for entry in runs[:5])}."
