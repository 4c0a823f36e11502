"""The sums of the reports between two records, and the metrics computed from them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

from asyncrl.observers.reports import (
    WAITING,
    InferenceReport,
    LagMetrics,
    LearnerReport,
    Phase,
    ReplayMetrics,
    RolloutReport,
    SampleAges,
    Staleness,
    UpdateMetrics,
    mean_metrics,
)

_AVERAGED_LAGS = ("mean", "p95", "age_ms", "over_bound")


class Interval:
    """Sums over the reports between two records. `merge` adds up intervals for the summary of a run."""

    def __init__(self) -> None:
        self.is_empty = True
        self.cpu_s = 0.0
        self._wall_s: defaultdict[str, float] = defaultdict(float)  # by role, over all of its processes
        self._phase_s: defaultdict[tuple[str, Phase], float] = defaultdict(float)
        self._num_datasets, self._max_lag = 0, 0
        self._lag_sums: defaultdict[str, float] = defaultdict(float)
        self._train: list[UpdateMetrics] = []
        self._replay: ReplayMetrics | None = None
        self._staleness, self._ages = Staleness(), SampleAges()
        self._num_forward_passes = self._num_observations = 0

    def add(self, report: RolloutReport | InferenceReport | LearnerReport) -> None:
        self.is_empty = False
        self._wall_s[report.role] += report.wall_s
        self.cpu_s += report.cpu_s
        for phase, seconds in report.phases.items():
            self._phase_s[report.role, phase] += seconds
        if isinstance(report, InferenceReport):
            self._num_forward_passes += report.num_forward_passes
            self._num_observations += report.num_observations
            return
        if report.train is not None:
            self._train.append(report.train)
        if report.ages is not None:
            self._ages += report.ages
        if isinstance(report, RolloutReport) and report.staleness is not None:
            self._staleness += report.staleness
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
        lines = ["where the time went, by role:"]
        for role, phases in largest_phases(self.phase_shares()).items():
            lines.append(f"  {role:<10}" + ", ".join(f"{phase} {share:.1%}" for share, phase in phases))
        return "\n".join(lines)

    def scalars(self, with_phases: bool) -> dict[str, float]:
        """Returns the metrics by published name; a metric without a report is left out."""
        named: dict[str, float | None] = {}
        for role, wall_s in self._wall_s.items():
            if wall_s > 0.0:
                spent = (s for (name, phase), s in self._phase_s.items() if name == role and phase not in WAITING)
                named[f"perf/{role}_busy"] = sum(spent) / wall_s
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
        named |= {f"replay/{name}": value for name, value in self._ages.scalars().items()}
        named |= {f"hogwild/{name}": value for name, value in self._staleness.scalars().items()}
        if self.lag is not None:
            named |= {f"lag/{name}": float(value) for name, value in dataclasses.asdict(self.lag).items()}
        if with_phases:
            named |= {f"profile/{role}/{phase.value}": share for (role, phase), share in shares.items()}
        return {name: value for name, value in named.items() if value is not None}


def largest_phases(shares: Mapping[tuple[str, Phase], float]) -> dict[str, list[tuple[float, str]]]:
    """The share of each phase and its name, by role, the largest share first."""
    by_role: dict[str, list[tuple[float, str]]] = {}
    for (role, phase), share in shares.items():
        by_role.setdefault(role, []).append((share, phase.value))
    return {role: sorted(phases, reverse=True) for role, phases in by_role.items()}
