"""The report of runs: what is in it, as tables, charts and videos. `page.html` lays it out.

    files of the runs --tables, charts, videos--> `page.html` --> one page without scripts and links to other files

Every text of the runs' files is escaped by the template engine. The charts are SVG, whose texts are escaped too.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

import asyncrl
from asyncrl.analysis import drawing, figures, tables
from asyncrl.analysis.curves import Curve
from asyncrl.analysis.plots import plots
from asyncrl.analysis.records import EVAL_RETURN, TRAIN_RETURN, Run
from asyncrl.analysis.statistics import spread
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import format_value
from asyncrl.config.settings import all_settings
from asyncrl.contrib.report import charts
from asyncrl.evaluation.episodes import ci95_of
from asyncrl.observers.summary import UNKNOWN, duration
from asyncrl.storage.run_folder import RunFolder

_EACH_RUN = re.compile(".+", re.DOTALL)
_MOST_VIDEO_BYTES = 4 << 20
_MOST_EVENTS = 30
_MOST_EXTRA_STATS = 12
_GIBIBYTE = 1 << 30
_METRICS = (
    *("rollout/ep_len_mean", "time/fps", "train/loss", "train/policy_gradient_loss", "train/value_loss"),
    *("train/actor_loss", "train/critic_loss", "train/q_mean", "train/ent_coef", "train/entropy", "train/std"),
    *("train/approx_kl", "train/clip_fraction", "train/explained_variance", "train/grad_norm", "train/learning_rate"),
    *("lag/mean", "replay/updates_per_env_step", "perf/learner_busy", "perf/rollout_busy"),
)
"""Those that are drawn, by their names in `metrics.jsonl`, if they were recorded."""
_FAULTS = {
    "perf/restarts": "processes restarted",
    "perf/env_failures": "environments recreated",
    "perf/not_finite_steps": "steps with NaN or infinity",
    "train/skipped_steps": "optimizer steps skipped",
    "perf/dropped_samples": "samples dropped",
    "perf/failed_saves": "checkpoints not saved",
}
_AS_EVENTS = tuple(name for name in _FAULTS if name != "perf/dropped_samples")


@dataclass(frozen=True)
class Table:
    """A table of texts; `marked` are the numbers of rows to point out."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Chart:
    """A drawing with its title."""

    title: str
    svg: str


@dataclass(frozen=True)
class Video:
    """The newest video of a run, as a `data:` address; without one `note` says why."""

    title: str
    address: str
    note: str = ""


@dataclass(frozen=True)
class _ReadRun:
    """A run with its small files, each a mapping that is empty without the file."""

    run: Run
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]

    def last(self, name: str) -> float | None:
        """The last recorded value of a metric."""
        curve = self.run.curve(name)
        return float(curve.values[-1]) if len(curve) > 0 else None


def render(runs: Sequence[Run], title: str | None = None) -> str:
    """Returns the page about runs. All texts are escaped.

    Args:
        runs: the runs, which may still be training.
        title: of the page; by default environments and algorithms.

    Raises:
        UsageError: matplotlib is missing.
    """
    drawing.check_can_draw()
    folders = [RunFolder(run.path) for run in runs]
    read = [
        _ReadRun(run, _read_object(folder.summary), _read_object(folder.environment))
        for run, folder in zip(runs, folders, strict=True)
    ]
    groups = figures.group_runs(runs, None)
    returns, notes = _returns(runs, groups)
    settings = _settings(runs)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=title or _title(runs),
        created=time.strftime("%Y-%m-%d %H:%M"),
        version=asyncrl.__version__,
        notes=notes,
        runs=_runs_table(read),
        scores=_scores(groups, {each.run.name: each for each in read}),
        returns=returns,
        videos=[video for each in read if (video := _video(each.run)) is not None],
        metrics=list(_metric_charts(runs, groups)),
        legend=[(name, charts.page_color(number)) for number, name in enumerate(groups)],
        more=[_chart(caption, each.draw) for plot in plots().values() for caption, each in plot.figures(runs)],
        differences=_differences(settings) if len(runs) > 1 else None,
        settings=settings,
        faults=_faults(read),
        events=_events(runs),
        machines=_machines(read),
    )


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _title(runs: Sequence[Run]) -> str:
    kinds = dict.fromkeys(f"{run.config.get('env', run.name)}, {run.config.get('algo', 'ppo')}" for run in runs)
    return "; ".join(kinds) + (f": {len(runs)} runs" if len(runs) > 1 else "")


def _runs_table(read: Sequence[_ReadRun]) -> Table:
    header = ("run", "state", "environment", "steps", "time", "steps/s", "return, last 100 episodes", "last evaluation")
    rows = []
    for each in read:
        run, summary = each.run, each.summary
        steps = max(record.get("env_steps", 0) for record in run.records)  # an evaluation's record is of earlier steps
        target = run.config.get("train_for_env_steps")
        limit = f" of {target:,}" if isinstance(target, int) else ""
        fps = summary.get("fps") or each.last("time/fps")
        rows.append(
            (
                run.name,
                str(summary.get("status", "no summary: it is training, or was killed")),
                f"{run.config.get('env', UNKNOWN)}, {run.config.get('algo', UNKNOWN)}",
                f"{steps:,.0f}{limit}",
                duration(each.last("time/time_elapsed")),
                _number(fps, ",.0f"),
                _number(each.last(TRAIN_RETURN), ",.1f"),
                _last_evaluation(each),
            )
        )
    return Table(header, tuple(rows))


def _last_evaluation(each: _ReadRun) -> str:
    """Mean and its interval over the episodes of the last evaluation."""
    mean, std, count = each.last(EVAL_RETURN), each.last("eval/std_reward"), each.run.config.get("eval_episodes")
    if mean is None or std is None or not isinstance(count, int) or count < 2:
        return _number(mean, ",.1f")
    low, high = ci95_of(mean, std, count)
    return f"{mean:,.1f} [{low:,.1f}, {high:,.1f}], {count} episodes"


def _scores(groups: Mapping[str, Sequence[Run]], read: Mapping[str, _ReadRun]) -> Table:
    """The final returns of each group of runs: their median over the runs, with its interval."""
    rows = []
    for name, runs in groups.items():
        row = [name, str(len(runs))]
        members = [read[run.name] for run in runs]
        for found in (
            [each.last(TRAIN_RETURN) for each in members],
            [each.last(EVAL_RETURN) for each in members],
            [each.summary.get("best_return") for each in members],
        ):
            values = [value for value in found if isinstance(value, (int, float))]
            row.append(tables.cell(spread(values), tables.digits(1)) if values else UNKNOWN)
        rows.append(tuple(row))
    return Table(("runs", "number", "return, last 100 episodes", "last evaluation", "best checkpoint"), tuple(rows))


def _returns(runs: Sequence[Run], groups: Mapping[str, Sequence[Run]]) -> tuple[list[Chart], list[str]]:
    """The charts of returns, and sentences on what they lack."""
    charts = []
    number_of = {run.name: number for number, members in enumerate(groups.values()) for run in members}
    trained, evaluated = ([run for run in runs if len(run.curve(name)) > 0] for name in (TRAIN_RETURN, EVAL_RETURN))
    notes = [f"{run.name} has recorded no return of training episodes." for run in runs if run not in trained]
    timed = [run for run in trained if len(run.elapsed()) > 0]
    axes: list[tuple[str, Sequence[Run], figures.XAxis, figures.Metric]] = [
        ("Return of training episodes, over steps", trained, "env_steps", "train"),
        ("Return of training episodes, over time", timed, "wall_time", "train"),
        ("Return of evaluations, over steps", evaluated, "env_steps", "eval"),
    ]
    for title, shown, x, metric in axes:
        try:
            comparison = figures.compare(shown, x, metric, None)
        except UsageError:  # curves of a group have no range in common: each run is drawn by itself
            comparison = figures.compare(shown, x, metric, _EACH_RUN)
        if comparison.groups:
            numbers = [number_of[group.runs[0]] for group in comparison.groups]
            charts.append(_chart(title, partial(drawing.draw_comparison, comparison, numbers=numbers)))
    return charts, notes


def _metric_charts(runs: Sequence[Run], groups: Mapping[str, Sequence[Run]]) -> Iterator[Chart]:
    """A small chart of each of these metrics that a run has recorded."""
    recorded = {name for run in runs for record in run.records for name in record}
    policy_metrics = ("/rollout/ep_rew_mean", "/eval/mean_reward")
    names = [name for name in _METRICS if name in recorded]
    names += sorted(name for name in recorded if name.startswith("policy_") and name.endswith(policy_metrics))
    names += sorted(name for name in recorded if name.startswith("episode_extra_stats/"))[:_MOST_EXTRA_STATS]
    for name in names:
        curves: list[tuple[int, Sequence[Curve]]] = []
        for number, members in enumerate(groups.values()):
            found = [curve for run in members if len(curve := run.curve(name)) > 0]
            curves += [(number, found)] if found else []
        if curves:
            yield _chart(name, partial(charts.draw_metric, curves))


def _chart(title: str, draw: Callable[[Path], None]) -> Chart:
    return Chart(title, charts.inline_svg(draw))


def _video(run: Run) -> Video | None:
    """The newest video of a run; None if it has none."""
    found = sorted(RunFolder(run.path).videos.glob("step_*.mp4"))
    if not found:
        return None
    title, size = f"{run.name}, {found[-1].name}", found[-1].stat().st_size
    if size > _MOST_VIDEO_BYTES:
        return Video(title, "", f"It has {size / (1 << 20):.1f} MB, too many for this page: {found[-1]}")
    return Video(title, f"data:video/mp4;base64,{base64.b64encode(found[-1].read_bytes()).decode()}")


def _settings(runs: Sequence[Run]) -> Table:
    """All settings; rows with a value that is not the default are marked."""
    known = all_settings()
    rows: list[tuple[str, ...]] = []
    marked = set()
    for name in dict.fromkeys(name for run in runs for name in run.config):
        values = [_value(run.config[name]) if name in run.config else UNKNOWN for run in runs]
        default = _value(known[name].default) if name in known else UNKNOWN
        if set(values) != {default}:
            marked.add(len(rows))
        rows.append((name, default, *values))
    return Table(("setting", "default", *(run.name for run in runs)), tuple(rows), frozenset(marked))


def _differences(settings: Table) -> Table:
    """Settings that differ between runs, seeds too, without their defaults."""
    (name, _, *runs), rows = settings.header, settings.rows
    return Table((name, *runs), tuple((row[0], *row[2:]) for row in rows if len(set(row[2:])) > 1))


def _value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else format_value(value)


def _faults(read: Sequence[_ReadRun]) -> Table:
    rows = []
    for each in read:
        rises = [_rises(each.run, name) for name in _FAULTS]
        counts = [f"{sum(rise for _, rise in found):,.0f}" if found else UNKNOWN for found in rises]
        rows.append((each.run.name, *counts, str(each.summary.get("error") or "")))
    marked = {idx for idx, row in enumerate(rows) if any(cell not in ("0", UNKNOWN, "") for cell in row[1:])}
    return Table(("run", *_FAULTS.values(), "error"), tuple(rows), frozenset(marked))


def _rises(run: Run, name: str) -> list[tuple[int, float]]:
    """Numbers of the records that have a count, and by how much it rose; it begins at 0 again when a run resumes."""
    found, before = [], 0.0
    for number, record in enumerate(run.records):
        if isinstance(count := record.get(name), (int, float)):
            found.append((number, count - before if count >= before else count))
            before = count
    return found


def _events(runs: Sequence[Run]) -> Table:
    """When the counts of faults rose."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        rises = [(number, name, rise) for name in _AS_EVENTS for number, rise in _rises(run, name) if rise > 0]
        rises.sort(key=lambda each: each[0])
        for number, name, rise in rises[:_MOST_EVENTS]:
            record = run.records[number]
            elapsed = duration(record.get("time/time_elapsed"))
            rows.append((run.name, f"{record['env_steps']:,.0f}", elapsed, f"{rise:,.0f} {_FAULTS[name]}"))
        if len(rises) > _MOST_EVENTS:
            rows.append((run.name, "", "", f"and {len(rises) - _MOST_EVENTS:,} later ones"))
    return Table(("run", "until step", "until", "what"), tuple(rows))


def _machines(read: Sequence[_ReadRun]) -> Table:
    """Machine, versions and command of each run, one column for each."""
    columns = []
    for each in read:
        environment = each.environment
        machine, packages = (environment.get(name) for name in ("machine", "packages"))
        machine = machine if isinstance(machine, dict) else {}
        memory = machine.get("memory_bytes")
        column = {
            "processor": machine.get("cpu"),
            "cores": f"{machine.get('usable_cores', UNKNOWN)} usable of {machine.get('cores', UNKNOWN)}",
            "memory": f"{memory / _GIBIBYTE:.1f} GiB" if isinstance(memory, (int, float)) else None,
            "GPUs": ", ".join(map(str, machine.get("gpus") or [])) or "none",
            "device": machine.get("device"),
            "ranks": environment.get("num_ranks"),
            "system": machine.get("platform"),
            "Python": environment.get("python"),
            **(packages if isinstance(packages, dict) else {}),
            "commit": environment.get("git_commit"),
            "command": " ".join(map(str, environment.get("command") or [])),
        }
        columns.append({name: UNKNOWN if value in (None, "") else str(value) for name, value in column.items()})
    names = dict.fromkeys(name for column in columns for name in column)
    rows = tuple((name, *(column.get(name, UNKNOWN) for column in columns)) for name in names)
    return Table(("", *(each.run.name for each in read)), rows)


def _number(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, (int, float)) else UNKNOWN
