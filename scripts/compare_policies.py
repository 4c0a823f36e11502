"""Measures what several policies cost: steps a second with 1, 2 and 4 policies on the same environments, alternating.

    python scripts/compare_policies.py --rounds=3 --work_dir=policies     # about 6 minutes a round
    python scripts/compare_policies.py --systems=asyncrl

asyncrl and Sample Factory train HalfCheetah with the settings of `compare_peers.py`, asynchronous, with a learning rate
that changes nothing; each agent's policy is drawn again for each episode. Each policy has datasets of its own of 4096
samples. A system is compared with itself: the first row of each group is one policy. Results are appended to
policies.jsonl at once; a measurement with a result is not repeated.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
from collections.abc import Iterator

from compare_peers import SAMPLE_FACTORY, System, run_asyncrl, run_peer
from peer_environments import python_of
from rounds import Row, carry_out, names_in, parser

TASK = "HalfCheetah"
SYSTEMS = {
    "asyncrl": System("asyncrl", "asyncrl", None, "async", "async", "v5"),
    "sample_factory": System("sample_factory", "Sample Factory", SAMPLE_FACTORY, "async", "async", "v4"),
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for name in options.systems:
        system = SYSTEMS[name]
        for num_policies in options.num_policies:
            if system.peer is None:
                flags = ("--async_rl=True", f"--num_policies={num_policies}")
                measure = functools.partial(run_asyncrl, f"{name} {num_policies}", f"{TASK}-v5", flags, options)
            else:
                measure = functools.partial(run_peer, system, system.peer, TASK, options, num_policies=num_policies)
            yield Row(name, f"{num_policies} policies" if num_policies > 1 else "1 policy", measure)


def main() -> int:
    flags = parser(__doc__, rounds=3, warm_up_s=12.0, measure_s=20.0)
    flags.add_argument("--systems", type=lambda text: names_in(text, list(SYSTEMS)), default=list(SYSTEMS))
    flags.add_argument("--num_policies", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2, 4])
    flags.add_argument("--num_workers", type=int, default=2)
    flags.add_argument("--num_envs_per_worker", type=int, default=32)
    options = flags.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if "sample_factory" in options.systems:
        python_of(SAMPLE_FACTORY, options.work_dir.resolve())
    about = "Environment steps of HalfCheetah with random mapping from episodes to policies, learning rate 0."
    sizes = {name: getattr(options, name) for name in ("num_workers", "num_envs_per_worker")}
    try:
        return 0 if carry_out("policies", about, list(rows(options)), options, **sizes) else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
