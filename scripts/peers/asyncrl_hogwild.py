"""Counts what Hogwild workers do together: those of one run, or of several runs at once that share nothing.

Usage: asyncrl_hogwild.py OPTIONS, JSON: env, algo ("sac" or "a3c"), precision, num_runs, num_workers (of each run),
seconds, warm_up_s, seed. Prints one line of JSON: {"per_s": ...}, updates a second of SAC, environment steps of A3C.

All workers are processes of one thread, and all of them are counted over the same time, which begins `warm_up_s` after
the last one has made its first update. The replay and its warm-up are split among all workers, in one run or in
several. This process keeps the parameters of all runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch

from asyncrl.buffers.messages import Waker
from asyncrl.buffers.shared_tensors import SharedTensor
from asyncrl.config.loading import load
from asyncrl.config.plan import resolve
from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec
from asyncrl.learner.on_policy import MODEL
from asyncrl.learner.sac import CRITIC
from asyncrl.modes.hogwild.roles import HogwildRoles, build_parameter_server
from asyncrl.observers.reports import PhaseTimer
from asyncrl.processes.children import process_context, start_loading_modules
from asyncrl.run.setup import RunSetup

WARM_UP_STEPS, REPLAY_SIZE = 5000, 1_000_000  # of all workers together
REPORT_EVERY_S = 1.0
KEEP_EVERY_S = 0.1
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0


class Run:
    """One run: its memory, its parameter server, and its workers in processes of their own."""

    def __init__(self, options: dict[str, Any], run_idx: int, context: BaseContext) -> None:
        num_runs = options["num_runs"]
        flags = [
            f"--env={options['env']}",
            f"--algo={options['algo']}",
            "--backend=hogwild",
            f"--num_workers={options['num_workers']}",
            f"--precision={options['precision']}",
            f"--seed={options['seed'] * num_runs + run_idx}",
            f"--warmup_env_steps={WARM_UP_STEPS // num_runs}",
            f"--replay_size={REPLAY_SIZE // num_runs}",
            "--train_for_env_steps=1000000000000",
            "--lr_schedule=constant",
            "--device=cpu",
        ]
        config = load(flags).config
        plan = resolve(config)
        env = make_env(config.env, config.env_kwargs)
        spec = read_spec(env, config.env)
        env.close()
        self.setup = RunSetup.create(config, plan, spec, Path("unused"))
        waker, wakers = Waker(), [Waker() for _ in range(plan.num_workers)]
        self.server = build_parameter_server(self.setup, waker, wakers, PhaseTimer())
        self._trained = SharedTensor(self.setup.arena, CRITIC if config.is_off_policy else MODEL)
        self._counts_updates = config.is_off_policy
        self.workers = [
            context.Process(target=work, args=(self.setup, idx, waker), daemon=True)  # type: ignore[attr-defined]
            for idx in range(plan.num_workers)
        ]
        for worker in self.workers:
            worker.start()

    @property
    def do_all_train(self) -> bool:
        return all(steps > 0 for steps in self._trained.steps[1:])

    @property
    def count(self) -> int:
        """Updates, or environment steps, of all workers."""
        return self._trained.num_steps if self._counts_updates else self.server.env_steps

    def end(self) -> None:
        self.setup.control.end()
        for worker in self.workers:
            worker.join(END_TIMEOUT_S)


def work(setup: RunSetup, worker_idx: int, server: Waker) -> None:
    torch.set_num_threads(1)
    worker = HogwildRoles().worker(setup, worker_idx, [server], None)
    while not setup.control.ended:
        worker.poll()
        if time.monotonic() - worker.report_started > REPORT_EVERY_S:
            worker.report()
    worker.close()


def keep_until(is_done: Callable[[], bool], runs: Sequence[Run]) -> None:
    """Serves the parameters of all runs in turn.

    Raises:
        RuntimeError: a worker has ended.
    """
    while not is_done():
        for run in runs:
            run.server.train_once(KEEP_EVERY_S / len(runs))
            if not all(worker.is_alive() for worker in run.workers):
                raise RuntimeError("a worker has ended by itself")


def main() -> int:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    context = process_context()
    start_loading_modules(context)
    runs = [Run(options, run_idx, context) for run_idx in range(options["num_runs"])]
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        keep_until(lambda: all(run.do_all_train for run in runs) or time.monotonic() > deadline, runs)
        warm = time.monotonic() + options["warm_up_s"]
        keep_until(lambda: time.monotonic() >= warm, runs)
        started, before = time.monotonic(), sum(run.count for run in runs)
        keep_until(lambda: time.monotonic() >= started + options["seconds"], runs)
        count, elapsed_s = sum(run.count for run in runs) - before, time.monotonic() - started
    finally:
        for run in runs:
            run.end()
    print(json.dumps({"per_s": count / elapsed_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
