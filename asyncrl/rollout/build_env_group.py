"""Makes the environments of a split: single ones, with one or several agents, or a vectorized one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import load
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS
from asyncrl.envs.factory import env_seed, make_run_env, make_run_vector_env, vector_env_seed
from asyncrl.envs.spec import EnvSpec
from asyncrl.processes.seeding import Stream, derive_seed
from asyncrl.rollout.agents_env_group import AgentsEnvGroup
from asyncrl.rollout.env_group import EnvGroup, HostEnvGroup
from asyncrl.rollout.failures import EnvironmentCallFailed, FailureLog, Recovery
from asyncrl.rollout.policy_mapping import SINGLE_AGENT, MakeMapping, PolicyMapping, choose_by_name, specs_of_policies
from asyncrl.rollout.vector_env_group import VectorEnvGroup


def build_env_group(
    config: TrainConfig,
    plan: ResourcePlan,
    spec: EnvSpec,
    split_idx: int,
    run_seed: int,
    env_steps: int,
    failures: FailureLog,
    policy_mapping: str = "shared",
    opponents: Sequence[WeightsChannel] = (),
) -> HostEnvGroup:
    """The environments of split `split_idx`. Each has its own seed; a vectorized environment has one seed.

    Seeds follow from `run_seed`, the number of the environment and `env_steps`, the environment steps that the run made
    before, so a resumed run does not repeat its first episodes. `policy_mapping` is read if there are several policies;
    `opponents` has the weights of the frozen ones that play against the policy.
    """
    first_env = split_idx * plan.envs_per_split
    if spec.is_vectorized:
        num_made, make_seed = 1, vector_env_seed
        make_env: Callable[[], Any] = partial(make_run_vector_env, config, plan.envs_per_split, spec.gives_tensors)
    else:
        num_made, make_seed = plan.envs_per_split, env_seed
        make_env = partial(make_run_env, config, in_training=True)

    def make() -> Any:
        env = make_env()
        failures.count_turn()
        return env

    def seed(env_idx: int, steps: int) -> int:
        return make_seed(run_seed, env_idx, env_steps + steps)

    numbers = range(first_env, first_env + num_made)
    envs, seeds = [_make_first(make, idx, failures) for idx in numbers], [seed(idx, 0) for idx in numbers]
    arguments = (first_env, spec, config.action_mapping, Recovery(failures, make, seed))
    group: HostEnvGroup
    if spec.is_vectorized:
        group = VectorEnvGroup(envs[0], seeds[0], *arguments)
    elif spec.agents:
        group = AgentsEnvGroup(envs, seeds, *arguments)
    else:
        make_group: type[EnvGroup] = EnvGroup if plan.replay is None else load(plan.replay.kind.env_group)
        group = make_group(envs, seeds, *arguments)
    if config.stagger_episodes:
        group.stagger_episodes()
    if not plan.has_slot_pools:
        return group
    mapping_seed = derive_seed(env_seed(run_seed, first_env, env_steps), Stream.POLICY_MAPPING)
    if config.opponents is not None:
        make_mapping: MakeMapping = load(config.opponents.mapping)
        group.policies = make_mapping(config, plan, spec, opponents, mapping_seed)
    else:
        choose = choose_by_name(policy_mapping, plan.num_policies, spec, mapping_seed)
        agents = spec.agents or (SINGLE_AGENT,)
        specs = specs_of_policies(spec, policy_mapping, plan.num_policies) if spec.spaces else ()
        group.policies = PolicyMapping(choose, plan.num_policies, agents, plan.envs_per_split, first_env, specs)
    return group


def _make_first(make: Callable[[], Any], env_idx: int, failures: FailureLog) -> Any:
    """Makes an environment; one that raises is made again as long as the run may continue."""
    while True:
        try:
            return make()
        except UsageError:
            raise
        except ENVIRONMENT_EXCEPTIONS as error:
            trouble = EnvironmentCallFailed(env_idx, 0, "failed when it was made")
            trouble.__cause__ = error
            failures.record_failure(trouble)
