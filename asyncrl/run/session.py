"""One start of a run: settings checked, resumed or new, trained until it ends, started again if its learner dies.

Prints nothing and ends no process: what there is to say goes to the observers, what goes wrong is raised.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from types import TracebackType
from typing import Any

from asyncrl.buffers.control import RunControl
from asyncrl.config.env_maker import EnvMaker
from asyncrl.config.errors import UsageError
from asyncrl.config.hyperparameters import Hyperparameters, saved_hyperparameters
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.reports import CheckpointReport
from asyncrl.monitoring.summary import ResumedTotals, RunStatus, Summary
from asyncrl.observers.loading import load_callbacks
from asyncrl.observers.monitor import Monitor
from asyncrl.observers.observer import Observer, Run, StartPoint
from asyncrl.observers.writers import JsonLines, TensorBoard
from asyncrl.run import preflight, resuming
from asyncrl.run.result import RunResult
from asyncrl.runtime import run_folder
from asyncrl.runtime.checkpoint import CheckpointError, best_return, checkpoint_of, copy_as_best, latest, load_state
from asyncrl.runtime.peers import Peers
from asyncrl.runtime.processes import (
    LearnerDied,
    RunFailed,
    explain,
    process_context,
    refuse_to_run_while_imported,
    start_loading_modules,
)
from asyncrl.runtime.provenance import describe
from asyncrl.runtime.run_folder import RunFolder, default_experiment
from asyncrl.runtime.signals import StopAtOnce, StopSignals
from asyncrl.runtime.torchrun import next_rank

_NOTHING_TRAINED = (
    "Nothing was trained: the time limit of {:g} s ended the run before its first update. Give more time "
    "(--train_for_seconds) or make updates smaller (--batch_size, --num_batches_per_epoch)."
)
_LATE = (
    "warning: The time limit of {:g} s was exceeded, the run took {:.0f} s: an update ends only after a whole pass "
    "over its samples. Smaller updates end sooner (--batch_size, --num_batches_per_epoch)."
)

_OF_OTHER_RANKS: dict[str, Any] = {
    "quiet": True,
    "eval_every_env_steps": None,
    "save_best_metric": "none",
    "save_milestones_s": None,
    "init_from": None,
    "callbacks": [],
}
"""Settings of all ranks except the first, which shows progress, evaluates, saves and initializes for all."""


class EndedByFirstRank(RunFailed):
    """Rank 0 has nothing to train, or wrong settings, and says so; `exit_code` is what it ends with."""


class Session:
    """One start of a run, alone or as one of several ranks: rank 0 sends its settings to the others.

    Attributes:
        run: what observers see of it.
        folder: its folder, once `train` has begun.
        summary: how it ended, also where `train` raised.
        exit_code: what the other ranks are told, and a command returns, where nothing is raised.
    """

    def __init__(
        self,
        load: Callable[[], LoadedConfig],
        observers: Sequence[Observer] = (),
        env_maker: EnvMaker | None = None,
        *,
        started_at: float | None = None,
        answers_signals: bool = False,
    ) -> None:
        """Starts nothing.

        Args:
            load: reads the settings, on rank 0.
            observers: observers of rank 0, besides those that write the run's files.
            env_maker: makes environments on all ranks, where the settings name a callable.
            started_at: when the command was given (`time.monotonic`); now if None.
            answers_signals: whether Ctrl-C is answered on the terminal.
        """
        refuse_to_run_while_imported()
        self._load = load
        self._loaded: LoadedConfig | None = None
        self._observers = list(observers)
        self._env_maker = env_maker
        self._started_at = time.monotonic() if started_at is None else started_at
        self._answers_signals = answers_signals
        self._peers: Peers | None = None
        self._first_env_steps: int | None = None  # that the run has trained before, from rank 0
        self._hyperparameters = Hyperparameters()
        self.exit_code = 0
        self.folder: RunFolder | None = None
        self.summary: Summary | None = None

    def __enter__(self) -> Session:
        """Connects to the other ranks, if there are any."""
        address = next_rank()
        if address is not None:
            self._peers = Peers(address)
        self.run = Run([JsonLines(), TensorBoard(), *(self._observers if self.is_first_rank else ())])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tells the other ranks how this one has ended."""
        if self._peers is None:
            return
        code = self.exit_code if error is None else exit_code_of(error)
        if self.is_first_rank:
            self._peers.tell({"exit_code": code})  # unless there was something to run
        self._peers.left_with(code)
        self._peers.__exit__(kind, error if isinstance(error, RunFailed) else None, trace)

    @property
    def is_first_rank(self) -> bool:
        """Whether this process trains alone or is rank 0."""
        return self._peers is None or self._peers.is_first

    @property
    def loaded(self) -> LoadedConfig:
        """The settings, and where each came from."""
        assert self._loaded is not None
        return self._loaded

    def read_settings(self) -> LoadedConfig:
        """Reads the settings, or receives those of rank 0."""
        self._loaded = self._load() if self.is_first_rank else self._receive()
        return self._loaded

    def check(self, *, is_to_train: bool = True) -> preflight.Preflight:
        """Looks at everything before anything starts; `train` needs a result without problems.

        Args:
            is_to_train: whether `train` is to follow; processes begin to load their modules.
        """
        loaded = self._loaded or self.read_settings()
        self._context = process_context(() if self._peers is None else ("asyncrl.runtime.own_group",))
        if is_to_train and not loaded.problems and not loaded.config.serial_mode:
            start_loading_modules(self._context)
        self._checked = preflight.run(loaded, self._machine(), is_first_rank=self.is_first_rank)
        if not self.is_first_rank:
            self._checked = dataclasses.replace(self._checked, warnings=())  # those of the first rank are shown
        self._loaded = dataclasses.replace(loaded, config=self._checked.config)
        return self._checked

    def _receive(self) -> LoadedConfig:
        assert self._peers is not None
        told = self._peers.ask()
        if "exit_code" in told:
            raise EndedByFirstRank("rank 0 has not started the run", exit_code=int(told["exit_code"]))
        self._first_env_steps = told["env_steps"]
        self._hyperparameters = Hyperparameters(**told["hyperparameters"])
        config = TrainConfig.model_validate(told["config"]).model_copy(update=_OF_OTHER_RANKS)
        if self._env_maker is not None and config.env == self._env_maker:
            config = config.model_copy(update={"env": self._env_maker})
        return LoadedConfig(config, dict.fromkeys(TrainConfig.model_fields, "rank 0"))

    def _machine(self) -> Machine:
        machine = Machine.detect()
        if self._peers is None:
            return machine
        address = self._peers.address
        return dataclasses.replace(
            machine,
            num_ranks=address.num_ranks,
            num_local_ranks=address.num_local_ranks,
            local_rank=address.local_rank,
        )

    def train(self) -> RunResult:
        """Trains, and starts again from the last checkpoint when the learner's process has died.

        Raises:
            UsageError: the run's folder, checkpoint or callbacks cannot be used.
            CheckpointError: no checkpoint of a resumed run can be used.
            RunFailed: the run could not continue.
            StopAtOnce: the user asked a second time.
        """
        spec = self._checked.spec
        assert spec is not None
        config = self.loaded.config
        if config.experiment is None:
            config = config.model_copy(update={"experiment": self._new_experiment(config)})
        self._loaded = dataclasses.replace(self.loaded, config=config)
        for observer in load_callbacks(config.callbacks):
            self.run.add(observer)
        is_silent = not (self._answers_signals and self.is_first_rank)
        with self._open_folder(config) as folder, StopSignals(is_silent) as stop:
            self.folder = folder
            attempt = _Attempt(
                self.run,
                self.loaded,
                self._checked.plan,
                spec,
                self._context,
                folder,
                stop,
                self._peers,
                self._first_env_steps,
                self._hyperparameters,
                says_stop=self.is_first_rank and not self._answers_signals,
            )
            started_at, num_deaths = self._started_at, 0
            while True:
                try:
                    result = attempt.train(started_at)
                    self.summary = attempt.summary
                    self.exit_code = 0 if result.stop_signal is None else 128 + result.stop_signal
                    return result
                except RunFailed as failure:
                    self.summary = attempt.summary
                    died = isinstance(failure, LearnerDied) and not stop.was_asked
                    if not died or num_deaths == config.max_learner_restarts:
                        if self._peers is not None:
                            failure = self._peers.explain(failure)
                        raise failure from failure.__cause__
                    where = "at step 0" if latest(folder.checkpoints) is None else "from its last checkpoint"
                    self.run.say(f"{failure.summary}; the run restarts {where}")
                except StopAtOnce:
                    self.summary = attempt.summary
                    raise
                num_deaths += 1
                started_at = time.monotonic()
                gc.collect()  # the shared memory of the attempt that failed

    @staticmethod
    def _new_experiment(config: TrainConfig) -> str:
        """A name of environment, algorithm and time that no run has yet: a program may start several in a second."""
        name = default_experiment(config.env_id, config.algo)
        number, unused = 1, name
        while run_folder.run_path(config.train_dir, unused).exists():
            number += 1
            unused = f"{name}_{number}"
        return unused

    def _open_folder(self, config: TrainConfig) -> RunFolder:
        """The run's folder; that of another rank lies in it, on whatever machine."""
        assert config.experiment is not None
        if self._peers is None or self._peers.is_first:
            return RunFolder.create(config.train_dir, config.experiment, config.restart_behavior)
        folder = run_folder.run_path(config.train_dir, config.experiment) / run_folder.RANKS
        behavior: run_folder.RestartBehavior = "overwrite" if self._first_env_steps is None else "resume"
        return RunFolder.create(str(folder), str(self._peers.address.rank), behavior)


def exit_code_of(error: BaseException) -> int:
    """What a command returns for an exception: 2 for the user's mistakes, that of the run's failure, or 1."""
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, (RunFailed, StopAtOnce)):
        return error.exit_code
    return 130 if isinstance(error, KeyboardInterrupt) else 1


@dataclass
class _Attempt:
    """Everything that a run is started with, and restarted from its last checkpoint when its learner has died.

    `num_restarts` counts restarts of processes in the earlier attempts, those of the learner included.
    `hyperparameters` are the changes that an observer made before the checkpoint from which the run resumes.
    `says_stop`: observers hear of the first Ctrl-C, which nobody answers on the terminal.
    """

    run: Run
    loaded: LoadedConfig
    plan: ResourcePlan
    spec: EnvSpec
    context: BaseContext
    folder: RunFolder
    stop: StopSignals
    peers: Peers | None
    first_env_steps: int | None
    hyperparameters: Hyperparameters
    says_stop: bool
    num_restarts: int = 0
    summary: Summary | None = None

    def train(self, started_at: float) -> RunResult:
        """Resumes from the newest checkpoint, or starts.

        Raises:
            RunFailed: the run could not continue.
            StopAtOnce: the user asked a second time.
        """
        self.summary = None
        config, folder, run = self.loaded.config, self.folder, self.run
        run.config, run.plan, run.spec, run.folder = config, self.plan, self.spec, folder.path
        if self._is_told:
            run.start = self._start_as_told()
        else:
            resumption = self._find_checkpoint()
            if resumption is not None and (limit := _reached_limit(config, resumption)) is not None:
                return RunResult(_saved_summary(folder, resumption), config, folder.path, nothing_to_do=limit)
            run.start = self._start_from(resumption)
            if resumption is not None:
                self.hyperparameters = saved_hyperparameters(load_state(resumption.checkpoint), config)
            if self.peers is not None:
                env_steps = None if resumption is None else resumption.env_steps
                told = {"config": config.model_dump(mode="json"), "env_steps": env_steps}
                self.peers.tell({**told, "hyperparameters": self.hyperparameters.changes()})
        run.config = self.hyperparameters.apply_to(config)
        folder.forget_after(-1 if run.start.before is None else run.start.env_steps)
        folder.write_config(config)
        folder.write_environment({**describe(self.plan.device), "num_ranks": self.plan.num_ranks})
        monitor = Monitor(
            run,
            started_at=started_at,
            restarts=self.num_restarts,
            training_returns_mislead=preflight.training_returns_mislead(config, self.spec),
        )
        try:
            run.notify(Observer.on_start)
            return self._train(monitor)
        except StopAtOnce:
            self.summary = monitor.finish("interrupted", error="stopped at once, without saving")
            raise
        except RunFailed as failure:
            if self.summary is None:
                self.summary = monitor.finish("failed", error=failure.summary)
            self.num_restarts = monitor.num_restarts + 1
            raise

    @property
    def _is_told(self) -> bool:
        return self.peers is not None and not self.peers.is_first

    def _find_checkpoint(self) -> resuming.Resumption | None:
        resumption = resuming.find_checkpoint(self.folder.checkpoints, self.spec)
        resuming.check_replay(resumption, self.plan)
        for sentence in () if resumption is None else resumption.skipped:
            self.run.say(f"warning: {sentence}")
        return resumption

    def _start_from(self, resumption: resuming.Resumption | None) -> StartPoint:
        saved = self.loaded.saved
        changes = () if saved is None else tuple(map(str, resuming.changes(saved, self.loaded.config)))
        if resumption is None:
            return StartPoint(is_known=saved is not None, changed_settings=changes)
        best = best_return(self.folder.checkpoints)
        before = ResumedTotals(resumption.env_steps, resumption.elapsed_s, best, resumption.worker_env_steps)
        return StartPoint(resumption.checkpoint, before, True, changes)

    def _start_as_told(self) -> StartPoint:
        """Starts where rank 0 does; a checkpoint of this rank has its own samples only."""
        env_steps = self.first_env_steps
        if env_steps is None:
            return StartPoint()
        return StartPoint(checkpoint_of(self.folder.checkpoints, env_steps), ResumedTotals(env_steps))

    def _train(self, monitor: Monitor) -> RunResult:
        # The runner needs torch, whose import is slow: whatever ends a command before this point ends it quickly.
        from asyncrl.run import runner
        from asyncrl.run.setup import RunSetup

        run, config, plan, folder = self.run, self.loaded.config, self.plan, self.folder
        stop, peers = self.stop, self.peers
        setup = RunSetup.create(
            config,
            plan,
            self.spec,
            folder.checkpoints,
            run.start.checkpoint,
            rank=None if peers is None else peers.address,
            first_env_steps=run.start.env_steps,
            hyperparameters=self.hyperparameters,
        )

        def turn(control: RunControl) -> bool:
            monitor.tick(control)
            new_best = None if self._is_told else monitor.take_new_best()
            if new_best is not None:
                control.ask_for_best(new_best)
            if stop.was_asked and self.says_stop:
                self.says_stop = False
                run.say("stopping after the current update, then saving")
            run.carry_out_requests(control)
            if peers is not None:
                peers.check()
                run.training_info = peers.share(run.training_info)
            return stop.check() or run.is_stopping

        try:
            run.carry_out_requests(setup.control)  # those of on_start, before an environment is reset
            if plan.serial_mode:
                outcome = runner.run_serial(setup, monitor.handle, turn)
            else:
                outcome = runner.run_parallel(setup, self.context, folder.log, monitor.handle, turn)
        except (RunFailed, StopAtOnce):
            raise
        except Exception as error:
            raise explain("runner", error) from error
        finally:
            setup.arena.close()
        best = None if self._is_told else monitor.best_so_far
        if best is not None and outcome.checkpoint is not None:
            _save_best(Path(outcome.checkpoint), outcome.env_steps, folder, best, monitor)
        limit_s = config.train_for_seconds
        mistake = outcome.error
        if limit_s is not None and outcome.is_complete and outcome.env_steps == 0:
            mistake = mistake or _NOTHING_TRAINED.format(limit_s)
        elif limit_s is not None and outcome.elapsed_s > 1.1 * limit_s + 1.0 and not self._is_told:
            monitor.say(_LATE.format(limit_s, outcome.elapsed_s))
        was_stopped = run.stop_reason is not None and not stop.was_asked
        status: RunStatus = "completed" if outcome.is_complete else "stopped" if was_stopped else "interrupted"
        if run.failure is not None:
            mistake = run.failure.summary
        self.summary = monitor.finish(
            status if mistake is None else "failed",
            env_steps=outcome.env_steps,
            checkpoint=outcome.checkpoint,
            error=mistake,
        )
        if run.failure is not None:
            raise run.failure
        if mistake is not None:
            raise RunFailed(mistake, is_final=True)
        interrupting = None if outcome.is_complete or not stop.was_asked else stop.exit_code - 128
        return RunResult(self.summary, run.config, folder.path, run.stop_reason, interrupting)


def _saved_summary(folder: RunFolder, resumption: resuming.Resumption) -> Summary:
    try:
        saved = Summary(**json.loads(folder.summary.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # the run was killed after its last checkpoint
        saved = Summary("completed", checkpoint=str(resumption.checkpoint))
    return dataclasses.replace(saved, status="completed", env_steps=resumption.env_steps)


def _reached_limit(config: TrainConfig, resumption: resuming.Resumption) -> str | None:
    """The limit that a run has already reached, with the flag that extends it; None if training is left to do."""
    if resumption.env_steps >= config.train_for_env_steps and resumption.updates_due == 0:
        return f"{resumption.env_steps:,} steps. Give a larger --train_for_env_steps"
    if config.train_for_seconds is not None and resumption.elapsed_s >= config.train_for_seconds:
        return f"{resumption.elapsed_s:,.0f} s of training. Give a larger --train_for_seconds"
    return None


def _save_best(path: Path, env_steps: int, folder: RunFolder, mean_return: float, monitor: Monitor) -> None:
    """Keeps the last checkpoint as the best if the last training episodes are the best."""
    try:
        best = copy_as_best(path, folder.checkpoints, mean_return)
    except CheckpointError as error:
        monitor.say(str(error))
        return
    monitor.handle(CheckpointReport(str(best), env_steps, None, "best", mean_return))
