"""The benchmark as Markdown: what was measured, tables of medians with their intervals, and where the plots are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.benchmarking.plots import Plots
from asyncrl.benchmarking.results import Learning, Results, Throughput
from asyncrl.benchmarking.statistics import Spread
from asyncrl.benchmarking.variants import Unit

Form = Callable[[float], str]

_MEBIBYTE = 1024 * 1024
_UNKNOWN = "-"
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
        _speedups_over_workers(results),
        _speedups_over_ranks(results),
        _exchanges(results),
        _resources(results),
        _lag(results),
        _roles(results),
        _learning(results),
        _reached(results),
        _plots(plots, folder),
        _missing(results),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def number(value: float, digits: int = 0) -> str:
    """Returns a number for a table."""
    return "not reached" if math.isinf(value) else f"{value:,.{digits}f}"


def percent(value: float) -> str:
    """Returns a share for a table."""
    return f"{100 * value:.1f} %"


def cell(figure: Spread | None, form: Form = number) -> str:
    """Returns a median with its interval, and how many seeds never reached it."""
    if figure is None:
        return _UNKNOWN
    text = form(figure.median)
    if figure.low is not None and figure.high is not None and figure.low != figure.high:
        text += f" [{form(figure.low)}, {form(figure.high)}]"
    if figure.num_censored:
        text += f" ({figure.num_censored} of {len(figure.values)} seeds censored)"
    return text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
    if not results.simulation:
        return ""
    what = (
        f"Seeds and actions recorded from the policy of `{results.about.policy}`, replayed without the policy"
        if results.about.policy
        else "Random actions that are drawn in advance, without a policy"
    )
    rows = [[layout, cell(figure)] for layout, figure in results.simulation.items()]
    header = ["processes x environments", "environment steps/s"]
    return f"## Pure simulation\n\n{what}; measured before each round.\n\n{table(header, rows)}"


def _throughput(results: Results) -> str:
    rows = [
        [
            name,
            cell(figures.env_steps_per_s),
            cell(figures.share_of_simulation, percent),
            cell(figures.learner_samples_per_s),
            cell(figures.sgd_steps_per_s, lambda value: number(value, 1)),
            cell(figures.samples_per_env_step, lambda value: number(value, 2)),
            cell(figures.dropped_share, percent),
        ]
        for name, figures in _measured(results)
    ]
    if not rows:
        return ""
    about = results.about
    how = (
        f"Learning rate 0 (SGD still runs), {about.measure_s:g} s after a warm-up of {about.warm_up_s:g} s after the "
        "first step; shares compare each run with the pure simulation of the same round."
    )
    header = [
        "variant", "environment steps/s", "of pure simulation", "learner samples/s", "SGD steps/s",
        "samples trained per step collected", "dropped",
    ]  # fmt: skip
    return f"## Throughput\n\n{how}\n\n{table(header, rows)}"


def _speedups_over_workers(results: Results) -> str:
    how = (
        "Environment steps a second, divided by those of the variant with the fewest workers and the same number of "
        "environments in each, for each seed. Efficiency is this speed-up divided by the ratio of workers. "
        "`python -m asyncrl.plot speedup` and `compare` take the folders in `runs/`."
    )
    return _speedups(results, "workers", how)


def _speedups_over_ranks(results: Results) -> str:
    how = (
        "Environment steps a second of all ranks, divided by those of the variant with the fewest ranks and the same "
        "workers and environments in each, for each seed. Efficiency is this speed-up divided by the ratio of ranks. "
        "A minibatch has `batch_size` samples from each rank, so SGD steps use larger minibatches, not more of them. "
        "`python -m asyncrl.plot trial`, `compare` and `speedup` take the folders in `runs/`."
    )
    return _speedups(results, "ranks", how)


def _speedups(results: Results, unit: Unit, how: str) -> str:
    rows = [
        [
            found.variant.name,
            _SETTINGS[found.kind],
            cell(found.env_steps_per_s),
            cell(found.sgd_steps_per_s, lambda value: number(value, 1)),
            cell(found.speedup, lambda value: number(value, 2)),
            cell(found.efficiency, percent),
        ]
        for found in results.speedups
        if found.unit == unit
    ]
    if not rows:
        return ""
    header = ["variant", "settings", "environment steps/s", "SGD steps/s", "speed-up", "efficiency"]
    return f"## Speed-up over {unit}\n\n{how}\n\n{table(header, rows)}"


def _exchanges(results: Results) -> str:
    names = ("profile/learner/exchange_with_ranks", "profile/learner/wait_for_ranks", "perf/learner_busy")
    rows = []
    for item in results.variants:
        if item.variant.num_ranks > 1 and item.throughput is not None:
            shares = [item.throughput.shares.get(name) for name in names]
            rows.append([item.variant.name, *(cell(share, percent) for share in shares)])
    if not rows:
        return ""
    how = (
        "Shares of the learners' time, means over ranks. exchanging: sums over ranks in an iteration, with the wait "
        "for slower ranks. waiting for ranks: before an iteration. at work: all work, exchanges included."
    )
    header = ["variant", "exchanging", "waiting for ranks", "at work"]
    return f"## Exchanges between ranks\n\n{how}\n\n{table(header, rows)}"


def _resources(results: Results) -> str:
    rows = [
        [
            name,
            cell(figures.cpu_s_per_million_steps),
            cell(figures.peak_pss_bytes, _mebibytes),
            cell(figures.peak_rss_bytes, _mebibytes),
            cell(figures.startup_s, lambda value: number(value, 1)),
        ]
        for name, figures in _measured(results)
    ]
    if not rows:
        return ""
    how = "Sums over all processes of a run. PSS counts a shared page once, RSS counts it once for each process."
    header = ["variant", "CPU s per million steps", "peak PSS, MiB", "peak RSS, MiB", "start-up, s"]
    return f"## CPU and memory\n\n{how}\n\n{table(header, rows)}"


def _lag(results: Results) -> str:
    measured = [(name, figures) for name, figures in _measured(results) if figures.lag]
    if not measured:
        return ""
    names = list(dict.fromkeys(name for _, figures in measured for name in figures.lag))
    rows = [
        [variant, *(cell(figures.lag.get(name), lambda value: number(value, 1)) for name in names)]
        for variant, figures in measured
    ]
    mean, p95, largest = results.lag_within_dataset
    how = (
        "Age of samples when they are first used: in policy versions (optimizer steps), and in milliseconds where the "
        f"name ends in `_ms`. During the {results.about.updates_per_dataset} optimizer steps on its dataset, each "
        f"sample ages by another {mean:.1f} versions on average (95th percentile {p95:.1f}, at most {largest})."
    )
    return f"## Lag at first use\n\n{how}\n\n{table(['variant', *names], rows)}"


def _roles(results: Results) -> str:
    measured = _measured(results)
    names = list(dict.fromkeys(name for _, figures in measured for name in figures.shares))
    if not names:
        return ""
    rows = [[f"`{name}`", *(cell(figures.shares.get(name), percent) for _, figures in measured)] for name in names]
    how = (
        "Shares of time, means over the processes of a role. `_busy`: at work. `profile/ROLE/PHASE`: in this phase of "
        "work or waiting. `_blocked`: waiting to keep the ratio of updates to steps."
    )
    return f"## What the roles do\n\n{how}\n\n{table(['share of time', *(name for name, _ in measured)], rows)}"


def _learning(results: Results) -> str:
    rows = [
        [
            name,
            cell(figures.env_steps),
            cell(figures.wall_s),
            cell(figures.final_return, lambda value: number(value, 1)),
            cell(figures.evaluated_return, lambda value: number(value, 1)),
        ]
        for name, figures in _learned(results)
    ]
    if not rows:
        return ""
    how = "Runs with the real settings. Seconds count from the start of the command."
    if any(item.variant.num_ranks > 1 for item in results.variants):
        how += " Training episodes are those of the first rank."
    header = ["variant", "environment steps", "seconds", "return, last 100 training episodes", "return, evaluated"]
    return f"## Return at the end\n\n{how}\n\n{table(header, rows)}"


def _reached(results: Results) -> str:
    rows = [
        [name, f"{reached.threshold:g}", cell(reached.env_steps), cell(reached.seconds, lambda value: number(value, 1))]
        for name, figures in _learned(results)
        for reached in figures.reached
    ]
    if not rows:
        return ""
    how = (
        "Steps and seconds of the first record whose mean return of the last 100 training episodes is at least the "
        "threshold. Seeds that never reach it are censored: they count as later than all others."
    )
    header = ["variant", "return", "environment steps", "seconds"]
    return f"## Time and steps to a return\n\n{how}\n\n{table(header, rows)}"


def _plots(plots: Plots, folder: Path) -> str:
    if plots.left_out is not None:
        return f"## Plots\n\n{plots.left_out}"
    images = [f"![{title}]({path.relative_to(folder).as_posix()})" for title, path in plots.files.items()]
    return "## Plots\n\n" + "\n\n".join(images) if images else ""


def _missing(results: Results) -> str:
    if not results.missing:
        return ""
    lines = "\n".join(f"* {name}: {' '.join(reason.split())}" for name, reason in results.missing.items())
    return f"## Measurements without a result\n\n{lines}"


def _measured(results: Results) -> list[tuple[str, Throughput]]:
    return [(item.variant.name, item.throughput) for item in results.variants if item.throughput is not None]


def _learned(results: Results) -> list[tuple[str, Learning]]:
    return [(item.variant.name, item.learning) for item in results.variants if item.learning is not None]


def _mebibytes(value: float) -> str:
    return number(value / _MEBIBYTE)
