"""Makes the runs of a grid side by side, evaluates them, and writes one table.

consumes  a grid, and what the folders of earlier starts tell
produces  runs, `results.md` and `results.json` in the folder of the grid
waits     for a command to end, at most a second, then shows progress
stops     when each run is finished or has failed, or by KeyboardInterrupt; then all commands are asked to stop first

A run whose summary says that it has reached its limit is not repeated. Any other continues from its last checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from asyncrl.analysis.statistics import spread
from asyncrl.analysis.tables import UNKNOWN, cell, number, rounded, table
from asyncrl.config.errors import UsageError
from asyncrl.contrib.experiments.core_sets import Command, CoreSets, Ended
from asyncrl.contrib.experiments.grid import Grid
from asyncrl.contrib.experiments.ownership import Owner
from asyncrl.contrib.experiments.runs import (
    PlannedRun,
    as_flag,
    changed_settings,
    check_environment,
    has_reached_limit,
    is_finished,
    last_error,
    machine_of,
    output_file,
    plan_run,
    read_summary,
    with_earlier_names,
)
from asyncrl.storage.run_folder import write_text_atomically

State = Literal["waiting", "training", "trained", "evaluating", "finished", "failed"]
IfChanged = Literal["refuse", "repeat", "resume", "show"]
_LOOK_EVERY_S = 1.0
_EXIT_USAGE = 2
_MOST_SHOWN = 5


@dataclass
class LaunchedRun:
    """A run of the grid and how far it is.

    Attributes:
        run: the run.
        group: name of the runs that differ from it in their seeds only.
        seed: its seed.
        state: `trained` runs wait for their evaluation.
        num_failures: how often its command has failed in this launch.
        error: why it failed last.
        once: flags of its starts until the folder has the settings of the grid.
    """

    run: PlannedRun
    group: str
    seed: int
    state: State = "waiting"
    num_failures: int = 0
    error: str = ""
    once: tuple[str, ...] = ()


Show = Callable[[Sequence[LaunchedRun]], None]


class Launch:
    """The runs of a grid in one folder.

    Example:
        launch = Launch(read_grid(Path("grid.yaml")), num_core_sets=2)
        launch.make_all()
        print(launch.table())

    Attributes:
        runs: the runs, in the order in which they start.
    """

    def __init__(
        self, grid: Grid, *, num_core_sets: int | None = None, retries: int = 2, if_changed: IfChanged = "refuse"
    ) -> None:
        """Checks all runs and reads what exists of them; starts nothing.

        Args:
            grid: the runs.
            num_core_sets: runs at the same time, each with its share of the cores; None for as many as have a core for
                each of their threads.
            retries: how often a run that failed is resumed.
            if_changed: what to do with a run that was made with other settings: refuse to start, repeat it (the old
                one is kept as NAME_old), resume it with the new settings, or show it as it is, in a table.

        Raises:
            UsageError: a run cannot start, or was made with other settings and `if_changed` is `refuse`, or `resume`
                although it has reached its limit.
        """
        self._grid = grid
        self._num_core_sets = num_core_sets
        self._retries = retries
        self.runs = self._plan()
        self._read_states(if_changed)

    def make_all(self, say: Callable[[str], None] = print, show: Show = lambda runs: None) -> bool:
        """Makes the runs and evaluations that are missing; returns whether none failed.

        Args:
            say: is given a sentence for each run that starts, ends or fails.
            show: is called about once a second with all runs.

        Raises:
            UsageError: a run cannot start in its environment, or another process makes these runs.
        """
        self._check_environments()
        folder = self._grid.train_dir
        with Owner(folder / "owners") as owner:
            if not owner.claim(folder / "launch"):
                raise UsageError(f"Another launch makes runs in {folder}: wait for it, or give another --train_dir.")
            try:
                with CoreSets(self._num_core_sets) as core_sets:
                    while self._start_next(core_sets, say) or core_sets.names:
                        for ended in core_sets.wait(_LOOK_EVERY_S):
                            self._end_command(ended, say)
                        show(self.runs)
                        owner.touch()
            finally:
                self._write_results()
        return not any(each.state == "failed" for each in self.runs)

    def table(self) -> str:
        """The results as a Markdown table with a row for each combination of settings: medians over its seeds.

        Intervals are 95 % bootstrap intervals of the median.
        """
        groups: dict[str, list[LaunchedRun]] = {}
        for each in self.runs:
            groups.setdefault(each.group, []).append(each)
        header = ["run", "finished seeds", "steps", "training return", "steps/s"]
        if self._grid.evaluation is not None:
            header.insert(4, "evaluation return")
        rows = []
        for group, members in groups.items():
            results = [self._result(each) for each in members]
            finished = [result for result in results if result["state"] in ("trained", "evaluating", "finished")]
            row = [group, f"{len(finished)} of {len(results)}", _median(finished, "env_steps", number)]
            row.append(_median(finished, "training_return", rounded))
            if self._grid.evaluation is not None:
                row.append(_median(finished, "evaluation_return", rounded))
            rows.append([*row, _median(finished, "fps", number)])
        return table(header, rows)

    def _write_results(self) -> None:
        """Writes `results.md` and `results.json`, which has an entry for each run."""
        folder = self._grid.train_dir
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(folder / "results.md", self.table() + "\n")
        write_text_atomically(folder / "results.json", json.dumps(self.results(), indent=1) + "\n")

    def results(self) -> list[dict[str, Any]]:
        """The entries of `results.json`: state, steps, returns and speed of each run, in the order of `runs`."""
        return [self._result(each) for each in self.runs]

    def _plan(self) -> list[LaunchedRun]:
        machine = machine_of(CoreSets(self._num_core_sets).cores_per_set)
        planned: list[LaunchedRun] = []
        problems: dict[str, str] = {}
        for each in self._grid.runs:
            try:
                run = plan_run(each.name, self._grid.train_dir, each.flags, machine)
                planned.append(LaunchedRun(run, each.group, each.seed))
            except UsageError as error:
                problems.setdefault(str(error), each.name)
        if problems:
            raise UsageError(
                "\n".join(f"{name}: {line}" for text, name in problems.items() for line in text.split("\n"))
            )
        for launched, run in zip(planned, with_earlier_names([each.run for each in planned]), strict=True):
            launched.run = run
        return planned

    def _read_states(self, if_changed: IfChanged) -> None:
        changed: dict[str, str] = {}
        over: list[str] = []
        for each in self.runs:
            changes = changed_settings(each.run)
            if not changes or if_changed == "show":
                if is_finished(each.run):
                    each.state = "trained" if self._lacks_evaluation(each.run) else "finished"
                continue
            changed[each.run.name] = ", ".join(map(str, changes))
            if if_changed == "resume" and has_reached_limit(each.run):
                over.append(each.run.name)
            if if_changed == "repeat":
                each.once = ("--restart_behavior=restart",)
            else:
                each.once = tuple(as_flag(change.name, change.now) for change in changes)
        if over:
            raise _refused(
                [
                    f"{name} has reached its limit, so nothing of it would be trained with {changed[name]}."
                    for name in over
                ],
                "Give a larger train_for_env_steps or train_for_seconds, or --changed=repeat to make such runs again.",
            )
        if changed and if_changed == "refuse":
            raise _refused(
                [f"{name} was made with other settings: {text}." for name, text in changed.items()],
                "Give --changed=repeat to make such runs again (the old ones are kept as NAME_old), --changed=resume "
                "to continue them with the new settings, or another --train_dir.",
            )

    def _check_environments(self) -> None:
        """Checks the first run of each environment as training would, before any run starts."""
        machine = machine_of(CoreSets(self._num_core_sets).cores_per_set)
        seen = set()
        for each in self.runs:
            config = each.run.config
            key = (config.env_id, json.dumps(config.env_kwargs, sort_keys=True), config.env_backend)
            if each.state == "waiting" and key not in seen:
                seen.add(key)
                check_environment(each.run, machine, *each.once)

    def _start_next(self, core_sets: CoreSets, say: Callable[[str], None]) -> bool:
        """Starts commands while there is room, in order; returns whether one still waits."""
        for each in self.runs:
            if each.state not in ("waiting", "trained"):
                continue
            if not core_sets.has_room(each.run.threads if each.state == "waiting" else 1):
                return True
            if each.state == "waiting":
                _evaluation_file(each.run).unlink(missing_ok=True)
                say(f"{each.run.name}: starts" + (f" (attempt {each.num_failures + 1})" if each.num_failures else ""))
                core_sets.start(each.run.training(*each.once))
                each.state = "training"
            else:
                assert self._grid.evaluation is not None
                log = _evaluation_log(each.run)
                log.unlink(missing_ok=True)
                arguments = (*each.run.place, *self._grid.evaluation.flags, "--json")
                core_sets.start(Command(each.run.name, "asyncrl.evaluate", arguments, log))
                each.state = "evaluating"
        return False

    def _end_command(self, ended: Ended, say: Callable[[str], None]) -> None:
        each = next(each for each in self.runs if each.run.name == ended.name)
        is_training = each.state == "training"
        log = output_file(each.run.train_dir, each.run.name) if is_training else _evaluation_log(each.run)
        if ended.exit_code == 0:
            if not is_training:
                write_text_atomically(_evaluation_file(each.run), self._with_flags(log))
            each.state = "trained" if is_training and self._lacks_evaluation(each.run) else "finished"
            if each.state == "finished":
                say(f"{each.run.name}: finished, {self._in_words(each)}")
            return
        each.num_failures += 1
        each.error = f"exit code {ended.exit_code}: {last_error(log)} (output: {log})"
        if ended.exit_code == _EXIT_USAGE or each.num_failures > self._retries:
            each.state = "failed"
            say(f"{each.run.name}: failed with {each.error}")
            return
        if not changed_settings(each.run):  # otherwise it failed before it moved or changed the earlier run
            each.once = ()
        each.state = "waiting" if is_training else "trained"
        say(f"{each.run.name}: {each.error}; it is started again")

    def _lacks_evaluation(self, run: PlannedRun) -> bool:
        return self._grid.evaluation is not None and self._evaluation_of(run) is None

    def _evaluation_of(self, run: PlannedRun) -> dict[str, Any] | None:
        """The result of an evaluation that was made as the grid wants it."""
        evaluation = self._grid.evaluation
        try:
            saved = json.loads(_evaluation_file(run).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        wanted = evaluation is not None and saved["flags"] == list(evaluation.flags)
        return saved if wanted else None

    def _with_flags(self, log: Path) -> str:
        """The result of an evaluation, from its output, with the flags that it was made with."""
        assert self._grid.evaluation is not None
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        # Libraries may write warnings behind it while the process ends.
        result = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
        return json.dumps({"flags": self._grid.evaluation.flags, **result}) + "\n"

    def _in_words(self, each: LaunchedRun) -> str:
        result = self._result(each)
        names = {"training_return": "training return", "evaluation_return": "evaluation return"}
        known = [f"{text} {result[name]:.1f}" for name, text in names.items() if result.get(name) is not None]
        return ", ".join([f"{result['env_steps']:,} steps", *known])

    def _result(self, each: LaunchedRun) -> dict[str, Any]:
        summary = read_summary(each.run.folder) or {}
        evaluation = self._evaluation_of(each.run) or {}
        return {
            "run": each.run.name,
            "group": each.group,
            "seed": each.seed,
            "flags": list(each.run.flags),
            "state": each.state,
            "error": each.error or None,
            "env_steps": summary.get("env_steps", 0),
            "training_return": summary.get("ep_rew_mean"),
            "evaluation_return": evaluation.get("mean_reward"),
            "evaluation_ci95": evaluation.get("ci95"),
            "fps": summary.get("fps"),
            "wall_s": summary.get("wall_s"),
        }


def _refused(lines: Sequence[str], choices: str) -> UsageError:
    """Why runs do not start, and what the user can do about them."""
    more = [f"{len(lines) - _MOST_SHOWN} other runs, too."] if len(lines) > _MOST_SHOWN else []
    return UsageError(*lines[:_MOST_SHOWN], *more, choices)


def _median(results: Sequence[Mapping[str, Any]], name: str, form: Callable[[float], str]) -> str:
    values = [result[name] for result in results if result.get(name) is not None]
    return cell(spread(values), form) if values else UNKNOWN


def _evaluation_file(run: PlannedRun) -> Path:
    return output_file(run.train_dir, run.name).with_suffix(".evaluation.json")


def _evaluation_log(run: PlannedRun) -> Path:
    return output_file(run.train_dir, run.name).with_suffix(".evaluation.log")
