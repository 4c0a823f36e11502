"""Sums over reports, and the figures that are published of them.

Figures have the names of Stable-Baselines3 where it has one, so that the dashboards of its users continue to work.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Iterable

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
_AVERAGED_LAGS = ("mean", "p95", "age_ms", "over_bound")


class EpisodeStatistics:
    """The last 100 training episodes of all workers or of one, with the environment's own rewards.

    Attributes:
        env_steps: environment steps that were collected, those of an earlier part of the run included.
        num_episodes: episodes that ended in this part of the run.
        recent: the last 100 episodes, those of an earlier part included.
    """

    def __init__(self, env_steps: int = 0, recent: Iterable[EpisodeRecord] = ()) -> None:
        self.env_steps = env_steps
        self.num_episodes = 0
        self.recent: deque[EpisodeRecord] = deque(recent, maxlen=EPISODE_WINDOW)

    def add(self, report: RolloutReport) -> None:
        """Adds the steps and episodes of a report, in their order."""
        self.env_steps += report.env_steps
        self.num_episodes += len(report.episodes)
        self.recent.extend(report.episodes)

    @property
    def mean_return(self) -> float | None:
        """Mean return; None before the first episode has ended."""
        return sum(each.episode_return for each in self.recent) / len(self.recent) if self.recent else None

    @property
    def mean_length(self) -> float | None:
        """Mean number of steps; None before the first episode has ended."""
        return sum(each.length for each in self.recent) / len(self.recent) if self.recent else None

    def mean_extra_stats(self) -> dict[str, float]:
        """Mean of each of the environment's own numbers, over the recent episodes that have it."""
        values: dict[str, list[float]] = {}
        for episode in self.recent:
            for name, value in episode.extra_stats.items():
                values.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in sorted(values.items())}


class Interval:
    """Sums over the reports between two records. `merge` adds up intervals for the summary of a run."""

    def __init__(self) -> None:
        self.is_empty = True
        self._wall_s: defaultdict[str, float] = defaultdict(float)  # by role, over all of its processes
        self._busy_s: defaultdict[str, float] = defaultdict(float)
        self._phase_s: defaultdict[tuple[str, Phase], float] = defaultdict(float)
        self._num_datasets, self._max_lag = 0, 0
        self._lag_sums: defaultdict[str, float] = defaultdict(float)
        self._train: list[TrainMetrics | SacMetrics] = []
        self._replay: ReplayMetrics | None = None
        self._num_forward_passes = self._num_observations = 0

    def add(self, report: RolloutReport | InferenceReport | LearnerReport) -> None:
        """Adds one report."""
        self.is_empty = False
        self._wall_s[report.role] += report.wall_s
        self._busy_s[report.role] += report.busy_s
        for phase, seconds in report.phases.items():
            self._phase_s[report.role, phase] += seconds
        if isinstance(report, InferenceReport):
            self._num_forward_passes += report.num_forward_passes
            self._num_observations += report.num_observations
            return
        if report.train is not None:
            self._train.append(report.train)
        if isinstance(report, LearnerReport):
            self._replay = report.replay
            if report.lag is not None:
                self._num_datasets += 1
                self._max_lag = max(self._max_lag, report.lag.max)
                for name in _AVERAGED_LAGS:
                    self._lag_sums[name] += getattr(report.lag, name)

    def merge(self, later: Interval) -> None:
        """Adds the phases and lags of a later interval."""
        for key, seconds in later._phase_s.items():
            self._phase_s[key] += seconds
        self._num_datasets += later._num_datasets
        self._max_lag = max(self._max_lag, later._max_lag)
        for name, total in later._lag_sums.items():
            self._lag_sums[name] += total

    @property
    def lag(self) -> LagMetrics | None:
        """Means over the datasets, at their first use, and the largest lag of all; None before the first dataset."""
        if self._num_datasets == 0:
            return None
        means = {name: self._lag_sums[name] / self._num_datasets for name in _AVERAGED_LAGS}
        return LagMetrics(max=self._max_lag, **means)

    def phase_shares(self) -> dict[tuple[str, Phase], float]:
        """Share of a role's time that each phase took, by role and phase."""
        totals: defaultdict[str, float] = defaultdict(float)
        for (role, _), seconds in self._phase_s.items():
            totals[role] += seconds
        return {key: seconds / totals[key[0]] for key, seconds in self._phase_s.items() if totals[key[0]] > 0.0}

    def phase_table(self) -> str:
        """The shares as lines of text, one for each role, the largest share first."""
        shares = self.phase_shares()
        lines = ["where the time went, by role:"]
        for role in dict.fromkeys(role for role, _ in shares):
            of_role = sorted(
                ((share, phase.value) for (name, phase), share in shares.items() if name == role), reverse=True
            )
            lines.append(f"  {role:<10}" + ", ".join(f"{phase} {share:.1%}" for share, phase in of_role))
        return "\n".join(lines)

    def scalars(self, with_phases: bool) -> dict[str, float]:
        """Returns the figures by published name; a figure that no report belongs to is left out."""
        named: dict[str, float | None] = {
            f"perf/{role}_busy": self._busy_s[role] / wall_s for role, wall_s in self._wall_s.items() if wall_s > 0.0
        }
        if self._num_forward_passes > 0:
            named["perf/inference_batch_size"] = self._num_observations / self._num_forward_passes
        if (means := mean_metrics(self._train)) is not None:
            named |= {f"train/{name}": value for name, value in dataclasses.asdict(means).items()}
            named["train/learning_rate"] = self._train[-1].learning_rate
        shares = self.phase_shares()
        if self._replay is not None:
            named["replay/size"] = self._replay.size
            named["replay/updates_per_env_step"] = self._replay.updates_per_env_step
            named["replay/learner_blocked"] = shares.get(("learner", Phase.WAIT_SAMPLES), 0.0)
            named["replay/workers_blocked"] = shares.get(("rollout", Phase.WAIT_UPDATES), 0.0)
        if self.lag is not None:
            named |= {f"lag/{name}": float(value) for name, value in dataclasses.asdict(self.lag).items()}
        if with_phases:
            named |= {f"profile/{role}/{phase.value}": share for (role, phase), share in shares.items()}
        return {name: value for name, value in named.items() if value is not None}
