"""What one run says about itself: `metrics.jsonl` and `summary.json` of its folder, as typed figures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.benchmarking.watch import Usage

Record = Mapping[str, Any]

_SHARE_PREFIXES = ("perf/", "profile/", "replay/")
_LAG_FIGURES = ("lag/mean", "lag/p95", "lag/max")


class NothingMeasured(Exception):
    """A run ended without the records that a figure needs; the text says what to change."""


@dataclass(frozen=True)
class ThroughputFigures:
    """Speed and use of resources of one run with learning rate 0, over a window after its warm-up.

    Attributes:
        window_s: seconds of the window, from one dataset's end to another's.
        window_env_steps: environment steps trained in it.
        env_steps_per_s: environment steps trained a second.
        sgd_steps_per_s: optimizer steps a second.
        learner_samples_per_s: samples that went through the learner a second, each as often as it was used.
        samples_per_env_step: how often a collected environment step was trained on; dropped ones never are.
        dropped_share: share of the collected steps that were too old to train on.
        cpu_s_per_million_steps: CPU seconds of all processes for a million environment steps.
        peak_pss_bytes, peak_rss_bytes: see `asyncrl.benchmarking.watch.Usage`.
        startup_s: seconds from the command to the first environment step.
        lag: `lag/*` at first use by published name; means over the records, the largest for maxima.
        shares: `perf/<role>_busy`, `profile/<role>/<phase>` and `replay/<side>_blocked`, shares of time by published
            name.
        lag_records: mean, 95th percentile and maximum of the lag at first use, of every record in the window.
    """

    window_s: float
    window_env_steps: int
    env_steps_per_s: float
    sgd_steps_per_s: float
    learner_samples_per_s: float
    samples_per_env_step: float
    dropped_share: float
    cpu_s_per_million_steps: float
    peak_pss_bytes: int | None
    peak_rss_bytes: int
    startup_s: float
    lag: dict[str, float]
    shares: dict[str, float]
    lag_records: list[list[float]]


@dataclass(frozen=True)
class LearningFigures:
    """One run with the real settings.

    Attributes:
        env_steps: environment steps trained.
        wall_s: seconds from the command to the end.
        final_return: mean return of the last 100 training episodes; None if none ended.
        evaluated_return: mean return of evaluation episodes of the final policy; None if none were asked for.
        curve: environment steps, seconds since the command, and mean return of the last 100 training episodes, of rank
            0's where there are several.
        env_steps_per_s, sgd_steps_per_s: environment and optimizer steps a second between the first and the last record
            of trained steps; None if there are no two with steps between them.
        other_curves: the same as `curve` for each rank but the first: steps of all ranks, episodes of its own.
    """

    env_steps: int
    wall_s: float
    final_return: float | None
    evaluated_return: float | None
    curve: list[list[float]]
    env_steps_per_s: float | None = None
    sgd_steps_per_s: float | None = None
    other_curves: list[list[list[float]]] = field(default_factory=list)


def read_records(path: Path) -> list[Record]:
    """Reads metrics.jsonl; a last line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line.strip()]


def throughput_figures(
    records_of_ranks: Sequence[Sequence[Record]],
    startup_s: float,
    warm_up_s: float,
    num_epochs: int,
    usage: Usage,
    replay_batch_size: int | None = None,
) -> ThroughputFigures:
    """Sums up the records after the warm-up; the run's last record, which holds its end, is left out.

    `time/fps` of a record counts from the last dataset of the record before to its own last dataset, so the records'
    windows follow one another without gap, and their sum neither begins nor ends inside a dataset.

    Args:
        records_of_ranks: all records of each rank; the first one's count the steps of all of them.
        startup_s: when the first environment step was made, in seconds since the command.
        warm_up_s: seconds after that which are left out.
        num_epochs: passes over each dataset, 0 for a run that only samples.
        usage: what the processes used.
        replay_batch_size: samples of an update where these are drawn from a replay; `num_epochs` has no meaning then.

    Raises:
        NothingMeasured: no dataset was trained in the window.
    """
    windows = [_window(records, startup_s + warm_up_s) for records in records_of_ranks]
    if not any(record.get("time/fps") for record in windows[0][1:]):
        raise NothingMeasured(
            f"the run trained on nothing between {warm_up_s:g} s after its first step and its end: raise --measure_s"
        )
    first, last = windows[0][0], windows[0][-1]
    steps, seconds = _steps_and_seconds(windows[0])
    dropped = sum(_difference(window[0], window[-1], "perf/dropped_samples") for window in windows if window)
    updates = _difference(first, last, "train/n_updates")
    trained = num_epochs * steps if replay_batch_size is None else updates * replay_batch_size
    cpu_s = usage.cpu_between(first["time/time_elapsed"], last["time/time_elapsed"])
    window = [record for records in windows for record in records[1:]]
    return ThroughputFigures(
        window_s=seconds,
        window_env_steps=steps,
        env_steps_per_s=steps / seconds,
        sgd_steps_per_s=updates / seconds,
        learner_samples_per_s=trained / seconds,
        samples_per_env_step=trained / (steps + dropped),
        dropped_share=dropped / (steps + dropped),
        cpu_s_per_million_steps=cpu_s / steps * 1e6,
        peak_pss_bytes=usage.peak_pss_bytes,
        peak_rss_bytes=usage.peak_rss_bytes,
        startup_s=startup_s,
        lag={name: _summed_up(window, name) for name in _names(window, ("lag/",))},
        shares={name: _summed_up(window, name) for name in _names(window, _SHARE_PREFIXES) if _is_share(name)},
        lag_records=[
            [float(r[name]) for name in _LAG_FIGURES] for r in window if all(name in r for name in _LAG_FIGURES)
        ],
    )


def learning_figures(
    records_of_ranks: Sequence[Sequence[Record]], summary: Mapping[str, Any], evaluated_return: float | None
) -> LearningFigures:
    """Takes the curves of a run, one for each rank, and where it came to."""
    records = records_of_ranks[0]
    curve, *other_curves = [_curve(of_rank) for of_rank in records_of_ranks]
    return LearningFigures(
        env_steps=int(summary["env_steps"]),
        wall_s=float(summary["wall_s"]),
        final_return=summary["ep_rew_mean"],
        evaluated_return=evaluated_return,
        curve=curve,
        env_steps_per_s=_pace(records, "env_steps"),
        sgd_steps_per_s=_pace(records, "train/n_updates"),
        other_curves=other_curves,
    )


def _window(records: Sequence[Record], begin_s: float) -> list[Record]:
    """The records from a moment on, but for the last one of all; the first is where the window begins."""
    begin = next((i for i, record in enumerate(records) if record["time/time_elapsed"] >= begin_s), len(records))
    return list(records[begin:-1])


def _curve(records: Sequence[Record]) -> list[list[float]]:
    return [
        [float(record["env_steps"]), float(record["time/time_elapsed"]), float(record["rollout/ep_rew_mean"])]
        for record in records
        if record.get("rollout/ep_rew_mean") is not None and record["env_steps"] > 0
    ]


def _steps_and_seconds(records: Sequence[Record]) -> tuple[int, float]:
    """Environment steps between the first record and the last, and the seconds that training took for them."""
    steps, seconds = 0, 0.0
    for previous, record in itertools.pairwise(records):
        if record.get("time/fps"):
            trained = record["env_steps"] - previous["env_steps"]
            steps, seconds = steps + trained, seconds + trained / record["time/fps"]
    return steps, seconds


def _pace(records: Sequence[Record], name: str) -> float | None:
    """How much of a count was added a second from the first record of trained steps to the last."""
    trained = [record for record in records if record["env_steps"] > 0]
    seconds = _difference(trained[0], trained[-1], "time/time_elapsed") if trained else 0.0
    added = _difference(trained[0], trained[-1], name) if trained else 0.0
    return added / seconds if seconds > 0.0 and added > 0.0 else None


def _names(records: Sequence[Record], prefixes: tuple[str, ...]) -> list[str]:
    found = dict.fromkeys(name for record in records for name in record if name.startswith(prefixes))
    return sorted(name for name in found if any(record.get(name) is not None for record in records))


def _is_share(name: str) -> bool:
    return name.startswith("profile/") or name.endswith(("_busy", "_blocked"))


def _summed_up(records: Sequence[Record], name: str) -> float:
    values = [float(record[name]) for record in records if record.get(name) is not None]
    return max(values) if name.endswith("max") else sum(values) / len(values)


def _difference(first: Record, last: Record, name: str) -> float:
    return float(last.get(name) or 0) - float(first.get(name) or 0)
