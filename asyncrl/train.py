"""`python -m asyncrl.train`: trains a policy."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from pathlib import Path

# Read when NumPy is imported: a policy that acts in NumPy has one thread, in this process (serial mode) as in others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from asyncrl import preflight, resuming
from asyncrl.buffers.control import RunControl
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag
from asyncrl.config.loading import LoadedConfig, load
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.printing import format_settings
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.monitor import Earlier, Monitor, process_started_at
from asyncrl.monitoring.reports import CheckpointReport
from asyncrl.runtime import run_folder
from asyncrl.runtime.checkpoint import CheckpointError, best_return, copy_as_best
from asyncrl.runtime.processes import RunFailed, explain, process_context, start_loading_modules
from asyncrl.runtime.provenance import describe
from asyncrl.runtime.run_folder import RunFolder, default_experiment
from asyncrl.runtime.signals import StopAtOnce, StopSignals

EXIT_DONE, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

_FLAGS = (ExtraFlag("print_config", "print each setting and where it came from, and start nothing"),)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns:
        0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
    """
    started_at = process_started_at()
    arguments = sys.argv[1:] if argv is None else argv
    loaded = load(
        arguments, _FLAGS, description="Train a policy.", lenient=True, find_saved=run_folder.find_saved_config
    )
    context = process_context()
    if not loaded.problems and not loaded.config.serial_mode and not loaded.cli["print_config"]:
        start_loading_modules(context)
    checked = preflight.run(loaded)
    if loaded.cli["print_config"]:
        print(format_settings(loaded, checked.plan))
        return preflight.print_findings(checked)
    if loaded.preset is not None and not loaded.config.quiet:
        print(f"preset {loaded.preset} ({loaded.preset_path}); --preset=none turns it off", flush=True)
    if (code := preflight.print_findings(checked)) != EXIT_DONE or checked.spec is None:
        return code
    try:
        return _train(loaded, checked.plan, checked.spec, context, started_at)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


def _train(loaded: LoadedConfig, plan: ResourcePlan, spec: EnvSpec, context: BaseContext, started_at: float) -> int:
    config = loaded.config
    experiment = config.experiment or default_experiment(config.env, config.algo)
    with RunFolder.create(config.train_dir, experiment, config.restart_behavior) as folder, StopSignals() as stop:
        resumption = resuming.find_checkpoint(folder.checkpoints, spec)
        resuming.check_replay(resumption, plan)
        resuming.announce(resumption, loaded)
        if resumption is not None and (limit := _reached_limit(config, resumption)) is not None:
            print(f"nothing to do: that is {limit} or more")
            return EXIT_DONE
        folder.forget_after(-1 if resumption is None else resumption.env_steps)
        folder.write_config(config.model_copy(update={"experiment": experiment}))
        folder.write_environment(describe(plan.device))
        monitor = Monitor(folder, config, plan, started_at=started_at, earlier=_earlier(folder, resumption))
        if not config.quiet:
            monitor.say(f"run {folder.path}")
        try:
            return _run(config, plan, spec, context, folder, resumption, monitor, stop)
        except StopAtOnce:
            monitor.finish("interrupted", error="stopped at once, without saving")
            return stop.exit_code
        except RunFailed as failure:
            monitor.finish("failed", error=failure.summary)
            print(failure.details, file=sys.stderr, end="\n" if failure.details else "")
            print(f"error: {failure.summary} (logs: {folder.logs})", file=sys.stderr)
            return failure.exit_code


def _reached_limit(config: TrainConfig, resumption: resuming.Resumption) -> str | None:
    """The limit that a run has reached already, as its flag."""
    if resumption.env_steps >= config.train_for_env_steps:
        return f"--train_for_env_steps={config.train_for_env_steps}"
    if config.train_for_seconds is not None and resumption.elapsed_s >= config.train_for_seconds:
        return f"--train_for_seconds={config.train_for_seconds:g}"
    return None


def _save_best(path: Path, folder: RunFolder, mean_return: float, monitor: Monitor) -> None:
    """Keeps the last checkpoint as the best if the last training episodes were."""
    try:
        best = copy_as_best(path, folder.checkpoints, mean_return)
    except CheckpointError as error:
        monitor.say(str(error))
        return
    monitor.handle(CheckpointReport(str(best), 0, None, "best", mean_return))


def _earlier(folder: RunFolder, resumption: resuming.Resumption | None) -> Earlier | None:
    if resumption is None:
        return None
    return Earlier(resumption.env_steps, resumption.elapsed_s, best_return(folder.checkpoints))


def _run(
    config: TrainConfig,
    plan: ResourcePlan,
    spec: EnvSpec,
    context: BaseContext,
    folder: RunFolder,
    resumption: resuming.Resumption | None,
    monitor: Monitor,
    stop: StopSignals,
) -> int:
    # The runner needs torch, whose import is slow: whatever ends a command before this point ends it quickly.
    from asyncrl import runner
    from asyncrl.run_setup import RunSetup

    resume_from = None if resumption is None else resumption.checkpoint
    setup = RunSetup.create(config, plan, spec, folder.checkpoints, resume_from)

    def turn(control: RunControl) -> bool:
        first_step_at = control.first_step_at
        if first_step_at is not None:
            monitor.mark_first_step(first_step_at)
        monitor.tick()
        new_best = monitor.take_new_best()
        if new_best is not None:
            control.ask_for_best(new_best)
        return stop.check()

    try:
        if plan.serial_mode:
            outcome = runner.run_serial(setup, monitor.handle, turn)
        else:
            outcome = runner.run_parallel(setup, context, folder.log, monitor.handle, turn)
    except (RunFailed, StopAtOnce):
        raise
    except Exception as error:
        raise explain("runner", error) from error
    finally:
        setup.arena.close()
    best = monitor.best_so_far
    if best is not None and outcome.checkpoint is not None:
        _save_best(Path(outcome.checkpoint), folder, best, monitor)
    monitor.finish(
        "completed" if outcome.is_complete else "interrupted",
        env_steps=outcome.env_steps,
        checkpoint=outcome.checkpoint,
        error=outcome.error,
    )
    if outcome.error is not None:
        print(f"error: {outcome.error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_DONE if outcome.is_complete else stop.exit_code


if __name__ == "__main__":
    sys.exit(main())
