"""The interface of observers: the events of a run, and what an observer can request of it.

    roles --reports--> Monitor --events--> Observer.on_...(run, ...)      in the process that started the run,
    roles <--words of the arena-- Run <--requests-- run.stop(), ...       between two waits of its control loop

No role waits for an observer. Each request takes effect at a defined point: a stop after the current pass over a
dataset, new hyperparameters at the start of a dataset, a message to environments between two of their steps.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import asyncrl.processes.one_blas_thread  # noqa: F401
from asyncrl.buffers.control import PolicyChange, RunControl, TrainingInfo
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.errors import UsageError
from asyncrl.config.fixed_settings import fixed_settings_digest
from asyncrl.config.flags import nearest
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.observers.reports import CheckpointReport, EpisodeRecord, EvaluationReport, Phase, Report, VideoReport
from asyncrl.observers.status import Record, Status
from asyncrl.observers.summary import ResumedTotals, Summary
from asyncrl.processes.children import RunFailed
from asyncrl.storage.run_folder import shown_path

if TYPE_CHECKING:  # it needs torch
    from asyncrl.run.setup import RunSetup

P = ParamSpec("P")

log = logging.getLogger("asyncrl")


class Observer:
    """Base class of callbacks: override the events that you need. Every method of this class does nothing.

    All events are called in the process and thread that called `Trainer.run`, so a slow observer delays other events
    but no sample. `run` has the settings and the state of the run, and methods that request something of it.

    An observer that raises is not called again: the run saves a checkpoint and ends (after `on_start` it ends before
    any process starts), and `Trainer.run` raises a `RunFailed` with the observer's exception as its cause. If the
    learner's process dies, the run restarts from its last checkpoint, and `on_end` and `on_start` are called once more.
    Of several ranks, rank 0 calls its observers.
    """

    def on_start(self, run: Run) -> None:
        """The run starts or resumes, before the first environment step; `run.start` says which, and from where."""

    def on_setup(self, run: Run, setup: RunSetup) -> None:
        """The shared memory of this start of the run exists, and no role has started yet."""

    def on_report(self, run: Run, report: Report) -> None:
        """A role has reported, and the run's state is up to date with it."""

    def on_metrics(self, run: Run, metrics: dict[str, float | None]) -> None:
        """The metrics of a record are collected; an observer may add its own, by their published names."""

    def on_status(self, run: Run, status: Status) -> None:
        """Progress of the run; called about four times a second."""

    def on_record(self, run: Run, record: Record) -> None:
        """A record of metrics, the same that `metrics.jsonl` gets, or that of an evaluation."""

    def on_episode(self, run: Run, episode: EpisodeRecord) -> None:
        """A training episode has ended. Workers report one to ten times a second, so episodes arrive in groups."""

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        """An evaluation has ended."""

    def on_video(self, run: Run, video: VideoReport) -> None:
        """A video was written (`--video_every_env_steps`), or could not be (`video.error`)."""

    def on_checkpoint(self, run: Run, checkpoint: CheckpointReport) -> None:
        """A checkpoint was saved, or could not be saved (`checkpoint.error`)."""

    def on_message(self, run: Run, text: str) -> None:
        """One sentence for the user, such as a warning about a damaged checkpoint. It may come before `on_start`."""

    def on_end(self, run: Run, summary: Summary) -> None:
        """The run has ended; `summary.status` says how."""


EVENTS = tuple(name for name in vars(Observer) if name.startswith("on_"))
_STABLE_BASELINES_EVENTS = {
    "on_step": "on_status",
    "on_rollout_end": "on_record",
    "on_training_start": "on_start",
    "on_training_end": "on_end",
}


def refuse_unknown_events(observer: Observer) -> None:
    """Checks that a callback has no method that is named like an event and is not one.

    Raises:
        UsageError: it has one, such as those of Stable-Baselines3.
    """
    kind = type(observer)
    for method in dir(kind):
        name = method.removeprefix("_")
        if name.startswith("on_") and method not in EVENTS and callable(getattr(kind, method)):
            near = _STABLE_BASELINES_EVENTS.get(name) or nearest(name, EVENTS)
            hint = f"; the nearest is {near}" if near else ""
            raise UsageError(
                f"The callback {kind.__name__} has a method {method}, but there is no such event{hint}. The events are "
                f"{', '.join(EVENTS)}. A method that is not meant as an event needs another name."
            )


@dataclass(frozen=True)
class StartPoint:
    """Where a run starts.

    Attributes:
        checkpoint: checkpoint from which this process resumes; None for a new run.
        checkpoints: of each of several policies the checkpoint from which it resumes; empty for a new run.
        before: totals that a resumed run had reached; None for a new run.
        is_known: whether a run of this name exists, with saved settings.
        changed_settings: settings that differ from those of the last start, as `name: old -> new`.
    """

    checkpoint: Path | None = None
    before: ResumedTotals | None = None
    is_known: bool = False
    changed_settings: tuple[str, ...] = ()
    checkpoints: tuple[Path | None, ...] = ()

    @property
    def env_steps(self) -> int:
        """Environment steps that were trained on before this start."""
        return 0 if self.before is None else self.before.env_steps

    @property
    def sentences(self) -> list[str]:
        """What the user is told of a run that exists already; nothing of a new one."""
        sentences = []
        if self.before is not None and self.checkpoint is not None:
            sentences.append(f"Resuming from {shown_path(self.checkpoint)} ({self.env_steps:,} steps).")
        elif self.is_known:
            sentences.append("No checkpoint yet: starting at step 0 with the settings in config.yaml.")
        if self.changed_settings:
            changes = "".join(f"\n  {change}" for change in self.changed_settings)
            sentences.append(f"Settings that change for this run from now on:{changes}")
        return sentences


class Run:
    """A run as its observers see it. The requests may be made from any thread.

    Attributes:
        config: settings, with the current values of hyperparameters that were changed.
        plan: number of workers, sizes and devices that follow from the settings and the machine.
        spec: observation and action space of the environment.
        folder: the run's folder.
        start: where the run started.
        env_steps: environment steps that were trained on so far.
        stop_reason: reason with which an observer stopped the run; None if none did.
        is_stopping: whether an observer has stopped the run or has raised an exception.
        failure: error with which the run ends because an observer raised; the exception is its cause.
        pruning: `optuna.TrialPruned` that an observer raised: the run stops, and `Trainer.run` raises it.
        phase_shares: share of each role's time that it spent in each phase, by role and phase, between the last
            two progress lines.
        draws_on_terminal: whether an observer draws there, so that messages must go through `say`.
        time_table: lines of text that say where the time of all roles went; known in `on_end`.
        training_info: the newest message to environments, pickled.
        policy_configs: the same as `config` of each of several policies.
        weights: the published weights of each policy, while the roles run.
    """

    config: TrainConfig
    plan: ResourcePlan
    spec: EnvSpec
    folder: Path

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Creates the run with its observers; `config`, `plan`, `spec` and `folder` are set before it starts."""
        self.start = StartPoint()
        self.env_steps = 0
        self.stop_reason: str | None = None
        self.is_stopping = False
        self.failure: RunFailed | None = None
        self.pruning: BaseException | None = None
        self.phase_shares: Mapping[tuple[str, Phase], float] = {}
        self.time_table = ""
        self.draws_on_terminal = False
        self.training_info: bytes | None = None
        self._sent_info: bytes | None = None
        self._told = TrainingInfo()
        self._told_lock = threading.Lock()
        self._observers = list(observers)
        self._listeners: dict[str, tuple[Observer, ...]] = {}
        self.policy_configs: list[TrainConfig] = []
        self.weights: list[WeightsChannel] = []
        self._requests: queue.SimpleQueue[Callable[[RunControl], None]] = queue.SimpleQueue()
        self._changes: dict[int, PolicyChange] = {}  # of each policy, not yet sent
        self._changes_lock = threading.Lock()

    def stop(self, reason: str = "") -> None:
        """Ends the run after the current pass over a dataset, with a checkpoint. The first reason is kept."""
        if self.stop_reason is None:
            self.stop_reason, self.is_stopping = reason, True
            self._requests.put(lambda _: self.say(f"stopping: {reason}") if reason else None)

    def save(self) -> None:
        """Saves a checkpoint after the current dataset."""
        self._requests.put(lambda control: control.ask_for_save())

    def save_best(self, mean_return: float) -> None:
        """Saves the current policy, the first of several, as the best so far, in `checkpoints/best`.

        Raises:
            UsageError: evaluations choose the best, in another process.
        """
        if self.config.best_metric == "eval":
            text = "save_best() is not possible where evaluations choose the best checkpoint"
            raise UsageError(f"{text}: give --save_best_metric=none to choose it yourself.")
        self._requests.put(lambda control: control.ask_for_best(mean_return))

    def evaluate(self) -> None:
        """Evaluates the newest policy, or each of several, in `eval_episodes` episodes, in a separate process."""
        self._requests.put(lambda control: control.ask_for_evaluation())

    def config_of(self, policy_idx: int) -> TrainConfig:
        """The settings of a policy, with the current values of hyperparameters that were changed."""
        return self.policy_configs[policy_idx] if self.policy_configs else self.config

    def set_hyperparameters(self, new_values: Hyperparameters, policy_idx: int | None = None) -> None:
        """Gives the learner new values; of several policies that of one policy, or all.

        It takes them at the start of its next dataset, in all ranks at the same one.

        Raises:
            UsageError: a value is out of range, or this run does not use the setting.
        """
        all_policies = range(max(1, len(self.policy_configs)))
        policies = all_policies if policy_idx is None else [policy_idx]
        for idx in policies:
            new_values.check(self.config_of(idx))
        if policy_idx is None:
            self.config = new_values.apply_to(self.config)
        for idx in policies if new_values.changes() else ():
            self.change_policy(idx, PolicyChange(new_values))

    def adopt_weights(self, policy_idx: int, source_idx: int) -> None:
        """Lets a policy continue with the newest weights and statistics of another one, from its next dataset on.

        Raises:
            UsageError: the run has no such policies, or they have different models.
        """
        text, count = f"Policy {policy_idx} cannot take over policy {source_idx}", len(self.policy_configs)
        if count == 0:
            raise UsageError(f"{text}: the run has one policy (--num_policies).")
        if not {policy_idx, source_idx} <= set(range(count)):
            raise UsageError(f"{text}: the run's policies are 0 to {count - 1}.")
        if (
            self.spec.spaces
            or len({fixed_settings_digest(self.config_of(idx)) for idx in (policy_idx, source_idx)}) > 1
        ):
            raise UsageError(f"{text}: they have different models.")
        self.change_policy(policy_idx, PolicyChange(Hyperparameters(), source_idx))

    def change_policy(self, policy_idx: int, change: PolicyChange) -> None:
        """Sends a change to the learner of a policy, together with what was not sent yet."""
        if self.policy_configs:
            self.policy_configs[policy_idx] = change.new_values.apply_to(self.policy_configs[policy_idx])
        else:
            self.config = change.new_values.apply_to(self.config)
        with self._changes_lock:
            waiting = self._changes.get(policy_idx)
            self._changes[policy_idx] = change if waiting is None else waiting.updated_by(change)

    def withdraw_turns(self) -> None:
        """Forgets turns that were not sent yet, before the run starts again from a checkpoint."""
        with self._changes_lock:
            self._changes = {idx: change for idx, change in self._changes.items() if change.turn is None}

    def set_training_info(self, info: Mapping[str, Any]) -> int:
        """Sends a dict to all environments that have a method `set_training_info`, between two of their steps.

        A recreated environment gets the newest dict before its first reset. Dicts are not saved: if a resumed run needs
        one, send it in `on_start`.

        Returns:
            The number of the message: `EpisodeRecord.training_info` of episodes that were wholly played with it.

        Raises:
            UsageError: the dict cannot be pickled, or has more than 32 KiB.
        """
        with self._told_lock:
            number = self._told.num_of_observers + 1
            self._tell(self._told._replace(of_observers=dict(info), num_of_observers=number))
        return number

    def set_reward_shaping(self, policy_idx: int, shaping: Mapping[str, float]) -> None:
        """Changes the factors of the reward of a policy, for each agent from its next episode on.

        They go to all environments that have a method `set_reward_shaping`.

        Args:
            policy_idx: number of the policy, 0 with one.
            shaping: values by the names of `spec.reward_shaping`; others keep their defaults.

        Raises:
            UsageError: the environment has no such factor.
        """
        defaults = dict(self.spec.reward_shaping)
        if unknown := [name for name in shaping if name not in defaults]:
            text = f"{self.spec.env_id} has no reward shaping {', '.join(map(repr, unknown))}"
            raise UsageError(f"{text}; it has: {', '.join(defaults) or 'none'}.")
        with self._told_lock:
            shapings = list(self._told.reward_shaping) or [defaults] * max(1, len(self.policy_configs))
            shapings[policy_idx] = {**defaults, **shaping}
            self._tell(self._told._replace(reward_shaping=tuple(shapings)))

    def _tell(self, info: TrainingInfo) -> None:
        self.training_info = RunControl.pack_training_info(info)
        self._told = info

    def add(self, observer: Observer) -> None:
        """Adds an observer, which gets all later events."""
        self._observers.append(observer)
        self._listeners = {}

    def say(self, text: str) -> None:
        """Shows the user one sentence."""
        self.notify(Observer.on_message, text)

    def notify(self, event: Callable[Concatenate[Observer, Run, P], None], *args: P.args, **named: P.kwargs) -> None:
        """Calls a method of every observer that overrides it. An observer that raises is removed and ends the run."""
        name = event.__name__
        if name not in self._listeners:  # thousands of episodes per second may end without a listener
            overriding = (each for each in self._observers if getattr(type(each), name) is not getattr(Observer, name))
            self._listeners[name] = tuple(overriding)
        for observer in self._listeners[name]:
            try:
                getattr(observer, name)(self, *args, **named)
            except (Exception, SystemExit) as error:  # exit() in a callback ends the run, not the process
                if observer in self._observers:  # it may have failed in a nested event
                    self._observers.remove(observer)
                self._listeners = {}
                if isinstance(error, getattr(sys.modules.get("optuna.exceptions"), "TrialPruned", ())):
                    self.pruning = error
                    self.stop(f"pruned: {error}".removesuffix(": "))
                    continue
                text = f"the callback {type(observer).__name__} failed: {type(error).__name__}: {error}"
                if self.failure is None:
                    self.failure = RunFailed(text, traceback.format_exc(), is_final=True)
                    self.failure.__cause__ = error
                    self.is_stopping = True

    def carry_out_requests(self, control: RunControl) -> None:
        """Passes the requests of observers on to the roles; called by the run's control loop."""
        while not self._requests.empty():
            self._requests.get()(control)
        if self._changes:
            with self._changes_lock:
                for policy_idx, learner in enumerate(control.learner_controls):
                    if policy_idx in self._changes and learner.has_taken_change:
                        learner.send_change(self._changes.pop(policy_idx))
        info = self.training_info
        if info is not None and (info is not self._sent_info or control.num_training_infos == 0):  # 0: restarted
            self._sent_info = info
            control.send_training_info(info)
