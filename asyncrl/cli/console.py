"""What the command lines print of a run: what was found before it, how it goes, how it ended."""

from __future__ import annotations

import sys

from asyncrl.config.schema import TrainConfig
from asyncrl.monitoring.summary import Summary
from asyncrl.observers.observer import Run
from asyncrl.observers.progress import ProgressBar, print_line
from asyncrl.run.preflight import Preflight
from asyncrl.runtime.checkpoint import BEST, latest, newest_first
from asyncrl.runtime.command_text import command_text, run_flags, shown_path
from asyncrl.runtime.processes import RunFailed
from asyncrl.runtime.reader import drop_output
from asyncrl.runtime.run_folder import RunFolder


class Console(ProgressBar):
    """Says where a run starts, shows its progress, and says where its time went."""

    def on_start(self, run: Run) -> None:
        """Says where the run is resumed, what is different, and where its files are."""
        super().on_start(run)
        if run.config.quiet:
            return
        start, lines = run.start, []
        if start.before is not None:
            lines.append(f"Resuming from {start.checkpoint} ({start.env_steps:,} steps).")
        elif start.is_known:
            lines.append("No checkpoint yet: starting at step 0 with the settings in config.yaml.")
        if start.changed_settings:
            lines.append("Settings that change for this run from now on:")
        for line in (*lines, *(f"  {change}" for change in start.changed_settings)):
            print_line(line, sys.stdout)
        self.on_message(run, f"run {run.folder}")

    def on_end(self, run: Run, summary: Summary) -> None:
        """Gives the terminal back, and shows where the time went with `profile`."""
        super().on_end(run, summary)
        if run.config.profile:
            print_line(run.time_table, sys.stdout)


def print_findings(result: Preflight) -> int:
    """Prints problems, warnings and the environment's failure on stderr and returns the exit code."""
    for warning in result.warnings:
        print(f"warning: {warning.sentence('Better')}", file=sys.stderr)
    for problem in result.problems:
        print(f"error: {problem}", file=sys.stderr)
    if result.environment_failure:
        print(f"error: {result.environment_failure}", file=sys.stderr)
    return result.exit_code


def print_end(summary: Summary, config: TrainConfig, folder: RunFolder) -> None:
    """Says how the run ended, where its files are, and what can be done next."""
    newest = latest(folder.checkpoints)
    best = next(iter(newest_first(folder.checkpoints / BEST)), None)
    places = {
        "folder": shown_path(folder.path),
        "newest checkpoint": "none" if newest is None else shown_path(newest),
        "best checkpoint": "none" if best is None else shown_path(best),
    }
    commands = {}
    if newest is not None and summary.status != "failed":  # a failure names the command that continues the run
        named = run_flags(config.train_dir, folder.path.name)
        longer = [f"--train_for_env_steps={2 * summary.env_steps}"] if summary.status == "completed" else []
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


def print_failure(failure: RunFailed, train_dir: str, folder: RunFolder) -> None:
    """Prints the failure and how to resume on standard error."""
    print(failure.details, file=sys.stderr, end="\n" if failure.details else "")
    print(f"error: {failure.summary} (logs: {folder.logs})", file=sys.stderr)
    if (newest := latest(folder.checkpoints)) is not None:
        command = command_text("asyncrl.train", *run_flags(train_dir, folder.path.name))
        print(f"The last checkpoint is {newest}. To resume from it: {command}", file=sys.stderr)
