"""The benchmark as Markdown: what was measured, tables of medians with their intervals, and where the plots are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from asyncrl.analysis.benchmark.figures import ThroughputFigures
from asyncrl.analysis.benchmark.plots import Plots
from asyncrl.analysis.benchmark.results import Learning, Reached, Results, VariantSpeedup
from asyncrl.analysis.benchmark.variants import Unit, Variant
from asyncrl.analysis.statistics import Spread
from asyncrl.analysis.tables import cell, digits, mebibytes, percent, section

Found = TypeVar("Found")
Columns = Mapping[str, Callable[[Found], str]]
"""By the head of a column, what it shows."""


def to_markdown(results: Results, plots: Plots, folder: Path) -> str:
    """Returns the whole report, which will lie in a folder; paths of plots are relative to it."""
    sections = [
        _heading(results),
        _simulation(results),
        _throughput(results),
        _speedups(results, "workers"),
        _speedups(results, "ranks"),
        _exchanges(results),
        _resources(results),
        _lag(results),
        _roles(results),
        _learning(results),
        _reached(results),
        _plots(plots, folder),
        _missing(results),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _heading(results: Results) -> str:
    about = results.about
    machine, packages = about.provenance["machine"], about.provenance["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    paragraphs = [
        f"# Benchmark: {about.env}",
        f"{machine['cpu']}, {machine['usable_cores']} usable cores, {machine['memory_bytes'] / 2**30:.1f} GiB, "
        f"device {machine['device']}. Python {about.provenance['python']}, {versions}. "
        f"Code: {', '.join(about.code) or 'nothing measured yet'}.",
        f"`{' '.join(about.provenance['command'])}`",
        "Steps are environment steps (one `env.step` of one environment), not frames. Figures are medians over seeds; "
        "in brackets is the 95 % bootstrap interval of the median where there are several seeds.",
    ]
    return "\n\n".join(paragraphs)


def _simulation(results: Results) -> str:
    what = (
        f"Seeds and actions recorded from the policy of `{results.about.policy}`, replayed without the policy"
        if results.about.policy
        else "Random actions that are drawn in advance, without a policy"
    )
    rows = [[layout, cell(figure)] for layout, figure in results.simulation.items()]
    note = f"{what}; measured before each round."
    return section("Pure simulation", note, ["processes x environments", "environment steps/s"], rows)


def _throughput(results: Results) -> str:
    about = results.about
    note = (
        f"Learning rate 0 (SGD still runs), {about.measure_s:g} s after a warm-up of {about.warm_up_s:g} s after the "
        "first step; shares compare each run with the pure simulation of the same round."
    )
    columns: Columns[ThroughputFigures[Spread]] = {
        "environment steps/s": lambda run: cell(run.env_steps_per_s),
        "of pure simulation": lambda run: cell(run.share_of_simulation, percent),
        "learner samples/s": lambda run: cell(run.learner_samples_per_s),
        "SGD steps/s": lambda run: cell(run.sgd_steps_per_s, digits(1)),
        "samples trained per step collected": lambda run: cell(run.samples_per_env_step, digits(2)),
        "dropped": lambda run: cell(run.dropped_share, percent),
    }
    return _by_variant("Throughput", note, results.throughput(), columns)


def _speedups(results: Results, unit: Unit) -> str:
    note = (
        "Environment steps a second, divided by those of the variant with the fewest workers and the same number of "
        "environments in each, for each seed. Efficiency is this speed-up divided by the ratio of workers. "
        "`python -m asyncrl.plot speedup` and `compare` take the folders in `runs/`."
    )
    if unit == "ranks":
        note = (
            "Environment steps a second of all ranks, divided by those of the variant with the fewest ranks and the "
            "same workers and environments in each, for each seed. Efficiency is this speed-up divided by the ratio of "
            "ranks. A minibatch has `batch_size` samples from each rank, so SGD steps use larger minibatches, not more "
            "of them. `python -m asyncrl.plot trial`, `compare` and `speedup` take the folders in `runs/`."
        )
    columns: Columns[VariantSpeedup] = {
        "settings": lambda found: "real" if found.kind == "learning" else "learning rate 0",
        "environment steps/s": lambda found: cell(found.env_steps_per_s),
        "SGD steps/s": lambda found: cell(found.sgd_steps_per_s, digits(1)),
        "speed-up": lambda found: cell(found.speedup, digits(2)),
        "efficiency": lambda found: cell(found.efficiency, percent),
    }
    found = [(each.variant, each) for each in results.speedups if each.unit == unit]
    return _by_variant(f"Speed-up over {unit}", note, found, columns)


def _exchanges(results: Results) -> str:
    note = (
        "Shares of the learners' time, means over ranks. exchanging: sums over ranks in an iteration, with the wait "
        "for slower ranks. waiting for ranks: before an iteration. at work: all work, exchanges included."
    )
    columns: Columns[ThroughputFigures[Spread]] = {
        "exchanging": lambda run: cell(run.shares.get("profile/learner/exchange_with_ranks"), percent),
        "waiting for ranks": lambda run: cell(run.shares.get("profile/learner/wait_for_ranks"), percent),
        "at work": lambda run: cell(run.shares.get("perf/learner_busy"), percent),
    }
    of_ranks = [item for item in results.throughput() if item[0].num_ranks > 1]
    return _by_variant("Exchanges between ranks", note, of_ranks, columns)


def _resources(results: Results) -> str:
    note = "Sums over all processes of a run. PSS counts a shared page once, RSS counts it once for each process."
    columns: Columns[ThroughputFigures[Spread]] = {
        "CPU s per million steps": lambda run: cell(run.cpu_s_per_million_steps),
        "peak PSS, MiB": lambda run: cell(run.peak_pss_bytes, mebibytes),
        "peak RSS, MiB": lambda run: cell(run.peak_rss_bytes, mebibytes),
        "start-up, s": lambda run: cell(run.startup_s, digits(1)),
    }
    return _by_variant("CPU and memory", note, results.throughput(), columns)


def _lag(results: Results) -> str:
    measured = [(variant.name, figures.lag) for variant, figures in results.throughput() if figures.lag]
    names = list(dict.fromkeys(name for _, lag in measured for name in lag))
    rows = [[variant, *(cell(lag.get(name), digits(1)) for name in names)] for variant, lag in measured]
    mean, p95, largest = results.lag_within_dataset
    note = (
        "Age of samples when they are first used: in policy versions (optimizer steps), and in milliseconds where the "
        f"name ends in `_ms`. During the {results.about.updates_per_dataset} optimizer steps on its dataset, each "
        f"sample ages by another {mean:.1f} versions on average (95th percentile {p95:.1f}, at most {largest})."
    )
    return section("Lag at first use", note, ["variant", *names], rows)


def _roles(results: Results) -> str:
    measured = [(variant.name, figures.shares) for variant, figures in results.throughput()]
    names = dict.fromkeys(name for _, shares in measured for name in shares)
    rows = [[f"`{name}`", *(cell(shares.get(name), percent) for _, shares in measured)] for name in names]
    note = (
        "Shares of time, means over the processes of a role. `_busy`: at work. `profile/ROLE/PHASE`: in this phase of "
        "work or waiting. `_blocked`: waiting to keep the ratio of updates to steps."
    )
    return section("What the roles do", note, ["share of time", *(variant for variant, _ in measured)], rows)


def _learning(results: Results) -> str:
    note = "Runs with the real settings. Seconds count from the start of the command."
    if any(item.variant.num_ranks > 1 for item in results.variants):
        note += " Training episodes are those of the first rank."
    columns: Columns[Learning] = {
        "environment steps": lambda run: cell(run.env_steps),
        "seconds": lambda run: cell(run.wall_s),
        "return, last 100 training episodes": lambda run: cell(run.final_return, digits(1)),
        "return, evaluated": lambda run: cell(run.evaluated_return, digits(1)),
    }
    return _by_variant("Return at the end", note, results.learning(), columns)


def _reached(results: Results) -> str:
    note = (
        "Steps and seconds of the first record whose mean return of the last 100 training episodes is at least the "
        "threshold. Seeds that never reach it are censored: they count as later than all others."
    )
    columns: Columns[Reached] = {
        "return": lambda reached: f"{reached.threshold:g}",
        "environment steps": lambda reached: cell(reached.env_steps),
        "seconds": lambda reached: cell(reached.seconds, digits(1)),
    }
    found = [(variant, reached) for variant, figures in results.learning() for reached in figures.reached]
    return _by_variant("Time and steps to a return", note, found, columns)


def _by_variant(title: str, note: str, found: Sequence[tuple[Variant, Found]], columns: Columns[Found]) -> str:
    rows = [[variant.name, *(show(figures) for show in columns.values())] for variant, figures in found]
    return section(title, note, ["variant", *columns], rows)


def _plots(plots: Plots, folder: Path) -> str:
    if plots.left_out is not None:
        return f"## Plots\n\n{plots.left_out}"
    images = [f"![{title}]({path.relative_to(folder).as_posix()})" for title, path in plots.files.items()]
    return "## Plots\n\n" + "\n\n".join(images) if images else ""


def _missing(results: Results) -> str:
    lines = "\n".join(f"* {name}: {' '.join(reason.split())}" for name, reason in results.missing.items())
    return f"## Measurements without a result\n\n{lines}" if lines else ""
