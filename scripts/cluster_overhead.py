"""What it costs that rollout workers are in pools of a Ray cluster: the same workers locally and in pools, alternating.

    python scripts/cluster_overhead.py --envs=Humanoid-v5,HalfCheetah-v5 --workers=2 --rounds=3 --seconds=60

Starts a Ray cluster of as many nodes as workers on this machine, whose network is therefore the machine's memory, and
trains with learning rate 0, so that the bodies always move as under random actions. Prints a line for each run and the
ratio of the medians of environment steps a second. Flags behind `--` are passed on to training. Needs the extras ray
and mujoco.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = (
    "--preset=none",
    "--num_envs_per_worker=32",
    "--rollout=64",
    "--batch_size=1024",
    "--num_batches_per_epoch=4",
    "--num_epochs=2",
    "--encoder_mlp_layers=[64,64]",
    "--actor_critic_share_weights=True",
    "--learning_rate=0",
    "--train_for_env_steps=1000000000",
    "--quiet",
)


def measure(env: str, placement: list[str], seconds: float, more: list[str]) -> dict[str, float]:
    """Trains for so many seconds; returns what the summary says of speed and lag."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--env={env}", f"--train_for_seconds={seconds:g}", f"--train_dir={folder}", "--experiment=run"]
        command = [sys.executable, "-m", "asyncrl.train", *flags, *SETTINGS, *placement, *more]
        subprocess.run(command, check=True)
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    return {name: summary[name] for name in ("fps", "lag_mean", "lag_age_ms", "dropped_samples", "restarts")}


def main() -> None:
    """Runs all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", default="Humanoid-v5,HalfCheetah-v5")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a run, the start of its workers included")
    parser.add_argument("more", nargs="*", help="flags of training, behind --")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(options.workers):
            cluster.add_node(num_cpus=1)
        pools = ["--cluster=ray", f"--ray_address={cluster.address}", f"--num_remote_hosts={options.workers}"]
        placements = {"local": [f"--num_workers={options.workers}"], "pools": pools}
        for env in options.envs.split(","):
            speeds: dict[str, list[float]] = {name: [] for name in placements}
            for number in range(options.rounds):
                for name in sorted(placements, reverse=bool(number % 2)):
                    found = measure(env, placements[name], options.seconds, options.more)
                    speeds[name].append(found["fps"])
                    print(json.dumps({"env": env, "round": number, "workers": name, **found}), flush=True)
            medians = {name: statistics.median(each) for name, each in speeds.items()}
            ratio = medians["pools"] / medians["local"]
            text = ", ".join(f"{name} {median:,.0f} steps/s" for name, median in medians.items())
            print(f"{env}: {text}; pools reach {ratio:.3f} of local workers", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
