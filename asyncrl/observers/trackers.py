"""Experiment trackers (`--track=wandb,mlflow`): records, settings, videos and checkpoints go to other libraries, too.

    on_start, on_record, on_video, on_end --calls--> queue --> a thread per tracker --> TrackedRun --> library, server

A library is imported by its thread, and only if its tracker was asked for. Neither training nor the runner waits for
one; only the end of a run waits, for at most `_END_S`. The first call that raises turns a tracker off with one warning.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import queue
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from asyncrl.config.algorithms import imported
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import hooks
from asyncrl.config.schema import OF_ONE_START
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.reports import VideoReport
from asyncrl.observers.status import Record, Status
from asyncrl.observers.summary import Summary
from asyncrl.storage.checkpoint import BEST, SHARED_FILES, latest
from asyncrl.storage.locating import checkpoint_folders
from asyncrl.storage.run_folder import write_text_atomically

RESUMED_AT = "resumed_at_env_steps"
"""Logged where a run resumes: what a tracker has got of later steps before that was trained again."""

_END_S = 30.0
_MOST_WAITING_CALLS = 1000
"""A tracker that is this many records behind has failed: they would fill the memory."""


@dataclass(frozen=True)
class TrackedRunInfo:
    """What a tracker is told of a run when it starts.

    Attributes:
        name: name of the run's folder.
        project: where the tracker files it.
        settings: all settings, as JSON values.
        folder: folder for the tracker's own files.
        is_quiet: whether the user wants no output.
    """

    name: str
    project: str
    settings: dict[str, Any]
    folder: Path
    is_quiet: bool


class TrackedRun(Protocol):
    """A run in a tracker, used by one thread.

    It is made by `Connect`, with the id under which the tracker already has the run, or None.
    """

    id: str

    def log(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Adds a record; all values are finite."""

    def save(self, name: str, files: Sequence[Path]) -> None:
        """Keeps the files of a checkpoint, under their own name."""

    def save_video(self, env_steps: int, name: str, file: Path) -> None:
        """Keeps a video; `name` is the same for all videos of a policy."""

    def close(self, has_failed: bool) -> None:
        """Sends what is left and marks the run as ended."""


Connect = Callable[[TrackedRunInfo, str | None], TrackedRun]


class WandbRun:
    """Weights & Biases. Without a server: WANDB_MODE=offline, and `wandb sync` later."""

    def __init__(self, info: TrackedRunInfo, saved_id: str | None) -> None:
        import wandb

        self.id = saved_id or uuid.uuid4().hex[:12]
        self._name = info.name
        self._run = wandb.init(
            project=info.project,
            name=info.name,
            id=self.id,
            resume="allow",
            config=info.settings,
            dir=str(info.folder),
            settings=wandb.Settings(console="off", silent=info.is_quiet, init_timeout=_END_S, finish_timeout=_END_S),
        )
        # wandb's own step cannot go back, but the record of an evaluation is of an earlier step than it arrives at.
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def log(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        self._run.log({"env_steps": env_steps, **scalars})

    def save(self, name: str, files: Sequence[Path]) -> None:
        import wandb

        artifact = wandb.Artifact(f"{self.id}-{name}", type="model")
        for file in files:
            artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def save_video(self, env_steps: int, name: str, file: Path) -> None:
        import wandb

        self._run.log({"env_steps": env_steps, name: wandb.Video(str(file), format="mp4")})

    def close(self, has_failed: bool) -> None:
        self._run.finish(exit_code=int(has_failed))


_OWN = {"wandb": ("asyncrl.observers.trackers:WandbRun", "wandb")}


def trackers() -> dict[str, tuple[str, str]]:
    """`Connect` as text, and the library, by the name in `--track`, which is also that of the extra."""
    return {**_OWN, **hooks("TRACKERS")}


class Tracker(Observer):
    """Passes a run on to one tracker. Its id is kept in the run's folder, so a resumed run continues the same one."""

    def __init__(self, name: str, connect: Connect, end_s: float = _END_S) -> None:
        """Connects to nothing yet; `end_s` is the longest wait at the end of a run."""
        self._name = name
        self._connect = connect
        self._end_s = end_s

    def on_start(self, run: Run) -> None:
        """Starts the thread, whose first call connects."""
        self._calls: queue.Queue[Callable[[TrackedRun], None] | None] = queue.Queue(_MOST_WAITING_CALLS)
        self._errors: list[str] = []
        self._is_off = False
        config = run.config
        settings = config.model_dump(mode="json", exclude=set(OF_ONE_START))
        folder = run.folder / "trackers"
        info = TrackedRunInfo(run.folder.name, config.track_project, settings, folder, config.quiet)
        # A run that ended before its first checkpoint starts again at step 0, under the same id.
        goes_on = run.start.before is not None or (folder / f"{self._name}_id").exists()
        self._thread = threading.Thread(
            target=self._work, args=(info, self._calls, self._errors), name=self._name, daemon=True
        )
        self._thread.start()
        if goes_on:  # no library deletes what was logged of later steps
            at = run.start.env_steps
            self._call(lambda tracked: tracked.log(at, {RESUMED_AT: float(at)}))

    def on_record(self, run: Run, record: Record) -> None:
        finite = {name: value for name, value in record.scalars.items() if math.isfinite(value)}
        self._call(lambda tracked: tracked.log(record.env_steps, finite))

    def on_video(self, run: Run, video: VideoReport) -> None:
        name = "video" if run.plan.num_policies == 1 else f"policy_{video.policy_idx}/video"
        if video.error is None:
            self._call(lambda tracked: tracked.save_video(video.env_steps, name, Path(video.path)))

    def on_status(self, run: Run, status: Status) -> None:
        self._tell_error(run)

    def on_end(self, run: Run, summary: Summary) -> None:
        """Keeps the best checkpoint of each policy, or else the newest, and waits until all is sent."""
        has_failed = summary.status == "failed"
        folders = checkpoint_folders(run.folder / "checkpoints", run.plan.num_policies)
        for policy_idx, folder in enumerate(folders):
            best = latest(folder / BEST)
            checkpoint, kind = (latest(folder), "newest") if best is None else (best, BEST)
            if checkpoint is not None:
                name = kind if len(folders) == 1 else f"policy_{policy_idx}_{kind}"
                self._call(functools.partial(_save, name=name, checkpoint=checkpoint))
        self._call(lambda tracked: tracked.close(has_failed))
        self._call(None)
        if not self._is_off:
            self._thread.join(self._end_s)
            if self._thread.is_alive():
                self._errors.append(f"not everything was sent within {self._end_s:g} s")
        self._tell_error(run)

    def _call(self, call: Callable[[TrackedRun], None] | None) -> None:
        if not self._is_off:
            try:
                self._calls.put_nowait(call)
            except queue.Full:
                self._errors.append(f"it is {_MOST_WAITING_CALLS} records behind")

    def _tell_error(self, run: Run) -> None:
        if self._errors and not self._is_off:
            self._is_off = True
            run.say(f"warning: --track={self._name} is off, training continues: {self._errors[0]}")

    def _work(
        self,
        info: TrackedRunInfo,
        calls: queue.Queue[Callable[[TrackedRun], None] | None],
        errors: list[str],
    ) -> None:
        """The thread: connects, then makes the calls in their order, until None or the first that raises."""
        try:
            info.folder.mkdir(exist_ok=True)
            id_file = info.folder / f"{self._name}_id"
            saved_id = id_file.read_text(encoding="utf-8").strip() if id_file.exists() else None
            tracked = self._connect(info, saved_id)
            write_text_atomically(id_file, tracked.id + "\n")
            while (call := calls.get()) is not None:
                call(tracked)
        except Exception as error:  # of the library, which may raise anything; no tracker is worth a run
            errors.append(f"{type(error).__name__}: {error}")


def load_trackers(names: Sequence[str]) -> list[Tracker]:
    """The observers of these names."""
    known = trackers()
    return [Tracker(name, imported(known[name][0])) for name in dict.fromkeys(names)]


def require_package(name: str) -> None:
    """Checks that a tracker's library is installed, without importing it.

    Raises:
        UsageError: it is not.
    """
    _, library = trackers()[name]
    if importlib.util.find_spec(library) is None:
        raise UsageError(
            f'--track={name} needs the package {library}, which is not installed: pip install -e ".[{name}]"'
        )


def _save(tracked: TrackedRun, name: str, checkpoint: Path) -> None:
    tracked.save(name, [checkpoint / file for file in SHARED_FILES])
