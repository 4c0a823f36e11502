"""The benchmark as Markdown: what was measured, tables of medians with their intervals, and where the plots are."""

from __future__ import annotations

from pathlib import Path

from asyncrl.analysis.benchmark.plots import Plots
from asyncrl.analysis.benchmark.results import Results
from asyncrl.analysis.benchmark.variants import Unit
from asyncrl.analysis.tables import cell, digits, mebibytes, percent, section

_SETTINGS = {"throughput": "learning rate 0", "learning": "real"}


def to_markdown(results: Results, plots: Plots, folder: Path) -> str:
    """Returns the whole report.

    Args:
        results: what was measured.
        plots: which plots there are.
        folder: where the report will lie; paths of plots are relative to it.
    """
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
    rows = [
        [
            variant.name,
            cell(figures.env_steps_per_s),
            cell(figures.share_of_simulation, percent),
            cell(figures.learner_samples_per_s),
            cell(figures.sgd_steps_per_s, digits(1)),
            cell(figures.samples_per_env_step, digits(2)),
            cell(figures.dropped_share, percent),
        ]
        for variant, figures in results.throughput()
    ]
    about = results.about
    note = (
        f"Learning rate 0 (SGD still runs), {about.measure_s:g} s after a warm-up of {about.warm_up_s:g} s after the "
        "first step; shares compare each run with the pure simulation of the same round."
    )
    header = [
        "variant", "environment steps/s", "of pure simulation", "learner samples/s", "SGD steps/s",
        "samples trained per step collected", "dropped",
    ]  # fmt: skip
    return section("Throughput", note, header, rows)


def _speedups(results: Results, unit: Unit) -> str:
    rows = [
        [
            found.variant.name,
            _SETTINGS[found.kind],
            cell(found.env_steps_per_s),
            cell(found.sgd_steps_per_s, digits(1)),
            cell(found.speedup, digits(2)),
            cell(found.efficiency, percent),
        ]
        for found in results.speedups
        if found.unit == unit
    ]
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
    header = ["variant", "settings", "environment steps/s", "SGD steps/s", "speed-up", "efficiency"]
    return section(f"Speed-up over {unit}", note, header, rows)


def _exchanges(results: Results) -> str:
    names = ("profile/learner/exchange_with_ranks", "profile/learner/wait_for_ranks", "perf/learner_busy")
    rows = [
        [variant.name, *(cell(figures.shares.get(name), percent) for name in names)]
        for variant, figures in results.throughput()
        if variant.num_ranks > 1
    ]
    note = (
        "Shares of the learners' time, means over ranks. exchanging: sums over ranks in an iteration, with the wait "
        "for slower ranks. waiting for ranks: before an iteration. at work: all work, exchanges included."
    )
    header = ["variant", "exchanging", "waiting for ranks", "at work"]
    return section("Exchanges between ranks", note, header, rows)


def _resources(results: Results) -> str:
    rows = [
        [
            variant.name,
            cell(figures.cpu_s_per_million_steps),
            cell(figures.peak_pss_bytes, mebibytes),
            cell(figures.peak_rss_bytes, mebibytes),
            cell(figures.startup_s, digits(1)),
        ]
        for variant, figures in results.throughput()
    ]
    note = "Sums over all processes of a run. PSS counts a shared page once, RSS counts it once for each process."
    header = ["variant", "CPU s per million steps", "peak PSS, MiB", "peak RSS, MiB", "start-up, s"]
    return section("CPU and memory", note, header, rows)


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
    rows = [
        [
            variant.name,
            cell(figures.env_steps),
            cell(figures.wall_s),
            cell(figures.final_return, digits(1)),
            cell(figures.evaluated_return, digits(1)),
        ]
        for variant, figures in results.learning()
    ]
    note = "Runs with the real settings. Seconds count from the start of the command."
    if any(item.variant.num_ranks > 1 for item in results.variants):
        note += " Training episodes are those of the first rank."
    header = ["variant", "environment steps", "seconds", "return, last 100 training episodes", "return, evaluated"]
    return section("Return at the end", note, header, rows)


def _reached(results: Results) -> str:
    rows = [
        [variant.name, f"{reached.threshold:g}", cell(reached.env_steps), cell(reached.seconds, digits(1))]
        for variant, figures in results.learning()
        for reached in figures.reached
    ]
    note = (
        "Steps and seconds of the first record whose mean return of the last 100 training episodes is at least the "
        "threshold. Seeds that never reach it are censored: they count as later than all others."
    )
    return section("Time and steps to a return", note, ["variant", "return", "environment steps", "seconds"], rows)


def _plots(plots: Plots, folder: Path) -> str:
    if plots.left_out is not None:
        return f"## Plots\n\n{plots.left_out}"
    images = [f"![{title}]({path.relative_to(folder).as_posix()})" for title, path in plots.files.items()]
    return "## Plots\n\n" + "\n\n".join(images) if images else ""


def _missing(results: Results) -> str:
    lines = "\n".join(f"* {name}: {' '.join(reason.split())}" for name, reason in results.missing.items())
    return f"## Measurements without a result\n\n{lines}" if lines else ""
