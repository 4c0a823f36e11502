"""Settings: learning from trajectories: PPO and A2C."""

from __future__ import annotations

from typing import Literal

from asyncrl.config.sections.section import ON_DATASETS, ON_TRAJECTORIES, Section, section
from asyncrl.config.value_types import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

_roles = section("roles")
_samples = section("samples")
_learning = section("learning")


class TrajectorySettings(Section):
    """Learning from trajectories: PPO and A2C."""

    num_batches_to_accumulate: PositiveInt = _roles(
        1,
        "async: collecting pauses when this many datasets wait or are being trained",
        algo=ON_DATASETS,
        backend=("actor_learner",),
        async_rl=(True,),
        fixed_lag=(False,),
    )
    fixed_lag: bool = _roles(
        False,
        "async: every sample is exactly one dataset old; all workers collect a dataset while the one before is "
        "trained, with weights that do not change meanwhile, and the faster side waits",
        algo=ON_DATASETS,
        backend=("actor_learner",),
        async_rl=(True,),
    )
    max_policy_lag: PositiveInt = _roles(
        1000,
        "trajectories older than this many policy versions (optimizer steps) are dropped before training",
        algo=ON_DATASETS,
        backend=("actor_learner",),
    )
    debug_forced_lag: NonNegativeInt = _roles(0, "publish weights this many optimizer steps late, for tests")
    debug_skip_training: bool = _roles(False, "collect trajectories without training, to measure the speed of sampling")

    rollout: PositiveInt = _samples(32, "steps of each environment in one trajectory", algo=ON_TRAJECTORIES)
    num_batches_per_epoch: PositiveInt = _samples(
        16, "minibatches in a dataset, each of batch_size samples", algo=ON_DATASETS, backend=("actor_learner",)
    )
    num_epochs: PositiveInt = _samples(10, "passes over each dataset", algo=ON_DATASETS)
    shuffle_minibatches: bool = _samples(True, "fill minibatches with samples in random order", algo=ON_DATASETS)

    recompute_values: bool = _learning(
        True,
        "compute advantages of samples of older policies with values of the current critic, not with those stored when "
        "acting",
        algo=ON_DATASETS,
        backend=("actor_learner",),
        with_vtrace=(False,),
    )
    recompute_advantages: bool = _learning(
        False,
        "compute values, advantages and returns again with the current critic before each pass over a "
        "dataset but the first",
        algo=ON_DATASETS,
    )
    with_vtrace: bool = _learning(
        False, "correct advantages and returns for the age of the samples (V-trace), with values of the current critic"
    )
    vtrace_rho: PositiveFloat = _learning(
        1.0, "V-trace: upper limit of the weights of temporal differences", with_vtrace=(True,)
    )
    vtrace_c: PositiveFloat = _learning(1.0, "V-trace: upper limit of the weights of the trace", with_vtrace=(True,))
    gae_lambda: Fraction = _learning(0.95, "lambda of generalized advantage estimation", algo=ON_TRAJECTORIES)
    ppo_clip_value: PositiveFloat | None = _learning(
        None, "clip the change of value predictions to this range; none means no clipping", algo=ON_TRAJECTORIES
    )
    value_loss_coeff: NonNegativeFloat = _learning(0.5, "weight of the value loss", algo=ON_TRAJECTORIES)
    entropy_loss_coeff: NonNegativeFloat = _learning(0.0, "weight of the entropy bonus", algo=ON_TRAJECTORIES)
    final_entropy_loss_coeff: NonNegativeFloat | None = _learning(
        None,
        "entropy_loss_coeff at the end of the run, to which it changes linearly; none means that it stays",
        algo=ON_TRAJECTORIES,
    )
    final_stddev: PositiveFloat | None = _learning(
        None,
        "continuous actions: a limit of the standard deviation, which falls in the second half of the run from "
        "initial_stddev to this at its end; none means no limit",
        algo=ON_DATASETS,
        backend=("actor_learner",),
        adaptive_stddev=(False,),
    )
    kl_loss_coeff: NonNegativeFloat = _learning(
        0.0, "weight of the KL divergence from the ratio's reference policy", algo=ON_TRAJECTORIES
    )
    target_kl: PositiveFloat | None = _learning(
        0.04,
        "leave out the other passes over a dataset after a pass with a larger mean of train/approx_kl; none means "
        "that all passes are made",
        algo=ON_DATASETS,
    )
    normalize_advantage: bool = _learning(
        True, "normalize advantages to mean 0 and standard deviation 1 before each pass", algo=ON_TRAJECTORIES
    )
    normalize_advantage_over: Literal["minibatch", "dataset"] = _learning(
        "minibatch",
        "samples over which mean and standard deviation of advantages are computed",
        algo=ON_DATASETS,
        normalize_advantage=(True,),
    )
    normalize_returns: bool = _learning(
        True,
        "the critic predicts returns normalized with running statistics (PopArt)",
        algo=ON_TRAJECTORIES,
        fixed="run",
    )
