"""`python -m asyncrl.train`: trains a policy."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path

# Read when NumPy is imported: a policy that acts in NumPy has one thread, in this process (serial mode) as in others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from asyncrl.buffers.control import RunControl
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag
from asyncrl.config.loading import LoadedConfig, load
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.printing import format_settings
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.reports import CheckpointReport
from asyncrl.monitoring.summary import Earlier, Summary
from asyncrl.observers.monitor import Monitor
from asyncrl.run import preflight, resuming
from asyncrl.runtime import run_folder
from asyncrl.runtime.checkpoint import (
    BEST,
    CheckpointError,
    best_return,
    checkpoint_of,
    copy_as_best,
    latest,
    newest_first,
)
from asyncrl.runtime.command_text import command_text, run_flags, shown_path
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
from asyncrl.runtime.reader import drop_output, run_for_a_reader
from asyncrl.runtime.run_folder import RunFolder, default_experiment
from asyncrl.runtime.signals import StopAtOnce, StopSignals
from asyncrl.runtime.torchrun import take_rank

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_NOTHING_TRAINED = (
    "Nothing was trained: the time limit of {:g} s ended the run before its first update. Give more time "
    "(--train_for_seconds) or make updates smaller (--batch_size, --num_batches_per_epoch)."
)
_LATE = (
    "warning: The time limit of {:g} s was exceeded, the run took {:.0f} s: an update ends only after a whole pass "
    "over its samples. Smaller updates end sooner (--batch_size, --num_batches_per_epoch)."
)

_OF_OTHER_RANKS = {
    "quiet": True,
    "eval_every_env_steps": None,
    "save_best_metric": "none",
    "save_milestones_s": None,
    "init_from": None,
}
"""Settings of all ranks except the first, which shows progress, evaluates, saves and initializes for all."""

_FLAGS = (ExtraFlag("print_config", "print each setting and where it came from, and start nothing"),)
_EXAMPLES = (
    "python -m asyncrl.train --env=CartPole-v1 --train_for_env_steps=200000",
    "python -m asyncrl.train --env=my_module:MyEnv-v0 --experiment=my_run --num_workers=8",
    "python -m asyncrl.train --experiment=my_run    (resumes it with its settings; flags override them)",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns:
        0 done, 1 failed, 2 wrong usage, 3 processes or environments failed too often, 130 stopped by Ctrl-C, 143 by
        SIGTERM.
    """
    refuse_to_run_while_imported()
    # Imports have taken about their processor time. The age of the process would count what it was before, as the shell
    # that `bash -c "...; exec python ..."` turns into Python.
    started_at = time.monotonic() - (time.process_time() if argv is None else 0.0)
    try:
        return _run(sys.argv[1:] if argv is None else argv, started_at)
    except KeyboardInterrupt:  # there is no run yet, which would take it for a request
        return EXIT_INTERRUPTED


def _run(arguments: Sequence[str], started_at: float) -> int:
    address = take_rank(os.environ)
    if address is None:
        return _Command(arguments, started_at).run()
    try:
        with Peers(address) as peers:
            return peers.left_with(_Command(arguments, started_at, peers).run())
    except RunFailed as failure:
        print(f"error: {failure.summary}", failure.details, sep="\n", file=sys.stderr)
        return failure.exit_code


@dataclass
class _Command:
    """One command, alone or as one of several ranks: rank 0 sends its settings to the others."""

    arguments: Sequence[str]
    started_at: float
    peers: Peers | None = None
    first_env_steps: int | None = None
    """Environment steps that the run has trained before, from rank 0."""

    def run(self) -> int:
        """Looks at everything, then trains."""
        code = self._run()
        if self.peers is not None and self.peers.is_first:
            self.peers.tell({"exit_code": code})  # unless there was something to run
        return code

    def _run(self) -> int:
        loaded, code = self._load()
        if code != EXIT_DONE:
            return code
        context = process_context(() if self.peers is None else ("asyncrl.runtime.own_group",))
        if not loaded.problems and not loaded.config.serial_mode and not loaded.cli.get("print_config"):
            start_loading_modules(context)
        is_first_rank = self.peers is None or self.peers.is_first
        checked = preflight.run(loaded, self._machine(), is_first_rank=is_first_rank)
        if not is_first_rank:
            checked = dataclasses.replace(checked, warnings=())  # those of the first rank are shown
        loaded = dataclasses.replace(loaded, config=checked.config)
        if loaded.cli.get("print_config"):
            print(format_settings(loaded, checked.plan))
            return preflight.print_findings(checked)
        if loaded.preset is not None and not loaded.config.quiet:
            print(f"preset {loaded.preset} ({loaded.preset_path}); --preset=none turns it off", flush=True)
        if (code := preflight.print_findings(checked)) != EXIT_DONE or checked.spec is None:
            return code
        try:
            return self._train(loaded, checked.plan, checked.spec, context)
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_USAGE
        except CheckpointError as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_FAILED

    def _load(self) -> tuple[LoadedConfig, int]:
        if self.peers is None or self.peers.is_first:
            find_saved = run_folder.find_saved_config
            return load(
                self.arguments,
                _FLAGS,
                description="Train a policy on a Gymnasium environment.",
                examples=_EXAMPLES,
                lenient=True,
                find_saved=find_saved,
            ), EXIT_DONE
        told = self.peers.ask()
        if "exit_code" in told:
            return LoadedConfig(TrainConfig(), {}), int(told["exit_code"])
        self.first_env_steps = told["env_steps"]
        config = TrainConfig.model_validate(told["config"]).model_copy(update=_OF_OTHER_RANKS)
        return LoadedConfig(config, dict.fromkeys(TrainConfig.model_fields, "rank 0")), EXIT_DONE

    @property
    def _is_first(self) -> bool:
        return self.peers is None or self.peers.is_first

    def _machine(self) -> Machine:
        machine = Machine.detect()
        if self.peers is None:
            return machine
        address = self.peers.address
        return dataclasses.replace(
            machine,
            num_ranks=address.num_ranks,
            num_local_ranks=address.num_local_ranks,
            local_rank=address.local_rank,
        )

    def _folder(self, config: TrainConfig) -> RunFolder:
        """The run's folder; that of another rank lies in it, on whatever machine."""
        assert config.experiment is not None
        if self.peers is None or self.peers.is_first:
            return RunFolder.create(config.train_dir, config.experiment, config.restart_behavior)
        folder = run_folder.run_path(config.train_dir, config.experiment) / run_folder.RANKS
        behavior: run_folder.RestartBehavior = "overwrite" if self.first_env_steps is None else "resume"
        return RunFolder.create(str(folder), str(self.peers.address.rank), behavior)

    def _train(self, loaded: LoadedConfig, plan: ResourcePlan, spec: EnvSpec, context: BaseContext) -> int:
        experiment = loaded.config.experiment or default_experiment(loaded.config.env, loaded.config.algo)
        config = loaded.config.model_copy(update={"experiment": experiment})
        started_at = self.started_at
        with self._folder(config) as folder, StopSignals(is_silent=not self._is_first) as stop:
            attempt = _Attempt(
                dataclasses.replace(loaded, config=config),
                plan,
                spec,
                context,
                folder,
                stop,
                self.peers,
                self.first_env_steps,
            )
            num_deaths = 0
            while True:
                try:
                    code = attempt.run(started_at)
                    attempt.show_end()
                    return code
                except RunFailed as failure:
                    died = isinstance(failure, LearnerDied) and not stop.was_asked
                    if not died or num_deaths == config.max_learner_restarts:
                        if self.peers is not None:
                            failure = self.peers.explain(failure)
                        attempt.show_end()
                        return _explain_failure(failure, config.train_dir, experiment, folder)
                    where = "at step 0" if latest(folder.checkpoints) is None else "from its last checkpoint"
                    print(f"{failure.summary}; the run restarts {where}", file=sys.stderr, flush=True)
                num_deaths += 1
                started_at = time.monotonic()
                gc.collect()  # the shared memory of the attempt that failed


def _explain_failure(failure: RunFailed, train_dir: str, experiment: str, folder: RunFolder) -> int:
    """Prints the failure and how to resume on standard error; returns the exit code."""
    print(failure.details, file=sys.stderr, end="\n" if failure.details else "")
    print(f"error: {failure.summary} (logs: {folder.logs})", file=sys.stderr)
    _say_how_to_resume(train_dir, experiment, folder)
    return failure.exit_code


def _say_how_to_resume(train_dir: str, experiment: str, folder: RunFolder) -> None:
    """Names the newest checkpoint of a run that failed, and the command that continues from it."""
    if (newest := latest(folder.checkpoints)) is not None:
        command = command_text("asyncrl.train", *run_flags(train_dir, experiment))
        print(f"The last checkpoint is {newest}. To resume from it: {command}", file=sys.stderr)


def _reached_limit(config: TrainConfig, resumption: resuming.Resumption) -> str | None:
    """The limit that a run has already reached, with the flag that extends it; None if training is left to do."""
    if resumption.env_steps >= config.train_for_env_steps and resumption.updates_due == 0:
        return f"{resumption.env_steps:,} steps. Give a larger --train_for_env_steps"
    if config.train_for_seconds is not None and resumption.elapsed_s >= config.train_for_seconds:
        return f"{resumption.elapsed_s:,.0f} s of training. Give a larger --train_for_seconds"
    return None


def _save_best(path: Path, folder: RunFolder, mean_return: float, monitor: Monitor) -> None:
    """Keeps the last checkpoint as the best if the last training episodes are the best."""
    try:
        best = copy_as_best(path, folder.checkpoints, mean_return)
    except CheckpointError as error:
        monitor.say(str(error))
        return
    monitor.handle(CheckpointReport(str(best), 0, None, "best", mean_return))


def _earlier(folder: RunFolder, resumption: resuming.Resumption | None) -> Earlier | None:
    if resumption is None:
        return None
    best = best_return(folder.checkpoints)
    return Earlier(resumption.env_steps, resumption.elapsed_s, best, resumption.worker_env_steps)


@dataclass(frozen=True)
class _Beginning:
    """Where a run starts.

    Attributes:
        checkpoint: the checkpoint that this process resumes from; None for a new run.
        env_steps: environment steps that the run has trained before.
        earlier: totals of the run so far; None for a new run.
    """

    checkpoint: Path | None
    env_steps: int
    earlier: Earlier | None


@dataclass
class _Attempt:
    """Everything that a run is started with, and restarted from its last checkpoint when its learner has died.

    `num_restarts` counts restarts of processes in the earlier attempts, those of the learner included.
    """

    loaded: LoadedConfig
    plan: ResourcePlan
    spec: EnvSpec
    context: BaseContext
    folder: RunFolder
    stop: StopSignals
    peers: Peers | None = None
    first_env_steps: int | None = None
    num_restarts: int = 0
    summary: Summary | None = None

    def show_end(self) -> None:
        """Says how the run ended, where its files are, and what can be done next."""
        config, folder, summary = self.loaded.config, self.folder, self.summary
        if summary is None or config.quiet:
            return
        newest = latest(folder.checkpoints)
        best = next(iter(newest_first(folder.checkpoints / BEST)), None)
        places = {
            "folder": shown_path(folder.path),
            "newest checkpoint": "none" if newest is None else shown_path(newest),
            "best checkpoint": "none" if best is None else shown_path(best),
        }
        commands = {}
        if newest is not None and summary.status != "failed":  # a failure names the command that continues the run
            assert config.experiment is not None
            named = run_flags(config.train_dir, config.experiment)
            longer = [] if summary.status == "interrupted" else [f"--train_for_env_steps={2 * summary.env_steps}"]
            which = [] if best is None else ["--checkpoint=best"]
            commands = {
                "evaluate": command_text("asyncrl.evaluate", *named, *which),
                "train on": command_text("asyncrl.train", *named, *longer),
                "plot": command_text("asyncrl.plot", "trial", shown_path(folder.path)),
            }
        try:
            print(summary.to_text(config.train_for_env_steps, places, commands), flush=True)
        except BrokenPipeError:  # the run is what counts, also if nobody reads of it
            drop_output()

    def run(self, started_at: float) -> int:
        """Resumes from the newest checkpoint, or starts; returns the exit code.

        Raises:
            RunFailed: the run could not continue.
        """
        config, folder = self.loaded.config, self.folder
        beginning = self._begin_as_told() if self._is_told else self._begin()
        if beginning is None:
            return EXIT_DONE
        folder.forget_after(-1 if beginning.earlier is None else beginning.env_steps)
        folder.write_config(config)
        folder.write_environment({**describe(self.plan.device), "num_ranks": self.plan.num_ranks})
        monitor = Monitor(
            folder,
            config,
            self.plan,
            started_at=started_at,
            earlier=beginning.earlier,
            restarts=self.num_restarts,
            training_returns_mislead=preflight.training_returns_mislead(config, self.spec),
        )
        if not config.quiet:
            monitor.say(f"run {folder.path}")
        try:
            return self._run(monitor, beginning)
        except StopAtOnce:
            self.summary = monitor.finish("interrupted", error="stopped at once, without saving")
            print(self.stop.text, file=sys.stderr, flush=True)
            return self.stop.exit_code
        except RunFailed as failure:
            self.summary = monitor.finish("failed", error=failure.summary)
            self.num_restarts = monitor.num_restarts + 1
            raise

    @property
    def _is_told(self) -> bool:
        return self.peers is not None and not self.peers.is_first

    def _begin(self) -> _Beginning | None:
        """Looks for a checkpoint to resume from; None if there is nothing to do."""
        config = self.loaded.config
        resumption = resuming.find_checkpoint(self.folder.checkpoints, self.spec)
        resuming.check_replay(resumption, self.plan)
        for sentence in () if resumption is None else resumption.skipped:
            print(f"warning: {sentence}", file=sys.stderr)
        if resumption is not None and (limit := _reached_limit(config, resumption)) is not None:
            print(f"Nothing to do: the run already has {limit}.")
            return None
        resuming.announce(resumption, self.loaded)
        if self.peers is not None:
            env_steps = None if resumption is None else resumption.env_steps
            self.peers.tell({"config": config.model_dump(mode="json"), "env_steps": env_steps})
        if resumption is None:
            return _Beginning(None, 0, None)
        return _Beginning(resumption.checkpoint, resumption.env_steps, _earlier(self.folder, resumption))

    def _begin_as_told(self) -> _Beginning:
        """Begins where rank 0 does; a checkpoint of this rank has its own samples only."""
        env_steps = self.first_env_steps
        if env_steps is None:
            return _Beginning(None, 0, None)
        own = checkpoint_of(self.folder.checkpoints, env_steps)
        return _Beginning(own, env_steps, Earlier(env_steps))

    def _run(self, monitor: Monitor, beginning: _Beginning) -> int:
        # The runner needs torch, whose import is slow: whatever ends a command before this point ends it quickly.
        from asyncrl.run import runner
        from asyncrl.run.setup import RunSetup

        config, plan, folder, stop, peers = self.loaded.config, self.plan, self.folder, self.stop, self.peers
        setup = RunSetup.create(
            config,
            plan,
            self.spec,
            folder.checkpoints,
            beginning.checkpoint,
            rank=None if peers is None else peers.address,
            first_env_steps=beginning.env_steps,
        )

        def turn(control: RunControl) -> bool:
            first_step_at = control.first_step_at
            if first_step_at is not None:
                monitor.mark_first_step(first_step_at)
            monitor.tick(control.activity)
            new_best = None if self._is_told else monitor.take_new_best()
            if new_best is not None:
                control.ask_for_best(new_best)
            if peers is not None:
                peers.check()
            return stop.check()

        try:
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
            _save_best(Path(outcome.checkpoint), folder, best, monitor)
        limit_s = config.train_for_seconds
        mistake = outcome.error
        if limit_s is not None and outcome.is_complete and outcome.env_steps == 0:
            mistake = mistake or _NOTHING_TRAINED.format(limit_s)
        elif limit_s is not None and outcome.elapsed_s > 1.1 * limit_s + 1.0 and not self._is_told:
            monitor.say(_LATE.format(limit_s, outcome.elapsed_s))
        self.summary = monitor.finish(
            "failed" if mistake is not None else "completed" if outcome.is_complete else "interrupted",
            env_steps=outcome.env_steps,
            checkpoint=outcome.checkpoint,
            error=mistake,
        )
        if mistake is not None:
            print(f"error: {mistake}", file=sys.stderr)
            assert config.experiment is not None
            _say_how_to_resume(config.train_dir, config.experiment, folder)
            return EXIT_FAILED
        return EXIT_DONE if outcome.is_complete else stop.exit_code


if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))
