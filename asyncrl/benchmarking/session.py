"""One benchmark from its options to its report.

    options -> variants (each checked as `validate` would) -> tasks -> results.jsonl -> report.md, plots, JSON

Whatever ends it, the report is written from what has been measured; the next call with the same output makes the
measurements that are missing.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import asyncrl
from asyncrl.benchmarking.options import BenchmarkOptions
from asyncrl.benchmarking.results import About, Results, summarize
from asyncrl.benchmarking.store import ResultStore
from asyncrl.benchmarking.tasks import TaskFailed, Workshop
from asyncrl.benchmarking.variants import (
    Layout,
    Protocol,
    Task,
    Variant,
    combinations,
    layouts_of,
    mode_flags,
    ordered_tasks,
)
from asyncrl.config.errors import UsageError
from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.config.schema import TrainConfig
from asyncrl.run import preflight
from asyncrl.runtime import checkpoint as checkpoints
from asyncrl.runtime.provenance import describe, git_commit
from asyncrl.runtime.run_folder import as_folder_name

# The learner's clock starts a little before the first step of the environments.
_START_ALLOWANCE_S = 2.0
_ENDLESS_STEPS = 10**15
_DEFAULT_OUTPUT = Path("bench")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Benchmark:
    """What is going to be measured."""

    options: BenchmarkOptions
    config: TrainConfig
    variants: tuple[Variant, ...]
    tasks: tuple[Task, ...]
    checkpoint: Path | None
    is_vectorized: bool

    @property
    def output(self) -> Path:
        """Folder of everything; one for each environment if none is given."""
        return self.options.own.output or _DEFAULT_OUTPUT / as_folder_name(self.config.env_id)


def prepare(options: BenchmarkOptions) -> Benchmark:
    """Resolves and checks every variant before anything is measured.

    Raises:
        UsageError: a variant cannot be run, or there is no checkpoint to start from.
    """
    checkpoint = None
    if options.own.from_run is not None:
        checkpoint = checkpoints.latest(options.own.from_run / "checkpoints")
        if checkpoint is None:
            raise UsageError(
                f"--from_run={options.own.from_run} has no checkpoint yet: let it train until it has saved one."
            )
    protocol = _protocol(options, checkpoint)
    configs: list[TrainConfig] = []
    is_vectorized = False
    variants: dict[Variant, None] = {}
    own = options.own
    most_ranks = max(own.num_ranks)
    for flags, mode in combinations(own.modes, own.inference_modes, own.num_workers, own.num_envs_per_worker):
        flags = (*(protocol.throughput or protocol.learning or ()), *mode_flags(mode), *flags)
        checked = _check(flags, most_ranks)
        plan = checked.plan
        if (plan.hogwild is not None) != (mode == "hogwild"):
            raise UsageError(
                f"--modes={mode} does not fit the settings, which choose another backend: give --modes=hogwild."
            )
        layout = Layout(plan.num_workers, plan.num_envs_per_worker)
        threads = plan.learner_threads if most_ranks > 1 else None
        for num_ranks in own.num_ranks:
            variants[Variant(mode, plan.inference_mode, layout, num_ranks, threads)] = None
        configs.append(checked.config)
        is_vectorized = checked.spec is not None and checked.spec.is_vectorized
    tasks = ordered_tasks(list(variants), options.seeds, protocol)
    return Benchmark(options, configs[0], tuple(variants), tuple(tasks), checkpoint, is_vectorized)


def run(benchmark: Benchmark, say: Say) -> bool:
    """Measures what has no result yet and writes the report, also when it is interrupted.

    Args:
        benchmark: from `prepare`.
        say: shows one line to the user.

    Returns:
        Whether every task has a result.

    Raises:
        UsageError: the output folder cannot be written.
        EnvironmentFailed: the environment raised while the policy was recorded.
        KeyboardInterrupt: after the report was written.
    """
    output = benchmark.output
    try:
        output.mkdir(parents=True, exist_ok=True)
        store = ResultStore(output / "results.jsonl")
    except OSError as error:
        raise UsageError(f"--output={output} cannot be used: {error.strerror}.") from error
    failures: dict[Task, str] = {}
    try:
        _carry_out(benchmark, store, failures, say)
    finally:
        _write(benchmark, store, failures, say)
    return not failures


def _carry_out(benchmark: Benchmark, store: ResultStore, failures: dict[Task, str], say: Say) -> None:
    todo = [task for task in benchmark.tasks if store.get(task) is None]
    if kept := len(benchmark.tasks) - len(todo):
        say(f"{kept} of {len(benchmark.tasks)} measurements were made before and are kept")
    own = benchmark.options.own
    layouts = layouts_of(benchmark.variants)
    recording = _record(benchmark, layouts, say) if todo and benchmark.checkpoint is not None else None
    workshop = Workshop(
        output=benchmark.output,
        config=benchmark.config,
        layouts={str(layout): layout for layout in layouts},
        warm_up_s=own.warm_up_s,
        measure_s=own.measure_s,
        simulate_s=own.simulate_s,
        episodes=own.episodes,
        recording=recording,
        is_vectorized=benchmark.is_vectorized,
    )
    code = git_commit(Path(asyncrl.__file__).resolve().parents[1]) or asyncrl.__version__
    for number, task in enumerate(todo, start=1):
        started = time.monotonic()
        label = f"{number}/{len(todo)} {task.kind} {task.name} seed {task.seed}"
        try:
            store.add(task, workshop.carry_out(task), code)
        except TaskFailed as error:
            failures[task] = str(error)
            say(f"{label}: failed: {error}")
        else:
            say(f"{label}: done in {time.monotonic() - started:.0f} s")


def _record(benchmark: Benchmark, layouts: list[Layout], say: Say) -> Path:
    """Plays the policy for the largest layout, unless that was done before."""
    num_envs = max(layout.num_workers * layout.num_envs_per_worker for layout in layouts)
    num_steps = benchmark.options.own.record_steps
    assert benchmark.checkpoint is not None
    path = benchmark.output / f"recording_{benchmark.checkpoint.name}_{num_envs}x{num_steps}.npz"
    if not path.exists():
        # Imports torch, which a benchmark without a policy does not need.
        from asyncrl.benchmarking.recording import record

        say(f"recording {num_steps} steps of {num_envs} environments with the policy of {benchmark.checkpoint}")
        record(benchmark.config, benchmark.checkpoint, num_envs, num_steps).save(path)
    return path


def _write(benchmark: Benchmark, store: ResultStore, failures: dict[Task, str], say: Say) -> None:
    from asyncrl.benchmarking.plots import draw_plots
    from asyncrl.benchmarking.report import to_markdown

    results = _results(benchmark, store, failures)
    plots = draw_plots(results, benchmark.output / "plots")
    report = benchmark.output / "report.md"
    report.write_text(to_markdown(results, plots, benchmark.output), encoding="utf-8")
    say(f"report: {report}")
    for path in filter(None, (benchmark.output / "benchmark.json", benchmark.options.own.json_path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _results(benchmark: Benchmark, store: ResultStore, failures: dict[Task, str]) -> Results:
    own, config = benchmark.options.own, benchmark.config
    about = About(
        env=config.env_id,
        policy=str(benchmark.checkpoint) if benchmark.checkpoint is not None else None,
        thresholds=own.thresholds,
        warm_up_s=own.warm_up_s,
        measure_s=own.measure_s,
        updates_per_dataset=config.num_epochs * config.num_batches_per_epoch,
        code=tuple(store.code_of(benchmark.tasks)),
        provenance={**describe(config.device), "command": ["python -m asyncrl.benchmark", *sys.argv[1:]]},
    )
    measured = {task: figures for task in benchmark.tasks if (figures := store.get(task)) is not None}
    missing = {
        f"{task.kind} {task.name} seed {task.seed}": failures.get(task, "not measured yet")
        for task in benchmark.tasks
        if task not in measured
    }
    return summarize(about, benchmark.variants, measured, missing)


def _protocol(options: BenchmarkOptions, checkpoint: Path | None) -> Protocol:
    own, passed = options.own, options.train_flags
    throughput = learning = None
    common = ("--report_every_s=1", "--with_tensorboard=False", "--profile=True")
    if options.measures_throughput:
        without_steps = tuple(flag for flag in passed if not flag.startswith("--train_for_env_steps="))
        throughput = (
            *without_steps,
            *(() if checkpoint is None else (f"--init_from={checkpoint}",)),
            "--learning_rate=0",
            "--lr_schedule=constant",
            f"--train_for_env_steps={_ENDLESS_STEPS}",
            f"--train_for_seconds={own.warm_up_s + own.measure_s + _START_ALLOWANCE_S:g}",
            *common,
        )
    if options.learns:
        learning = (*passed, *common)
    return Protocol(
        simulation=(*passed, f"simulate_s={own.simulate_s:g}", f"policy={checkpoint}", f"steps={own.record_steps}"),
        throughput=throughput,
        learning=learning,
        conditions=(f"warm_up_s={own.warm_up_s:g}", f"episodes={own.episodes}"),
    )


def _check(flags: tuple[str, ...], num_ranks: int) -> preflight.Preflight:
    """Looks at a run of so many ranks on this machine; with fewer of them each is planned the same."""
    machine = dataclasses.replace(Machine.detect(), num_ranks=num_ranks, num_local_ranks=num_ranks)
    checked = preflight.run(load(flags, lenient=True), machine)
    problems = [*map(str, checked.problems), *filter(None, [checked.environment_failure])]
    if problems:
        raise UsageError("\n".join(problems))
    return checked
