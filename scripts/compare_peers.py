"""Measures asyncrl beside Sample Factory and Stable-Baselines3 on the same tasks, alternating, and writes one table.

    python scripts/compare_peers.py --rounds=3 --work_dir=peers     # everything: about 6 minutes a round and task
    python scripts/compare_peers.py --tasks=HalfCheetah --systems=asyncrl_async,sample_factory_async
    python scripts/compare_peers.py --prepare_only                  # only make the virtual environments

Each peer gets a virtual environment of its own under --work_dir, which is used again as long as its packages are what
is asked for here. PyTorch is installed there first, as pip is set up to find it. Pure simulation is measured before
each round; the systems follow in turn forwards and backwards. Results are appended to results.jsonl as they come, and a
measurement that has one is not made again. Needs `pip install -e ".[mujoco]"` where it is started from.

All train the same: 4096 samples a dataset, minibatches of 1024, 2 epochs, a 64-64 network, on the CPU, with a learning
rate that changes nothing, so that the bodies move as under random actions throughout.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command_line import names_in
from peer_environments import DRIVERS, Peer, python_of, versions_of

from asyncrl.analysis.benchmark.figures import ThroughputFigures
from asyncrl.analysis.benchmark.simulation import measure_pure_simulation
from asyncrl.analysis.benchmark.tasks import TaskFailed, Workshop
from asyncrl.analysis.benchmark.variants import Task
from asyncrl.analysis.benchmark.watch import CommandTimedOut, run_watched
from asyncrl.analysis.records import append_json_line, read_json_lines
from asyncrl.analysis.statistics import Spread, spread
from asyncrl.analysis.tables import cell, percent, table
from asyncrl.config.schema import TrainConfig
from asyncrl.runtime.provenance import describe

TASKS = ("Humanoid", "HalfCheetah")
START_ALLOWANCE_S = 2.0
START_TIMEOUT_S = 180.0
SIMULATION = "simulation"
ASYNCRL_SETTINGS = (
    "--preset=mujoco",
    "--rollout=64",
    "--batch_size=1024",
    "--num_batches_per_epoch=4",
    "--num_epochs=2",
    "--encoder_mlp_layers=[64,64]",
    "--actor_critic_share_weights=True",
    "--kl_loss_coeff=0.1",
    "--learning_rate=0",
    "--lr_schedule=constant",
    "--train_for_env_steps=1000000000000",
    "--report_every_s=1",
    "--with_tensorboard=False",
)


@dataclass(frozen=True)
class System:
    """One row of the table: asyncrl (`peer` is None) or a peer, in one mode."""

    name: str
    label: str
    peer: Peer | None
    mode: str
    setting: str
    env_version: str


SAMPLE_FACTORY = Peer(
    "sample_factory",
    ("sample-factory==2.1.1", "gymnasium[mujoco]==0.29.1", "mujoco=={mujoco}"),
    ("sample-factory", "gymnasium", "mujoco", "torch", "numpy"),
    "sample_factory_run.py",
)
STABLE_BASELINES3 = Peer(
    "stable_baselines3",
    ("stable-baselines3==2.9.2", "gymnasium[mujoco]", "mujoco=={mujoco}"),
    ("stable-baselines3", "gymnasium", "mujoco", "torch", "numpy"),
    "stable_baselines3_run.py",
)


def systems(workers: int, envs: int) -> dict[str, System]:
    """All rows by name."""
    layout = f"{workers} x {envs}"
    rows = [
        System("asyncrl_async", "asyncrl", None, "async", f"async, {layout}", "v5"),
        System("sample_factory_async", "Sample Factory", SAMPLE_FACTORY, "async", f"async, {layout}", "v4"),
        System("asyncrl_sync", "asyncrl", None, "sync", f"sync, {layout}", "v5"),
        System("sample_factory_sync", "Sample Factory", SAMPLE_FACTORY, "sync", f"sync, {layout}", "v4"),
        System(
            "stable_baselines3", "Stable-Baselines3 PPO", STABLE_BASELINES3, "sync", "16 subprocess environments", "v5"
        ),
    ]
    return {row.name: row for row in rows}


class Comparison:
    """Measures what has no result yet, and tells all results."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Reads the results that are there."""
        self._options = options
        self._folder: Path = options.work_dir.resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._results = self._folder / "results.jsonl"
        self._entries = read_json_lines(self._results)
        self._conditions = {
            name: getattr(options, name)
            for name in ("warm_up_s", "measure_s", "simulate_s", "num_workers", "num_envs_per_worker")
        }

    def python_of(self, peer: Peer) -> Path:
        """The interpreter of a peer's virtual environment."""
        return python_of(peer, self._folder)

    def steps_per_s(self, system: str, task: str, round_idx: int) -> float | None:
        """What was measured, None if nothing was."""
        wanted = self._key(system, task, round_idx)
        return next((entry["steps_per_s"] for entry in self._entries if entry["key"] == wanted), None)

    def measure(self, system: System | None, task: str, round_idx: int) -> None:
        """Measures one system, or pure simulation, and keeps the result; a failure is said and leaves none."""
        name = SIMULATION if system is None else system.name
        if self.steps_per_s(name, task, round_idx) is not None:
            return
        try:
            if system is None:
                value = self._simulate(task)
            elif system.peer is None:
                flags = (f"--env={task}-{system.env_version}", f"--async_rl={system.mode == 'async'}")
                value = run_asyncrl(f"{system.name} {task}", flags, self._options, round_idx)
            else:
                value = self._run_peer(system, system.peer, task, round_idx)
        except TaskFailed as error:
            print(f"{task} round {round_idx} {name}: failed: {error}", flush=True)
            return
        entry = {"key": self._key(name, task, round_idx), "steps_per_s": value}
        self._entries.append(entry)
        append_json_line(self._results, entry)
        print(f"{task} round {round_idx} {name}: {value:,.0f} environment steps/s", flush=True)

    def versions(self, system: System) -> str:
        """Versions of what a system runs with."""
        if system.peer is None:
            packages = describe("cpu")["packages"]
            return ", ".join(
                f"{name} {packages[name]}" for name in ("asyncrl", "gymnasium", "mujoco", "torch", "numpy")
            )
        return versions_of(system.peer, self._folder)

    def _key(self, system: str, task: str, round_idx: int) -> dict[str, Any]:
        return {"system": system, "task": task, "round": round_idx, **self._conditions}

    def _simulate(self, task: str) -> float:
        options = self._options
        config = TrainConfig(env=f"{task}-v5")
        return measure_pure_simulation(config, options.num_workers, options.num_envs_per_worker, options.simulate_s)

    def _run_peer(self, system: System, peer: Peer, task: str, round_idx: int) -> float:
        options = self._options
        name = f"{system.name}_{task}_{round_idx}"
        progress, log = self._folder / f"{name}.progress.jsonl", self._folder / f"{name}.log"
        progress.unlink(missing_ok=True)
        settings: dict[str, Any] = {
            "task": task,
            "env": f"{task}-{system.env_version}",
            "mode": system.mode,
            "seconds": options.warm_up_s + options.measure_s + START_ALLOWANCE_S,
            "num_workers": options.num_workers,
            "num_envs_per_worker": options.num_envs_per_worker,
            "num_envs": 16,
            "seed": round_idx,
        }
        driver = DRIVERS / peer.driver
        train_dir = self._folder / "runs" / name
        command = [str(self.python_of(peer)), str(driver), str(progress), str(train_dir), json.dumps(settings)]
        try:
            finished = run_watched(command, log, timeout_s=settings["seconds"] + START_TIMEOUT_S)
        except CommandTimedOut as error:
            raise TaskFailed(f"{system.label}: {error}") from error
        if finished.exit_code != 0:
            raise TaskFailed(f"{system.label} ended with exit code {finished.exit_code} (output: {log})")
        return rate_after(progress, options.warm_up_s)


def run_asyncrl(name: str, flags: tuple[str, ...], options: argparse.Namespace, round_idx: int) -> float:
    """Environment steps a second of a run with `ASYNCRL_SETTINGS` and these flags, the first of which is --env.

    Raises:
        TaskFailed: it could not be measured.
    """
    common = (
        *ASYNCRL_SETTINGS,
        f"--num_workers={options.num_workers}",
        f"--num_envs_per_worker={options.num_envs_per_worker}",
        f"--train_for_seconds={options.warm_up_s + options.measure_s + START_ALLOWANCE_S:g}",
        "--device=cpu",
    )
    config = TrainConfig(env=flags[0].partition("=")[2])
    workshop = Workshop(options.work_dir.resolve(), config, options.warm_up_s, options.measure_s)
    figures = workshop.carry_out(Task("throughput", name, round_idx, (*flags, *common), ()))
    assert isinstance(figures, ThroughputFigures)
    return figures.env_steps_per_s


def rate_after(progress: Path, warm_up_s: float) -> float:
    """Environment steps a second from the first dataset's end after the warm-up to the last dataset's end.

    Raises:
        TaskFailed: fewer than two datasets were trained after the warm-up.
    """
    points = [(entry["time_s"], entry["env_steps"]) for entry in read_json_lines(progress)]
    window = [point for point in points if point[0] >= points[0][0] + warm_up_s]
    if len(window) < 2:
        raise TaskFailed(f"fewer than two datasets were trained after {warm_up_s:g} s: raise --measure_s")
    (first_s, first_steps), (last_s, last_steps) = window[0], window[-1]
    return float((last_steps - first_steps) / (last_s - first_s))


def summarize(comparison: Comparison, rows: list[System], task: str, rounds: int) -> list[dict[str, Any]]:
    """One entry for each system: its speed, its share of pure simulation, and how much faster asyncrl is."""
    by_system = {
        name: {
            round_idx: value
            for round_idx in range(rounds)
            if (value := comparison.steps_per_s(name, task, round_idx)) is not None
        }
        for name in (SIMULATION, *(row.name for row in rows), "asyncrl_async", "asyncrl_sync")
    }

    def ratio(above: str, below: str) -> Spread | None:
        both = sorted(by_system[above].keys() & by_system[below].keys())
        return spread([by_system[above][idx] / by_system[below][idx] for idx in both]) if both else None

    def speed(name: str) -> Spread | None:
        return spread(list(by_system[name].values())) if by_system[name] else None

    entries: list[dict[str, Any]] = [
        {"system": SIMULATION, "label": "pure simulation", "setting": "random actions", "env": f"{task}-v5",
         "versions": "", "steps_per_s": speed(SIMULATION), "share": None, "async_is": None, "sync_is": None}
    ]  # fmt: skip
    for row in rows:
        entries.append(
            {
                "system": row.name,
                "label": row.label,
                "setting": row.setting,
                "env": f"{task}-{row.env_version}",
                "versions": comparison.versions(row),
                "steps_per_s": speed(row.name),
                "share": ratio(row.name, SIMULATION),
                "async_is": ratio("asyncrl_async", row.name),
                "sync_is": ratio("asyncrl_sync", row.name),
            }
        )
    return entries


def to_markdown(entries: list[dict[str, Any]], options: argparse.Namespace, machine: dict[str, Any]) -> str:
    """The table, with machine and command."""
    header = [
        "system", "setting", "environment", "environment steps/s", "of pure simulation", "asyncrl async is",
        "asyncrl sync is", "versions",
    ]  # fmt: skip

    def times(figure: Spread | None) -> str:
        return cell(figure, lambda value: f"{value:.2f} x")

    lines = [
        [entry["label"], entry["setting"], entry["env"], cell(entry["steps_per_s"]), cell(entry["share"], percent),
         times(entry["async_is"]), times(entry["sync_is"]), entry["versions"]]
        for entry in entries
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"{machine['cpu']}, {machine['usable_cores']} usable cores, {time.strftime('%Y-%m-%d')}. "
            f"`python {' '.join(sys.argv)}`",
            f"Medians of {options.rounds} rounds (95 % bootstrap interval), {options.measure_s:g} s each after "
            f"{options.warm_up_s:g} s of warm-up; ratios are taken within a round. Datasets of 4096 samples, "
            "minibatches of 1024, 2 epochs, a 64-64 network, learning rate 0 (peers: 1e-12). The Gymnasium that "
            "Sample Factory needs knows -v4 only.",
            table(header, lines),
            "",
        ]
    )


def main() -> int:
    """Runs the command line; 0 if everything was measured."""
    options = _parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    comparison = Comparison(options)
    rows = [systems(options.num_workers, options.num_envs_per_worker)[name] for name in options.systems]
    for peer in {row.peer.name: row.peer for row in rows if row.peer is not None}.values():
        comparison.python_of(peer)
    if options.prepare_only:
        return 0
    try:
        for round_idx in range(options.rounds):
            for task in options.tasks:
                comparison.measure(None, task, round_idx)
                for row in rows if round_idx % 2 == 0 else reversed(rows):
                    comparison.measure(row, task, round_idx)
    except KeyboardInterrupt:
        return 130
    finally:
        entries = [entry for task in options.tasks for entry in summarize(comparison, rows, task, options.rounds)]
        _write(entries, options, describe("cpu"))
    wanted = [(name, task, idx) for name in options.systems for task in options.tasks for idx in range(options.rounds)]
    return 0 if all(comparison.steps_per_s(*item) is not None for item in wanted) else 1


def _write(entries: list[dict[str, Any]], options: argparse.Namespace, provenance: dict[str, Any]) -> None:
    text = to_markdown(entries, options, provenance["machine"])
    (options.work_dir / "peers.md").write_text(text, encoding="utf-8")
    plain = [
        {name: asdict(value) if isinstance(value, Spread) else value for name, value in entry.items()}
        for entry in entries
    ]
    data = {"provenance": provenance, "systems": plain}
    (options.work_dir / "peers.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(text, flush=True)


def _parse() -> argparse.Namespace:
    names = list(systems(2, 32))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work_dir", type=Path, default=Path("peers"), help="environments, runs, results, table")
    parser.add_argument("--tasks", type=lambda text: names_in(text, TASKS), default=list(TASKS))
    parser.add_argument("--systems", type=lambda text: names_in(text, names), default=names, help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm_up_s", type=float, default=25.0)
    parser.add_argument("--measure_s", type=float, default=30.0)
    parser.add_argument("--simulate_s", type=float, default=10.0)
    parser.add_argument("--num_workers", type=int, default=2, help="asyncrl and Sample Factory")
    parser.add_argument("--num_envs_per_worker", type=int, default=32, help="asyncrl and Sample Factory")
    parser.add_argument("--prepare_only", action="store_true", help="make the virtual environments and stop")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
