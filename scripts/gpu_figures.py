"""Measures on a GPU: updates alone, whole runs of physics and of Atari, inference modes, and growth; writes one table.

    python scripts/gpu_figures.py --work_dir=gpu --groups=updates       # about 8 minutes a round
    python scripts/gpu_figures.py --work_dir=gpu                        # all groups: about 50 minutes a round
    python scripts/gpu_figures.py --work_dir=gpu --table                # only the table of the results

Each measurement takes less than a minute. Results are appended to gpu.jsonl; a measurement with a result is not
repeated, so the script may be stopped at any time, and the same command continues it. The groups:

    updates    SAC and TD3 (256-256 networks, batches of 256), and the samples a second that PPO trains on (64-64
               networks, ten passes over 2,048 in minibatches of 64): on the GPU, with CUDA graphs, and on the CPU
    physics    environment steps a second of Humanoid and HalfCheetah with the learner on the GPU and on the CPU, beside
               pure simulation by a process for each core
    inference  HalfCheetah by 1 to 16 workers, with the policy in the workers and in one inference worker on the GPU
    atari      Pong, asynchronous and synchronous, on the GPU

Steps and updates a second say nothing about learning: `scripts/acceptance.py core` on the same machine does.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable

from compare_sac import asyncrl_updates
from rounds import Row, carry_out, env_steps_per_s, names_in, parser

from asyncrl.analysis.benchmark.simulation import measure_pure_simulation
from asyncrl.config.schema import TrainConfig

GROUPS = ("updates", "physics", "inference", "atari")
NUM_CORES = len(os.sched_getaffinity(0))
NUM_WORKERS = sorted({number for number in (1, 2, 4, 8, 16) if number <= NUM_CORES})


def rows(options: argparse.Namespace) -> list[Row]:
    """The measurements of a round, the groups in their order."""
    of_groups = {"updates": _updates, "physics": _physics, "inference": _inference, "atari": _atari}
    return [row for group in options.groups for row in of_groups[group](options)]


def _updates(options: argparse.Namespace) -> list[Row]:
    ways = {
        "CPU, one thread": {"device": "cpu"},
        "GPU": {"device": options.device, "compile": "off"},
        "GPU, graphs": {"device": options.device},
        "GPU, graphs, bf16": {"device": options.device, "precision": "bf16"},
    }
    units = {"sac": "SAC, updates/s", "td3": "TD3, updates/s", "ppo": "PPO, samples/s of training"}
    return [
        Row(unit, way, asyncrl_updates(options, 1, algo, **settings))
        for algo, unit in units.items()
        for way, settings in ways.items()
    ]


def _physics(options: argparse.Namespace) -> list[Row]:
    found = []
    for env in ("Humanoid-v5", "HalfCheetah-v5"):
        group = f"{env}, environment steps/s"
        found.append(Row(group, "pure simulation", functools.partial(_simulated, env, options)))
        for device in ("cpu", options.device):
            flags = ("--learning_rate=0", f"--learner_device={device}", "--inference_mode=local")
            found.append(Row(group, f"learner on {device}", _run(f"{env}_{device}", env, flags, options)))
    return found


def _inference(options: argparse.Namespace) -> list[Row]:
    env, found = "HalfCheetah-v5", []
    for num_workers in NUM_WORKERS:
        workers = (f"--num_workers={num_workers}", "--num_envs_per_worker=32", "--rollout=32", "--learning_rate=0")
        for mode in ("local", "central"):
            flags = (*workers, f"--inference_mode={mode}", f"--device={options.device}")
            group = f"{env}, {num_workers} workers, environment steps/s"
            found.append(Row(group, f"{mode} inference", _run(f"{mode}_{num_workers}", env, flags, options)))
    return found


def _atari(options: argparse.Namespace) -> list[Row]:
    env, group = "ALE/Pong-v5", "Pong, environment steps/s"
    return [
        Row(
            group,
            mode,
            _run(f"pong_{mode}", env, (f"--async_rl={mode == 'async'}", f"--device={options.device}"), options),
        )
        for mode in ("sync", "async")
    ]


def _run(name: str, env: str, flags: tuple[str, ...], options: argparse.Namespace) -> Callable[[int], float]:
    return functools.partial(env_steps_per_s, name, env, flags, options)


def _simulated(env: str, options: argparse.Namespace, round_idx: int) -> float:
    """Steps a second of one process a core with 32 environments each, random actions, and no policy."""
    return measure_pure_simulation(TrainConfig(env=env, seed=round_idx), NUM_CORES, 32, options.measure_s)


def main() -> int:
    found = parser(__doc__, rounds=3, warm_up_s=10.0, measure_s=15.0)
    known = functools.partial(names_in, known=GROUPS)
    found.add_argument("--groups", type=known, default=list(GROUPS), help=f"some of {','.join(GROUPS)}")
    found.add_argument("--device", default="cuda", help="what is measured beside the CPU")
    options = found.parse_args()
    return 0 if carry_out("gpu", f"{options.device} beside the CPU.", rows(options), options) else 1


if __name__ == "__main__":
    sys.exit(main())
