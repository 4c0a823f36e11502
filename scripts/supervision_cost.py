"""Measures the cost of supervision in percent of a run's processor time.

    python scripts/supervision_cost.py           # about two minutes

Whole runs differ by more than supervision costs, so its two parts are measured separately. In a worker: rollouts with
the additions of supervision to each step (a check of every number from the environment, the words of progress) and
without, alternating in one process. In the runner, which watches the other processes: its processor time as a share of
the whole run's, monitoring included, so more than supervision alone.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import gymnasium
import psutil
import torch
from watched_run import WatchedRun, await_condition

from asyncrl.analysis.statistics import Spread, spread
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.config.loading import load
from asyncrl.config.plan import resolve
from asyncrl.envs.spaces import read_spec
from asyncrl.inference.acting import make_act
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters
from asyncrl.modes.choice import arena_specs
from asyncrl.modes.hogwild.worker import OwnActions, PrivateSlot
from asyncrl.rollout import env_group
from asyncrl.rollout.sinks import SlotSink
from asyncrl.rollout.worker import Split

_SLOT = 0


def of_a_worker(env: str, num_rounds: int) -> Spread:
    """Returns the percentages by which rollouts with supervision took longer than the neighbouring ones without."""
    collect = make_collector(env)
    collect(True)
    ratios = []
    for number in range(num_rounds):
        order = (True, False) if number % 2 else (False, True)
        seconds = {is_supervised: collect(is_supervised) for is_supervised in order}
        ratios.append(100.0 * (seconds[True] / seconds[False] - 1.0))
    return spread(ratios)


def make_collector(env: str) -> Callable[[bool], float]:
    """Returns a function that collects one rollout as a worker does and returns its processor seconds."""
    config = load([f"--env={env}", "--num_workers=1"]).config
    spec, plan = read_spec(gymnasium.make(env), env), resolve(config)
    arena = Arena.create(arena_specs(spec, plan, num_weights=1))
    slots, control = TrajectorySlots(arena), RunControl(arena, 1)
    slots.reset()
    model = ActorCritic(spec, config)
    FlatParameters(model)
    actions = OwnActions(make_act(model, torch.device("cpu"), config.seed), slots, lambda: 0)
    envs = [gymnasium.make(env) for _ in range(plan.envs_per_split)]
    group = env_group.EnvGroup(envs, list(range(len(envs))), 0, spec, mapping="raw")
    split = Split(0, group, SlotSink(0, group, slots, PrivateSlot(slots)), actions)

    def collect(is_supervised: bool) -> float:
        split.begin()
        blind = mock.patch.object(env_group, "is_surely_finite", _looks_at_nothing)
        with contextlib.nullcontext() if is_supervised else blind:
            started = time.process_time()
            while split.place is not None:
                num_steps = split.advance()
                if is_supervised:
                    control.count_steps(0, num_steps)
                    control.count_turn(0)
            seconds = time.process_time() - started
        slots.take(_SLOT)
        slots.free(_SLOT)
        return seconds

    return collect


def _looks_at_nothing(numbers: object) -> bool:
    return True


def of_the_runner(env: str, seconds: float) -> float:
    """Returns the percentage of a run's processor time that its runner takes after the start-up."""
    with tempfile.TemporaryDirectory(prefix="asyncrl_supervision_") as folder:
        run = WatchedRun(Path(folder), (f"--env={env}",), subprocess.DEVNULL)
        try:
            await_condition((run.folder / "metrics.jsonl").exists, 120.0)
            before = {process: _cpu_s(process) for process in run.processes()}
            time.sleep(seconds)
            spent = {process.pid: _cpu_s(process) - started for process, started in before.items()}
        finally:
            run.end()
    return 100.0 * spent[run.process.pid] / sum(spent.values())


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--rounds", type=int, default=200, help="pairs of rollouts")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of the run whose runner is measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    worker = of_a_worker(options.env, options.rounds)
    print(f"a worker's rollouts take {worker.median:.2f} % [{worker.low:.2f}, {worker.high:.2f}] more processor time")
    print(f"the runner takes {of_the_runner(options.env, options.seconds):.2f} % of a run's processor time")


if __name__ == "__main__":
    main()
