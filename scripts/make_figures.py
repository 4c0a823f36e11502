r"""Draws the README's pictures of learning and writes its numbers from stored results; each number has one source.

    python scripts/time_to_score.py --suite=peers --tasks=HalfCheetah-v5,Hopper-v5,Ant-v5,Humanoid-v5 \
        --systems=asyncrl,sample_factory,sb3_zoo --seeds=3 --limit_s=120 --work_dir=scores/peers
    python scripts/make_figures.py --results=scores/peers/results.jsonl  # stores them in docs/learning.json, and draws
    python scripts/make_figures.py                                       # draws the stored results again

`docs/learning.json` holds for each run its curve, its evaluated policies, its speed, and once for all runs the commit,
the versions and the processor. From it come `docs/images/return_over_seconds.svg`, `docs/images/steps_per_second.svg`
and what stands between `<!-- learning: ... -->` and `<!-- end of learning -->`: sentences in README.md, a table in
docs/results.md. Needs `pip install -e ".[plot]"`.
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
RESULTS = ROOT / "docs" / "results.md"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- learning: made by scripts/make_figures.py -->", "<!-- end of learning -->"
LABELS = {
    "asyncrl": "asyncrl",
    "sample_factory": "Sample Factory 2.1.1",
    "sb3_zoo": "Stable-Baselines3 2.9.2, rl-zoo",
}
"""The systems that are drawn, in the order of their colours."""
OWN = "asyncrl"

_MOST_POINTS = 120


def stored_results(records: Sequence[Record]) -> dict[str, Any]:
    """Returns what is stored of these runs.

    Raises:
        SystemExit: asyncrl's runs are of several commits, so no single one could be named.
    """
    drawn = [record for record in records if record.system in LABELS]
    commits = {record.environment["git_commit"] for record in drawn if record.system == OWN}
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
        "deterministic_score": record.deterministic_score and round(record.deterministic_score, 1),
        "curve": [[round(seconds, 1), round(mean_return, 2)] for seconds, _, mean_return in curve],
    }


def grouped(stored: dict[str, Any]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The runs of each task by system, in the order of `LABELS`."""
    runs: defaultdict[str, defaultdict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in stored["runs"]:
        runs[run["task"]][run["system"]].append(run)
    return {task: {name: own[name] for name in LABELS if name in own} for task, own in runs.items()}


def median(runs: Sequence[dict[str, Any]], name: str) -> float:
    return float(statistics.median(run[name] for run in runs))


def table(stored: dict[str, Any]) -> str:
    """For each task and system the median score, the worst seed, the seconds and the speed."""
    lines = ["| task | system | return: median, worst seed | seconds | steps/s |", "| --- | --- | --- | --- | --- |"]
    for task, systems in grouped(stored).items():
        for system, own in systems.items():
            scores = f"{median(own, 'score'):.0f}, {min(run['score'] for run in own):.0f}"
            if _has_deterministic(stored):
                scores += f"; {median(own, 'deterministic_score'):.0f}"
            speed = f"{median(own, 'steps_per_s'):,.0f}"
            lines.append(f"| {task} | {LABELS[system]} | {scores} | {median(own, 'seconds'):.0f} | {speed} |")
    return "\n".join(["", *lines, "", _conditions(stored), ""])


def _has_deterministic(stored: dict[str, Any]) -> bool:
    """Whether each run has a return of deterministic actions."""
    return all(run.get("deterministic_score") is not None for run in stored["runs"])


def _conditions(stored: dict[str, Any]) -> str:
    counts = [len(own) for systems in grouped(stored).values() for own in systems.values()]
    seeds = str(max(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    actions = "sampled actions"
    if _has_deterministic(stored):
        actions += "; behind\nthe semicolon the median of deterministic actions"
    return (
        f"Two cores of {stored['processor']}, commit {stored['commit'][:8]}, {seeds} seeds, each system with its own\n"
        f"tuned settings, start-up included. Return: mean of 20 evaluation episodes of the last policy, {actions}."
    )


def sentences(stored: dict[str, Any]) -> str:
    """The README's two reasons that are numbers."""
    runs = grouped(stored)
    seconds = max(run["seconds"] for systems in runs.values() for own in systems.values() for run in own)
    returns = []
    for task, systems in runs.items():
        own, *others = (f"{median(found, 'score'):,.0f}" for found in systems.values())
        returns.append(f"{task} {own} ({', '.join(others)})")
    short = {name: label.partition(" 2.")[0] for name, label in LABELS.items() if name != OWN}
    names = " and ".join(f"{label}'s" for label in short.values())
    ratios = []
    for name, label in short.items():
        compared = [systems for systems in runs.values() if name in systems]
        found = [median(systems[OWN], "steps_per_s") / median(systems[name], "steps_per_s") for systems in compared]
        ratios += [f"{min(found):.1f} to {max(found):.1f} times {label}'s"] if found else []
    return f"""
* **Sooner at a return.** Median returns after at most {seconds:.0f} seconds on two cores, in brackets
  {names}:
  {", ".join(returns)}
  ([results](docs/results.md#beside-other-libraries)).
* **More steps a second.** On the same bodies it trains
  {" and ".join(ratios)} steps per second,
  each with its tuned settings.
"""


def with_block(document: str, block: str) -> str:
    """The document with another block between its marks."""
    before, rest = document.split(BEGIN)
    return f"{before}{BEGIN}\n{block}\n{END}{rest.split(END)[1]}"


def draw_returns(stored: dict[str, Any], path: Path) -> None:
    """Draws for each task the training return over seconds: a thin line for each seed, a thick one for their mean."""
    tasks = list(dict.fromkeys(run["task"] for run in stored["runs"]))
    figure = new_figure(4.2 * min(len(tasks), 2), 2.9 * -(-len(tasks) // 2))
    axes = figure.subplots(-(-len(tasks) // 2), min(len(tasks), 2), squeeze=False).flat
    lines: dict[str, Any] = {}
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
            (lines[label],) = own.plot(seconds, mean, color=color(number), lw=2.0)
        own.set_title(task, fontsize="medium")
        own.set_xlabel("seconds since the command")
        own.set_ylabel("return")
        finish(own)
    figure.legend(lines.values(), lines, loc="outside upper center", ncols=len(lines), frameon=False)
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
    """Stores results if they are given; then draws the stored ones and writes the numbers of both documents."""
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
    README.write_text(with_block(README.read_text(), sentences(stored)))
    RESULTS.write_text(with_block(RESULTS.read_text(), table(stored)))


if __name__ == "__main__":
    main()
