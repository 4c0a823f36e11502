"""Counts the steps of one EnvPool with random actions and nothing else.

Usage: envpool_alone.py OPTIONS, JSON: env, num_envs, batch_size, num_threads, seconds, warm_up_s, seed. Prints one line
of JSON: {"per_s": ...}. With a `batch_size` of fewer than `num_envs` the pool is asynchronous: each turn takes those
environments that were ready first.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import envpool
import numpy as np

NUM_ACTIONS = 1000


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    sizes = {name: options[name] for name in ("num_envs", "batch_size", "num_threads", "seed")}
    pool = envpool.make_gymnasium(options["env"], **sizes)
    pool.action_space.seed(options["seed"])
    batch = range(options["batch_size"])
    drawn = [np.stack([pool.action_space.sample() for _ in batch]) for _ in range(NUM_ACTIONS)]
    actions = itertools.cycle(drawn)
    pool.async_reset()

    def count(seconds: float) -> float:
        """Returns steps per second. A reset takes the turn of a step and counts as one, as in the pool's own counts."""
        num_steps, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            *_, info = pool.recv()
            pool.send(next(actions), info["env_id"])
            num_steps += len(info["env_id"])
        return num_steps / elapsed

    count(options["warm_up_s"])
    print(json.dumps({"per_s": count(options["seconds"])}))


if __name__ == "__main__":
    main()
