"""The history of a population, as numbers and as a figure: `asyncrl plot population`.

It has the objectives, hyperparameters and takeovers of each member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.analysis import drawing
from asyncrl.analysis.curves import Curve, make_curve
from asyncrl.analysis.plots import Plot
from asyncrl.analysis.records import TRAIN_RETURN, Run, read_json_lines
from asyncrl.config.errors import UsageError

HISTORY = "pbt.jsonl"
"""File of the turns of population-based training in a run's folder, one a line."""


@dataclass(frozen=True)
class MemberHistory:
    """One member of a population, over its own environment steps.

    Attributes:
        name: its name in the figure.
        objective: mean of its objective over its last 100 episodes.
        values: each hyperparameter from each turn on; the last point is that of the last record.
        takeovers: steps at which it continued with the weights of another member, and the name of that one.
    """

    name: str
    objective: Curve
    values: dict[str, Curve]
    takeovers: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class PopulationHistory:
    """All members of a population; `objective` names what is to become large."""

    objective: str
    members: tuple[MemberHistory, ...]

    @property
    def changed(self) -> list[str]:
        """The hyperparameters that have at least two values in the history."""
        names = dict.fromkeys(name for member in self.members for name in member.values)
        found = {
            name: {value for member in self.members if name in member.values for value in member.values[name].values}
            for name in names
        }
        return [name for name, values in found.items() if len(values) > 1]

    def to_json(self) -> dict[str, Any]:
        """Returns the numbers as plain data."""
        members = [
            {
                "name": member.name,
                "env_steps": member.objective.positions.tolist(),
                "objective": member.objective.values.tolist(),
                "hyperparameters": {
                    name: {"env_steps": curve.positions.tolist(), "values": curve.values.tolist()}
                    for name, curve in member.values.items()
                },
                "takeovers": [{"env_steps": steps, "source": source} for steps, source in member.takeovers],
            }
            for member in self.members
        ]
        return {"objective": self.objective, "members": members}

    def draw(self, path: Path) -> None:
        """Draws the objectives of all members, and below them each hyperparameter that changed."""
        names = self.changed
        figure = drawing.new_figure(8.0, 4.0 + 1.8 * len(names))
        ratios = [2.0, *[1.0] * len(names)]
        panels = figure.subplots(1 + len(names), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        for number, member in enumerate(self.members):
            style = {"color": drawing.color(number), "ls": drawing.style(number)}
            curve, at = member.objective, [env_steps for env_steps, _ in member.takeovers]
            marker = drawing.point_marker(len(curve), most=20)
            panels[0].plot(curve.positions, curve.values, lw=1.6, label=member.name, **style, **marker)
            marks = [(panels[0], np.interp(at, curve.positions, curve.values))]
            for axes, name in zip(panels[1:], names, strict=True):
                if (values := member.values.get(name)) is not None:
                    axes.step(values.positions, values.values, where="post", lw=1.6, **style)
                    marks.append((axes, values.values[np.searchsorted(values.positions, at)]))
            for axes, heights in marks:
                axes.scatter(at, heights, s=36, marker="^", color=style["color"], edgecolor="black", lw=0.6, zorder=3)
        panels[0].set_ylabel(self.objective)
        panels[0].set_title("population: triangles are takeovers of another member's weights")
        for axes, name in zip(panels[1:], names, strict=True):
            axes.set_ylabel(name)
            found = np.concatenate([member.values[name].values for member in self.members if name in member.values])
            if 0.0 < 10.0 * found.min() < found.max():
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("")
        panels[-1].set_xlabel("environment steps of each policy")
        for axes in panels:
            drawing.count_in_thousands(axes)
            drawing.finish(axes)
        drawing.save(figure, path)


def read_population(runs: Sequence[Run]) -> PopulationHistory:
    """Reads the history of a run with several policies, or of the runs of a shared folder.

    Raises:
        UsageError: a run has no history, or its records do not have its policies' objectives.
    """
    members: list[MemberHistory] = []
    objective = "return of training episodes (reward)"
    for run in runs:
        path = run.path / HISTORY
        turns = read_json_lines(path)
        if not turns:
            raise UsageError(f"Run {run.name} has no {path.name}: it was not trained with --with_pbt=True.")
        policies = sorted({turn["policy"] for turn in turns})
        target = f"episode_extra_stats/{run.config.get('pbt_target_objective')}"
        for policy in policies:
            prefix, name = (f"policy_{policy}/", f"policy_{policy}") if len(policies) > 1 else ("", run.name)
            recorded = target if any(prefix + target in record for record in run.records) else TRAIN_RETURN
            if recorded == target:
                objective = target.partition("/")[2]
            curve = run.curve(prefix + recorded)
            own_steps = run.curve(f"{prefix}time/total_env_steps")
            if len(curve) == 0 or len(own_steps) == 0:
                raise UsageError(
                    f"Run {run.name} has recorded no return of {name} yet: wait until an episode has ended."
                )
            positions = np.interp(curve.positions, own_steps.positions, own_steps.values)
            own = [turn for turn in turns if turn["policy"] == policy]
            members.append(
                MemberHistory(
                    f"{run.name} {name}" if prefix and len(runs) > 1 else name,
                    make_curve(zip(positions.tolist(), curve.values.tolist(), strict=True)),
                    {each: _values(own, each, float(own_steps.values[-1])) for each in own[0]["after"]},
                    tuple((turn["policy_env_steps"], turn["source"]) for turn in own if turn["source"] is not None),
                )
            )
    return PopulationHistory(objective, tuple(members))


def _values(turns: Sequence[dict[str, Any]], name: str, end: float) -> Curve:
    points = [(turn["policy_env_steps"], turn["after"][name]) for turn in turns]
    return make_curve([*points, (max(end, points[-1][0]), points[-1][1])])


def population_of(run: Run) -> str | None:
    """The population of a run: its shared folder, or the run itself; None without a history."""
    if not (run.path / HISTORY).exists():
        return None
    return str(run.config.get("pbt_shared_dir") or run.path)


PLOT = Plot(
    "Draw population-based training: the objective and the hyperparameters of each policy, and who took over whose "
    "weights. Takes one run, or the runs of one --pbt_shared_dir.",
    "population train_dir/my_run",
    "Population",
    read_population,
    population_of,
)
