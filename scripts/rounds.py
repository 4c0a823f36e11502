"""Measurements in rounds: each result is a line of JSON, all results are one table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.analysis.benchmark.tasks import Workshop
from asyncrl.analysis.benchmark.variants import Task
from asyncrl.analysis.benchmark.watch import TaskFailed
from asyncrl.analysis.records import append_json_line, read_json_lines
from asyncrl.analysis.statistics import spread
from asyncrl.analysis.tables import cell, digits, table
from asyncrl.config.schema import TrainConfig
from asyncrl.storage.provenance import describe

Results = dict[tuple[str, int], float]
"""Rates per second, by the key of a row and the index of the round."""


@dataclass(frozen=True)
class Row:
    """One system in a group of systems that do the same; the first of a group is the reference of the others.

    `measure` takes the index of the round and returns a rate per second.
    """

    group: str
    system: str
    measure: Callable[[int], float]

    @property
    def key(self) -> str:
        return f"{self.group}, {self.system}"


START_ALLOWANCE_S = 2.0
ENDLESS = (
    "--train_for_env_steps=1000000000000",
    "--lr_schedule=constant",
    "--report_every_s=1",
    "--with_tensorboard=False",
)
"""Flags of runs that end after some seconds, whose speed is measured."""


def env_steps_per_s(
    name: str,
    env: str,
    flags: Sequence[str],
    options: argparse.Namespace,
    round_idx: int,
    start_s: float = START_ALLOWANCE_S,
) -> float:
    """Trains for the seconds of the measurement, with `ENDLESS`, and returns the environment steps per second.

    `start_s` is the time that the run is given until its first step.

    Raises:
        TaskFailed: the run failed.
    """
    seconds = f"--train_for_seconds={options.warm_up_s + options.measure_s + start_s:g}"
    workshop = Workshop(options.work_dir.resolve(), TrainConfig(env=env), options.warm_up_s, options.measure_s)
    task = Task("throughput", name, round_idx, (f"--env={env}", *ENDLESS, *flags, seconds), ())
    return float(workshop.carry_out(task)["env_steps_per_s"])


def names_in(text: str, known: Sequence[str]) -> list[str]:
    """Splits the value of a flag at its commas.

    Raises:
        argparse.ArgumentTypeError: a name is unknown.
    """
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return names


def parser(description: str | None, rounds: int, warm_up_s: float, measure_s: float) -> argparse.ArgumentParser:
    """Returns a parser with the common flags; the arguments are their defaults."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--work_dir", type=Path, default=Path("peers"), help="environments, runs, results, table")
    found.add_argument("--rounds", type=int, default=rounds)
    found.add_argument("--warm_up_s", type=float, default=warm_up_s)
    found.add_argument("--measure_s", type=float, default=measure_s)
    found.add_argument("--table", action="store_true", help="show what was measured and measure nothing")
    return found


def carry_out(
    name: str,
    about: str,
    rows: Sequence[Row],
    options: argparse.Namespace,
    compared: Sequence[str] = (),
    **more_conditions: Any,
) -> bool:
    """Makes the missing measurements, every second round in reverse order, and always writes and prints the table.

    A failed measurement is reported and leaves no result.

    Args:
        name: name of the files in `work_dir`: results in `NAME.jsonl`, the table in `NAME.md`.
        about: a sentence above the table.
        rows: the measurements of a round.
        options: from `parser`.
        compared: systems with a column each: their rate divided by that of the row, in the same group.
        more_conditions: conditions of a result besides warm-up and length of the measurement.

    Returns:
        Whether all measurements have a result.
    """
    options.work_dir.mkdir(parents=True, exist_ok=True)
    path = options.work_dir / f"{name}.jsonl"
    conditions = {"warm_up_s": options.warm_up_s, "measure_s": options.measure_s, **more_conditions}
    # Results under these conditions, or under conditions that are not known.
    results: Results = {
        (entry["key"], entry["round"]): entry["per_s"]
        for entry in read_json_lines(path)
        if all(entry.get(name, value) == value for name, value in conditions.items())
    }
    try:
        for round_idx in range(0 if options.table else options.rounds):
            for row in rows if round_idx % 2 == 0 else reversed(rows):
                if (row.key, round_idx) in results:
                    continue
                try:
                    per_s = results[row.key, round_idx] = row.measure(round_idx)
                except TaskFailed as error:
                    print(f"round {round_idx} {row.key}: failed: {error}", flush=True)
                    continue
                append_json_line(path, {"key": row.key, "round": round_idx, "per_s": per_s, **conditions})
                print(f"round {round_idx} {row.key}: {per_s:,.1f}", flush=True)
    finally:
        text = _to_markdown(about, rows, results, options, compared)
        (options.work_dir / f"{name}.md").write_text(text, encoding="utf-8")
        print(text)
    return all((row.key, round_idx) in results for row in rows for round_idx in range(options.rounds))


def _to_markdown(
    about: str, rows: Sequence[Row], results: Results, options: argparse.Namespace, compared: Sequence[str]
) -> str:
    def ratio(above: str, below: str) -> str:
        both = [idx for idx in range(options.rounds) if (above, idx) in results and (below, idx) in results]
        return cell(spread([results[above, idx] / results[below, idx] for idx in both]) if both else None, digits(2))

    lines = []
    for row in rows:
        values = [results[row.key, idx] for idx in range(options.rounds) if (row.key, idx) in results]
        if values:
            reference = next(other for other in rows if other.group == row.group)
            others = [ratio(f"{row.group}, {system}", row.key) for system in compared]
            lines.append([row.group, row.system, cell(spread(values)), ratio(row.key, reference.key), *others])
    machine, packages = describe("cpu")["machine"], describe("cpu")["packages"]
    header = ["what", "system", "a second", "times the first of its group", *(f"{system} is" for system in compared)]
    return "\n\n".join(
        [
            f"{machine['cpu']}, {machine['usable_cores']} usable cores, torch {packages['torch']}, "
            f"{time.strftime('%Y-%m-%d')}. `python {' '.join(sys.argv)}`",
            f"{about} Medians of {options.rounds} rounds (95 % bootstrap interval), {options.measure_s:g} s each after "
            f"{options.warm_up_s:g} s; ratios are taken within a round.",
            table(header, lines),
            "",
        ]
    )
