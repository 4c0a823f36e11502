"""What the roles tell the runner, about once a second: typed records, each for the time since the one before.

They travel over the control plane, which may drop one when the runner is slow; figures that must be exact (steps,
versions) are counted in the arena instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from asyncrl.monitoring.phases import Phase


@dataclass(frozen=True)
class EpisodeRecord:
    """A finished episode: sum of the environment's own rewards, steps, and the numbers of `episode_extra_stats`."""

    episode_return: float
    length: int
    extra_stats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class InferenceReport:
    """One inference worker: forward passes and the observations in them; `notice` is for the user."""

    worker_idx: int
    wall_s: float
    busy_s: float
    num_forward_passes: int
    num_observations: int
    phases: Mapping[Phase, float] = field(default_factory=dict)
    notice: str | None = None


@dataclass(frozen=True)
class TrainMetrics:
    """Means over the optimizer steps of one dataset, in Stable-Baselines3's terms.

    Losses are what they add to `loss`, each with its coefficient; so `entropy_loss` is 0 without an entropy bonus.
    `kl_loss`, `approx_kl` and `clip_fraction` compare with the policy that acted; with the decoupled objective, with
    the one before training on the dataset.
    `entropy` and `std` have no coefficient. They are those of the policy that acted.
    """

    loss: float
    policy_gradient_loss: float
    value_loss: float
    entropy_loss: float
    kl_loss: float
    approx_kl: float
    clip_fraction: float
    effective_sample_size: float
    """Share of the samples that their weights leave, 1 if all weights are equal: those of the decoupled objective or of
    V-trace (A2C); otherwise the ratios of the first minibatch."""
    explained_variance: float
    learning_rate: float
    grad_norm: float
    max_ratio_deviation_first_batch: float
    """Largest |ratio - 1| in the first minibatch: 0 but for rounding if the dataset is of the current policy."""
    entropy: float
    """Mean entropy of the action distributions, in nats; of squashed actions as a density in [-1, 1]."""
    std: float | None = None
    """Mean standard deviation of continuous actions, before squashing; None for discrete ones."""


@dataclass(frozen=True)
class SacMetrics:
    """Means over the updates of one call, in Stable-Baselines3's terms.

    The policy's figures are of its latest updates where `policy_delay` left none to this call, and 0 before the first.
    `entropy` is in nats; norms are those before clipping.
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


def mean_metrics(metrics: Sequence[TrainMetrics | SacMetrics]) -> TrainMetrics | SacMetrics | None:
    """Means of the same metrics over several calls, None if there were none."""
    if not metrics:
        return None
    columns = zip(*(dataclasses.astuple(each) for each in metrics), strict=True)
    means: list[Any] = [None if None in column else sum(column) / len(metrics) for column in columns]
    return type(metrics[0])(*means)


@dataclass(frozen=True)
class EnvironmentFailures:
    """What went wrong with a worker's environments.

    Attributes:
        num_failures: environments that were recreated.
        num_not_finite: steps that were left out because a reward or an observation is not finite.
        num_dropped: samples that are not trained on for one of both.
        warnings: what the user is to be told.
    """

    num_failures: int = 0
    num_not_finite: int = 0
    num_dropped: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RolloutReport:
    """One rollout worker.

    `busy_s` of `wall_s` it stepped environments or ran its policy, the rest it waited; `phases` has the seconds.
    `train` and `skipped_steps` are of workers that train themselves.
    """

    worker_idx: int
    wall_s: float
    busy_s: float
    env_steps: int
    episodes: tuple[EpisodeRecord, ...]
    phases: Mapping[Phase, float] = field(default_factory=dict)
    train: TrainMetrics | SacMetrics | None = None
    failures: EnvironmentFailures = EnvironmentFailures()
    skipped_steps: int = 0


@dataclass(frozen=True)
class LagMetrics:
    """Age of a dataset's samples when first used: policy versions (optimizer steps), and milliseconds since chosen.

    `over_bound` is the share of samples that are older than the plan expects while workers keep pace.
    """

    mean: float
    p95: float
    max: int
    age_ms: float
    over_bound: float = 0.0


@dataclass(frozen=True)
class ReplayMetrics:
    """The replay: environment steps in it, and updates made for each step after the warm-up (None before it)."""

    size: int
    updates_per_env_step: float | None


@dataclass(frozen=True)
class LearnerReport:
    """What the learner did since its last report: one dataset, or some updates from the replay.

    `train` is None where nothing was trained. `lag` is of trajectories, `replay` of a replay. Other counters are totals
    since the start; `skipped_steps` are optimizer steps left out because loss or gradient were not finite. `notice` is
    a sentence for the user. `hyperparameters` are those that an observer has changed, the last of them at
    `hyperparameters_version`.
    """

    env_steps: int
    num_samples: int
    num_updates: int
    policy_version: int
    wall_s: float
    busy_s: float
    train: TrainMetrics | SacMetrics | None
    lag: LagMetrics | None = None
    slots_ready: int | None = None
    dropped_samples: int = 0
    skipped_steps: int = 0
    replay: ReplayMetrics | None = None
    phases: Mapping[Phase, float] = field(default_factory=dict)
    notice: str | None = None
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    hyperparameters_version: int = 0


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint (`kind`: newest, milestone or best) was written to `path`, or could not be (`error`)."""

    path: str
    env_steps: int
    error: str | None = None
    kind: str = "newest"
    mean_return: float | None = None


@dataclass(frozen=True)
class EvaluationReport:
    """Episodes of one policy, that of `env_steps`; rewards as the environment gives them."""

    env_steps: int
    policy_version: int
    mean_reward: float
    std_reward: float | None
    mean_ep_length: float
    episodes: int
    wall_s: float


@dataclass(frozen=True)
class EvaluationFailed:
    """An evaluation came to nothing; training goes on."""

    reason: str


@dataclass(frozen=True)
class RestartReport:
    """A process ended that should not have, and is started again; `text` says it to the user."""

    child: str
    text: str


class UpdateProgress(NamedTuple):
    """How far an update has come: minibatches done and in all, and when it began (`time.monotonic`)."""

    num_done: int
    num_total: int
    started_at: float


@dataclass(frozen=True)
class Activity:
    """What a run is doing, newer than any report.

    Attributes:
        collected_steps: environment steps that were collected since the processes were started.
        update: the learner's update in hand, if there is one.
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
    | RestartReport
)
