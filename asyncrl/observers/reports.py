"""What each role measures: its time by phase, and the typed records that it sends to the runner.

A role sends one about ten times a second at first, and once a second later (`interval_s`). It is for the time since the
one before. The queue to the runner may drop it when the runner is slow. Counts that must be exact (steps, versions) are
in the arena instead.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

_REPORT_EVERY_S = 1.0
_SHORTEST_INTERVAL_S = 0.1
_INTERVAL_SHARE = 0.04


def interval_s(elapsed_s: float, longest_s: float) -> float:
    """Seconds between two reports of a role, or two records of a run, after `elapsed_s` seconds.

    They are 4 % of the elapsed time, so that a run of ten seconds has a curve of 60 points, and a long one
    has few more than with `longest_s` alone. The shortest interval keeps the runner free.
    """
    return min(longest_s, max(_SHORTEST_INTERVAL_S, _INTERVAL_SHARE * elapsed_s))


def is_report_due(last_at: float, started_at: float) -> bool:
    """Whether a role should report; both times are those of the monotonic clock, its last report and its start."""
    now = time.monotonic()
    return now - last_at >= interval_s(now - started_at, _REPORT_EVERY_S)


class Phase(enum.Enum):
    """What a role does. The value is the published name; the names of waiting phases begin with `wait`."""

    STEP = "step"
    FETCH = "fetch_weights"
    GATHER = "gather"
    FORWARD = "forward"
    COPY = "copy"
    TRAIN = "train"
    PUBLISH = "publish"
    SAVE = "save"
    EXCHANGE = "exchange_with_ranks"
    OTHER = "other"
    WAIT_ACTIONS = "wait_for_actions"
    WAIT_SLOTS = "wait_for_slots"
    WAIT_REQUESTS = "wait_for_requests"
    WAIT_SAMPLES = "wait_for_samples"
    WAIT_UPDATES = "wait_for_updates"
    WAIT_RANKS = "wait_for_ranks"


WAITING = frozenset(phase for phase in Phase if phase.value.startswith("wait"))


class PhaseTimer:
    """Seconds by phase since the last `take`. Each role's process has one.

    A charge takes 0.1 to 0.3 microseconds and is made a few times for each row of a split, so the timer is always on.
    """

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._charged_until = time.perf_counter()

    def charge(self, phase: Phase) -> None:
        """Charges the time since the last charge to `phase`."""
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._charged_until
        self._charged_until = now

    def move(self, seconds: float, source: Phase, target: Phase) -> None:
        """Charges seconds to `target` that `source` was charged with, because `target` was a part of it."""
        self._seconds[source] = self._seconds.get(source, 0.0) - seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def restart(self) -> None:
        """Drops the time until now: the time before a role's loop is start-up."""
        self._seconds = {}
        self._charged_until = time.perf_counter()

    def take(self) -> dict[Phase, float]:
        """Returns the seconds by phase and sets them to zero."""
        seconds, self._seconds = self._seconds, {}
        return seconds


_reported_cpu_s = 0.0


def _take_cpu_s() -> float:
    """Seconds of processor time of this process, all threads together, since the last call or the process's start."""
    global _reported_cpu_s
    before, _reported_cpu_s = _reported_cpu_s, time.process_time()
    return _reported_cpu_s - before


def _cpu_s() -> float:
    """The field `cpu_s` of a report: processor time since the last report of this process."""
    return field(default_factory=_take_cpu_s, compare=False)


EPISODE_WINDOW = 100
"""Number of training episodes over which returns and lengths are averaged."""


@dataclass(frozen=True)
class EpisodeRecord:
    """A finished training episode.

    Attributes:
        episode_return: sum of the environment's own rewards.
        length: environment steps.
        extra_stats: numbers that the environment gives as `episode_extra_stats`.
        policy_idx: the policy that played it.
        training_info: number of the newest message of `set_training_info` that the environment had from the episode's
            beginning on, 0 without any. An episode in which a message came has the number of an older one.
    """

    episode_return: float
    length: int
    extra_stats: dict[str, float] = field(default_factory=dict)
    policy_idx: int = 0
    training_info: int = 0


def mean_extra_stats(extra_stats: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each of the environment's own numbers, over the episodes that have it."""
    values: dict[str, list[float]] = {}
    for stats in extra_stats:
        for name, value in stats.items():
            values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}


@dataclass(frozen=True)
class InferenceReport:
    """One inference worker: forward passes and the observations in them; `notice` is a warning for the user."""

    role: ClassVar[str] = "inference"
    worker_idx: int
    wall_s: float
    num_forward_passes: int
    num_observations: int
    phases: Mapping[Phase, float] = field(default_factory=dict)
    notice: str | None = None
    cpu_s: float = _cpu_s()


@dataclass(frozen=True)
class TrainMetrics:
    """Means over the optimizer steps of one dataset, in Stable-Baselines3's terms.

    Losses include their coefficients and add up to `loss`, so `entropy_loss` is 0 without an entropy bonus.
    `kl_loss`, `approx_kl` and `clip_fraction` compare with the policy that acted; with the decoupled objective, with
    the policy before training on the dataset. `entropy` and `std` have no coefficient and are of the policy that acted.
    """

    loss: float
    policy_gradient_loss: float
    value_loss: float
    entropy_loss: float
    kl_loss: float
    approx_kl: float
    clip_fraction: float
    effective_sample_size: float
    """As a share of the samples, 1 if all weights are equal. Weights are those of the decoupled objective or of V-trace
    (A2C); otherwise the ratios of the first minibatch."""
    explained_variance: float
    learning_rate: float
    grad_norm: float
    max_ratio_deviation_first_batch: float
    """Largest |ratio - 1| in the first minibatch: 0, apart from rounding, if the current policy made the dataset."""
    entropy: float
    """Mean entropy of the action distributions, in nats; of squashed actions as a density in [-1, 1]."""
    std: float | None = None
    """Mean standard deviation of continuous actions, before squashing; None for discrete ones."""


@dataclass(frozen=True)
class SacMetrics:
    """Means over the updates of one call, in Stable-Baselines3's terms.

    If `policy_delay` leaves the call no policy update, the policy's metrics are those of its last updates, and 0 before
    the first. `entropy` is in nats; gradient norms are measured before clipping.
    """

    actor_loss: float
    critic_loss: float
    ent_coef: float
    ent_coef_loss: float
    entropy: float
    q_mean: float
    learning_rate: float
    grad_norm_actor: float
    grad_norm_critic: float


@dataclass(frozen=True)
class Td3Metrics:
    """Means over the updates of one call; the policy's metrics as in `SacMetrics`."""

    actor_loss: float
    critic_loss: float
    q_mean: float
    learning_rate: float
    grad_norm_actor: float
    grad_norm_critic: float


@dataclass(frozen=True)
class DqnMetrics:
    """Means over the updates of one call; the gradient's norm is measured before clipping.

    `exploration_rate` is the probability of a choice at random.
    """

    loss: float
    q_mean: float
    learning_rate: float
    grad_norm: float
    exploration_rate: float


UpdateMetrics = TrainMetrics | SacMetrics | Td3Metrics | DqnMetrics


def mean_metrics(metrics: Sequence[UpdateMetrics]) -> UpdateMetrics | None:
    """Means over several records of one type; None without records. A field that is None in one of them is None."""
    if not metrics:
        return None
    columns = zip(*(dataclasses.astuple(each) for each in metrics), strict=True)
    means: list[Any] = [None if None in column else sum(column) / len(metrics) for column in columns]
    return type(metrics[0])(*means)


@dataclass(frozen=True)
class EnvironmentFailures:
    """Failures of a worker's environments.

    Attributes:
        num_failures: environments that were recreated.
        num_not_finite: steps that were dropped because a reward or an observation is NaN or infinite.
        num_dropped: samples that are not trained on because of such a failure or step.
        warnings: sentences for the user.
    """

    num_failures: int = 0
    num_not_finite: int = 0
    num_dropped: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SampleAges:
    """Sums over samples that were drawn from a replay, since they were collected.

    Attributes:
        num_samples, env_steps: samples, and the environment steps that the run has made since.
        num_of_known_policy, updates: samples that the run has collected since it was started, and the updates since.
    """

    num_samples: int = 0
    env_steps: float = 0.0
    num_of_known_policy: int = 0
    updates: float = 0.0

    def __add__(self, other: SampleAges) -> SampleAges:
        return SampleAges(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def scalars(self) -> dict[str, float]:
        """Mean ages; those of no samples are left out."""
        found = {}
        if self.num_samples > 0:
            found["age_env_steps"] = self.env_steps / self.num_samples
        if self.num_of_known_policy > 0:
            found["age_updates"] = self.updates / self.num_of_known_policy
        return found


@dataclass(frozen=True)
class Staleness:
    """Updates of a Hogwild worker by their staleness: updates that others made between its pull and its push.

    Attributes:
        counts: number of updates of each staleness.
        num_recomputed: updates that were over the bound and were computed again.
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    num_recomputed: int = 0

    def __add__(self, other: Staleness) -> Staleness:
        total = Counter(self.counts)
        total.update(other.counts)
        return Staleness(total, self.num_recomputed + other.num_recomputed)

    def scalars(self) -> dict[str, float]:
        """Mean, 95th percentile and maximum, and the share of updates that were computed again; empty without any."""
        num_updates = sum(self.counts.values())
        if num_updates == 0:
            return {}
        values, counts = zip(*sorted(self.counts.items()), strict=True)
        seen = zip(values, itertools.accumulate(counts), strict=True)
        return {
            "staleness_mean": sum(value * count for value, count in self.counts.items()) / num_updates,
            "staleness_p95": next(value for value, num_seen in seen if num_seen >= 0.95 * num_updates),
            "staleness_max": values[-1],
            "recomputed": self.num_recomputed / num_updates,
        }


@dataclass(frozen=True)
class RolloutReport:
    """One rollout worker.

    `phases` says how it spent the `wall_s` seconds. Only Hogwild workers,
    which train themselves, set `train`, `skipped_steps` (optimizer steps that were skipped), `staleness` and `ages`.
    `notes` are what policy mappings of features report to their observers.
    """

    role: ClassVar[str] = "rollout"
    worker_idx: int
    wall_s: float
    env_steps: int
    episodes: tuple[EpisodeRecord, ...]
    phases: Mapping[Phase, float] = field(default_factory=dict)
    train: UpdateMetrics | None = None
    failures: EnvironmentFailures = EnvironmentFailures()
    skipped_steps: int = 0
    notes: tuple[object, ...] = ()
    staleness: Staleness | None = None
    ages: SampleAges | None = None
    cpu_s: float = _cpu_s()


@dataclass(frozen=True)
class LagMetrics:
    """Policy lag of a dataset's samples at their first use, in policy versions (optimizer steps).

    `age_ms` is the mean time since the actions were chosen. `over_bound` is the share of samples whose lag is larger
    than the plan expects while the workers keep pace.
    """

    mean: float
    p95: float
    max: int
    age_ms: float
    over_bound: float = 0.0


@dataclass(frozen=True)
class ReplayMetrics:
    """The replay: environment steps in it, and updates for each environment step after the warm-up (None before)."""

    size: int
    updates_per_env_step: float | None


@dataclass(frozen=True)
class LearnerReport:
    """What the learner did since its last report: one dataset, or some updates from the replay.

    Attributes:
        env_steps, num_samples, num_updates, dropped_samples: totals since the start of the run; `env_steps` of all
            policies.
        policy_idx: the policy that was trained.
        agent_steps: samples that were trained on, of all agents, since the start of the run; 0 for a replay.
        policy_env_steps: the policy's part of `env_steps`, in proportion to the `agent_steps` of all policies; 0 for a
            replay.
        skipped_steps: total of the optimizer steps that were skipped because loss or gradient was not finite.
        train: None if nothing was trained.
        lag, slots_ready: of trajectories, None for a replay; `slots_ready` trajectories wait for the learner.
        replay, ages: None for trajectories.
        notice: a warning for the user.
        hyperparameters: those that an observer has changed, the last of them at policy version
            `hyperparameters_version`.
    """

    role: ClassVar[str] = "learner"
    env_steps: int
    num_samples: int
    num_updates: int
    wall_s: float
    train: UpdateMetrics | None
    lag: LagMetrics | None = None
    slots_ready: int | None = None
    dropped_samples: int = 0
    agent_steps: int = 0
    skipped_steps: int = 0
    replay: ReplayMetrics | None = None
    ages: SampleAges | None = None
    phases: Mapping[Phase, float] = field(default_factory=dict)
    notice: str | None = None
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    hyperparameters_version: int = 0
    policy_idx: int = 0
    policy_env_steps: int = 0
    cpu_s: float = _cpu_s()


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint was saved to `path`, or the save failed with `error`.

    Attributes:
        kind: `newest`, `milestone` or `best`.
        mean_return: mean return with which a `best` checkpoint was chosen.
        policy_idx: the policy that was saved.
    """

    path: str
    env_steps: int
    error: str | None = None
    kind: str = "newest"
    mean_return: float | None = None
    policy_idx: int = 0


@dataclass(frozen=True)
class EvaluationReport:
    """Evaluation episodes of the policy that had trained for `env_steps`; rewards are the environment's own.

    `std_reward` is None for a single episode; `policy_idx` is the policy that was evaluated; `num_lost` episodes were
    ended by a failure of the environment and replaced.
    """

    env_steps: int
    policy_version: int
    mean_reward: float
    std_reward: float | None
    mean_ep_length: float
    episodes: int
    wall_s: float
    policy_idx: int = 0
    num_lost: int = 0


@dataclass(frozen=True)
class EvaluationFailed:
    """An evaluation failed; training continues."""

    reason: str


@dataclass(frozen=True)
class VideoReport:
    """A video of a policy that had trained for `env_steps` was written to `path`, or `error` says why it was not.

    After a failure there are no more videos; training continues.
    """

    path: str
    env_steps: int
    policy_idx: int = 0
    error: str | None = None


@dataclass(frozen=True)
class RestartReport:
    """A process ended unexpectedly and is started again; `text` tells the user."""

    child: str
    text: str


class UpdateProgress(NamedTuple):
    """Minibatches of the current update that are done and in all, and when the update began (`time.monotonic`)."""

    num_done: int
    num_total: int
    started_at: float


@dataclass(frozen=True)
class Activity:
    """What a run is doing now, read from the arena.

    Attributes:
        collected_steps: environment steps since the processes were started.
        update: the learner's current update.
        is_stopping: whether the run was asked to stop.
        has_ended: whether training is over.
    """

    collected_steps: int = 0
    update: UpdateProgress | None = None
    is_stopping: bool = False
    has_ended: bool = False


Report = (
    RolloutReport
    | InferenceReport
    | LearnerReport
    | CheckpointReport
    | EvaluationReport
    | EvaluationFailed
    | VideoReport
    | RestartReport
)
