"""What an observer is told of a run, and what it may ask of it.

    roles --reports--> Monitor --events--> Observer.on_...(run, ...)        in the process that started the run,
    roles <--words of the arena-- Session <--requests-- run.stop(), ...     between two waits of its control loop

No role waits for an observer. A request takes effect at its next place: a stop after the current pass over a dataset,
new hyperparameters at the beginning of a dataset, a message to environments between two of their steps.
"""

from __future__ import annotations

import functools
import logging
import queue
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from asyncrl.buffers.control import RunControl
from asyncrl.config.hyperparameters import NO_CHANGES, Hyperparameters
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.reports import CheckpointReport, EpisodeRecord, EvaluationReport
from asyncrl.monitoring.status import Record, Status
from asyncrl.monitoring.summary import ResumedTotals, Summary
from asyncrl.runtime.processes import RunFailed

P = ParamSpec("P")

log = logging.getLogger("asyncrl")


class Observer:
    """Watches a run, and may ask something of it. Override what you need; the methods here do nothing.

    An observer is called in the process and thread that runs `Trainer.run`. One that raises ends the run: a checkpoint
    is saved, and the exception is raised from `Trainer.run`. If the learner's process dies and the run starts again
    from its last checkpoint, `on_end` and `on_start` are called once more.
    """

    def on_start(self, run: Run) -> None:
        """The run begins, or resumes: `run` says with which settings and from where."""

    def on_status(self, run: Run, status: Status) -> None:
        """Called a few times a second with where the run stands."""

    def on_record(self, run: Run, record: Record) -> None:
        """A record is due, every `report_every_s`; also one for each evaluation."""

    def on_episode(self, run: Run, episode: EpisodeRecord) -> None:
        """A training episode has ended."""

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        """An evaluation has ended."""

    def on_checkpoint(self, run: Run, checkpoint: CheckpointReport) -> None:
        """A checkpoint was saved, or could not be (`checkpoint.error`)."""

    def on_message(self, run: Run, text: str) -> None:
        """There is something that the user should know, perhaps before `on_start`, such as a damaged checkpoint."""

    def on_end(self, run: Run, summary: Summary) -> None:
        """The run has ended, in whatever way."""


@dataclass(frozen=True)
class StartPoint:
    """Where a run starts.

    Attributes:
        checkpoint: the checkpoint that this process resumes from; None for a new run.
        before: what a resumed run had reached; None for a new run.
        is_known: whether there was a run of this name, with settings of its own.
        changed_settings: settings that are not what they were when the run was last started, as `name: old -> new`.
    """

    checkpoint: Path | None = None
    before: ResumedTotals | None = None
    is_known: bool = False
    changed_settings: tuple[str, ...] = ()

    @property
    def env_steps(self) -> int:
        """Environment steps that the run had trained."""
        return 0 if self.before is None else self.before.env_steps


class Run:
    """A run as its observers see it. The requests may be made from any thread.

    Attributes:
        config: its settings; hyperparameters that were changed have their new values.
        plan: what `auto` settings became.
        spec: the environment's spaces.
        folder: the run's folder.
        start: where it starts.
        env_steps: environment steps that were trained so far.
        stop_reason: why an observer stopped it; None if none did.
    """

    config: TrainConfig
    plan: ResourcePlan
    spec: EnvSpec
    folder: Path

    def __init__(self, observers: Sequence[Observer]) -> None:
        """The rest is known when the run begins."""
        self.start = StartPoint()
        self.env_steps = 0
        self.stop_reason: str | None = None
        self.time_table = ""
        """Where the time of all roles went, as lines of text; known at the end."""
        self.failure: RunFailed | None = None
        """What to end the run with because an observer raised; the exception is its cause."""
        self._observers = list(observers)
        self._listeners: dict[str, tuple[Observer, ...]] = {}
        self._requests: queue.SimpleQueue[Callable[[RunControl], None]] = queue.SimpleQueue()
        self._new_values = NO_CHANGES
        self.training_info: bytes | None = None
        """The newest dict for environments, packed."""
        self._sent_info: bytes | None = None

    def stop(self, reason: str = "") -> None:
        """Asks the run to end after the current pass over a dataset, and to save; the first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self._requests.put(lambda _: self.say(f"stopping: {reason}") if reason else None)

    def save(self) -> None:
        """Asks for a checkpoint after the current dataset."""
        self._requests.put(RunControl.ask_for_save)

    def save_best(self, mean_return: float) -> None:
        """Asks to save the current policy as the best so far (`checkpoints/best`)."""
        self._requests.put(functools.partial(RunControl.ask_for_best, mean_return=mean_return))

    def evaluate(self) -> None:
        """Asks for an evaluation of the newest policy: `eval_episodes` episodes, in a process of their own."""
        self._requests.put(RunControl.ask_for_evaluation)

    def set_hyperparameters(self, new_values: Hyperparameters) -> None:
        """Asks the learner, in all ranks, to take new values at the beginning of its next dataset.

        Raises:
            UsageError: a value is not possible, or this run does not read the setting.
        """
        new_values.check(self.config)
        self.config = new_values.apply_to(self.config)
        self._requests.put(lambda _: self._add(new_values))

    def set_training_info(self, info: Mapping[str, Any]) -> None:
        """Sends a dict to all environments that have a method `set_training_info`.

        They get it between two steps. It is sent again to environments that are recreated, and not saved: send it in
        `on_start` where a resumed run needs it.

        Raises:
            UsageError: it cannot be pickled, or is too large.
        """
        self.training_info = RunControl.pack_training_info(info)

    def add(self, observer: Observer) -> None:
        """Adds one that is told from now on."""
        self._observers.append(observer)
        self._listeners = {}

    def say(self, text: str) -> None:
        """Shows the user one sentence."""
        self.notify(Observer.on_message, text)

    def notify(self, event: Callable[Concatenate[Observer, Run, P], None], *args: P.args, **named: P.kwargs) -> None:
        """Calls a method of every observer that has it; one that raises is not called again, and ends the run."""
        name = event.__name__
        if name not in self._listeners:  # thousands of episodes a second may end, and nobody may listen
            having = (each for each in self._observers if getattr(type(each), name) is not getattr(Observer, name))
            self._listeners[name] = tuple(having)
        for observer in self._listeners[name]:
            try:
                getattr(observer, name)(self, *args, **named)
            except Exception as error:
                if observer in self._observers:  # it may have failed in another event meanwhile
                    self._observers.remove(observer)
                self._listeners = {}
                text = f"the callback {type(observer).__name__} failed: {type(error).__name__}: {error}"
                if self.failure is None:
                    self.failure = RunFailed(text, traceback.format_exc(), is_final=True)
                    self.failure.__cause__ = error

    @property
    def is_to_stop(self) -> bool:
        """Whether an observer has asked for the end, or has failed."""
        return self.stop_reason is not None or self.failure is not None

    def carry_out_requests(self, control: RunControl) -> None:
        """Passes on to the roles what was asked; called by the run's control loop."""
        while not self._requests.empty():
            self._requests.get()(control)
        info = self.training_info
        if info is not None and (info is not self._sent_info or control.num_training_infos == 0):  # 0: started again
            self._sent_info = info
            control.send_training_info(info)
        if self._new_values != NO_CHANGES and control.has_taken_hyperparameters:
            control.set_hyperparameters(self._new_values)
            self._new_values = NO_CHANGES

    def _add(self, new_values: Hyperparameters) -> None:
        """Waits with others until the learner has taken those before."""
        self._new_values = self._new_values.updated_by(new_values)
