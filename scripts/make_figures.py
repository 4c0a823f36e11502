r"""Draws the pictures and the table of learning in the README from stored results; each number has one source.

    python scripts/time_to_score.py --suite=peers --tasks=HalfCheetah-v5,Hopper-v5,Ant-v5,Humanoid-v5 \
        --systems=asyncrl,sample_factory,sb3_zoo --seeds=3 --limit_s=180 --work_dir=scores/peers
    python scripts/make_figures.py --results=scores/peers/results.jsonl  # stores them in docs/learning.json, and draws
    python scripts/make_figures.py                                       # draws the stored results again

`docs/learning.json` holds for each run its curve, its evaluated policies, its speed, and once for all runs the commit,
the versions and the processor. From it come `docs/images/return_over_seconds.svg`, `docs/images/steps_per_second.svg`
and the table between `<!-- learning: ... -->` and `<!-- end of learning -->` in the README, which must have these two
lines. Needs `pip install -e ".[plot]"`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scoring.records import Record

from asyncrl.analysis.drawing import check_can_draw, color, finish, new_figure, save
from asyncrl.analysis.records import read_json_lines

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "docs" / "learning.json"
README = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- learning: made by scripts/make_figures.py -->", "<!-- end of learning -->"
LABELS = {
    "asyncrl": "asyncrl",
    "sample_factory": "Sample Factory 2.1.1",
    "sb3_zoo": "Stable-Baselines3 2.9.2, rl-zoo",
}
"""The systems that are drawn, in the order of their colours."""

_MOST_POINTS = 120


def stored_results(records: Sequence[Record]) -> dict[str, Any]:
    """Returns what is stored of these runs.

    Raises:
        SystemExit: asyncrl's runs are of several commits, so no single one could be named.
    """
    drawn = [record for record in records if record.system in LABELS]
    commits = {record.environment["git_commit"] for record in drawn if record.system == "asyncrl"}
    if len(commits) != 1:
        raise SystemExit(f"asyncrl's runs must be of one commit, these are of {sorted(commits) or 'none'}.")
    environment = drawn[-1].environment
    return {
        "commit": commits.pop(),
        "processor": environment["machine"]["cpu"],
        "versions": {record.system: record.versions for record in drawn},
        "runs": [_run(record) for record in sorted(drawn, key=lambda one: (one.task, one.system, one.seed))],
    }


def _run(record: Record) -> dict[str, Any]:
    curve = record.curve[:: -(-len(record.curve) // _MOST_POINTS) or 1]
    return {
        "task": record.task,
        "system": record.system,
        "seed": record.seed,
        "seconds": round(record.seconds, 1),
        "env_steps": record.env_steps,
        "steps_per_s": round(record.steps_per_s, 1),
        "score": round(record.score, 1),
        "curve": [[round(seconds, 1), round(mean_return, 2)] for seconds, _, mean_return in curve],
    }


def table(stored: dict[str, Any]) -> str:
    """The README's table: for each task and system the median score, the worst seed, the seconds and the speed."""
    runs: defaultdict[str, defaultdict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in stored["runs"]:
        runs[run["task"]][run["system"]].append(run)
    lines = ["| task | system | return: median, worst seed | seconds | steps/s |", "| --- | --- | --- | --- | --- |"]
    for task, by_system in runs.items():
        for system in (name for name in LABELS if name in by_system):
            own = by_system[system]
            scores = [run["score"] for run in own]
            cells = (
                task,
                LABELS[system],
                f"{statistics.median(scores):.0f}, {min(scores):.0f}",
                f"{statistics.median(run['seconds'] for run in own):.0f}",
                f"{statistics.median(run['steps_per_s'] for run in own):,.0f}",
            )
            lines.append("| " + " | ".join(cells) + " |")
    seeds = max(len(own) for by_system in runs.values() for own in by_system.values())
    lines.append("")
    lines.append(f"{seeds} seeds, presets as shipped, start-up included, two cores of {stored['processor']},")
    lines.append(
        f"commit {stored['commit'][:8]}; return: mean of evaluation episodes of the final policy, sampled actions."
    )
    return "\n".join(lines)


def with_table(readme: str, stored: dict[str, Any]) -> str:
    """The README with the table of the stored results between its marks."""
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n{table(stored)}\n{END}{rest.split(END)[1]}"


def draw_returns(stored: dict[str, Any], path: Path) -> None:
    """Draws for each task the training return over seconds: a thin line for each seed, a thick one for their mean."""
    tasks = list(dict.fromkeys(run["task"] for run in stored["runs"]))
    figure = new_figure(4.2 * min(len(tasks), 2), 2.9 * -(-len(tasks) // 2))
    axes = figure.subplots(-(-len(tasks) // 2), min(len(tasks), 2), squeeze=False).flat
    for own, task in zip(axes, tasks, strict=False):
        for number, (system, label) in enumerate(LABELS.items()):
            curves = [run["curve"] for run in stored["runs"] if (run["task"], run["system"]) == (task, system)]
            points = [np.asarray(curve, dtype=np.float64).reshape(-1, 2) for curve in curves if len(curve) > 1]
            if not points:
                continue
            for curve in points:
                own.plot(curve[:, 0], curve[:, 1], color=color(number), lw=0.7, alpha=0.4)
            seconds = np.linspace(max(curve[0, 0] for curve in points), min(curve[-1, 0] for curve in points), 100)
            mean = np.mean([np.interp(seconds, curve[:, 0], curve[:, 1]) for curve in points], axis=0)
            own.plot(seconds, mean, color=color(number), lw=2.0, label=label if task == tasks[0] else None)
        own.set_title(task, fontsize="medium")
        own.set_xlabel("seconds since the command")
        own.set_ylabel("return")
        finish(own)
    save(figure, path)


def draw_speeds(stored: dict[str, Any], path: Path) -> None:
    """Draws for each task the environment steps trained on per second, medians over seeds, as bars."""
    tasks = list(dict.fromkeys(run["task"] for run in stored["runs"]))
    figure = new_figure(8.4, 2.6)
    axes = figure.subplots()
    height = 0.8 / len(LABELS)
    for number, (system, label) in enumerate(LABELS.items()):
        speeds = []
        for task in tasks:
            own = [run["steps_per_s"] for run in stored["runs"] if (run["task"], run["system"]) == (task, system)]
            speeds.append(statistics.median(own) if own else 0.0)
        bars = axes.bar(np.arange(len(tasks)) + number * height, speeds, height, color=color(number), label=label)
        axes.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], fontsize="small")
    axes.set_xticks(np.arange(len(tasks)) + height * (len(LABELS) - 1) / 2, tasks)
    axes.set_ylabel("environment steps/s")
    finish(axes)
    save(figure, path)


def main() -> None:
    """Stores results if they are given; then draws the stored ones and writes the README's table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="results.jsonl of scripts/time_to_score.py, to be stored first")
    options = parser.parse_args()
    check_can_draw()
    if options.results is not None:
        records = [Record.from_json(entry) for entry in read_json_lines(options.results)]
        STORED.write_text(json.dumps(stored_results(records), indent=1) + "\n")
    stored = json.loads(STORED.read_text())
    draw_returns(stored, IMAGES / "return_over_seconds.svg")
    draw_speeds(stored, IMAGES / "steps_per_second.svg")
    README.write_text(with_table(README.read_text(), stored))


if __name__ == "__main__":
    main()
