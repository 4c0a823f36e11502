"""Measures what sharing parameters costs Hogwild workers, alternating, and writes one table.

    python scripts/compare_hogwild.py --work_dir=peers            # about 30 minutes
    python scripts/compare_hogwild.py --work_dir=peers --table    # only the table of the results

Two workers of one run are compared with two runs of one worker each on the same cores: SAC in updates, A3C in
environment steps. The update of a single worker is compared with that of the learner of the actor/learner backend, with
one thread each; and SAC with two workers is compared with Stable-Baselines3's with two threads. SAC has 256-256
networks and batches of 256 everywhere, A3C its presets. Results are appended to hogwild.jsonl; a measurement with a
result is not repeated.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable

from compare_peers import STABLE_BASELINES3
from compare_sac import ENV, SB3, asyncrl_updates, parser_with_precisions, run_peer, stable_baselines3
from peer_environments import DRIVERS
from rounds import Row, carry_out

UPDATES, STEPS = "SAC updates/s", "A3C environment steps/s"
LIGHT_ENV = "CartPole-v1"


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for what, algo, env in ((UPDATES, "sac", ENV), (STEPS, "a3c", ENV), (STEPS, "a3c", LIGHT_ENV)):
        for system, num_runs, num_workers in (
            ("two runs of one worker", 2, 1),
            ("two workers of one run", 1, 2),
            ("one worker alone", 1, 1),
        ):
            measure = workers(options, algo, env, num_runs, num_workers)
            found.append(Row(f"{what}, {env}", system, measure))
    for algo in ("sac", "a2c"):
        for system, storage in (("the learner", "own"), ("a Hogwild worker's", "shared")):
            measure = asyncrl_updates(options, threads=1, algo=algo, storage=storage)
            found.append(Row(f"{algo.upper()} updates/s, one thread", system, measure))
    group = f"{UPDATES}, two cores"
    found.append(Row(group, f"{SB3}, updates alone", stable_baselines3("updates", 2, options)))
    found.append(Row(group, f"{SB3}, a run", stable_baselines3("run", 2, options)))
    for precision in options.precisions:
        measure = workers(options, "sac", ENV, num_runs=1, num_workers=2, precision=precision)
        found.append(Row(group, f"two Hogwild workers {precision}", measure))
    return found


def workers(
    options: argparse.Namespace, algo: str, env: str, num_runs: int, num_workers: int, precision: str = "float32"
) -> Callable[[int], float]:
    """Returns the measurement of runs of Hogwild workers."""
    command = [sys.executable, str(DRIVERS / "asyncrl_hogwild.py")]
    settings = {"algo": algo, "env": env, "num_runs": num_runs, "num_workers": num_workers, "precision": precision}
    return functools.partial(run_peer, command, options, **settings)


def main() -> int:
    options = parser_with_precisions(__doc__, rounds=5).parse_args()
    about = f"{ENV} where nothing else is said, {STABLE_BASELINES3.packages[0]}."
    return 0 if carry_out("hogwild", about, rows(options), options) else 1


if __name__ == "__main__":
    sys.exit(main())
