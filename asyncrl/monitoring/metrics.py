"""From reports to published figures: sums over a record's interval, and over the run for its summary.

The names are Stable-Baselines3's where it has one, so that its users' dashboards go on working.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from asyncrl.monitoring.phases import Phase
from asyncrl.monitoring.reports import (
    EpisodeRecord,
    InferenceReport,
    LagMetrics,
    LearnerReport,
    ReplayMetrics,
    RolloutReport,
    SacMetrics,
    TrainMetrics,
    mean_metrics,
)

EPISODE_WINDOW = 100


@dataclass
class BusyTime:
    """Time at work of all processes of one role."""

    wall_s: float = 0.0
    busy_s: float = 0.0

    def add(self, report: RolloutReport | InferenceReport | LearnerReport) -> None:
        """Adds what one process reports."""
        self.wall_s += report.wall_s
        self.busy_s += report.busy_s

    @property
    def share(self) -> float | None:
        """Share of the time at work, None before any report."""
        return self.busy_s / self.wall_s if self.wall_s > 0 else None


class PhaseShares:
    """Where the time of a role's processes went, together."""

    def __init__(self) -> None:
        """Starts with no time."""
        self._seconds: dict[str, dict[Phase, float]] = {}

    def add(self, report: RolloutReport | InferenceReport | LearnerReport) -> None:
        """Adds what one process reports."""
        seconds = self._seconds.setdefault(role_of(report), {})
        for phase, spent in report.phases.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent

    def scalars(self) -> dict[str, float]:
        """Shares of each role's time, by published name."""
        return {
            f"profile/{role}/{phase.value}": share for role, shares in self._shares() for phase, share in shares.items()
        }

    def table(self) -> str:
        """The shares as lines of text, the largest first."""
        lines = ["where the time went, by role:"]
        for role, shares in self._shares():
            ordered = sorted(shares.items(), key=lambda item: -item[1])
            lines.append(f"  {role:<10}" + ", ".join(f"{phase.value} {share:.1%}" for phase, share in ordered))
        return "\n".join(lines)

    def share(self, role: str, phase: Phase) -> float:
        """Share of a role's time that went into one phase."""
        return dict(self._shares()).get(role, {}).get(phase, 0.0)

    def _shares(self) -> list[tuple[str, dict[Phase, float]]]:
        return [
            (role, {phase: spent / total for phase, spent in seconds.items()})
            for role, seconds in self._seconds.items()
            if (total := sum(seconds.values())) > 0.0
        ]


class EpisodeStatistics:
    """Means over the last 100 finished episodes of all environments, as the environment counts rewards."""

    def __init__(self) -> None:
        """Starts with no episode."""
        self._recent: deque[EpisodeRecord] = deque(maxlen=EPISODE_WINDOW)
        self.num_episodes = 0

    def add(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Adds finished episodes in their order."""
        for episode in episodes:
            self._recent.append(episode)
            self.num_episodes += 1

    def go_on_with(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Begins with the episodes of before, which are not counted again."""
        self._recent.extend(episodes)

    @property
    def recent(self) -> list[EpisodeRecord]:
        """The episodes that the means are of, oldest first."""
        return list(self._recent)

    @property
    def is_window_full(self) -> bool:
        """Whether there are as many episodes as the means are to be of."""
        return len(self._recent) == EPISODE_WINDOW

    @property
    def mean_return(self) -> float | None:
        """Mean return, None before the first episode's end."""
        return _mean([episode.episode_return for episode in self._recent])

    @property
    def mean_length(self) -> float | None:
        """Mean number of steps, None before the first episode's end."""
        return _mean([episode.length for episode in self._recent])

    def mean_extra_stats(self) -> dict[str, float]:
        """Mean of each of the environment's own numbers, over those of the recent episodes that had it."""
        values: dict[str, list[float]] = {}
        for episode in self._recent:
            for name, value in episode.extra_stats.items():
                values.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in sorted(values.items())}


class WorkerStatistics:
    """The curve of one worker of several that each train: its own episodes over its own steps."""

    def __init__(self, env_steps: int = 0) -> None:
        """Counts on from steps that it made before."""
        self._episodes = EpisodeStatistics()
        self._env_steps = env_steps

    def add(self, report: RolloutReport) -> None:
        """Adds one of its reports."""
        self._episodes.add(report.episodes)
        self._env_steps += report.env_steps

    def scalars(self) -> dict[str, float | None]:
        """Returns the figures by published name."""
        return {
            "env_steps": float(self._env_steps),
            "ep_rew_mean": self._episodes.mean_return,
            "ep_len_mean": self._episodes.mean_length,
        }


class FailureCounts:
    """What went wrong in the run with environments, and with the training that workers do themselves."""

    def __init__(self) -> None:
        """Starts with nothing."""
        self.num_failures = self.num_not_finite = self.num_dropped = self.skipped_steps = 0

    def add(self, report: RolloutReport) -> None:
        """Adds what one worker reports."""
        self.num_failures += report.failures.num_failures
        self.num_not_finite += report.failures.num_not_finite
        self.num_dropped += report.failures.num_dropped
        self.skipped_steps += report.skipped_steps


class LagStatistics:
    """Policy lag over several datasets: the largest lag, and means of all other figures."""

    def __init__(self) -> None:
        """Starts with no dataset."""
        self._num_datasets = 0
        self._mean = self._p95 = self._age_ms = self._over_bound = 0.0
        self._max = 0

    def add(self, lag: LagMetrics) -> None:
        """Adds one dataset, at its first use."""
        self._num_datasets += 1
        self._mean += lag.mean
        self._p95 += lag.p95
        self._age_ms += lag.age_ms
        self._over_bound += lag.over_bound
        self._max = max(self._max, lag.max)

    def result(self) -> LagMetrics | None:
        """Returns the figures, None before the first dataset."""
        count = self._num_datasets
        if count == 0:
            return None
        return LagMetrics(
            self._mean / count, self._p95 / count, self._max, self._age_ms / count, self._over_bound / count
        )


def role_of(report: RolloutReport | InferenceReport | LearnerReport) -> str:
    """The role under whose name a report's figures are published."""
    if isinstance(report, RolloutReport):
        return "rollout"
    return "inference" if isinstance(report, InferenceReport) else "learner"


class Interval:
    """Sums over the time between two records."""

    def __init__(self) -> None:
        """Starts empty."""
        self.busy = {"rollout": BusyTime(), "inference": BusyTime(), "learner": BusyTime()}
        self.lag = LagStatistics()
        self.phases = PhaseShares()
        self._train: list[TrainMetrics | SacMetrics] = []
        self._replay: ReplayMetrics | None = None
        self._num_forward_passes = 0
        self._num_observations = 0
        self.is_empty = True

    def add(self, report: RolloutReport | InferenceReport | LearnerReport) -> None:
        """Adds one report."""
        self.is_empty = False
        self.busy[role_of(report)].add(report)
        self.phases.add(report)
        if isinstance(report, RolloutReport) and report.train is not None:
            self._train.append(report.train)
        if isinstance(report, InferenceReport):
            self._num_forward_passes += report.num_forward_passes
            self._num_observations += report.num_observations
        elif isinstance(report, LearnerReport):
            if report.lag is not None:
                self.lag.add(report.lag)
            self._replay = report.replay
            if report.train is not None:
                self._train.append(report.train)

    def scalars(self) -> dict[str, float]:
        """Returns the interval's figures by published name; those that nothing was reported for are left out."""
        named: dict[str, float | None] = {f"perf/{role}_busy": busy.share for role, busy in self.busy.items()}
        if self._num_forward_passes > 0:
            named["perf/inference_batch_size"] = self._num_observations / self._num_forward_passes
        if self._train:
            means = mean_metrics(self._train)
            assert means is not None
            named.update({f"train/{name}": value for name, value in dataclasses.asdict(means).items()})
            named["train/learning_rate"] = self._train[-1].learning_rate
        if self._replay is not None:
            named["replay/size"] = self._replay.size
            named["replay/updates_per_env_step"] = self._replay.updates_per_env_step
            named["replay/learner_blocked"] = self.phases.share("learner", Phase.WAIT_SAMPLES)
            named["replay/workers_blocked"] = self.phases.share("rollout", Phase.WAIT_UPDATES)
        named.update(lag_scalars(self.lag.result()))
        return {name: value for name, value in named.items() if value is not None}


def lag_scalars(lag: LagMetrics | None) -> dict[str, float | None]:
    """Returns the lag's figures by published name."""
    if lag is None:
        return {}
    return {
        "lag/mean": lag.mean,
        "lag/p95": lag.p95,
        "lag/max": float(lag.max),
        "lag/age_ms": lag.age_ms,
        "lag/over_bound": lag.over_bound,
    }


class TrainingClock:
    """Environment steps that training consumed, and when: the speed over a record's interval and over the run.

    A dataset is trained in one go, so steps arrive in lumps. A window therefore runs from one dataset's end to
    another's, not from record to record; and the run's begins at the first dataset's end, so that start-up is left out.
    """

    def __init__(self) -> None:
        """Starts before the first dataset."""
        self.env_steps = 0
        self._first: tuple[float, int] | None = None
        self._last_record: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def add(self, now: float, env_steps: int) -> None:
        """Notes that a dataset was trained; `env_steps` is the total since the start of the run."""
        self.env_steps = max(self.env_steps, env_steps)
        self._last = (now, self.env_steps)
        if self._first is None:
            self._first = self._last_record = self._last

    def take_fps(self) -> float | None:
        """Returns steps a second since the last dataset of the record before; None without two datasets."""
        fps = _rate(self._last_record, self._last)
        self._last_record = self._last
        return fps

    @property
    def run_fps(self) -> float | None:
        """Steps a second between the first trained dataset and the last, None without two."""
        return _rate(self._first, self._last)


def _rate(begin: tuple[float, int] | None, end: tuple[float, int] | None) -> float | None:
    if begin is None or end is None or end[0] <= begin[0]:
        return None
    return (end[1] - begin[1]) / (end[0] - begin[0])


def _mean(values: list[float] | list[int]) -> float | None:
    return sum(values) / len(values) if values else None
