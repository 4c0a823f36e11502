"""Measures asyncrl beside Sample Factory, Stable-Baselines3 and RLlib on the same tasks, alternating, in one table.

    python scripts/compare_peers.py --rounds=3 --work_dir=peers     # everything: about 6 minutes a round and task
    python scripts/compare_peers.py --tasks=HalfCheetah --systems=asyncrl_async,sample_factory_async
    python scripts/compare_peers.py --tasks=Pong --warm_up_s=30 --measure_s=120  # needs the extra atari
    python scripts/compare_peers.py --systems=asyncrl_async,rllib_appo
    python scripts/compare_peers.py --prepare_only                  # only make the virtual environments

Each peer has a virtual environment in --work_dir, which is kept while its packages match those listed here. PyTorch is
installed there first, from the index that pip is configured for. Every second round measures the rows in reverse order.
Results are appended to peers.jsonl at once; a measurement with a result is not repeated. Needs
`pip install -e ".[mujoco]"` in the environment that starts it.

All systems train the same, on the CPU, with a learning rate that changes nothing, so that bodies always move as under
random actions: 4096 samples per dataset; for bodies minibatches of 1024, 2 epochs and a 64-64 network; for Pong
minibatches of 256, 4 epochs, rollouts of 128 steps, Nature's network, and the last four of every fourth image.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_environments import DRIVERS, Peer, python_of, versions_of
from rounds import START_ALLOWANCE_S, Row, carry_out, env_steps_per_s, names_in, parser

from asyncrl.analysis.benchmark.simulation import measure_pure_simulation
from asyncrl.analysis.benchmark.watch import TaskFailed, run_watched
from asyncrl.analysis.records import read_json_lines
from asyncrl.config.schema import TrainConfig

BODIES = ("Humanoid", "HalfCheetah")
TASKS = (*BODIES, "Pong")
PONG = {"v5": "ALE/Pong-v5", "v4": "PongNoFrameskip-v4"}
START_TIMEOUT_S = 180.0
BODY_SETTINGS = (
    "--preset=mujoco",
    "--rollout=64",
    "--batch_size=1024",
    "--num_batches_per_epoch=4",
    "--num_epochs=2",
    "--encoder_mlp_layers=[64,64]",
    "--actor_critic_share_weights=True",
    "--kl_loss_coeff=0.1",
)


@dataclass(frozen=True)
class System:
    """One row of the table: asyncrl (`peer` is None) or another library, in one mode."""

    name: str
    label: str
    peer: Peer | None
    mode: str
    setting: str
    env_version: str
    flags: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.label}, {self.setting}, -{self.env_version}"

    def env_of(self, task: str) -> str:
        """The Gymnasium id of a task in this system."""
        return PONG[self.env_version] if task == "Pong" else f"{task}-{self.env_version}"


SAMPLE_FACTORY = Peer(
    "sample_factory",
    ("sample-factory==2.1.1", "gymnasium[mujoco]==0.29.1", "mujoco=={mujoco}", "ale-py==0.10.1"),
    ("sample-factory", "gymnasium", "mujoco", "torch", "numpy"),
    "sample_factory_run.py",
)
STABLE_BASELINES3 = Peer(
    "stable_baselines3",
    ("stable-baselines3==2.9.2", "gymnasium[mujoco]", "mujoco=={mujoco}", "ale-py", "opencv-python-headless"),
    ("stable-baselines3", "gymnasium", "mujoco", "torch", "numpy"),
    "stable_baselines3_run.py",
)


RLLIB = Peer(
    "rllib",
    ("ray[rllib]==2.60.0", "gymnasium[mujoco]==1.2.2", "mujoco=={mujoco}"),
    ("ray", "gymnasium", "mujoco", "torch", "numpy"),
    "rllib_run.py",
)


def systems(workers: int, envs: int) -> dict[str, System]:
    layout, bf16 = f"{workers} x {envs}", ("--precision=bf16",)
    rows = [
        System("asyncrl_async", "asyncrl", None, "async", f"async, {layout}", "v5"),
        System("asyncrl_async_bf16", "asyncrl", None, "async", f"async, bf16, {layout}", "v5", bf16),
        System("sample_factory_async", "Sample Factory", SAMPLE_FACTORY, "async", f"async, {layout}", "v4"),
        System("asyncrl_sync", "asyncrl", None, "sync", f"sync, {layout}", "v5"),
        System("asyncrl_sync_bf16", "asyncrl", None, "sync", f"sync, bf16, {layout}", "v5", bf16),
        System("sample_factory_sync", "Sample Factory", SAMPLE_FACTORY, "sync", f"sync, {layout}", "v4"),
        System(
            "stable_baselines3", "Stable-Baselines3 PPO", STABLE_BASELINES3, "sync", "16 subprocess environments", "v5"
        ),
        System("rllib_appo", "RLlib APPO", RLLIB, "async", f"async, {layout}", "v5"),
    ]
    return {row.name: row for row in rows}


def simulate(task: str, options: argparse.Namespace, round_idx: int) -> float:
    """Returns environment steps per second without a policy."""
    config = TrainConfig(env="ALE/Pong-v5" if task == "Pong" else f"{task}-v5")
    return measure_pure_simulation(config, options.num_workers, options.num_envs_per_worker, options.simulate_s)


def run_asyncrl(name: str, env: str, flags: tuple[str, ...], options: argparse.Namespace, round_idx: int) -> float:
    """Returns environment steps per second of a run that learns nothing.

    Raises:
        TaskFailed: the measurement failed.
    """
    common = (
        "--learning_rate=0",
        "--device=cpu",
        *(("--preset=atari",) if env == PONG["v5"] else BODY_SETTINGS),
        f"--num_workers={options.num_workers}",
        f"--num_envs_per_worker={options.num_envs_per_worker}",
    )
    return env_steps_per_s(name, env, (*flags, *common), options, round_idx)


def rate_after(progress: Path, warm_up_s: float) -> float:
    """Returns environment steps per second from the first end of a dataset after the warm-up to the last.

    Raises:
        TaskFailed: fewer than two datasets were trained after the warm-up.
    """
    points = [(entry["time_s"], entry["env_steps"]) for entry in read_json_lines(progress)]
    window = [point for point in points if point[0] >= points[0][0] + warm_up_s]
    if len(window) < 2:
        raise TaskFailed(f"fewer than two datasets were trained after {warm_up_s:g} s: raise --measure_s")
    (first_s, first_steps), (last_s, last_steps) = window[0], window[-1]
    return float((last_steps - first_steps) / (last_s - first_s))


def run_peer(
    system: System, peer: Peer, task: str, options: argparse.Namespace, round_idx: int, num_policies: int = 1
) -> float:
    """Returns environment steps per second of a run of another library.

    Raises:
        TaskFailed: the measurement failed.
    """
    folder = options.work_dir.resolve()
    name = f"{system.name}_{task}_{num_policies}_{round_idx}"
    progress, log = folder / f"{name}.progress.jsonl", folder / f"{name}.log"
    progress.unlink(missing_ok=True)
    settings: dict[str, Any] = {
        "task": task,
        "env": system.env_of(task),
        "mode": system.mode,
        "seconds": options.warm_up_s + options.measure_s + START_ALLOWANCE_S,
        "num_workers": options.num_workers,
        "num_envs_per_worker": options.num_envs_per_worker,
        "num_envs": 16,
        "num_policies": num_policies,
        "seed": round_idx,
    }
    driver = (str(python_of(peer, folder)), str(DRIVERS / peer.driver))
    command = [*driver, str(progress), str(folder / "runs" / name), json.dumps(settings)]
    run_watched(command, log, timeout_s=settings["seconds"] + START_TIMEOUT_S)
    return rate_after(progress, options.warm_up_s)


def rows(options: argparse.Namespace, chosen: Sequence[System]) -> Iterator[Row]:
    """Returns all measurements; the first of a group is pure simulation."""
    for task in options.tasks:
        yield Row(task, "pure simulation", functools.partial(simulate, task, options))
        for system in chosen:
            if system.peer is RLLIB and task not in BODIES:
                continue
            if system.peer is not None:
                measure = functools.partial(run_peer, system, system.peer, task, options)
            else:
                flags = (f"--async_rl={system.mode == 'async'}", *system.flags)
                measure = functools.partial(run_asyncrl, f"{system.name} {task}", system.env_of(task), flags, options)
            yield Row(task, system.title, measure)


def main() -> int:
    options = _parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = options.work_dir.resolve()
    chosen = [systems(options.num_workers, options.num_envs_per_worker)[name] for name in options.systems]
    peers = {system.peer.name: system.peer for system in chosen if system.peer is not None}
    for peer in peers.values():
        python_of(peer, folder)
    if options.prepare_only:
        return 0
    about = (
        "Environment steps. Datasets of 4096 samples, minibatches of 1024, 2 epochs, a 64-64 network (Pong: batches "
        "of 256, 4 epochs, Nature's network), learning rate 0 (peers: 1e-12). Sample Factory's Gymnasium knows "
        "-v4 only. " + "".join(f"{versions_of(peer, folder)}. " for peer in peers.values())
    )
    own = [system.title for system in chosen if system.peer is None]
    sizes = {name: getattr(options, name) for name in ("simulate_s", "num_workers", "num_envs_per_worker")}
    try:
        is_complete = carry_out("peers", about.strip(), list(rows(options, chosen)), options, own, **sizes)
    except KeyboardInterrupt:
        return 130
    return 0 if is_complete else 1


def _parse() -> argparse.Namespace:
    names = list(systems(2, 32))
    usual = [name for name in names if name not in ("asyncrl_async_bf16", "asyncrl_sync_bf16", "rllib_appo")]
    flags = parser(__doc__, rounds=3, warm_up_s=25.0, measure_s=30.0)
    flags.add_argument("--tasks", type=lambda text: names_in(text, TASKS), default=list(BODIES))
    flags.add_argument("--systems", type=lambda text: names_in(text, names), default=usual, help=", ".join(names))
    flags.add_argument("--simulate_s", type=float, default=10.0)
    flags.add_argument("--num_workers", type=int, default=2, help="asyncrl and Sample Factory")
    flags.add_argument("--num_envs_per_worker", type=int, default=32, help="asyncrl and Sample Factory")
    flags.add_argument("--prepare_only", action="store_true", help="make the virtual environments and stop")
    return flags.parse_args()


if __name__ == "__main__":
    sys.exit(main())
