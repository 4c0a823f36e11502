"""One run of many: its settings, its command, and what its folder tells about it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.analysis.records import EVAL_RETURN, STEPS, TRAIN_RETURN
from asyncrl.config.errors import ConfigError, Problem, UsageError
from asyncrl.config.fixed_settings import Change, changes
from asyncrl.config.loading import LoadedConfig, load
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import NEEDED_BY_TENSORS, TrainConfig
from asyncrl.contrib.experiments.core_sets import Command
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.envs.probe import probe
from asyncrl.modes.choice import find_problems
from asyncrl.run import preflight
from asyncrl.storage import checkpoint
from asyncrl.storage.locating import checkpoint_folders
from asyncrl.storage.run_folder import MARKER, RunFolder

_TAIL_BYTES = 1 << 16
_FPS = "time/fps"


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be made.

    Attributes:
        name: name of its folder.
        train_dir: folder of all runs.
        flags: its settings, as flags of training.
        config: all settings that follow from them.
        threads: threads that compute at the same time on this machine.
    """

    name: str
    train_dir: Path
    flags: tuple[str, ...]
    config: TrainConfig
    threads: int

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.train_dir / self.name)

    @property
    def place(self) -> tuple[str, str]:
        """The flags that name the run."""
        return f"--train_dir={self.train_dir}", f"--experiment={self.name}"

    def training(self, *more: str) -> Command:
        """The command that trains, or resumes training."""
        arguments = (*self.flags, *self.place, *more)
        return Command(self.name, "asyncrl.train", arguments, output_file(self.train_dir, self.name), self.threads)


@dataclass(frozen=True)
class Progress:
    """The newest metrics of a run; None for what was not recorded yet."""

    env_steps: int = 0
    train_return: float | None = None
    eval_return: float | None = None
    fps: float | None = None


def load_run(flags: Sequence[str], *, lenient: bool = False) -> LoadedConfig:
    """Reads the settings of a run; if the id names no preset, the environment is made to find the one that it has."""
    loaded = load(flags, lenient=lenient)
    if loaded.preset is not None or loaded.merge_again is None or loaded.problems or not loaded.config.env_id:
        return loaded
    config = loaded.config
    made_of, keeps_spaces = _environment_inside(config.env_id, json.dumps(config.env_kwargs), config.env_backend)
    return loaded.merge_again(made_of, keeps_spaces)


@functools.cache
def _environment_inside(env_id: str, env_kwargs: str, env_backend: str) -> tuple[str, bool]:
    try:
        spec = probe(env_id, json.loads(env_kwargs), env_backend=env_backend)
    except (UsageError, EnvironmentFailed):  # reported by `check_environment`, or by the run
        return "", True
    return spec.made_of, spec.keeps_spaces


def plan_run(name: str, train_dir: Path, flags: tuple[str, ...], machine: Machine) -> PlannedRun:
    """Reads and checks the settings of a run; its environment is checked later.

    Raises:
        ConfigError: the run cannot start.
    """
    loaded = load_run([*flags, f"--train_dir={train_dir}", f"--experiment={name}"], lenient=True)
    plan = resolve(loaded.config, machine)
    problems = list(loaded.problems) or find_problems(loaded.config, plan, machine)
    if problems:
        raise ConfigError(problems)
    return PlannedRun(name, train_dir, flags, loaded.config, plan.num_threads)


def check_environment(run: PlannedRun, machine: Machine, *more: str) -> None:
    """Makes every check that training makes before it starts, the environment and its memory included.

    Args:
        run: the run.
        machine: the machine, or the part of it that a run has.
        more: flags of its next start only.

    Raises:
        ConfigError: the run cannot start.
    """
    checked = preflight.run(load([*run.flags, *run.place, *more], lenient=True), machine)
    problems = list(checked.problems)
    if checked.environment_failure is not None:
        problems.append(Problem(("env",), checked.environment_failure))
    if problems:
        raise ConfigError(problems)


def machine_of(cores: int) -> Machine:
    """This machine with as many cores as one run may use."""
    return dataclasses.replace(Machine.detect(), cores=cores)


def as_flag(name: str, value: Any) -> str:
    """A setting as a flag of training, without loss."""
    if isinstance(value, (list, tuple, dict)):
        text = json.dumps(value)
    elif value is None:
        text = "none"
    else:
        text = str(value)
    return f"--{name}={text}"


def output_file(train_dir: Path, name: str) -> Path:
    """The file with the output of a run's commands."""
    return train_dir / "output" / f"{name}.log"


def last_error(log: Path) -> str:
    """The last sentence of an error in a command's output, otherwise its last line."""
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]


def read_summary(folder: RunFolder) -> dict[str, Any] | None:
    """What summary.json says; None if the run has not ended, or was killed."""
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def is_finished(run: PlannedRun) -> bool:
    """Whether the run has reached its limit, or a callback has ended it."""
    summary = read_summary(run.folder)
    return summary is not None and (summary["status"] == "stopped" or has_reached_limit(run))


def has_reached_limit(run: PlannedRun) -> bool:
    """Whether the run has trained for all the steps or seconds that it has now."""
    summary = read_summary(run.folder)
    if summary is None or summary["status"] != "completed":
        return False
    if summary["env_steps"] >= run.config.train_for_env_steps:
        return True
    limit_s = run.config.train_for_seconds
    return limit_s is not None and _elapsed_s(run) >= limit_s


def _elapsed_s(run: PlannedRun) -> float:
    """Seconds of training at the newest checkpoint, by which training decides whether it can resume; 0 if unknown."""
    folders = checkpoint_folders(run.folder.checkpoints, run.config.num_policies)
    newest = [path for folder in folders if (path := checkpoint.latest(folder)) is not None]
    try:
        return max((float(checkpoint.load_state(path)["elapsed_s"]) for path in newest), default=0.0)
    except (checkpoint.CheckpointError, KeyError, TypeError, ValueError):
        return 0.0


def changed_settings(run: PlannedRun) -> list[Change]:
    """Settings with other values than those with which the run was last started; none if it was never started.

    Raises:
        UsageError: the settings of the saved run cannot be read.
    """
    return [] if not was_started(run.folder) else _changes_since(run.folder.read_config(), run)


def was_started(folder: RunFolder) -> bool:
    """Whether the folder is that of a run with saved settings."""
    return (folder.path / MARKER).is_file() and folder.config.is_file()


def with_earlier_names(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs; one that was made with the same settings under another name, of a smaller grid, has that name.

    Args:
        runs: of one folder.
    """
    new = {run.name for run in runs if not was_started(run.folder)}
    taken = {run.name for run in runs}
    saved: dict[str, TrainConfig] = {}
    for folder in sorted(runs[0].train_dir.glob("*/")) if new else ():
        if folder.name not in taken and was_started(RunFolder(folder)):
            with contextlib.suppress(UsageError):
                saved[folder.name] = RunFolder(folder).read_config()
    found = []
    for run in runs:
        earlier = [name for name, config in saved.items() if run.name in new and not _changes_since(config, run)]
        for name in earlier[:1]:
            del saved[name]
            run = dataclasses.replace(run, name=name)
        found.append(run)
    return found


def _changes_since(saved: TrainConfig, run: PlannedRun) -> list[Change]:
    # A run saves the folder that init_from was resolved to, and what an environment of tensors needs.
    resolved = {"init_from"}
    if saved.env_backend == "tensor" and run.config.env_backend == "auto":
        resolved |= {"env_backend", *NEEDED_BY_TENSORS}
    resolved |= {name for name in ("num_workers", "worker_num_splits") if getattr(run.config, name) == "auto"}
    return [change for change in changes(saved, run.config) if change.name not in resolved]


def read_progress(folder: RunFolder) -> Progress:
    """Reads the newest metrics from the end of metrics.jsonl."""
    try:
        with folder.metrics.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return Progress()
    newest: dict[str, Any] = {}
    env_steps = 0
    for line in lines:  # the first may be cut off
        try:
            record = json.loads(line)
        except ValueError:
            continue
        newest.update((name, value) for name, value in record.items() if value is not None)
        env_steps = max(env_steps, newest.get(STEPS, 0))  # the record of an evaluation is of an earlier step
    return Progress(env_steps, *(newest.get(name) for name in (TRAIN_RETURN, EVAL_RETURN, _FPS)))
