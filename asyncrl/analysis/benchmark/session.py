"""One benchmark from its options to its report.

    options -> variants (each checked as `validate` would) -> tasks -> results.jsonl -> report.md, plots, JSON

However it ends, the report shows the figures so far, and the next call with the same output makes the missing
measurements.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import asyncrl
from asyncrl.analysis.benchmark.options import BenchmarkOptions
from asyncrl.analysis.benchmark.report import draw_plots, to_markdown
from asyncrl.analysis.benchmark.results import Entry, read_results, summarize
from asyncrl.analysis.benchmark.simulation import record
from asyncrl.analysis.benchmark.tasks import Workshop
from asyncrl.analysis.benchmark.variants import (
    Layout,
    Protocol,
    Task,
    Variant,
    layouts_of,
    mode_flags,
    ordered_tasks,
)
from asyncrl.analysis.benchmark.watch import TaskFailed
from asyncrl.analysis.records import append_json_line
from asyncrl.analysis.tables import cell, digits
from asyncrl.config.errors import UsageError
from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.config.schema import TrainConfig
from asyncrl.run import preflight
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.provenance import describe, git_commit
from asyncrl.storage.run_folder import as_folder_name

# The learner's clock starts a little before the first environment step.
_START_ALLOWANCE_S = 2.0
_ENDLESS_STEPS = 10**15

Say = Callable[[str], None]


@dataclass(frozen=True)
class Benchmark:
    """The plan of a benchmark."""

    options: BenchmarkOptions
    config: TrainConfig
    variants: tuple[Variant, ...]
    tasks: tuple[Task, ...]
    protocol: Protocol
    checkpoint: Path | None
    is_vectorized: bool

    @property
    def output(self) -> Path:
        """Folder of all files; by default one for each environment."""
        return self.options.output or Path("bench") / as_folder_name(self.config.env_id)

    @property
    def results_file(self) -> Path:
        """One line of JSON for each measurement, so that a stopped benchmark can continue."""
        return self.output / "results.jsonl"


def prepare(options: BenchmarkOptions) -> Benchmark:
    """Plans and checks every variant.

    Raises:
        UsageError: a variant cannot run, or the run of --from_run has no checkpoint.
    """
    checkpoint = None if options.from_run is None else checkpoints.latest(options.from_run / "checkpoints")
    if options.from_run is not None and checkpoint is None:
        raise UsageError(f"--from_run={options.from_run} has no checkpoint yet: let it train until it has saved one.")
    protocol = _protocol(options, checkpoint)
    most_ranks = max(options.num_ranks)
    variants: dict[Variant, preflight.Preflight] = {}
    lists = {
        "inference_mode": options.inference_modes,
        "num_workers": options.num_workers,
        "num_envs_per_worker": options.num_envs_per_worker,
    }
    choices = [[f"--{name}={value}" for value in values] for name, values in lists.items() if values]
    for flags, mode in itertools.product(itertools.product(*choices), options.compared_modes):
        checked = _check((*(protocol.throughput or protocol.learning or ()), *mode_flags(mode), *flags), most_ranks)
        plan = checked.plan
        if plan.serial_mode and not plan.steps_tensors:
            raise UsageError(
                "The settings choose serial_mode, in the preset, in --config or in the run of --from_run, and a serial "
                "run has no roles to compare."
            )
        if (plan.hogwild is not None) != (mode == "hogwild"):
            raise UsageError(
                f"--modes={mode} does not fit the settings, which choose another backend: give --modes=hogwild."
            )
        layout = Layout(plan.num_workers, plan.num_envs_per_worker)
        threads = plan.learner_threads if most_ranks > 1 else None
        for num_ranks in options.num_ranks:
            variants.setdefault(Variant(mode, plan.inference_mode, layout, num_ranks, threads), checked)
    first = next(iter(variants.values()))
    is_vectorized = first.spec is not None and first.spec.is_vectorized
    tasks = ordered_tasks(list(variants), options.seeds_of_rounds, protocol)
    return Benchmark(options, first.config, tuple(variants), tuple(tasks), protocol, checkpoint, is_vectorized)


def run(benchmark: Benchmark, say: Say) -> bool:
    """Makes the missing measurements and writes the report; returns whether every task has a result.

    Raises:
        UsageError: the output folder cannot be written, or a file with settings was changed since `prepare`.
        EnvironmentFailed: the environment raised during the recording of the policy.
    """
    try:
        benchmark.output.mkdir(parents=True, exist_ok=True)
        results = read_results(benchmark.results_file)
    except OSError as error:
        raise UsageError(f"--output={benchmark.output} cannot be used: {error.strerror}.") from error
    failures: dict[Task, str] = {}
    try:
        _carry_out(benchmark, results, failures, say)
    finally:
        _write_report(benchmark, results, failures, say)
    return not failures


def _carry_out(benchmark: Benchmark, results: dict[Task, Entry], failures: dict[Task, str], say: Say) -> None:
    todo = [task for task in benchmark.tasks if task not in results]
    if kept := len(benchmark.tasks) - len(todo):
        say(f"{kept} of {len(benchmark.tasks)} measurements were made before and are kept")
    options = benchmark.options
    layouts = layouts_of(benchmark.variants)
    workshop = Workshop(
        output=benchmark.output,
        config=benchmark.config,
        layouts={str(layout): layout for layout in layouts},
        warm_up_s=options.warm_up_s,
        measure_s=options.measure_s,
        simulate_s=options.simulate_s,
        episodes=options.episodes,
        recording=_record(benchmark, layouts, say) if todo else None,
        is_vectorized=benchmark.is_vectorized,
    )
    code = git_commit(Path(asyncrl.__file__).resolve().parents[1]) or asyncrl.__version__
    for number, task in enumerate(todo, start=1):
        started = time.monotonic()
        label = f"{number}/{len(todo)} {task}"
        if _protocol(benchmark.options, benchmark.checkpoint) != benchmark.protocol:
            raise UsageError(
                "The settings in the preset, in --config or in the run of --from_run were changed during the "
                "benchmark: the same command measures with the new ones."
            )
        try:
            figures = workshop.carry_out(task)
        except TaskFailed as error:
            failures[task] = str(error)
            say(f"{label}: failed: {error}")
        else:
            results[task] = {"task": dataclasses.asdict(task), "code": code, "figures": figures}
            append_json_line(benchmark.results_file, results[task])
            say(f"{label}: done in {time.monotonic() - started:.0f} s")


def _record(benchmark: Benchmark, layouts: list[Layout], say: Say) -> Path | None:
    """Records episodes of the trained policy, if there is one, for the largest layout; an earlier file is kept."""
    if benchmark.checkpoint is None:
        return None
    num_envs = max(layout.num_workers * layout.num_envs_per_worker for layout in layouts)
    num_steps = benchmark.options.record_steps
    path = benchmark.output / f"recording_{benchmark.checkpoint.name}_{num_envs}x{num_steps}.npz"
    if not path.exists():
        say(f"recording {num_steps} steps of {num_envs} environments with the policy of {benchmark.checkpoint}")
        record(benchmark.config, benchmark.checkpoint, num_envs, num_steps).save(path)
    return path


def _write_report(benchmark: Benchmark, results: dict[Task, Entry], failures: dict[Task, str], say: Say) -> None:
    options, config, output = benchmark.options, benchmark.config, benchmark.output
    measured = {task: results[task] for task in benchmark.tasks if task in results}
    about = {
        "env": config.env_id,
        "policy": str(benchmark.checkpoint) if benchmark.checkpoint is not None else None,
        "thresholds": options.thresholds,
        "warm_up_s": options.warm_up_s,
        "measure_s": options.measure_s,
        "updates_per_dataset": config.num_epochs * config.num_batches_per_epoch,
        "code": sorted({entry["code"] for entry in measured.values()}),
        "provenance": {**describe(config.device), "command": ["asyncrl benchmark", *sys.argv[1:]]},
    }
    missing = {str(task): failures.get(task, "not measured yet") for task in benchmark.tasks if task not in measured}
    found = summarize(about, benchmark.variants, {task: entry["figures"] for task, entry in measured.items()}, missing)
    report = output / "report.md"
    report.write_text(to_markdown(found, draw_plots(found, output / "plots"), output), encoding="utf-8")
    say(f"report: {report}")
    for each in found.mode_comparisons:
        steps, seconds = (cell(figure, digits(2)) for figure in (each["env_steps"], each["seconds"]))
        say(f"{each['variant'].name} to {each['threshold']:g}, divided by sync: steps {steps}, seconds {seconds}")
    for path in filter(None, (output / "benchmark.json", options.json_path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _protocol(options: BenchmarkOptions, checkpoint: Path | None) -> Protocol:
    passed = options.train_flags
    throughput = learning = None
    common = ("--report_every_s=1", "--with_tensorboard=False", "--profile=True")
    if options.measures_throughput:
        throughput = (
            *(flag for flag in passed if not flag.startswith("--train_for_env_steps=")),
            *(() if checkpoint is None else (f"--init_from={checkpoint}",)),
            "--learning_rate=0",
            "--lr_schedule=constant",
            *("--eval_every_env_steps=none", "--video_every_env_steps=none", "--save_best_metric=auto"),
            *("--track=[]", "--callbacks=[]"),
            f"--train_for_env_steps={_ENDLESS_STEPS}",
            f"--train_for_seconds={options.warm_up_s + options.measure_s + _START_ALLOWANCE_S:g}",
            *common,
        )
    if options.learns:
        learning = (*passed, *common)
    return Protocol(
        simulation=(
            *passed,
            f"simulate_s={options.simulate_s:g}",
            f"policy={checkpoint}",
            f"steps={options.record_steps}",
        ),
        throughput=throughput,
        learning=learning,
        conditions=(f"warm_up_s={options.warm_up_s:g}", f"episodes={options.episodes}", *settings_of_files(options)),
    )


def settings_of_files(options: BenchmarkOptions) -> tuple[str, ...]:
    """Returns the settings that the preset and the --config file give, as `name=value`.

    They belong to the conditions of a measurement: the file that a flag names may change.
    """
    found: set[str] = set()
    for mode in options.compared_modes:  # the preset depends on the backend
        loaded = load((*options.train_flags, *mode_flags(mode)), lenient=True)
        names = [name for name, origin in loaded.origins.items() if origin.startswith(("preset ", "file "))]
        found.update(f"{name}={getattr(loaded.config, name)!r}" for name in names)
    return tuple(sorted(found))


def _check(flags: tuple[str, ...], num_ranks: int) -> preflight.Preflight:
    """Checks a run with this number of ranks on this machine. Runs with fewer ranks get the same plan for each."""
    machine = dataclasses.replace(Machine.detect(), num_ranks=num_ranks, num_local_ranks=num_ranks)
    checked = preflight.run(load(flags, lenient=True), machine)
    problems = [*map(str, checked.problems), *filter(None, [checked.environment_failure])]
    if problems:
        raise UsageError(*problems)
    return checked
