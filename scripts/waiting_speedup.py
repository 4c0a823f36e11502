"""Measures the speed-up of more workers where steps wait for a simulator elsewhere, and writes one table.

    python scripts/waiting_speedup.py --work_dir=waiting            # about 15 minutes a round
    python scripts/waiting_speedup.py --work_dir=waiting --table    # only the table of the results
    python scripts/waiting_speedup.py --work_dir=waiting --pools    # workers in pools of Ray; about 7 minutes a round
    python scripts/waiting_speedup.py --work_dir=waiting --ranks    # figures of ranks; about 10 minutes

Each step sleeps 5 ms (`waiting_env.py`), so more workers than cores help until the cores are busy: 1, 2, 4, 8 and 16
workers of one environment each run A3C (`synced`) and SAC (`shared`) on Hogwild, and A2C and PPO with a learner, async.
The ideal is as many times the speed of one worker. The last group has 8 workers of A3C with bounds of staleness.
Results are appended to waiting.jsonl; a measurement with a result is not repeated, so the script may be stopped.

With --pools the workers are in pools of a Ray cluster of one node, which the script starts: one worker of four
environments in each of 1, 2, 4, 8 and 16 pools, with PPO, SAC with a learner, and A3C whose pools send gradients.

With --ranks, PPO and SAC train --env_steps steps with 1, 2, 4 and 8 ranks of torchrun, each with one worker of one
environment (`asyncrl benchmark`, which continues what was stopped), and `asyncrl plot` draws their returns over the
steps of each rank and of all, processor time and wall time, and the speed-up beside the ideal.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path

from rounds import START_ALLOWANCE_S, Row, carry_out, env_steps_per_s, parser

from asyncrl.benchmark import main as benchmark
from asyncrl.plot import main as plot

ENV = "waiting_env:make"
COMMON = ("--preset=classic_control", "--num_envs_per_worker=1", "--device=cpu")
A3C = ("--algo=a3c",)
ON_POLICY = ("--rollout=32", "--batch_size=128", "--num_batches_per_epoch=4")
# One update for 32 steps: 16 workers wait for 100 updates a second, of which a core makes more.
SAC = ("--algo=sac", "--backend=hogwild", "--updates_per_env_step=0.03125", "--warmup_env_steps=1600")
ALGORITHMS = {
    "A3C, synced": A3C,
    "A2C, async": ("--algo=a2c", *ON_POLICY),
    "PPO, async": ("--algo=ppo", "--num_epochs=2", *ON_POLICY),
    "SAC, shared": SAC,
}
GRADIENTS = ("--backend=hogwild", "--hogwild_mode=gradients", "--num_gradients_to_combine=1")
POOLED = {
    "PPO, pools": ("--algo=ppo", "--num_epochs=2", "--rollout=32", "--batch_size=128", "--num_batches_per_epoch=4"),
    "SAC, pools": ("--algo=sac", "--updates_per_env_step=0.03125", "--warmup_env_steps=1600"),
    "A3C, gradients of pools": ("--algo=a2c", "--rollout=32", *GRADIENTS),
}
POOL_START_S = 4.0
"""The processes of each pool import for some seconds; pools on one machine share its cores meanwhile."""
BOUNDED = "A3C, synced, 8 workers"
# Minibatches of each rank; an optimizer step has those of all ranks.
RANKED = {
    "ppo": ("--rollout=64", "--batch_size=64", "--num_batches_per_epoch=2", "--num_epochs=4"),
    "sac": ("--updates_per_env_step=0.0625", "--warmup_env_steps=500", "--batch_size=64"),
}


def counts(text: str) -> list[int]:
    """Splits the value of a flag at its commas."""
    return [int(number) for number in text.split(",")]


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for algorithm, flags in ALGORITHMS.items():
        for num_workers in options.num_workers:
            of_run = (*flags, f"--num_workers={num_workers}")
            measure = functools.partial(steps_per_s, f"{flags[0][7:]}_{num_workers}", of_run, options)
            found.append(Row(algorithm, f"{num_workers} workers", measure))
    for bound in ("none", "16", "4", "0"):
        flags = (*A3C, "--num_workers=8", f"--hogwild_max_staleness={bound}")
        found.append(Row(BOUNDED, f"bound {bound}", functools.partial(steps_per_s, f"bound_{bound}", flags, options)))
    return found


def pooled_rows(options: argparse.Namespace, address: str) -> list[Row]:
    found = []
    for algorithm, flags in POOLED.items():
        for num_pools in options.num_workers:
            pools = ("--cluster=ray", f"--ray_address={address}", f"--num_remote_hosts={num_pools}")
            of_run = (*flags, *pools, "--num_envs_per_worker=4")
            start_s = POOL_START_S * (1 + num_pools)
            name = f"pools_{flags[0][7:]}_{num_pools}"
            measure = functools.partial(steps_per_s, name, of_run, options, start_s=start_s)
            found.append(Row(algorithm, f"{num_pools} pools", measure))
    return found


def measure_pools(options: argparse.Namespace, about: str) -> bool:
    """Measures pools on a cluster of this machine, whose nodes have enough CPUs for all pools."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=max(options.num_workers))
        rows = pooled_rows(options, cluster.address)
        return carry_out("pools", f"{about} Four environments in each pool.", rows, options, step_ms=options.step_ms)
    finally:
        cluster.shutdown()


def steps_per_s(
    name: str,
    flags: tuple[str, ...],
    options: argparse.Namespace,
    round_idx: int,
    start_s: float = START_ALLOWANCE_S,
) -> float:
    """Returns the environment steps per second of a run."""
    of_env = f'--env_kwargs={{"step_ms": {options.step_ms:g}}}'
    return env_steps_per_s(name, ENV, (of_env, *COMMON, *flags), options, round_idx, start_s)


def measure_ranks(options: argparse.Namespace) -> int:
    """Trains with each number of ranks and draws the figures; returns the first exit code that is not 0."""
    for algo, flags in RANKED.items():
        output = options.work_dir.resolve() / f"ranks_{algo}"
        asked = (
            *(f"--algo={algo}", f"--env={ENV}", f'--env_kwargs={{"step_ms": {options.step_ms:g}}}', *COMMON, *flags),
            *(f"--num_ranks={','.join(map(str, options.num_ranks))}", "--num_workers=1", "--modes=async", "--seeds=1"),
            *("--measure_s=0", "--episodes=0", f"--train_for_env_steps={options.env_steps}", f"--output={output}"),
        )
        code = 0 if options.table else benchmark(asked)
        runs = [str(path) for path in sorted((output / "runs").glob("learning_*"))]
        for axis in ("per_rank_steps", "env_steps", "processor_time", "wall_time"):
            file = f"--out={output / f'returns_over_{axis}.png'}"
            code = code or plot(["compare", *runs, f"--x={axis}", f"--smooth={options.smooth}", file])
        code = code or plot(["speedup", *runs, f"--out={output / 'speedup.png'}"])
        if code != 0:
            return code
    return 0


def main() -> int:
    found = parser(__doc__, rounds=3, warm_up_s=5.0, measure_s=15.0)
    found.add_argument("--step_ms", type=float, default=5.0, help="how long a step waits")
    found.add_argument("--num_workers", type=counts, default=[1, 2, 4, 8, 16])
    found.add_argument("--pools", action="store_true", help="workers in pools of Ray in place of local ones")
    found.add_argument("--ranks", action="store_true", help="figures of ranks in place of the table")
    found.add_argument("--num_ranks", type=counts, default=[1, 2, 4, 8])
    found.add_argument("--env_steps", type=int, default=24_000, help="with --ranks: steps of all ranks together")
    found.add_argument("--smooth", type=int, default=5, help="with --ranks: records in a moving average of returns")
    options = found.parse_args()
    # The runs find the environment here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])
    if options.ranks:
        return measure_ranks(options)
    about = f"Environment steps; each sleeps {options.step_ms:g} ms."
    if options.pools:
        return 0 if measure_pools(options, about) else 1
    done = carry_out("waiting", about, rows(options), options, step_ms=options.step_ms)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
