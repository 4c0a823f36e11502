"""How fast the environments are by themselves: the yardstick of every throughput figure.

The same number of processes and environments as a run, random actions drawn beforehand, no policy, no shared memory.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from typing import Any

from asyncrl.envs.making import env_seed, make_env
from asyncrl.runtime.processes import process_context

_NUM_ACTIONS = 1000
_STEPS_BETWEEN_LOOKS = 200


def measure_pure_simulation(
    env_id: str,
    env_kwargs: dict[str, Any],
    num_workers: int,
    num_envs_per_worker: int,
    warm_up_s: float,
    seconds: float,
) -> float:
    """Steps environments at random in `num_workers` processes at once.

    Args:
        env_id: as for training.
        env_kwargs: as for training.
        num_workers: processes.
        num_envs_per_worker: environments of each, stepped in turn.
        warm_up_s: seconds that are not counted.
        seconds: seconds that are.

    Returns:
        Environment steps a second of all processes together.
    """
    context = process_context()
    pipes = [context.Pipe() for _ in range(num_workers)]
    processes = [
        context.Process(  # type: ignore[attr-defined]
            target=_simulate,
            args=(child, env_id, env_kwargs, worker_idx * num_envs_per_worker, num_envs_per_worker, warm_up_s, seconds),
            daemon=True,
        )
        for worker_idx, (_, child) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    try:
        for parent, child in pipes:
            child.close()
            parent.recv()
        for parent, _ in pipes:
            parent.send("go")
        return sum(float(parent.recv()) for parent, _ in pipes)
    finally:
        for process in processes:
            process.join(5.0)
            process.kill()


def _simulate(
    pipe: Connection,
    env_id: str,
    env_kwargs: dict[str, Any],
    first_env_idx: int,
    num_envs: int,
    warm_up_s: float,
    seconds: float,
) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    envs = [make_env(env_id, env_kwargs) for _ in range(num_envs)]
    for env_idx, env in enumerate(envs):
        env.reset(seed=env_seed(0, first_env_idx + env_idx))
    envs[0].action_space.seed(first_env_idx)
    actions = [envs[0].action_space.sample() for _ in range(_NUM_ACTIONS)]
    pipe.send("ready")
    pipe.recv()
    _step_for(envs, actions, warm_up_s)
    pipe.send(_step_for(envs, actions, seconds))
    for env in envs:
        env.close()


def _step_for(envs: list[Any], actions: list[Any], seconds: float) -> float:
    num_steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or num_steps == 0:
        for _ in range(_STEPS_BETWEEN_LOOKS):
            env = envs[num_steps % len(envs)]
            _, _, terminated, truncated, _ = env.step(actions[num_steps % _NUM_ACTIONS])
            if terminated or truncated:
                env.reset()
            num_steps += 1
    return num_steps / elapsed
