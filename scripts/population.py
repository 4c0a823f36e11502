"""Compares population-based training with the same policies without it, and reports who is better.

    python scripts/population.py                  # train and evaluate what has no result yet
    python scripts/population.py --table          # show the results, run nothing

Four policies learn LunarLander-v3 with learning rates from 1e-5 to 1e-1, once as a population, once with fixed ones.
Each has environments of its own, so all make the same number of steps. The final policies are evaluated on fresh seeds.

The script can be stopped at any time and continued: each result is appended to a JSON-lines file at once, what has a
result is not run again, and a stopped run resumes from its newest checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from asyncrl import load_policy
from asyncrl.analysis.benchmark.tasks import train_command
from asyncrl.analysis.records import append_json_line, read_json_lines
from asyncrl.analysis.tables import table
from asyncrl.evaluation.episodes import evaluate

NUM_POLICIES = 4
LEARNING_RATES = tuple(10.0 ** (-5.0 + 4.0 * idx / (NUM_POLICIES - 1)) for idx in range(NUM_POLICIES))
CASES = ("population", "fixed")
FRESH_SEED = 1_000_000


def by_environment(agent: str, env_idx: int, episode: int) -> int:
    """Maps environments to policies in turn, so that all policies make the same number of steps."""
    return env_idx % NUM_POLICIES


def flags_of(case: str, seed: int, options: argparse.Namespace) -> tuple[str, ...]:
    """The flags of one run."""
    rates = (f"--policy.{idx}.learning_rate={rate:.3g}" for idx, rate in enumerate(LEARNING_RATES))
    start, period = options.steps // 5, options.steps // 10
    pbt = ("--with_pbt=True", f"--pbt_start_mutation={start}", f"--pbt_period_env_steps={period}")
    return (
        f"--env={options.env}",
        f"--seed={seed}",
        f"--num_policies={NUM_POLICIES}",
        "--policy_mapping=population:by_environment",
        f"--train_for_env_steps={NUM_POLICIES * options.steps}",
        *rates,
        *(pbt if case == "population" else ()),
        *options.flags,
    )


def run(case: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Trains, or continues to train, and evaluates each policy; returns the record."""
    flags, experiment = flags_of(case, seed, options), f"{case}_seed{seed}"
    where = (f"--train_dir={options.train_dir}", f"--experiment={experiment}", "--quiet")
    subprocess.run(train_command((*flags, *where)), check=True, stdout=subprocess.DEVNULL)
    folder = options.train_dir / experiment
    returns = [
        evaluate(
            load_policy(folder, policy=idx, seed=seed), episodes=options.episodes, seed=FRESH_SEED + seed
        ).mean_reward
        for idx in range(NUM_POLICIES)
    ]
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "case": case,
        "seed": seed,
        "flags": list(flags),
        "returns": returns,
        "env_steps": summary["env_steps"],
        "fps": summary["fps"],
        "num_takeovers": sum(turn["action"] == "replaced" for turn in read_json_lines(folder / "pbt.jsonl")),
        "environment": json.loads((folder / "environment.json").read_text()),
    }


def report(records: list[dict[str, Any]]) -> tuple[str, bool]:
    """The table of results as Markdown with what follows from them, and whether both conditions are met."""
    by_case = {case: {each["seed"]: each["returns"] for each in records if each["case"] == case} for case in CASES}
    seeds = sorted(by_case["population"].keys() & by_case["fixed"].keys())
    rows = [
        [
            case,
            str(seed),
            *(f"{value:.1f}" for value in returns),
            f"{statistics.median(returns):.1f}",
            f"{max(returns):.1f}",
        ]
        for case in CASES
        for seed, returns in sorted(by_case[case].items())
    ]
    rates = [f"{rate:.3g}" for rate in LEARNING_RATES]
    lines = [table(["case", "seed", *rates, "median", "best"], rows), ""]
    if not seeds:
        return "\n".join([*lines, "no seed has both results yet"]), False
    medians = [statistics.median(value for seed in seeds for value in by_case[case][seed]) for case in CASES]
    bests = [statistics.mean(max(by_case[case][seed]) for seed in seeds) for case in CASES]
    needed = bests[1] - 0.05 * abs(bests[1])
    is_median_above, is_best_as_good = medians[0] > medians[1], bests[0] >= needed
    lines += [
        f"median over the policies of {len(seeds)} seeds: population {medians[0]:.1f}, fixed {medians[1]:.1f}: "
        + ("above" if is_median_above else "NOT above"),
        f"best policy, mean over the seeds: population {bests[0]:.1f}, fixed {bests[1]:.1f} less 5 % is {needed:.1f}: "
        + ("reached" if is_best_as_good else "NOT reached"),
    ]
    return "\n".join(lines), is_median_above and is_best_as_good


def main() -> int:
    """Runs the command line; returns 0 if both conditions are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--steps", type=int, default=1_000_000, help="environment steps of each policy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes of each policy")
    parser.add_argument("--results", type=Path, default=Path("population.jsonl"))
    parser.add_argument("--train_dir", type=Path, default=Path("train_dir"))
    parser.add_argument("--table", action="store_true", help="show what was measured and run nothing")
    options, options.flags = parser.parse_known_args()
    scripts = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), scripts)))
    records = read_json_lines(options.results)
    finished = {(record["case"], record["seed"]) for record in records}
    todo = [(case, seed) for seed in options.seeds for case in CASES if (case, seed) not in finished]
    for case, seed in () if options.table else todo:
        record = run(case, seed, options)
        records.append(record)
        append_json_line(options.results, record)
        print(f"{case} seed {seed}: {', '.join(f'{value:.1f}' for value in record['returns'])}", flush=True)
    text, is_met = report(records)
    print(text)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
