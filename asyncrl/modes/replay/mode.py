"""A replay in stripes, a ring of rows for each split: SAC, TD3 and DQN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asyncrl.buffers.arena import ArraySpec
from asyncrl.buffers.layout import SharedSizes
from asyncrl.buffers.replay import replay_specs, rows_per_stripe
from asyncrl.config.errors import Problem
from asyncrl.config.hooks import load
from asyncrl.config.plan import ReplayPlan, ResourcePlan
from asyncrl.config.replay_checks import replay_problems
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.modes.mode import MORE_MEMORY, Mode, memory_text, warn_about_large_observations


def replay_of(plan: ResourcePlan) -> ReplayPlan:
    """The replay of a plan that has one."""
    assert plan.replay is not None
    return plan.replay


def _replay_too_large(plan: ResourcePlan, needed: int, free: int) -> Problem:
    """The problem of a replay that does not fit into memory."""
    size = replay_of(plan).size
    text = f"A replay of {size} environment steps needs {memory_text(needed, free)}"
    fitting = max(1, int(size * free * 0.9 / needed))
    return Problem(("replay_size",), text, (f"--replay_size={fitting}", MORE_MEMORY))


def _spec_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    if spec.agents:
        text = f"{spec.env_id} has {len(spec.agents)} agents, which --algo={config.algo} cannot train."
        yield Problem(("algo", "env"), text, ("--algo=ppo", "--algo=a2c"))
    if (find := replay_of(plan).kind.find_problems) is not None:
        yield from load(find)(config, spec)


def _spec_warnings(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    smaller = ("--batch_size=32",) if plan.batch_size > 32 else ()
    yield from warn_about_large_observations(plan, spec, "One batch", plan.batch_size, smaller)
    if config.exploration_noise != "white" and spec.action.num_stddevs == 0:
        text = f"--exploration_noise={config.exploration_noise} has no effect: {spec.env_id} has no continuous actions."
        yield Problem(("exploration_noise", "env"), text)


def is_past_warm_up(plan: ResourcePlan, env_steps: int, num_learners: int | None = None) -> bool:
    """Whether each learner, by default one for each rank, has had the environment steps of its first update."""
    num_learners = plan.num_ranks if num_learners is None else num_learners
    steps = num_learners / replay_of(plan).updates_per_env_step
    return env_steps - replay_of(plan).warmup_env_steps >= steps + plan.num_envs * num_learners


def _arrays(
    spec: EnvSpec, plan: ResourcePlan, num_weights: Sequence[int], shared: SharedSizes | None
) -> list[ArraySpec]:
    replay = replay_of(plan)
    layout = (plan.num_splits, plan.envs_per_split, replay.size)
    specs = replay_specs(spec, *layout, replay.is_prioritized)
    if replay.kind.arrays is None:
        return specs
    rows = (plan.num_splits, rows_per_stripe(*layout), plan.envs_per_split)
    return [*specs, *load(replay.kind.arrays)(replay.kind.num_values, spec, rows)]


REPLAY = Mode(
    applies=lambda plan: plan.replay is not None,
    find_problems=lambda config, plan: replay_problems(config, replay_of(plan), plan),
    arrays=_arrays,
    memory_problem=_replay_too_large,
    find_spec_problems=_spec_problems,
    find_spec_warnings=_spec_warnings,
    is_past_warm_up=is_past_warm_up,
    roles="asyncrl.modes.replay.roles:ReplayRoles",
    trains_in_datasets=False,
)
