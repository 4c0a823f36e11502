"""Hogwild: workers with private slots or replays train one set of shared parameters, without a learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from asyncrl.buffers.arena import ArraySpec, arena_size
from asyncrl.buffers.gradients import gradient_specs
from asyncrl.buffers.layout import SharedSizes, run_specs
from asyncrl.buffers.shared_tensors import shared_tensor_specs
from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.plan import PLACES_OF_A_WORKER, HogwildPlan, ResourcePlan, most_gradients_to_combine
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.sizes import shared_sizes
from asyncrl.modes.replay.mode import REPLAY, is_past_warm_up
from asyncrl.modes.trajectories.mode import TRAJECTORIES


def hogwild_of(plan: ResourcePlan) -> HogwildPlan:
    """The part of a plan for this mode."""
    assert plan.hogwild is not None
    return plan.hogwild


def private_specs(spec: EnvSpec, plan: ResourcePlan) -> list[ArraySpec]:
    """Arrays of the private memory of one worker: one slot, or its part of the replay."""
    own = plan.for_one_worker
    samples = TRAJECTORIES if own.replay is None else REPLAY
    return [*samples.arrays(spec, own, (1,), None), *run_specs(own, (1,))]


def _problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    hogwild = hogwild_of(plan)
    if not config.algorithm.runs_on_hogwild:
        text = f"--backend=hogwild trains PPO, A2C (A3C) and SAC, not {config.algorithm.name.upper()}."
        yield make_problem("backend algo", text, "--algo=a2c", "--algo=sac", "--backend=actor_learner")
    if config.inference_mode == "central":
        text = "--inference_mode=central cannot be used with --backend=hogwild: its workers compute actions themselves."
        yield make_problem("inference_mode backend", text, "--inference_mode=local")
    if config.lr_schedule.startswith("kl_adaptive"):
        text = f"--lr_schedule={config.lr_schedule} cannot be used with --backend=hogwild."
        yield make_problem("lr_schedule backend", text, "--lr_schedule=constant", "--lr_schedule=linear_decay")
    samples = plan.num_envs_per_worker * plan.rollout
    if not config.is_off_policy and config.normalize_advantage and samples < 2:
        text = "--normalize_advantage=True needs two samples in an update; one environment with --rollout=1 gives one."
        yield make_problem("rollout num_envs_per_worker normalize_advantage", text, "--rollout=2")
    of_a_pool = plan.remote.workers_per_pool
    most = most_gradients_to_combine(plan.num_workers, of_a_pool)
    if hogwild.mode == "gradients" and hogwild.num_gradients_to_combine > most:
        gone = "a pool may be gone" if 1 < of_a_pool < plan.num_workers else "one may hang"
        text = (
            f"--num_gradients_to_combine={hogwild.num_gradients_to_combine} is too large: each of {plan.num_workers} "
            f"workers has at most {PLACES_OF_A_WORKER} gradients under way, and {gone}, which leaves {most}."
        )
        yield make_problem("num_gradients_to_combine num_workers", text, f"--num_gradients_to_combine={most}")
    if config.save_replay:
        text = "--save_replay is not available with --backend=hogwild: each worker's replay is in its private memory."
        yield make_problem("save_replay backend", text, "--save_replay=False")
    for name in ("checkpoint_resets", "debug_forced_lag", "debug_skip_training", "with_vtrace"):
        if getattr(config, name):
            text = f"--{name} is not available with --backend=hogwild."
            yield Problem((name, "backend"), text, (f"--{name}={TrainConfig.model_fields[name].default}",))


def _spec_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    if spec.agents:
        text = f"{spec.env_id} has {len(spec.agents)} agents, which --backend=hogwild cannot train."
        yield Problem(("backend", "env"), text, ("--backend=actor_learner",))


def _replay_spec_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    yield from REPLAY.find_spec_problems(config, plan, spec)
    yield from _spec_problems(config, plan, spec)


def _replay_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    yield from REPLAY.find_problems(config, plan)
    yield from _problems(config, plan)
    if hogwild_of(plan).mode == "gradients":
        name = config.algorithm.name.upper()
        text = f"--hogwild_mode=gradients combines gradients of PPO and A2C (A3C), not of {name}."
        yield make_problem("hogwild_mode algo", text, "--hogwild_mode=shared", "--algo=a2c")


def _arrays(
    spec: EnvSpec, plan: ResourcePlan, num_weights: Sequence[int], shared: SharedSizes | None
) -> list[ArraySpec]:
    assert shared is not None
    specs = shared_tensor_specs(shared.tensors, shared.moments, plan.num_workers)
    if hogwild_of(plan).mode == "gradients":
        specs.extend(gradient_specs(sum(shared.tensors.values()), plan.num_workers))
    return specs


HOGWILD = dataclasses.replace(
    TRAJECTORIES,
    applies=lambda plan: plan.hogwild is not None,
    find_problems=_problems,
    arrays=_arrays,
    roles="asyncrl.modes.hogwild.roles:HogwildRoles",
    find_spec_problems=_spec_problems,
    private_bytes=lambda spec, plan: plan.num_workers * arena_size(private_specs(spec, plan)),
    shared_sizes=shared_sizes,
    learner_grants_slots=False,
    trains_in_datasets=False,
    trains_in_workers=True,
)
HOGWILD_WITH_REPLAY = dataclasses.replace(
    HOGWILD,
    applies=lambda plan: plan.hogwild is not None and plan.replay is not None,
    find_problems=_replay_problems,
    memory_problem=REPLAY.memory_problem,
    find_spec_problems=_replay_spec_problems,
    find_spec_warnings=REPLAY.find_spec_warnings,
    is_past_warm_up=lambda plan, env_steps: is_past_warm_up(plan, env_steps, num_learners=plan.num_workers),
)
