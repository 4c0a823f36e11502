"""One start of a run, from its settings to its result; the command line and `Trainer` share it.

    read_settings   rank 0 reads the settings, other ranks receive them
    check           settings, environment and memory; nothing has started yet
    train           opens the folder, then trains; trains again from the last checkpoint if the learner dies
      _train_once   finds the checkpoint and tells the observers that the run starts
      _run_roles    runs all roles, steers them between two waits of the runner, and writes the summary

A session prints nothing and does not exit: messages go to the observers, failures are raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config import fixed_settings
from asyncrl.config.env_maker import EnvMaker
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import hooks, load
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.machine import Machine
from asyncrl.config.schema import TrainConfig
from asyncrl.modes.choice import mode_of
from asyncrl.observers.episodes import EpisodeStatistics, read_episodes
from asyncrl.observers.loading import load_callbacks
from asyncrl.observers.monitor import Monitor
from asyncrl.observers.observer import Observer, Run, StartPoint
from asyncrl.observers.reports import CheckpointReport
from asyncrl.observers.summary import ResumedTotals, RunStatus, Summary
from asyncrl.observers.trackers import load_trackers
from asyncrl.observers.writers import EpisodesCsv, JsonLines, TensorBoard
from asyncrl.processes.children import (
    LearnerDied,
    RunFailed,
    allow_descriptors,
    explain,
    process_context,
    start_loading_modules,
)
from asyncrl.processes.forks import has_lost_threads
from asyncrl.processes.main_guard import refuse_to_run_while_imported
from asyncrl.processes.peers import Peers
from asyncrl.processes.signals import StopAtOnce, StopSignals
from asyncrl.processes.torchrun import next_rank
from asyncrl.run import preflight, resuming
from asyncrl.run.result import RunResult
from asyncrl.run.spec_warnings import training_returns_mislead
from asyncrl.storage import run_folder
from asyncrl.storage.checkpoint import (
    CheckpointError,
    best_return,
    checkpoint_of,
    copy_as_best,
    latest,
    load_hyperparameters,
    load_state,
)
from asyncrl.storage.locating import checkpoint_folders
from asyncrl.storage.provenance import describe
from asyncrl.storage.run_folder import RunFolder, default_experiment

if TYPE_CHECKING:
    from asyncrl.learner.worker import LearnerOutcome

_MOST_DESCRIPTORS = 4096  # of a run with as many workers as are possible
NOTHING_TRAINED = "Nothing was trained"
_TOO_SHORT = (
    NOTHING_TRAINED + ": the time limit of {:g} s ended the run before its first update. Give more time "
    "(--train_for_seconds) or make updates smaller (--batch_size, --num_batches_per_epoch)."
)
_NO_UPDATE = (
    NOTHING_TRAINED
    + ": the run has collected {:,} environment steps, enough for its first update, and made no update. "
    "The logs of its processes (logs in its folder) may say why."
)
_LATE = (
    "warning: The time limit of {:g} s was exceeded, the run took {:.0f} s: an update ends only after a whole pass "
    "over its samples. Smaller updates end sooner (--batch_size, --num_batches_per_epoch)."
)

_SETTINGS_OF_OTHER_RANKS: dict[str, Any] = {
    "quiet": True,
    "eval_every_env_steps": None,
    "video_every_env_steps": None,
    "save_best_metric": "none",
    "save_milestones_s": None,
    "init_from": None,
    "callbacks": [],
    "track": [],
}
"""Only rank 0 shows progress, evaluates, saves and initializes the weights of all ranks."""


class EndedByFirstRank(RunFailed):
    """Rank 0 does not start the run and reports the reason; `exit_code` is that of rank 0."""


class Session:
    """One start of a run, alone or as one of several ranks.

    Attributes:
        run: the run as observers see it.
        is_first_rank: whether this process trains alone or is rank 0.
        loaded: the settings and their sources, after `read_settings`.
        folder: the run's folder; None before `train`.
        summary: how the run ended, also after `train` raised.
        exit_code: for the other ranks, and of the command, if nothing is raised.
    """

    loaded: LoadedConfig

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
            observers: observers of rank 0, in addition to those that write the run's files.
            env_maker: makes environments on all ranks, if the settings name a callable.
            started_at: time at which the command was given (`time.monotonic`); now if None.
            answers_signals: whether the first Ctrl-C is answered on the terminal, and not by a message to observers.
        """
        refuse_to_run_while_imported()
        self._load = load
        self._observers = list(observers)
        self._env_maker = env_maker
        self._started_at = time.monotonic() if started_at is None else started_at
        self._answers_signals = answers_signals
        self._before: ResumedTotals | None = None  # of a resumed run; on other ranks received from rank 0
        self._hyperparameters = Hyperparameters()  # changes made by observers before the checkpoint
        self._starts_of_policies: tuple[tuple[Path | None, int], ...] = ()
        self.has_shown_failure = False  # a warning had the traceback of the failure that ended the run
        self._num_restarts = 0  # of processes in earlier attempts, including the learner's
        self._has_said_stopping = False
        self.exit_code = 0
        self.folder: RunFolder | None = None
        self.summary: Summary | None = None

    def __enter__(self) -> Session:
        """Connects to the other ranks, if there are any."""
        address = next_rank()
        self._peers = None if address is None else Peers(address)
        self.is_first_rank = self._peers is None or self._peers.is_first
        self.run = Run([JsonLines(), TensorBoard(), *(self._observers if self.is_first_rank else ())])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Reports to the other ranks how this one has ended."""
        if self._peers is None:
            return
        code = self.exit_code if error is None else exit_code_of(error)
        if self.is_first_rank:
            self._peers.send_settings({"exit_code": code})  # has no effect if the settings were sent
        self._peers.record_exit_code(code, was_stopped_at_once=isinstance(error, KeyboardInterrupt))
        self._peers.__exit__(kind, error if isinstance(error, RunFailed) else None, trace)

    def read_settings(self) -> LoadedConfig:
        """Reads the settings, or receives those of rank 0."""
        self.loaded = self._load() if self.is_first_rank else self._receive()
        return self.loaded

    def _receive(self) -> LoadedConfig:
        assert self._peers is not None
        received = self._peers.receive_settings()
        if "exit_code" in received:
            raise EndedByFirstRank("rank 0 has not started the run", exit_code=int(received["exit_code"]))
        if received["env_steps"] is not None:
            self._before = ResumedTotals(received["env_steps"], received["elapsed_s"], received["elapsed_s"])
        self._hyperparameters = Hyperparameters(**received["hyperparameters"])
        config = TrainConfig.from_saved(received["config"]).model_copy(update=_SETTINGS_OF_OTHER_RANKS)
        if self._env_maker is not None and config.env == self._env_maker:
            config = config.model_copy(update={"env": self._env_maker})
        return LoadedConfig(config, dict.fromkeys(type(config).model_fields, "rank 0"))

    def check(self, *, is_to_train: bool = True) -> preflight.Preflight:
        """Checks the settings that were read, environment and memory; `train` needs a result without problems.

        Args:
            is_to_train: whether `train` follows; the fork server then loads its modules during the checks.
        """
        loaded = self.loaded
        self._context = process_context(() if self._peers is None else ("asyncrl.processes.own_group",))
        if is_to_train and not loaded.problems and not loaded.config.serial_mode:
            allow_descriptors(_MOST_DESCRIPTORS)  # the fork server passes the limit on
            with contextlib.suppress(OSError):  # the checks say why
                start_loading_modules(self._context)
        machine = Machine.detect()
        if self._peers is not None:
            own = self._peers.address
            machine = dataclasses.replace(
                machine, num_ranks=own.num_ranks, num_local_ranks=own.num_local_ranks, local_rank=own.local_rank
            )
        self._checked = preflight.run(loaded, machine, is_first_rank=self.is_first_rank, say=self.run.say)
        if not self.is_first_rank:
            self._checked = dataclasses.replace(self._checked, warnings=())  # rank 0 shows its own
        self.loaded = self._checked.loaded
        return self._checked

    def train(self) -> RunResult:
        """Trains, and trains again from the last checkpoint when the learner's process has died.

        Raises:
            UsageError: the run's folder, checkpoint or callbacks cannot be used.
            CheckpointError: no checkpoint of a resumed run can be used.
            RunFailed: the run could not continue.
            StopAtOnce: the user asked for a stop a second time.
        """
        config, peers = self.loaded.config, self._peers
        if config.experiment is None:
            config = config.model_copy(update={"experiment": _unused_experiment(config)})
            self.loaded = dataclasses.replace(self.loaded, config=config)
        makers = hooks("OBSERVERS").values() if self.is_first_rank else ()
        made = (load(maker)(config) for maker in makers)
        own: list[Observer] = [observer for observer in made if observer is not None]
        if config.episodes_csv:
            own.append(EpisodesCsv())
        for observer in (*own, *load_callbacks(config.callbacks), *load_trackers(config.track)):
            self.run.add(observer)
        is_silent = not self._answers_signals or not self.is_first_rank
        started_at, num_deaths = self._started_at, 0
        with self._open_folder(config) as self.folder, StopSignals(is_silent) as stop:
            while True:
                try:
                    result = self._train_once(config, self.folder, stop, started_at)
                    self.exit_code = 0 if result.stop_signal is None else 128 + result.stop_signal
                    return result
                except RunFailed as failure:
                    is_death = isinstance(failure, LearnerDied) and not stop.was_asked
                    if not is_death or num_deaths == config.max_learner_restarts:
                        failure = failure if peers is None else peers.explain(failure)
                        raise failure from failure.__cause__
                    folders = checkpoint_folders(self.folder.checkpoints, config.num_policies)
                    where = "at step 0" if latest(folders[0]) is None else "from its last checkpoint"
                    self.run.say(f"{failure.summary}; the run restarts {where}")
                num_deaths += 1
                started_at = time.monotonic()
                gc.collect()  # the shared memory of the attempt that failed

    def _open_folder(self, config: TrainConfig) -> RunFolder:
        """The run's folder; other ranks have a folder inside it, on their own machine."""
        assert config.experiment is not None
        if self._peers is None or self.is_first_rank:
            return RunFolder.create(config.train_dir, config.experiment, config.restart_behavior)
        folder = run_folder.run_path(config.train_dir, config.experiment) / run_folder.RANKS
        behavior: run_folder.RestartBehavior = "overwrite" if self._before is None else "resume"
        return RunFolder.create(str(folder), str(self._peers.address.rank), behavior)

    def _train_once(self, config: TrainConfig, folder: RunFolder, stop: StopSignals, started_at: float) -> RunResult:
        """Starts, or resumes from the newest checkpoint, and trains until a limit, an observer, a user or a failure."""
        run, plan, spec, peers = self.run, self._checked.plan, self._checked.spec, self._peers
        assert spec is not None
        if plan.serial_mode and plan.learner_threads > 1 and has_lost_threads():
            run.say("warning: This process was forked from one that has loaded PyTorch: the learner uses one thread.")
            plan = dataclasses.replace(plan, learner_threads=1)
        self.summary = None
        run.config, run.plan, run.spec, run.folder = config, plan, spec, folder.path
        if self.is_first_rank:
            resumption = resuming.find_checkpoint(folder.checkpoints, spec, plan, config.maps_policies)
            for sentence in () if resumption is None else resumption.skipped:
                run.say(f"warning: {sentence}")
            if resumption is not None:
                if (limit := _reached_limit(config, resumption)) is not None:
                    run.say(f"Nothing to do: the run already has {limit}.")
                    summary = _saved_summary(folder, resumption, plan.num_workers)
                    return RunResult(summary, config, folder.path, nothing_to_do=limit)
                if plan.num_policies == 1:
                    self._hyperparameters = load_hyperparameters(resumption.checkpoint, config)
                self._starts_of_policies = resumption.of_policies
            run.start = self._start_point(config, folder, resumption)
            for sentence in () if config.quiet else run.start.sentences:
                run.say(sentence)
            if peers is not None:
                settings = {
                    "config": config.model_dump(mode="json"),
                    "env_steps": None if resumption is None else resumption.env_steps,
                    "elapsed_s": 0.0 if resumption is None else resumption.elapsed_s,
                    "hyperparameters": self._hyperparameters.changes(),
                }
                peers.send_settings(settings)
        elif self._before is None:
            run.start = StartPoint()
        else:  # the checkpoint of this rank has its own samples only
            run.start = StartPoint(checkpoint_of(folder.checkpoints, self._before.env_steps), self._before)
        run.config = self._hyperparameters.apply_to(config)
        run.policy_configs = []
        if plan.num_policies > 1:
            starts = self._starts_of_policies or ((None, 0),) * plan.num_policies
            own_configs = [config.for_policy(idx) for idx in range(plan.num_policies)]
            run.policy_configs = [
                load_hyperparameters(path, own).apply_to(own)
                for (path, _), own in zip(starts, own_configs, strict=True)
            ]
        folder.forget_after(-1 if run.start.before is None else run.start.env_steps)
        folder.write_config(config)
        folder.write_json(folder.environment, {**describe(plan.device), "num_ranks": plan.num_ranks})
        monitor = Monitor(
            run,
            started_at=started_at,
            restarts=self._num_restarts,
            training_returns_mislead=training_returns_mislead(config, spec),
        )
        try:
            run.notify(Observer.on_start)
            if run.failure is not None:
                raise run.failure
            return self._run_roles(config, folder, stop, monitor)
        except StopAtOnce:
            self.summary = monitor.finish("interrupted", error="stopped at once, without saving")
            raise
        except RunFailed as failure:
            if self.summary is None:
                self.summary = monitor.finish("failed", error=failure.summary)
            self._num_restarts = monitor.num_restarts + 1
            self.has_shown_failure = monitor.has_shown(failure.details)
            raise

    def _start_point(
        self, config: TrainConfig, folder: RunFolder, resumption: resuming.Resumption | None
    ) -> StartPoint:
        saved = self.loaded.saved
        changes = () if saved is None else tuple(map(str, fixed_settings.changes(saved, config)))
        if resumption is None:
            return StartPoint(is_known=saved is not None, changed_settings=changes)
        folders = checkpoint_folders(folder.checkpoints, config.num_policies)
        bests = tuple(best_return(each, config) for each in folders)
        shown_s = max(resumption.elapsed_s, folder.elapsed_s(resumption.env_steps))
        before = ResumedTotals(resumption.env_steps, resumption.elapsed_s, shown_s, bests, resumption.worker_env_steps)
        starts = tuple(path for path, _ in resumption.of_policies)
        return StartPoint(resumption.checkpoint, before, True, changes, starts)

    def _run_roles(self, config: TrainConfig, folder: RunFolder, stop: StopSignals, monitor: Monitor) -> RunResult:
        # The runner needs torch, whose import takes a second: mistakes are reported before.
        from asyncrl.run import runner
        from asyncrl.run.setup import RunSetup

        run, peers = self.run, self._peers
        setup = RunSetup.create(
            config,
            run.plan,
            run.spec,
            folder.checkpoints,
            run.start.checkpoint,
            rank=None if peers is None else peers.address,
            first_env_steps=run.start.env_steps,
            policy_starts=self._starts_of_policies,
            hyperparameters=self._hyperparameters,
            attempt=self._num_restarts,
        )
        run.weights = [WeightsChannel(setup.for_policy(idx).arena) for idx in range(run.plan.num_policies)]

        steer = functools.partial(self._steer, stop, monitor)
        try:
            run.notify(Observer.on_setup, setup)
            if run.failure is not None:
                raise run.failure
            run.carry_out_requests(setup.control)  # requests of on_start, before an environment is reset
            if peers is not None:
                peers.runner_learns = run.plan.serial_mode
            if run.plan.serial_mode:
                outcome = runner.run_serial(setup, monitor.handle, steer)
            else:
                outcome = runner.run_parallel(setup, self._context, folder.log, monitor.handle, steer)
        except (RunFailed, StopAtOnce):
            raise
        except Exception as error:
            raise explain("runner", error) from error
        finally:
            if peers is not None:
                peers.runner_learns = False
            run.weights = []
            setup.arena.close()
        return self._finish(config, folder, stop, monitor, outcome)

    def _steer(self, stop: StopSignals, monitor: Monitor, control: RunControl) -> None:
        """Shows progress, and passes on what observers, signals and other ranks ask for."""
        run, peers = self.run, self._peers
        monitor.tick(control)
        for policy_idx, mean_return in monitor.take_new_bests().items():
            control.ask_for_best(mean_return, policy_idx)
        if run.draws_on_terminal:  # what a signal handler writes would break the drawing
            stop.is_silent = True
        is_asked_to_stop = stop.check()
        if is_asked_to_stop and not self._has_said_stopping:
            self._has_said_stopping = True
            if self.is_first_rank and not stop.was_answered:
                run.say(stop.answer if self._answers_signals else "stopping after the current update, then saving")
        run.carry_out_requests(control)
        if peers is not None:
            peers.check()
            run.training_info = peers.share(run.training_info)
        if is_asked_to_stop or run.is_stopping:
            control.request_stop()

    def _finish(
        self, config: TrainConfig, folder: RunFolder, stop: StopSignals, monitor: Monitor, outcome: LearnerOutcome
    ) -> RunResult:
        """Saves each policy whose last episodes are its best, and writes the summary of a run that has ended.

        Raises:
            RunFailed: an observer raised, a checkpoint could not be saved, or nothing was trained.
        """
        run = self.run
        for policy_idx, of_policy in enumerate(outcome.of_policies or [outcome]):
            best = monitor.best_so_far(policy_idx)
            if best is None or of_policy.checkpoint is None:
                continue
            newest = Path(of_policy.checkpoint)
            try:
                path = str(copy_as_best(newest, newest.parent, best))
            except CheckpointError as error:
                run.say(str(error))
            else:
                monitor.handle(CheckpointReport(path, of_policy.env_steps, None, "best", best, policy_idx))
        limit_s, error_text = config.train_for_seconds, outcome.error
        if limit_s is not None and outcome.is_complete and outcome.env_steps == 0:
            error_text = error_text or _TOO_SHORT.format(limit_s)
        elif limit_s is not None and outcome.elapsed_s > 1.1 * limit_s + 1.0 and self.is_first_rank:
            run.say(_LATE.format(limit_s, outcome.elapsed_s))
        is_untrained = (
            outcome.is_complete
            and monitor.num_updates == 0
            and not config.debug_skip_training
            and mode_of(run.plan).is_past_warm_up(run.plan, outcome.env_steps)
        )
        if error_text is None and is_untrained:
            error_text = _NO_UPDATE.format(outcome.env_steps)
        if run.failure is not None:
            error_text = run.failure.summary
        was_stopped = run.stop_reason is not None and not stop.was_asked
        status: RunStatus = "completed" if outcome.is_complete else "stopped" if was_stopped else "interrupted"
        self.summary = monitor.finish(
            status if error_text is None else "failed",
            env_steps=outcome.env_steps,
            checkpoint=outcome.checkpoint,
            error=run.stop_reason if error_text is None and run.pruning is not None else error_text,
        )
        if run.failure is not None:
            raise run.failure
        if error_text is not None:
            raise RunFailed(error_text, is_final=True)
        stop_signal = None if outcome.is_complete or not stop.was_asked else stop.exit_code - 128
        return RunResult(self.summary, run.config, folder.path, run.stop_reason, stop_signal)


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command for an exception: 2 for a mistake of the user, that of the failed run, or 1."""
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, (RunFailed, StopAtOnce)):
        return error.exit_code
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _unused_experiment(config: TrainConfig) -> str:
    """A name of environment, algorithm and time that no run has: a program may start several runs in one second."""
    name = unused = default_experiment(config.env_id, config.algorithm.name)
    number = 1
    while run_folder.run_path(config.train_dir, unused).exists():
        number += 1
        unused = f"{name}_{number}"
    return unused


def _saved_summary(folder: RunFolder, resumption: resuming.Resumption, num_workers: int) -> Summary:
    """The summary of a run that has reached its limit; writes it if the run was killed after its last checkpoint."""
    try:
        saved = Summary(**json.loads(folder.summary.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # there is no summary, or it is not a whole one
        saved = None
    if saved is not None:
        return dataclasses.replace(saved, status="completed", env_steps=resumption.env_steps)
    state = load_state(resumption.checkpoint)
    episodes = EpisodeStatistics(recent=read_episodes(folder.episodes)[0])
    summary = Summary(
        "completed",
        num_workers=num_workers,
        env_steps=resumption.env_steps,
        num_updates=int(state.get("policy_version", 0)) - int(state.get("versions_left_out", 0)),
        wall_s=round(resumption.elapsed_s, 3),
        elapsed_s=round(resumption.elapsed_s, 3),
        ep_rew_mean=episodes.mean_return,
        ep_len_mean=episodes.mean_length,
        best_return=best_return(resumption.checkpoint.parent),
        checkpoint=str(resumption.checkpoint),
    )
    folder.write_json(folder.summary, dataclasses.asdict(summary))
    return summary


def _reached_limit(config: TrainConfig, resumption: resuming.Resumption) -> str | None:
    """The limit that the run has already reached, with the flag that extends it; None if it can train on."""
    if resumption.env_steps >= config.train_for_env_steps and resumption.updates_due == 0:
        return f"{resumption.env_steps:,} steps. Give a larger --train_for_env_steps"
    if config.train_for_seconds is not None and resumption.elapsed_s >= config.train_for_seconds:
        return f"{resumption.elapsed_s:,.0f} s of training. Give a larger --train_for_seconds"
    return None
