"""Searches settings: trials of a study as runs side by side, then the best ones again with fresh seeds.

consumes  the study's definition and trials, and the evaluations that runs have recorded
produces  runs, trials' values, `results.md`, `importance.png` and `best.yaml` in the study's folder
waits     for a command to end, at most a second, then looks at the evaluations of the runs
stops     when enough trials have ended and the final test is made, or by KeyboardInterrupt; then all runs are asked to
          stop first

Any number of processes, on machines that share the folder, may do this at once. What a process leaves when it stops or
is killed is continued by the next one that looks: its trials start again with their settings, from their checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from asyncrl.config.errors import ConfigError, UsageError
from asyncrl.config.machine import Machine
from asyncrl.contrib.experiments.core_sets import CoreSets, Ended
from asyncrl.contrib.experiments.grid import Grid, GridRun
from asyncrl.contrib.experiments.launch import Launch, LaunchedRun
from asyncrl.contrib.experiments.objective import Evaluated, read_evaluations
from asyncrl.contrib.experiments.ownership import Owner
from asyncrl.contrib.experiments.runs import (
    PlannedRun,
    as_flag,
    check_environment,
    last_error,
    machine_of,
    output_file,
    plan_run,
    read_progress,
    read_summary,
)
from asyncrl.contrib.experiments.study import Definition, Result, Study, define
from asyncrl.contrib.experiments.sweep_results import Candidate, write_best, write_report

if TYPE_CHECKING:
    from optuna.trial import Trial

Outcome = Literal["complete", "no complete trial", "continued elsewhere"]
"""How a sweep ends: with `best.yaml`, without a trial that has a value, or with its final test in another process."""
Say = Callable[[str], None]
Show = Callable[[Sequence[PlannedRun]], None]
DEFAULT = "default"
"""Name of the settings without any that was searched."""
_LOOK_EVERY_S = 1.0
_LOOK_FOR_DEAD_EVERY_S = 20.0
_FIRST_FINAL_SEED = 1_000_000
"""Seeds of the final test begin here; those of the search are the numbers of the trials, plus --search_seed."""
_MOST_FIRST_FAILURES = 4
_EXIT_USAGE = 2


@dataclass
class RunningTrial:
    """A trial that this process runs.

    Attributes:
        trial: the trial.
        run: its run.
        evaluations: what was evaluated so far.
        reported_step: number of the evaluation that pruning was told of last.
        is_pruned: whether it was asked to stop because others were better.
        is_decided: whether it was asked to stop because its value is known.
    """

    trial: Trial
    run: PlannedRun
    evaluations: list[Evaluated] = field(default_factory=list)
    reported_step: int = 0
    is_pruned: bool = False
    is_decided: bool = False


class Sweep:
    """A search in one folder.

    Example:
        definition = Definition(flags=("--env=CartPole-v1",), space=space, objective=Objective("return"))
        sweep = Sweep(Path("train_dir/my_sweep"), definition, num_trials=50)
        if sweep.run() == "complete":
            print(sweep.folder / "best.yaml")

    Attributes:
        folder: the study's folder.
    """

    def __init__(
        self,
        folder: Path,
        definition: Definition,
        *,
        num_trials: int,
        num_core_sets: int | None = None,
        num_finalists: int = 3,
        num_final_seeds: int = 3,
    ) -> None:
        """Checks the settings and defines or joins the study; starts nothing.

        Args:
            folder: the study's folder.
            definition: what all its processes agree on.
            num_trials: number of trials after which no other starts.
            num_core_sets: runs of this process at the same time, as for `CoreSets`.
            num_finalists: how many of the best trials are run again with fresh seeds; 0 for no final test.
            num_final_seeds: fresh seeds of each.

        Raises:
            UsageError: no run can start with these settings or has the return that is optimized, or the study has
                another definition.
        """
        self.folder = folder
        self._definition = definition
        self._objective = definition.objective
        self._space = definition.search_space
        self._num_trials = num_trials
        self._num_core_sets = num_core_sets
        self._num_finalists, self._num_final_seeds = num_finalists, num_final_seeds
        self._flags = (*(as_flag(name, value) for name, value in self._space.settings.items()), *definition.flags)
        self._machine: Machine = machine_of(CoreSets(num_core_sets).cores_per_set)
        self._base = plan_run(DEFAULT, folder, self._flags, self._machine)
        if (num_policies := self._base.config.num_policies) > 1:
            raise UsageError(
                f"--num_policies={num_policies} is not possible in a sweep, which optimizes the return of one policy: "
                "give --num_policies=1."
            )
        steps, every = self._base.config.train_for_env_steps, self._base.config.eval_every_env_steps
        self._eval_every = every or max(1, steps // 10)
        self._flags += () if every else (f"--eval_every_env_steps={self._eval_every}",)
        if self._objective.needs_seconds:
            self._flags += ("--report_every_s=1",)
        check_environment(plan_run(DEFAULT, folder, self._flags, self._machine), self._machine)
        self._is_new = define(folder, definition)
        self._num_ended, self._num_failed = 0, 0

    def run(self, say: Say = print, show: Show = lambda runs: None) -> Outcome:
        """Runs trials until enough have ended, then the final test.

        Args:
            say: is given a sentence for each trial that starts or ends.
            show: is called about once a second with the runs of this process.

        Raises:
            UsageError: the first trials all failed.
        """
        with Owner(self.folder / "owners") as owner:
            num_evaluations = -(-self._base.config.train_for_env_steps // self._eval_every)
            study = Study(self.folder, self._definition, self._num_trials, num_evaluations, owner)
            if self._is_new:
                study.add_first(self._space.drawn(self._base.config))
                self._is_new = False
            try:
                self._search(study, owner, say, show)
            finally:
                write_report(self.folder, study, self._objective, [])
            finalists = study.best(max(1, self._num_finalists))
            if not finalists:
                return "no complete trial"
            if self._num_finalists == 0:
                write_best(self.folder, self._flags, finalists[0])
                return "complete"
            if not owner.claim(self.folder / "final_test"):
                say("Another process makes the final test.")
                return "continued elsewhere"
            candidates = self._test(finalists, owner, say, show)
            write_report(self.folder, study, self._objective, candidates)
            self._announce(candidates, finalists, say)
            return "complete"

    def _search(self, study: Study, owner: Owner, say: Say, show: Show) -> None:
        running: dict[str, RunningTrial] = {}
        look_for_dead_at = 0.0
        is_waiting = False
        with CoreSets(self._num_core_sets) as core_sets:
            while True:
                owner.touch()
                if time.monotonic() >= look_for_dead_at:
                    look_for_dead_at = time.monotonic() + _LOOK_FOR_DEAD_EVERY_S
                    for name in study.continue_dead_trials():
                        say(f"{name}: its process has ended; it is continued")
                self._start_trials(study, core_sets, running, say)
                if not running and study.num_running_elsewhere == 0:
                    return
                if not running and not is_waiting:
                    is_waiting = True
                    say(f"waits for {study.num_running_elsewhere} trials of other processes")
                for ended in core_sets.wait(_LOOK_EVERY_S):
                    self._end_trial(study, running.pop(ended.name), ended, say)
                for each in running.values():
                    self._look(each, core_sets)
                show([each.run for each in running.values()])

    def _start_trials(self, study: Study, core_sets: CoreSets, running: dict[str, RunningTrial], say: Say) -> None:
        """Starts trials while there is room. The default's threads stand for those of a trial, still unknown."""
        while core_sets.has_room(self._base.threads) and (trial := study.next_trial()) is not None:
            name, seed, own = trial.user_attrs["run"], trial.user_attrs["seed"], tuple(trial.user_attrs["flags"])
            try:
                run = plan_run(name, self.folder, (*self._flags, *own, f"--seed={seed}"), self._machine)
            except ConfigError as error:
                reason = " ".join(str(error).splitlines())
                study.tell(trial, None, is_pruned=True, reason=reason)
                say(f"{name}: pruned, its settings are not possible: {reason}")
                continue
            output_file(self.folder, name).unlink(missing_ok=True)
            core_sets.start(run.training())
            running[name] = RunningTrial(trial, run)
            say(f"{name}: {' '.join(own)}")

    def _look(self, each: RunningTrial, core_sets: CoreSets) -> None:
        """Reports new evaluations; stops a run that is pruned or decided, or that another process has taken over."""
        import optuna

        num_known = len(each.evaluations)
        each.evaluations = read_evaluations(each.run.folder.metrics)
        if each.is_pruned or each.is_decided or len(each.evaluations) == num_known:
            return
        if self._objective.is_decided(each.evaluations):
            each.is_decided = True
        try:
            for number in range(num_known + 1, len(each.evaluations) + 1):
                # An evaluation is made at the end of the dataset in which it is due: the step counts what is due.
                step = each.evaluations[number - 1].env_steps // self._eval_every
                if step > each.reported_step:
                    each.trial.report(self._objective.so_far(each.evaluations[:number]), step)
                    each.reported_step = step
            each.is_pruned = not each.is_decided and each.trial.should_prune()
        except optuna.exceptions.UpdateFinishedTrialError:
            each.is_pruned = True
        if each.is_pruned or each.is_decided:
            core_sets.stop(each.run.name)

    def _end_trial(self, study: Study, each: RunningTrial, ended: Ended, say: Say) -> None:
        self._num_ended += 1
        # A run that resumes forgets the evaluations after its checkpoint; one that has decided it stays valid.
        is_whole = ended.exit_code == 0 and not each.is_decided
        evaluations = read_evaluations(each.run.folder.metrics) if is_whole else each.evaluations
        name, env_steps = each.run.name, each.run.config.train_for_env_steps
        lacks_last = is_whole and self._lacks_last_evaluation(each.run, evaluations)
        summary = read_summary(each.run.folder) or {}
        if summary.get("status") == "stopped" and str(summary.get("error")).startswith("pruned"):  # by a callback
            study.tell(each.trial, None, is_pruned=True, reason=summary["error"])
            say(f"{name}: {summary['error']}")
            return
        training_return = read_progress(each.run.folder).train_return
        trained = "" if training_return is None else f", training return {training_return:,.1f}"
        # A run that ended before it could be stopped is complete all the same.
        if evaluations and not lacks_last and (ended.exit_code == 0 or each.is_decided):
            value = self._objective.value(evaluations, env_steps)
            study.tell(each.trial, value)
            say(f"{name}: {self._objective.name} {value:,.6g}{trained}")
            return
        if each.is_pruned:
            last = evaluations[-1]
            study.tell(each.trial, None, is_pruned=True, reason=f"after {last.env_steps:,} steps")
            evaluated = f"evaluation return {last.mean_return:,.1f}"
            say(f"{name}: pruned after {last.env_steps:,} steps, {evaluated}{trained}")
            return
        reason = last_error(output_file(self.folder, name)) or f"exit code {ended.exit_code}"
        if ended.exit_code == 0:
            reason = "the run has no evaluation"
            if evaluations:
                reason = f"its last evaluation is one after {evaluations[-1].env_steps:,} steps, not at the end"
        is_impossible = ended.exit_code == _EXIT_USAGE
        study.tell(each.trial, None, is_pruned=is_impossible, reason=reason)
        say(f"{name}: {'pruned, its settings are not possible' if is_impossible else 'failed'}: {reason}")
        self._num_failed += 1
        if self._num_failed == self._num_ended == _MOST_FIRST_FAILURES:
            log = output_file(self.folder, name)
            raise UsageError(f"The first {self._num_failed} trials failed, the last one with: {reason} (output: {log})")

    def _lacks_last_evaluation(self, run: PlannedRun, evaluations: Sequence[Evaluated]) -> bool:
        """Whether a run that has ended did not evaluate its final policy, because it was stopped or killed in that."""
        if not evaluations:
            return True
        summary = read_summary(run.folder)
        if summary is None and run.config.train_for_seconds is not None:
            return False  # nobody knows after how many steps it ended
        env_steps: int = run.config.train_for_env_steps if summary is None else summary["env_steps"]
        return 2 * (env_steps - evaluations[-1].env_steps) > self._eval_every

    def _test(self, finalists: Sequence[Result], owner: Owner, say: Say, show: Show) -> list[Candidate]:
        """Runs the best trials and the default settings with fresh seeds; returns the values of each."""
        settings = {DEFAULT: (), **{result.run: result.flags for result in finalists}}
        seeds = range(_FIRST_FINAL_SEED, _FIRST_FINAL_SEED + self._num_final_seeds)
        runs = [
            GridRun(f"final_{name}_seed{seed}", name, seed, (*self._flags, *own, f"--seed={seed}"))
            for seed in seeds
            for name, own in settings.items()
        ]
        say(f"final test: {len(finalists)} trials and the default settings, {len(seeds)} fresh seeds each")
        grid = Grid(self.folder / "final", tuple(runs), None)
        launch = Launch(grid, num_core_sets=self._num_core_sets, if_changed="repeat")

        def show_and_touch(runs: Sequence[LaunchedRun]) -> None:
            owner.touch()  # the owner of the study: the launch has another one
            show([each.run for each in runs if each.state == "training"])

        launch.make_all(say, show_and_touch)
        found: dict[str, list[float]] = {name: [] for name in settings}
        training_returns: dict[str, list[float]] = {name: [] for name in settings}
        for each in launch.runs:
            evaluations = read_evaluations(each.run.folder.metrics)
            if each.state == "finished" and not self._lacks_last_evaluation(each.run, evaluations):
                env_steps = each.run.config.train_for_env_steps
                found[each.group].append(self._objective.value(evaluations, env_steps))
                if (training_return := read_progress(each.run.folder).train_return) is not None:
                    training_returns[each.group].append(training_return)
        return [
            Candidate(name, settings[name], tuple(values), tuple(training_returns[name]))
            for name, values in found.items()
        ]

    def _announce(self, candidates: Sequence[Candidate], finalists: Sequence[Result], say: Say) -> None:
        """Chooses the best of the finalists by the median of its final test, and writes its settings."""
        for each in candidates:
            if (count := len(each.values)) < self._num_final_seeds:
                say(f"{each.name}: only {count} of {self._num_final_seeds} seeds ended well in the final test")
        tested = [each for each in candidates if each.name != DEFAULT and each.values]
        if not tested:
            say("No run of the final test has ended well: best.yaml has the settings of the best trial.")
            write_best(self.folder, self._flags, finalists[0])
            return
        best = min(tested, key=lambda each: each.rank(self._objective))
        write_best(self.folder, self._flags, next(result for result in finalists if result.run == best.name))
        default = next(each for each in candidates if each.name == DEFAULT)
        if default.rank(self._objective) <= best.rank(self._objective):
            say("The default settings are as good as the best trial in the final test: keep them, or search longer.")
