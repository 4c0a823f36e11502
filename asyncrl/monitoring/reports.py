"""What the roles tell the runner, about once a second: typed records, each for the time since the one before.

They travel over the control plane, which may drop one when the runner is slow; figures that must be exact (steps,
versions) are counted in the arena instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncrl.monitoring.phases import Phase


@dataclass(frozen=True)
class EpisodeRecord:
    """A finished episode: sum of the environment's own rewards, steps, and the numbers of `episode_extra_stats`."""

    episode_return: float
    length: int
    extra_stats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RolloutReport:
    """One rollout worker.

    `busy_s` of `wall_s` it stepped environments or ran its policy, the rest it waited; `phases` has the seconds.
    """

    worker_idx: int
    wall_s: float
    busy_s: float
    env_steps: int
    episodes: tuple[EpisodeRecord, ...]
    phases: Mapping[Phase, float] = field(default_factory=dict)


@dataclass(frozen=True)
class InferenceReport:
    """One inference worker: forward passes and the observations in them."""

    worker_idx: int
    wall_s: float
    busy_s: float
    num_forward_passes: int
    num_observations: int
    phases: Mapping[Phase, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainMetrics:
    """Means over the optimizer steps of one dataset, in Stable-Baselines3's terms; losses as they enter the total."""

    loss: float
    policy_gradient_loss: float
    value_loss: float
    entropy_loss: float
    kl_loss: float
    approx_kl: float
    clip_fraction: float
    explained_variance: float
    learning_rate: float
    grad_norm: float
    max_ratio_deviation_first_batch: float
    """Largest |ratio - 1| in the first minibatch: 0 but for rounding if the dataset is of the current policy."""


@dataclass(frozen=True)
class LagMetrics:
    """Age of a dataset's samples when first used: policy versions (optimizer steps), and milliseconds since chosen."""

    mean: float
    p95: float
    max: int
    age_ms: float


@dataclass(frozen=True)
class LearnerReport:
    """One trained dataset (`train` is None where training is skipped). Other counters are totals since the start."""

    env_steps: int
    num_samples: int
    num_updates: int
    policy_version: int
    wall_s: float
    busy_s: float
    train: TrainMetrics | None
    lag: LagMetrics
    slots_ready: int
    dropped_samples: int
    phases: Mapping[Phase, float] = field(default_factory=dict)


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


Report = RolloutReport | InferenceReport | LearnerReport | CheckpointReport | EvaluationReport | EvaluationFailed
