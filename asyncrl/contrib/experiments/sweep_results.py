"""Files written by a sweep: a table of its trials, the importance of each setting, and the best settings as a file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.analysis import drawing
from asyncrl.analysis.statistics import spread
from asyncrl.analysis.tables import UNKNOWN, cell, section
from asyncrl.config.errors import UsageError
from asyncrl.config.settings import dump_mapping
from asyncrl.contrib.experiments.objective import Objective
from asyncrl.contrib.experiments.runs import load_run, read_progress
from asyncrl.contrib.experiments.search_space import settings_of
from asyncrl.storage.run_folder import RunFolder, write_text_atomically

if TYPE_CHECKING:
    from asyncrl.contrib.experiments.study import Result, Study

BEST = "best.yaml"
_TRAINING_RETURN = "The training return is that of the last 100 training episodes."
_NOT_KEPT = (
    *("seed", "train_dir", "experiment", "quiet", "restart_behavior", "eval_every_env_steps", "eval_episodes"),
    *("eval_deterministic", "report_every_s", "with_tensorboard", "save_best_metric", "save_every_s"),
)
"""Settings of the search that are not part of what it has found."""


@dataclass(frozen=True)
class Candidate:
    """Settings in the final test.

    Attributes:
        name: name of the trial's run, or `default`.
        flags: its searched settings.
        values: the objective, with each fresh seed.
        training_returns: mean return of the last training episodes, with each fresh seed.
    """

    name: str
    flags: tuple[str, ...]
    values: tuple[float, ...]
    training_returns: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def rank(self, objective: Objective) -> tuple[int, float]:
        """Sorts candidates, the best first: by the number of seeds that ended well, then by the median."""
        sign = 1.0 if objective.is_minimized else -1.0
        return -len(self.values), sign * self.median if self.values else 0.0


def write_report(folder: Path, study: Study, objective: Objective, candidates: Sequence[Candidate]) -> None:
    """Writes `results.md`, and `importance.png` if matplotlib is installed and importances are known."""
    importances = study.importances()
    results = study.results()
    trained = {each.run: read_progress(RunFolder(folder / each.run)).train_return for each in results}
    text = report(results, objective, candidates, importances, trained)
    write_text_atomically(folder / "results.md", text)
    if importances:
        try:
            drawing.check_can_draw()
        except UsageError:
            return
        _draw_importances(importances, folder / "importance.png")


def report(
    results: Sequence[Result],
    objective: Objective,
    candidates: Sequence[Candidate],
    importances: Mapping[str, float],
    training_returns: Mapping[str, float | None],
) -> str:
    """The results as Markdown: final test, importances, and all trials, the best first.

    `training_returns` has the training return of each trial, by the name of its run.
    """
    sign = 1.0 if objective.is_minimized else -1.0
    ended = sorted(results, key=lambda each: (each.value is None, sign * (each.value or 0.0), each.number))
    names = list(dict.fromkeys(name for each in results for name in settings_of(each.flags)))
    tested = sorted(candidates, key=lambda each: each.rank(objective))
    finals = [
        [each.name, _spread(each.values), _spread(each.training_returns), str(len(each.values))]
        + [settings_of(each.flags).get(name, UNKNOWN) for name in names]
        for each in tested
    ]
    trials = [
        [each.run, each.state, _number(each.value), _number(training_returns.get(each.run))]
        + [settings_of(each.flags).get(name, UNKNOWN) for name in names]
        + [each.reason or ""]
        for each in ended
    ]
    better = "the smaller the better" if objective.is_minimized else "the larger the better"
    what = objective.name + (f" {objective.threshold:g}" if objective.is_minimized else "")
    parts = [
        section(
            "Final test",
            f"Medians with fresh seeds, and their 95 % intervals; of the {what}, {better}. Settings with failed seeds "
            f"are last. {_TRAINING_RETURN}",
            ["settings", what, "training return", "seeds", *names],
            finals,
        ),
        section(
            "Importance",
            "Share of each setting in the differences between trials (PED-ANOVA).",
            ["setting", "share"],
            [[name, f"{100 * share:.0f} %"] for name, share in importances.items()],
        ),
        section(
            "Trials",
            f"One run each; of the {what}, {better}. {_TRAINING_RETURN}",
            ["trial", "state", what, "training return", *names, "why it ended"],
            trials,
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


_CHOOSE_PRESET = ("--env", "--env_kwargs", "--algo", "--backend", "--import_modules")
"""Flags from which the preset of an environment and its values follow."""


def write_best(folder: Path, flags: Sequence[str], best: Result) -> None:
    """Writes the settings of the best trial to `best.yaml`, for --config."""
    comment = (
        f"# Found by a sweep: {best.run} of {folder.name}.\n"
        f"# Use it with: asyncrl train --config={folder / BEST} --experiment=NAME\n"
    )
    values = dump_mapping(best_settings((*flags, *best.flags)))
    write_text_atomically(folder / BEST, comment + values)


def best_settings(flags: Sequence[str]) -> dict[str, Any]:
    """All settings of a run that are not defaults, so that they give this run whatever preset the environment has."""
    loaded = load_run(flags)
    values = loaded.config.model_dump(mode="json")
    chosen = load_run([flag for flag in flags if flag.partition("=")[0] in _CHOOSE_PRESET]).config.model_dump(
        mode="json"
    )
    return {
        name: values[name]
        for name, origin in loaded.origins.items()
        if name not in _NOT_KEPT and (origin != "default" or values[name] != chosen.get(name, values[name]))
    }


def _draw_importances(importances: Mapping[str, float], path: Path) -> None:
    figure = drawing.new_figure(7.0, 1.2 + 0.35 * len(importances))
    axes = figure.subplots()
    names = list(importances)[::-1]
    axes.barh(names, [100 * importances[name] for name in names], color=drawing.color(0))
    axes.set_xlabel("importance in %")
    drawing.finish(axes)
    drawing.save(figure, path)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.6g}"


def _spread(values: Sequence[float]) -> str:
    return cell(spread(values), _number) if values else UNKNOWN
