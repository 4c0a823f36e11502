"""Searches settings for CartPole with 20 trials, kills the search once, and tests what it found against the preset.

    python scripts/sweep_acceptance.py --work_dir=train_dir/sweep_acceptance

1. A sweep for the fewest steps until an evaluation reaches 475 is killed by SIGKILL when half of its trials have ended.
2. The same command continues it to its end. Every trial must have ended once, and none may have been lost.
3. The settings that it found and those of the preset train with fresh seeds that the sweep has never used.

The script can be stopped and continued. Exit code 0 if the median of the found settings is smaller.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from asyncrl.analysis.statistics import spread
from asyncrl.analysis.tables import cell, number, table
from asyncrl.contrib.experiments.grid import Grid, GridRun
from asyncrl.contrib.experiments.launch import Launch
from asyncrl.contrib.experiments.objective import Objective, read_evaluations

THRESHOLD = 475.0
STEPS = 100_000
FIRST_SEED = 2_000_000
# One process for each run, so that two runs fit on two cores and each evaluation is made at exactly its step.
FLAGS = (
    *("--env=CartPole-v1", "--serial_mode=True", "--async_rl=False", f"--train_for_env_steps={STEPS}"),
    *("--eval_every_env_steps=2000", "--eval_episodes=20", "--save_every_s=5"),
)
STUDY = "study"


def sweep_command(options: argparse.Namespace) -> list[str]:
    return [
        *(sys.executable, "-m", "asyncrl.sweep", f"--train_dir={options.work_dir}", f"--study={STUDY}"),
        *("--objective=steps_to_threshold", f"--threshold={THRESHOLD:g}", f"--num_trials={options.num_trials}"),
        *(f"--slots={options.slots}", *FLAGS),
    ]


def kill_in_the_middle(options: argparse.Namespace) -> dict[str, int]:
    """Starts the sweep and kills it when half of its trials have ended; returns what was there then."""
    process = subprocess.Popen(sweep_command(options), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    num_ended = 0
    for line in process.stdout:
        print(line, end="", flush=True)
        num_ended += "steps to threshold" in line or ": pruned" in line
        if num_ended >= options.num_trials // 2:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    killed_at = time.monotonic()
    _, alive = psutil.wait_procs(children, timeout=10.0)
    gone_after_s = round(time.monotonic() - killed_at, 2)
    print(f"killed; {len(children)} processes of it, {len(alive)} alive after {gone_after_s} s", flush=True)
    return {"ended_trials": num_ended, "processes": len(children), "left": len(alive)}


def compare(options: argparse.Namespace) -> dict[str, list[float]]:
    """Trains with the preset and with the found settings; returns the steps to the threshold by settings."""
    found = f"--config={options.work_dir / STUDY / 'best.yaml'}"
    settings = {"preset": FLAGS, "found": (found, "--preset=none", *FLAGS)}
    runs = [
        GridRun(f"{name}_seed{seed}", name, seed, (*flags, f"--seed={seed}"))
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds)
        for name, flags in settings.items()
    ]
    launch = Launch(Grid(options.work_dir / "comparison", tuple(runs), None), num_core_sets=options.slots)
    launch.make_all()
    objective = Objective("steps_to_threshold", THRESHOLD)
    steps: dict[str, list[float]] = {name: [] for name in settings}
    for each in launch.runs:
        evaluations = read_evaluations(each.run.folder.metrics)
        has_reached = objective.is_decided(evaluations)
        steps[each.group].append(objective.value(evaluations, STEPS) if has_reached else float("inf"))
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work_dir", type=Path, default=Path("train_dir/sweep_acceptance"))
    parser.add_argument("--num_trials", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=10, help="fresh seeds of the comparison [default 10]")
    parser.add_argument("--slots", type=int, default=2)
    options = parser.parse_args()
    options.work_dir.mkdir(parents=True, exist_ok=True)
    killed = options.work_dir / "killed.json"
    if not killed.exists():
        killed.write_text(json.dumps(kill_in_the_middle(options)) + "\n")
    subprocess.run(sweep_command(options), check=True)
    steps = compare(options)
    rows = [[name, cell(spread(values), number), ", ".join(map(number, values))] for name, values in steps.items()]
    print(f"killed once: {killed.read_text().strip()}")
    print(table(["settings", f"steps to {THRESHOLD:g}, median", "by seed"], rows))
    return 0 if statistics.median(steps["found"]) < statistics.median(steps["preset"]) else 1


if __name__ == "__main__":
    sys.exit(main())
