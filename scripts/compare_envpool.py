"""Measures EnvPool's environments stepped by asyncrl beside EnvPool alone, alternating, and writes one table.

    python scripts/compare_envpool.py --work_dir=peers            # about 6 minutes; needs envpool
    python scripts/compare_envpool.py --work_dir=peers --table    # only the table of the results

No system trains: asyncrl's policy chooses the actions, its learner drops the trajectories (--debug_skip_training).
EnvPool alone steps as many environments with as many threads and random actions: one pool that is stepped as a whole,
and one that steps the half that is ready first. Results are appended to envpool.jsonl; a measurement with a result is
not repeated.
"""

from __future__ import annotations

import argparse
import functools
import sys

from compare_peers import run_asyncrl
from compare_sac import run_peer
from peer_environments import DRIVERS
from rounds import Row, carry_out, parser

from asyncrl.analysis.benchmark.variants import SAMPLING_FLAG


def rows(options: argparse.Namespace) -> list[Row]:
    num_envs = options.num_workers * options.num_envs_per_worker
    group = f"{options.env} of EnvPool, environment steps/s, {num_envs} environments, {options.num_workers} threads"
    return [
        Row(group, "EnvPool alone, all at once", functools.partial(alone, options, num_envs)),
        Row(group, "EnvPool alone, the first half that is ready", functools.partial(alone, options, num_envs // 2)),
        Row(group, f"asyncrl, sampling only, {options.num_workers} workers", functools.partial(through, options)),
    ]


def alone(options: argparse.Namespace, batch_size: int, round_idx: int) -> float:
    """Returns steps per second of a pool alone."""
    command = [sys.executable, str(DRIVERS / "envpool_alone.py")]
    sizes = {"num_envs": options.num_workers * options.num_envs_per_worker, "num_threads": options.num_workers}
    return run_peer(command, options, round_idx, **sizes, env=options.env, batch_size=batch_size)


def through(options: argparse.Namespace, round_idx: int) -> float:
    """Returns steps per second of a run that samples and does not train."""
    flags = ("--env_backend=envpool", SAMPLING_FLAG)
    return run_asyncrl(f"envpool {options.env}", options.env, flags, options, round_idx)


def main() -> int:
    flags = parser(__doc__, rounds=3, warm_up_s=8.0, measure_s=20.0)
    flags.add_argument("--env", default="HalfCheetah-v5", help="EnvPool's id")
    flags.add_argument("--num_workers", type=int, default=2)
    flags.add_argument("--num_envs_per_worker", type=int, default=32)
    options = flags.parse_args()
    return 0 if carry_out("envpool", "Random actions where EnvPool is alone.", rows(options), options) else 1


if __name__ == "__main__":
    sys.exit(main())
