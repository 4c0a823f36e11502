"""Measures asyncrl's SAC beside Stable-Baselines3's on HalfCheetah-v5, alternating, and writes one table.

    python scripts/compare_sac.py --rounds=3 --work_dir=peers     # about 4 minutes a round
    python scripts/compare_sac.py --work_dir=peers --table        # only the table of what was measured

Updates alone, batches drawn from a replay included, with one thread and with two; and whole runs at one update a step
with two threads. All train the same: 256-256 networks, batches of 256, on the CPU. The systems of a group follow one
another in turn forwards and backwards; results are appended to sac.jsonl, and a measurement that has one is not made
again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare_peers import STABLE_BASELINES3, Comparison

from asyncrl.benchmarking.report import cell, number, table
from asyncrl.benchmarking.statistics import Spread, spread
from asyncrl.runtime.provenance import describe

ENV = "HalfCheetah-v5"
SB3 = "Stable-Baselines3"
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Row:
    """One system in one group: rows of a group do the same."""

    group: str
    system: str
    threads: int
    precision: str = ""

    @property
    def key(self) -> str:
        """Name in the results."""
        return f"{self.group}, {self.system} {self.precision}".rstrip()


ROWS = [
    *(
        Row(f"updates/s, {threads} thread{'s' * (threads > 1)}", system, threads, precision)
        for threads in (1, 2)
        for system, precision in ((SB3, ""), ("asyncrl", "float32"), ("asyncrl", "bf16"))
    ),
    *(
        Row("environment steps/s of a run, 2 threads", system, 2, precision)
        for system, precision in ((SB3, ""), ("asyncrl", "float32"), ("asyncrl", "bf16"))
    ),
]


def measure(row: Row, round_idx: int, comparison: Comparison, options: argparse.Namespace) -> float:
    """Runs one system and returns what it did a second."""
    here = Path(__file__).resolve().parent / "peers"
    is_run = row.group.startswith("environment")
    settings: dict[str, Any] = {
        "env": ENV,
        "what": "run" if is_run else "updates",
        "threads": row.threads,
        "seconds": options.measure_s,
        "warm_up_s": options.warm_up_s,
        "seed": round_idx,
        "precision": row.precision,
    }
    if row.system == SB3:
        command = [str(comparison.python_of(STABLE_BASELINES3)), str(here / "stable_baselines3_sac.py")]
    elif is_run:
        return run_asyncrl(row, round_idx, options)
    else:
        command = [sys.executable, str(here / "asyncrl_sac_updates.py")]
    done = subprocess.run(
        [*command, json.dumps(settings)], check=True, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    return float(json.loads(done.stdout.strip().splitlines()[-1])["per_s"])


def run_asyncrl(row: Row, round_idx: int, options: argparse.Namespace) -> float:
    """Trains for a while and returns environment steps a second after its warm-ups, from the run's own records."""
    experiment = f"sac_{row.precision}_{round_idx}"
    flags = [
        f"--env={ENV}",
        "--algo=sac",
        f"--precision={row.precision}",
        f"--seed={round_idx}",
        "--warmup_env_steps=5000",
        f"--train_for_seconds={options.warm_up_s + options.measure_s + 5.0:g}",
        "--train_for_env_steps=1000000000",
        "--report_every_s=1",
        "--with_tensorboard=False",
        f"--train_dir={options.work_dir / 'runs'}",
        f"--experiment={experiment}",
        "--restart_behavior=overwrite",
        "--quiet",
    ]
    subprocess.run([sys.executable, "-m", "asyncrl.train", *flags], check=True, timeout=TIMEOUT_S)
    lines = (options.work_dir / "runs" / experiment / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    began = next(record for record in records if record.get("train/n_updates", 0) > 0)["time/time_elapsed"]
    window = [record for record in records[:-1] if record["time/time_elapsed"] >= began + options.warm_up_s]
    first, last = window[0], window[-1]
    return float((last["env_steps"] - first["env_steps"]) / (last["time/time_elapsed"] - first["time/time_elapsed"]))


def to_markdown(results: dict[tuple[str, int], float], options: argparse.Namespace) -> str:
    """The table, with machine and command."""
    lines = []
    for row in ROWS:
        reference = next(other for other in ROWS if other.group == row.group and other.system == SB3)
        values = {idx: results[row.key, idx] for idx in range(options.rounds) if (row.key, idx) in results}
        if not values:
            continue
        ratios = [
            value / results[reference.key, idx] for idx, value in values.items() if (reference.key, idx) in results
        ]
        lines.append([row.group, f"{row.system} {row.precision}", _cell(spread(list(values.values())), 0)])
        lines[-1].append(_cell(spread(ratios), 2) if ratios else "-")
    machine, packages = describe("cpu")["machine"], describe("cpu")["packages"]
    return "\n\n".join(
        [
            f"{machine['cpu']}, {machine['usable_cores']} usable cores, torch {packages['torch']}, "
            f"{STABLE_BASELINES3.packages[0]}, {time.strftime('%Y-%m-%d')}. `python {' '.join(sys.argv)}`",
            f"{ENV}, medians of {options.rounds} rounds (95 % bootstrap interval), {options.measure_s:g} s each after "
            f"{options.warm_up_s:g} s; ratios are taken within a round.",
            table(["what", "system", "a second", f"times {SB3}"], lines),
            "",
        ]
    )


def _cell(figure: Spread, digits: int) -> str:
    return cell(figure, lambda value: number(value, digits))


def main() -> int:
    """Runs the command line; 0 if everything was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work_dir", type=Path, default=Path("peers"), help="environments, runs, results, table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm_up_s", type=float, default=5.0)
    parser.add_argument("--measure_s", type=float, default=15.0)
    parser.add_argument(
        "--precisions",
        type=lambda text: text.split(","),
        default=["float32", "bf16"],
        help="asyncrl's; leave out bf16 where the processor has no instructions for it",
    )
    parser.add_argument("--table", action="store_true", help="show what was measured and measure nothing")
    options = parser.parse_args()
    for name, value in (("simulate_s", 0.0), ("num_workers", 0), ("num_envs_per_worker", 0)):
        setattr(options, name, value)  # what the comparison of PPO has besides
    comparison, path = Comparison(options), options.work_dir / "sac.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    results = {(entry["key"], entry["round"]): entry["per_s"] for entry in map(json.loads, lines)}
    rows = [row for row in ROWS if row.precision in ("", *options.precisions)]
    for round_idx in range(0 if options.table else options.rounds):
        for row in rows if round_idx % 2 == 0 else reversed(rows):
            if (row.key, round_idx) in results:
                continue
            per_s = results[row.key, round_idx] = measure(row, round_idx, comparison, options)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": row.key, "round": round_idx, "per_s": per_s}) + "\n")
            print(f"round {round_idx} {row.key}: {per_s:.1f}", flush=True)
    text = to_markdown(results, options)
    (options.work_dir / "sac.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if len(results) >= options.rounds * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
