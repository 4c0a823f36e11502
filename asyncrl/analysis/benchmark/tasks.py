"""Carries out one task: pure simulation in child processes, or a run as a separate command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.analysis.benchmark.results import Figures, learning_figures, throughput_figures
from asyncrl.analysis.benchmark.simulation import measure_pure_simulation
from asyncrl.analysis.benchmark.variants import SAMPLING_FLAG, Layout, Task
from asyncrl.analysis.benchmark.watch import TaskFailed, Usage, ending, run_watched
from asyncrl.analysis.records import read_records
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.storage.run_folder import RunFolder

_START_AND_END_S = 300.0


@dataclass(frozen=True)
class Workshop:
    """Settings common to all tasks.

    Attributes:
        output: folder of the benchmark, with runs in `runs/` and their output in `logs/`.
        config: settings that name the environment.
        warm_up_s, measure_s: seconds of a throughput run before and in the measurement.
        simulate_s: seconds of pure simulation.
        episodes: evaluation episodes after a learning run.
        layouts: layouts by the names of simulation tasks.
        recording: file with episodes to replay in the simulation; None for random actions.
        is_vectorized: whether the runs step vectorized environments.
    """

    output: Path
    config: TrainConfig
    warm_up_s: float
    measure_s: float
    simulate_s: float = 0.0
    episodes: int = 0
    layouts: dict[str, Layout] = field(default_factory=dict)
    recording: Path | None = None
    is_vectorized: bool = False

    def carry_out(self, task: Task) -> Figures:
        """Measures one task.

        Raises:
            TaskFailed: the measurement failed.
        """
        try:
            if task.kind == "simulation":
                return self._simulate(self.layouts[task.name])
            return self._throughput(task) if task.kind == "throughput" else self._learning(task)
        except (EnvironmentFailed, UsageError) as error:
            raise TaskFailed(str(error)) from error

    def _simulate(self, layout: Layout) -> Figures:
        rate = measure_pure_simulation(
            self.config,
            layout.num_workers,
            layout.num_envs_per_worker,
            self.simulate_s,
            recording=self.recording,
            is_vectorized=self.is_vectorized,
        )
        return {"env_steps_per_s": rate, "replayed": self.recording is not None}

    def _throughput(self, task: Task) -> Figures:
        usage, folder, summary = self._train(task, self.warm_up_s + self.measure_s + _START_AND_END_S)
        config = folder.read_config()
        return throughput_figures(
            [read_records(path) for path in folder.rank_metrics],
            startup_s=summary["startup_s"] or 0.0,
            warm_up_s=self.warm_up_s,
            num_epochs=num_passes(task, config),
            usage=usage,
            replay_batch_size=config.batch_size * task.num_ranks if config.is_off_policy else None,
        )

    def _learning(self, task: Task) -> Figures:
        _, folder, summary = self._train(task, math.inf)
        evaluated = self._evaluate(folder) if self.episodes else None
        return learning_figures([read_records(path) for path in folder.rank_metrics], summary, evaluated)

    def _train(self, task: Task, timeout_s: float) -> tuple[Usage, RunFolder, dict[str, Any]]:
        log = self._log(task.folder_name)
        place = (f"--train_dir={self.output / 'runs'}", f"--experiment={task.folder_name}")
        flags = (*task.flags, f"--seed={task.seed}", *place, "--restart_behavior=overwrite")
        usage = run_watched(train_command(flags, task.num_ranks), log, timeout_s, "training")
        folder = RunFolder.open(str(self.output / "runs"), task.folder_name)
        return usage, folder, json.loads(folder.summary.read_text(encoding="utf-8"))

    def _evaluate(self, folder: RunFolder) -> float:
        log = self._log(f"{folder.path.name}_evaluation")
        with log.open("wb") as errors:
            done = evaluate_run(folder.path, f"--episodes={self.episodes}", "--deterministic=False", stderr=errors)
        if done.returncode != 0:
            raise TaskFailed(ending("evaluation", done.returncode, log))
        return float(json.loads(done.stdout.decode().splitlines()[-1])["mean_reward"])

    def _log(self, name: str) -> Path:
        folder = self.output / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.log"


def train_command(flags: tuple[str, ...], num_ranks: int = 1) -> list[str]:
    """Returns the command that trains with these flags; torchrun starts several ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    return [sys.executable, *(torchrun if num_ranks > 1 else ()), "-m", "asyncrl.train", *flags]


def evaluate_run(run: Path, *flags: str, stderr: Any = None) -> subprocess.CompletedProcess[bytes]:
    """Evaluates the policy of a run; the last line of its output is the result as JSON."""
    place = (f"--train_dir={run.parent}", f"--experiment={run.name}")
    command = [sys.executable, "-m", "asyncrl.evaluate", *place, *flags, "--json"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, check=False)


def num_passes(task: Task, config: TrainConfig) -> int:
    """Returns how often each collected sample of a trajectory is trained on."""
    if SAMPLING_FLAG in task.flags:
        return 0
    return 1 if config.backend == "hogwild" and not config.algorithm.uses_ratio else config.num_epochs
