"""Learning curves of a task over seconds and over steps, drawn as `asyncrl.plot compare` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from asyncrl.analysis.curves import Curve, make_curve, mean_band
from asyncrl.analysis.drawing import draw_comparison
from asyncrl.analysis.figures import Comparison, Group, Metric, XAxis
from scoring.records import Record
from scoring.systems import System
from scoring.tasks import Task

_AXES: dict[XAxis, int] = {"wall_time": 0, "total_steps": 1}


def draw(task: Task, by_system: dict[str, Sequence[Record]], systems: Sequence[System], folder: Path) -> Iterator[Path]:
    """Draws training returns and evaluated snapshots of a task over both axes, and yields the files.

    Args:
        task: the environment.
        by_system: results on it, those of at least one system.
        systems: how they are called.
        folder: for the files.
    """
    metrics: tuple[Metric, ...] = ("train", "eval")
    for metric in metrics:
        for x, position in _AXES.items():
            groups = [
                group
                for system in systems
                if (group := _group(system.label, by_system.get(system.name, ()), metric, position)) is not None
            ]
            if groups:
                path = folder / f"{task.env.replace('/', '_')}_{metric}_{x}.png"
                draw_comparison(Comparison(task.env, x, metric, tuple(groups)), path)
                yield path


def _group(label: str, records: Sequence[Record], metric: Metric, position: int) -> Group | None:
    """The seeds of one system; None if none of them has a point."""
    seeds, curves = [], []
    for record in records:
        curve = _curve(record, metric, position)
        if len(curve):
            seeds.append(f"seed {record.seed}")
            curves.append(curve)
    return Group(label, tuple(seeds), tuple(curves), mean_band(curves, ddof=1)) if curves else None


def _curve(record: Record, metric: Metric, position: int) -> Curve:
    points = record.curve if metric == "train" else record.evaluated_curve
    return make_curve((point[position], point[2]) for point in points)
