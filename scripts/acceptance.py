"""Runs a list of (environment, mode, seed, steps, threshold), one after the other, and says which were reached.

    python scripts/acceptance.py core                 # run what has no result yet
    python scripts/acceptance.py core --only CartPole # those whose name contains a text
    python scripts/acceptance.py core --table         # show what was measured, run nothing

It can be stopped at any time and continued: each result is appended to a JSON-lines file as soon as it is there, and a
case with a result is not run again. Presets are used as shipped; only what a case names is set on the command line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

EVALUATION_EPISODES = 20


@dataclass(frozen=True)
class Case:
    """One claim: these flags reach `threshold` in at least `needed` of the seeds.

    `measure` is the mean return of evaluation episodes with the final policy (drawn actions), or the mean return of the
    last 100 training episodes.
    """

    name: str
    flags: tuple[str, ...]
    threshold: float
    seeds: tuple[int, ...]
    needed: int
    measure: Literal["evaluated", "training"] = "evaluated"


def _cartpole() -> Iterator[Case]:
    for mode in ("sync", "async"):
        for inference in ("local", "central"):
            flags = (
                "--env=CartPole-v1",
                "--train_for_env_steps=100000",
                f"--async_rl={mode == 'async'}",
                f"--inference_mode={inference}",
            )
            yield Case(f"CartPole-v1 100k {mode} {inference}", flags, 450.0, (0, 1, 2), 2)


SUITES: dict[str, list[Case]] = {
    "core": [
        *_cartpole(),
        Case(
            "InvertedPendulum-v5 1M async",
            ("--env=InvertedPendulum-v5", "--train_for_env_steps=1000000"),
            900.0,
            (0, 1, 2),
            2,
        ),
        Case(
            "Humanoid-v5 1M async",
            ("--env=Humanoid-v5", "--train_for_env_steps=1000000"),
            600.0,
            (0, 1, 2),
            2,
            "training",
        ),
    ],
}


def run_case(case: Case, seed: int, train_dir: Path) -> dict[str, Any]:
    """Trains and measures one seed of a case; returns its record."""
    experiment = f"{case.name.replace(' ', '_')}_seed{seed}"
    where = [f"--train_dir={train_dir}", f"--experiment={experiment}"]
    started = time.monotonic()
    flags = [*case.flags, f"--seed={seed}", *where, "--restart_behavior=overwrite", "--quiet"]
    subprocess.run([sys.executable, "-m", "asyncrl.train", *flags], check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((train_dir / experiment / "summary.json").read_text())
    record: dict[str, Any] = {
        "case": case.name,
        "seed": seed,
        "flags": list(case.flags),
        "threshold": case.threshold,
        "measure": case.measure,
        "env_steps": summary["env_steps"],
        "training_return": summary["ep_rew_mean"],
        "fps": summary["fps"],
        "lag_mean": summary["lag_mean"],
        "lag_max": summary["lag_max"],
        "train_wall_s": summary["wall_s"],
    }
    if case.measure == "evaluated":
        evaluated = subprocess.run(
            [sys.executable, "-m", "asyncrl.evaluate", *where, f"--episodes={EVALUATION_EPISODES}", "--json"],
            check=True,
            capture_output=True,
            text=True,
        )
        record["evaluation"] = json.loads(evaluated.stdout.strip().splitlines()[-1])
        record["value"] = record["evaluation"]["mean_reward"]
    else:
        record["value"] = summary["ep_rew_mean"]
    return {**record, "total_s": round(time.monotonic() - started, 1)}


def table(cases: list[Case], records: list[dict[str, Any]]) -> str:
    """What was measured, as Markdown."""
    lines = ["| case | threshold | measured, by seed | reached |", "| --- | --- | --- | --- |"]
    for case in cases:
        values = {record["seed"]: record["value"] for record in records if record["case"] == case.name}
        reached = sum(value >= case.threshold for value in values.values())
        shown = ", ".join(f"{values[seed]:.0f}" for seed in case.seeds if seed in values) or "-"
        verdict = f"{reached} of {len(values)} (needs {case.needed} of {len(case.seeds)})"
        lines.append(f"| {case.name} ({case.measure}) | {case.threshold:.0f} | {shown} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    """Runs the command line; 0 if every case with all its results reached its threshold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--results", type=Path, default=Path("acceptance.jsonl"))
    parser.add_argument("--train_dir", type=Path, default=Path("train_dir"))
    parser.add_argument("--table", action="store_true", help="show what was measured and run nothing")
    options = parser.parse_args()
    cases = [case for case in SUITES[options.suite] if options.only in case.name]
    records = _read(options.results)
    done = {(record["case"], record["seed"]) for record in records}
    todo = [(case, seed) for case in cases for seed in case.seeds if (case.name, seed) not in done]
    for case, seed in [] if options.table else todo:
        record = run_case(case, seed, options.train_dir)
        records.append(record)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{case.name} seed {seed}: {record['value']:.1f} ({record['total_s']} s)", flush=True)
    print(table(cases, records))
    reached = [
        sum(r["value"] >= case.threshold for r in records if r["case"] == case.name) >= case.needed for case in cases
    ]
    return 0 if all(reached) else 1


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
