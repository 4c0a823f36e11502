"""Statistics over seeds and tasks: times to a return, interquartile means, and the regression gate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.analysis.statistics import first_reached, percentiles, sorted_resamples
from scoring.records import Point, Record, time_mark
from scoring.tasks import TIME_MARKS_S, Task

TARGET_SHARE = 0.95
"""Share of the best peer's score to which all systems are timed."""

GATE_SHARE = 0.9
"""Share of the stored outcome's normalized mean below which the gate fails, if chance does not explain it.

Users notice a loss of a tenth of the way from random actions to a good result.
"""

GATE_CHANCE = 0.02
"""The gate fails only if scores of one and the same program would differ so much in fewer cases than this.

The seeds of one commit differ by more than a tenth on most tasks: Hopper after 500,000 steps had 879 to 3052 with seven
seeds. Medians of three seeds failed the gate where learning was the same to the bit.
"""

GATE_SEEDS = 6
"""With fewer, only scores that are all worse than all stored ones would differ more than by chance."""

_PERMUTATIONS = 20_000


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Time:
    """The time at which the seeds of one system reached a return.

    Attributes:
        seconds, env_steps: lower medians over all seeds, infinite for those that did not reach it; None if fewer than
            half of them reached it.
        num_reached, num_seeds: number of seeds that reached it, and of all.
    """

    seconds: float | None
    env_steps: float | None
    num_reached: int
    num_seeds: int


@dataclass(frozen=True)
class Target:
    """The time that systems need to nearly reach the best peer's score.

    Attributes:
        task: id of the environment.
        peer: the peer with the highest median score after the longest time mark, or at the end of a shorter run.
        peer_score: that score.
        value: the return to reach, `TARGET_SHARE` of the way from the task's `low` to that score.
        by_training: time to it by training return, by system.
        by_evaluation: time to it by evaluated snapshots, by system.
    """

    task: str
    peer: str
    peer_score: float
    value: float
    by_training: dict[str, Time]
    by_evaluation: dict[str, Time]


def training_time(records: Sequence[Record], threshold: float) -> Time:
    """Returns the time at which the mean return of the last 100 training episodes first reached a threshold."""
    return _time([record.curve for record in records], threshold)


def evaluated_time(records: Sequence[Record], threshold: float) -> Time:
    """Returns the time of the first saved snapshot whose evaluation reached a threshold."""
    return _time([record.evaluated_curve for record in records], threshold)


def _time(curves: Sequence[Sequence[Point]], threshold: float) -> Time:
    seconds = [first_reached([(point[0], point[2]) for point in curve], threshold) for curve in curves]
    steps = [first_reached([(point[1], point[2]) for point in curve], threshold) for curve in curves]
    num_reached = sum(math.isfinite(value) for value in seconds)
    if num_reached == 0 or 2 * num_reached < len(curves):
        return Time(None, None, num_reached, len(curves))
    return Time(statistics.median_low(seconds), statistics.median_low(steps), num_reached, len(curves))


def median_score(records: Sequence[Record]) -> float:
    return statistics.median(record.score for record in records)


def target(task: Task, by_system: dict[str, Sequence[Record]], peers: Sequence[str]) -> Target | None:
    """Returns the times to nearly the best score of `peers`, the other libraries; None if none has results."""
    scores = {name: _score_after_marks(by_system[name]) for name in peers if by_system.get(name)}
    if not scores:
        return None
    peer = max(scores, key=lambda name: scores[name])
    value = task.denormalized(TARGET_SHARE * task.normalized(scores[peer]))
    return Target(
        task=task.env,
        peer=peer,
        peer_score=scores[peer],
        value=value,
        by_training={name: training_time(records, value) for name, records in by_system.items() if records},
        by_evaluation={name: evaluated_time(records, value) for name, records in by_system.items() if records},
    )


def _score_after_marks(records: Sequence[Record]) -> float:
    last = [record.at_mark(time_mark(max(TIME_MARKS_S))) or record.snapshots[-1] for record in records]
    return statistics.median(snapshot.mean_return for snapshot in last)


def best_ratio(times: dict[str, Time], system: str, peers: Sequence[str]) -> float | None:
    """Returns the time of the quickest peer divided by a system's time; None if either never reached the return."""
    own = times[system].seconds if system in times else None
    others = [times[name].seconds for name in peers if name in times]
    quickest = min((seconds for seconds in others if seconds is not None), default=None)
    return None if own is None or quickest is None else quickest / own


def outcome(tasks: Sequence[Task], system: str, results: dict[str, Sequence[Record]]) -> dict[str, dict[str, Any]]:
    """Returns the numbers that the gate compares, by task: its steps, the final scores of each seed, the median."""
    return {
        task.env: {
            "system": system,
            "env_steps": task.env_steps,
            "scores": {str(record.seed): round(record.score, 3) for record in results[task.env]},
            "median": round(median_score(results[task.env]), 3),
            "deterministic_scores": {
                str(record.seed): round(record.deterministic_score, 3)
                for record in results[task.env]
                if record.deterministic_score is not None
            },
        }
        for task in tasks
        if results.get(task.env)
    }


def regressions(tasks: Sequence[Task], stored: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """Returns a sentence for each task that is worse than its stored outcome, or that cannot be compared.

    Sampled and deterministic actions are compared, the latter where the stored outcome has them. A task is worse if a
    mean is below `GATE_SHARE` of the stored one and chance is an unlikely cause (`GATE_CHANCE`).
    Scores are normalized first, because a share of a negative return has no meaning. A stored mean that is no better
    than random actions always passes.
    """
    found = []
    for task in tasks:
        before, after = stored.get(task.env), now.get(task.env)
        if before is None or after is None:
            where = "the stored outcome" if before is None else "these results"
            found.append(f"{task.env}: {where} has no score, so nothing can be compared.")
            continue
        if before["env_steps"] != after["env_steps"]:
            found.append(
                f"{task.env}: the stored outcome is of {before['env_steps']:,} steps and these results are of "
                f"{after['env_steps']:,}: store a new outcome."
            )
            continue
        for kind, actions in (("scores", "sampled"), ("deterministic_scores", "deterministic")):
            if before.get(kind):
                found += _loss(task, actions, list(before[kind].values()), list(after[kind].values()))
    return found


def _loss(task: Task, actions: str, old: Sequence[float], new: Sequence[float]) -> Iterator[str]:
    """A sentence if these scores are worse than the stored ones, or too few."""
    if min(len(old), len(new)) < GATE_SEEDS:
        counts = f"the stored outcome has {len(old)} seeds and these results have {len(new)}"
        yield f"{task.env}: {counts}, too few to tell a loss from chance: at least {GATE_SEEDS} are needed."
        return
    share = task.normalized(statistics.fmean(old))
    needed, mean = task.denormalized(GATE_SHARE * share), statistics.fmean(new)
    chance = chance_of_loss(old, new)
    if share > 0.0 and mean < needed and chance < GATE_CHANCE:
        yield (
            f"{task.env}: with {actions} actions the mean score fell to {mean:.1f} (seeds: {_listed(new)}) from "
            f"{statistics.fmean(old):.1f} (seeds: {_listed(old)}); by chance this happens in {100.0 * chance:.1f} % of "
            "cases."
        )


def chance_of_loss(before: Sequence[float], after: Sequence[float]) -> float:
    """How often scores of one program, dealt at random into two groups, differ at least as much as these do.

    A one-sided permutation test of the difference of means, with random permutations; the same scores always give the
    same answer.
    """
    scores = np.array([*after, *before], dtype=np.float64)
    shuffled = np.random.default_rng(0).permuted(np.tile(scores, (_PERMUTATIONS, 1)), axis=1)
    of_first = shuffled[:, : len(after)].sum(axis=1)
    at_most = np.count_nonzero(of_first <= sum(after) + 1e-9 * abs(scores).max())
    return (1 + int(at_most)) / (1 + _PERMUTATIONS)


def _listed(scores: Sequence[float]) -> str:
    return ", ".join(f"{score:.1f}" for score in scores)


def interquartile_mean(values: Sequence[float]) -> float:
    """Returns the mean of the values without a quarter of them, rounded down, at each end.

    Source: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice.
    """
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def interquartile_interval(scores: Sequence[Sequence[float]]) -> Interval:
    """Returns the interquartile mean of each task's normalized scores, with its stratified bootstrap interval.

    Source: Agarwal et al. 2021, and its library rliable.
    """
    drawn = sorted_resamples([task for task in scores if task])
    cut = drawn.shape[1] // 4
    means = drawn[:, cut : drawn.shape[1] - cut].mean(axis=1)
    return Interval(interquartile_mean([value for task in scores for value in task]), *percentiles(means))
