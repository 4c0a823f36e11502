"""Measures asyncrl's SAC, TD3 or DQN beside Stable-Baselines3's, alternating, and writes one table.

    python scripts/compare_sac.py --rounds=3 --work_dir=peers     # about 4 minutes a round
    python scripts/compare_sac.py --algo=td3 --precisions=float32 # updates alone; dqn: on CartPole-v1
    python scripts/compare_sac.py --work_dir=peers --table        # only the table of the results

It measures updates alone, with the sampling of their batches, with one thread and with two; of SAC also whole runs at
one update per step with two threads. All systems train 256-256 networks with batches of 256 on the CPU. Results are
appended to ALGO.jsonl; a measurement with a result is not repeated.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from compare_peers import STABLE_BASELINES3
from peer_environments import DRIVERS, python_of
from rounds import Row, carry_out, parser

from asyncrl.analysis.records import ELAPSED, STEPS, read_records

ENV = "HalfCheetah-v5"
CHOICE_ENV = "CartPole-v1"
SB3 = "Stable-Baselines3"
TIMEOUT_S = 300.0


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for threads in (1, 2):
        group = f"updates/s, {threads} thread{'s' * (threads > 1)}"
        found.append(Row(group, SB3, stable_baselines3("updates", threads, options, options.algo)))
        for precision in options.precisions:
            found.append(
                Row(group, f"asyncrl {precision}", asyncrl_updates(options, threads, options.algo, precision=precision))
            )
    if options.algo != "sac":
        return found
    group = "environment steps/s of a run, 2 threads"
    found.append(Row(group, SB3, stable_baselines3("run", 2, options)))
    for precision in options.precisions:
        found.append(Row(group, f"asyncrl {precision}", functools.partial(run_asyncrl, options, precision)))
    return found


def stable_baselines3(
    what: str, threads: int, options: argparse.Namespace, algo: str = "sac"
) -> Callable[[int], float]:
    """Returns the measurement of Stable-Baselines3's "updates" or "run"; its first call creates the environment."""

    def measure(round_idx: int) -> float:
        python = python_of(STABLE_BASELINES3, options.work_dir.resolve())
        command = [str(python), str(DRIVERS / "stable_baselines3_replay.py")]
        return run_peer(command, options, round_idx, what=what, threads=threads, algo=algo)

    return measure


def asyncrl_updates(
    options: argparse.Namespace,
    threads: int,
    algo: str = "sac",
    storage: str = "own",
    precision: str = "float32",
    **more: str,
) -> Callable[[int], float]:
    """Returns the measurement of updates alone.

    Args:
        options: from `parser`.
        threads: of PyTorch.
        algo: what is trained.
        storage: "own" for a learner, "shared" for a Hogwild worker.
        precision: of matrix products.
        more: device and compile, as the flags of training.
    """
    command = [sys.executable, str(DRIVERS / "asyncrl_updates.py")]
    settings = {"threads": threads, "algo": algo, "storage": storage, "precision": precision, **more}
    return functools.partial(run_peer, command, options, **settings)


def run_peer(command: list[str], options: argparse.Namespace, round_idx: int, **settings: object) -> float:
    """Runs a timing script of `peers` and returns its rate per second."""
    env = CHOICE_ENV if settings.get("algo") == "dqn" else ENV
    common = {"env": env, "seconds": options.measure_s, "warm_up_s": options.warm_up_s, "seed": round_idx}
    done = subprocess.run(
        [*command, json.dumps({**common, **settings})], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{Path(command[-1]).name} failed:\n{done.stderr}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["per_s"])


def run_asyncrl(options: argparse.Namespace, precision: str, round_idx: int) -> float:
    """Trains for a while and returns environment steps per second after the warm-ups, from the run's records."""
    experiment = f"sac_{precision}_{round_idx}"
    flags = [
        f"--env={ENV}",
        "--algo=sac",
        f"--precision={precision}",
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
    records = read_records(options.work_dir / "runs" / experiment / "metrics.jsonl")
    began = next(record for record in records if record.get("train/n_updates", 0) > 0)[ELAPSED]
    first, *_, last = [record for record in records[:-1] if record[ELAPSED] >= began + options.warm_up_s]
    return float((last[STEPS] - first[STEPS]) / (last[ELAPSED] - first[ELAPSED]))


def parser_with_precisions(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """Returns a parser with the common flags and the precisions in which asyncrl is measured."""
    found = parser(description, rounds, warm_up_s=5.0, measure_s=15.0)
    found.add_argument(
        "--precisions",
        type=lambda text: text.split(","),
        default=["float32", "bf16"],
        help="asyncrl's; leave out bf16 where the processor has no instructions for it",
    )
    return found


def main() -> int:
    arguments = parser_with_precisions(__doc__, rounds=3)
    arguments.add_argument("--algo", choices=("sac", "td3", "dqn"), default="sac")
    options = arguments.parse_args()
    about = f"{CHOICE_ENV if options.algo == 'dqn' else ENV}, {STABLE_BASELINES3.packages[0]}."
    return 0 if carry_out(options.algo, about, rows(options), options) else 1


if __name__ == "__main__":
    sys.exit(main())
