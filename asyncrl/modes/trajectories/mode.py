"""Trajectories in slots that one learner grants: PPO and A2C, sync and async."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from asyncrl.buffers.arena import ArraySpec
from asyncrl.buffers.layout import SharedSizes, slot_specs
from asyncrl.buffers.messages import ring_specs
from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.flags import divisor_near, multiples_as_flags
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.modes.mode import MORE_MEMORY, Mode, memory_text, warn_about_large_observations

_LARGE_LEARNING_RATE_OF_CONVOLUTIONS = 1e-3  # docs/results.md, "Memory, spaces, lag": how many policies were lost
_OF_SLOTS = ("batch_size", "num_batches_per_epoch", "num_batches_to_accumulate", "num_envs_per_worker", "rollout")


def trajectory_problems(config: TrainConfig, plan: ResourcePlan, needs_whole_rounds: bool = True) -> Iterator[Problem]:
    """Sizes of datasets and lags that are not possible.

    Args:
        config: the settings.
        plan: the resources resolved from them.
        needs_whole_rounds: whether a dataset of sync and fixed lag is a whole number of rollouts of all environments.
    """
    if not plan.async_rl or plan.fixed_lag:
        if needs_whole_rounds:
            yield from _whole_rounds(config, plan)
    elif plan.batch_size % plan.rollout:
        text = (
            f"Asynchronous training needs batch_size to be a multiple of rollout: {plan.batch_size} / {plan.rollout} = "
            f"{plan.batch_size / plan.rollout:.4g}."
        )
        near = f"--rollout={divisor_near(plan.batch_size, plan.rollout)}"
        yield make_problem(
            "batch_size rollout", text, *multiples_as_flags("batch_size", plan.batch_size, plan.rollout), near
        )
    yield from _lag(plan)


def _whole_rounds(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """Sync and fixed lag: a dataset is a whole number of rollouts of all environments."""
    unit = plan.num_envs * plan.num_agents * plan.rollout
    if plan.dataset_size % unit == 0:
        return
    mode = "--fixed_lag=True" if plan.fixed_lag else "Synchronous training"
    agents, count = (" x agents", f" x {plan.num_agents}") if plan.num_agents > 1 else ("", "")
    text = (
        f"{mode} needs batch_size x num_batches_per_epoch to be a multiple of "
        f"num_workers x num_envs_per_worker{agents} x rollout: {plan.batch_size} x {plan.num_batches_per_epoch} = "
        f"{plan.dataset_size} is not a multiple of {plan.num_workers} x {plan.num_envs_per_worker}{count} x "
        f"{plan.rollout} = {unit} ({plan.dataset_size} / {unit} = {plan.dataset_size / unit:.4g})."
    )
    # Values that are auto adapt to the suggestion; it must fit the given ones.
    step = plan.rollout * plan.num_agents
    step *= 1 if config.num_workers == "auto" else plan.num_workers
    step *= 1 if config.num_envs_per_worker == "auto" else plan.num_envs_per_worker
    yield make_problem(
        "batch_size num_batches_per_epoch num_workers num_envs_per_worker rollout",
        text,
        *multiples_as_flags("batch_size", plan.batch_size, step // math.gcd(step, plan.num_batches_per_epoch)),
        *multiples_as_flags(
            "num_batches_per_epoch", plan.num_batches_per_epoch, step // math.gcd(step, plan.batch_size)
        ),
    )


def _lag(plan: ResourcePlan) -> Iterator[Problem]:
    if plan.fixed_lag and plan.debug_forced_lag:
        text = f"--fixed_lag=True is a lag of one dataset, and --debug_forced_lag={plan.debug_forced_lag} another one."
        yield make_problem("fixed_lag debug_forced_lag", text, "--fixed_lag=False", "--debug_forced_lag=0")
    elif plan.fixed_lag and plan.max_policy_lag < plan.steady_lag_bound:
        text = (
            f"--fixed_lag=True makes samples {plan.steady_lag_bound} optimizer steps old, but "
            f"--max_policy_lag={plan.max_policy_lag} drops samples of that age: nothing would be trained."
        )
        yield make_problem("fixed_lag max_policy_lag", text, f"--max_policy_lag={plan.steady_lag_bound}")
    if plan.forced_lag > plan.max_policy_lag:
        text = (
            f"--debug_forced_lag={plan.debug_forced_lag} makes every sample {plan.forced_lag} optimizer steps old "
            f"(weights are published every {plan.num_batches_per_epoch}), but --max_policy_lag={plan.max_policy_lag} "
            "drops samples of that age: nothing would be trained."
        )
        yield make_problem("debug_forced_lag max_policy_lag", text, f"--max_policy_lag={plan.steady_lag_bound}")


def _slots_too_large(plan: ResourcePlan, needed: int, free: int) -> Problem:
    """The problem of slots that do not fit into memory."""
    text = f"{plan.num_slots} buffers of {plan.columns_per_split} trajectories of {plan.rollout} steps need "
    smaller = f"a smaller value of {', '.join('--' + name for name in _OF_SLOTS)}"
    return Problem(_OF_SLOTS, text + memory_text(needed, free), (smaller, MORE_MEMORY))


def _spec_warnings(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    smaller = ("--rollout=16",) if plan.rollout > 16 else ()
    yield from warn_about_large_observations(plan, spec, "One rollout of one agent", plan.rollout + 1, smaller)
    has_images = any(kind.observation.has_images for kind in spec.kinds)
    has_convolutions = has_images and config.encoder == config.model == "default"
    rate, usual = config.learning_rate, TrainConfig.model_fields["learning_rate"].default
    if has_convolutions and rate >= _LARGE_LEARNING_RATE_OF_CONVOLUTIONS:
        text = (
            f"--learning_rate={rate:g} is large for the convolutions over images of {spec.env_id}: an update may "
            "permanently collapse the image features."
        )
        yield Problem(("learning_rate",), text, (f"--learning_rate={usual:g}",))


def _arrays(
    spec: EnvSpec, plan: ResourcePlan, num_weights: Sequence[int], shared: SharedSizes | None
) -> list[ArraySpec]:
    specs = slot_specs(spec, plan)
    for worker_idx in range(plan.num_workers):
        specs.extend(ring_specs(f"granted.{worker_idx}", plan.num_slots))
        specs.extend(ring_specs(f"ready.{worker_idx}", plan.num_slots))
    return specs


TRAJECTORIES = Mode(
    applies=lambda plan: True,
    find_problems=trajectory_problems,
    arrays=_arrays,
    memory_problem=_slots_too_large,
    find_spec_warnings=_spec_warnings,
    is_past_warm_up=lambda plan, env_steps: env_steps > 0,
    roles="asyncrl.modes.trajectories.roles:TrajectoryRoles",
    learner_grants_slots=True,
)
