"""Makes the environments of a split, one by one or vectorized as the probe of the environment decided."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.factory import env_seed, make_run_env, make_run_vector_env, vector_env_seed
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.failures import FailureLog, Renewal
from asyncrl.rollout.vector_env_group import VectorEnvGroup
from asyncrl.rollout.worker import StepsEnvironments


def build_env_group(
    config: TrainConfig,
    plan: ResourcePlan,
    spec: EnvSpec,
    split_idx: int,
    run_seed: int,
    env_steps: int,
    failures: FailureLog,
) -> StepsEnvironments:
    """The environments of split `split_idx`, each with a seed of its own (a vectorized one has one for all).

    Args:
        config: settings of the run.
        plan: for the number of environments.
        spec: what the probe found.
        split_idx: number of the split.
        run_seed: what their seeds follow from, with the number of each and `env_steps`.
        env_steps: steps that the run was trained on before.
        failures: of the worker that steps them.
    """
    make: Callable[[], Any]
    first_env = split_idx * plan.envs_per_split
    if spec.is_vectorized:

        def vector_seed(env_idx: int, steps: int) -> int:
            return vector_env_seed(run_seed, env_idx, env_steps + steps)

        make = partial(make_run_vector_env, config, plan.envs_per_split)
        renewal = Renewal(failures, make, vector_seed)
        return VectorEnvGroup(make(), vector_seed(first_env, 0), first_env, spec, config.action_mapping, renewal)

    def seed(env_idx: int, steps: int) -> int:
        return env_seed(run_seed, env_idx, env_steps + steps)

    make = partial(make_run_env, config, in_training=True)
    seeds = [seed(env_idx, 0) for env_idx in range(first_env, first_env + plan.envs_per_split)]
    return EnvGroup(
        [make() for _ in seeds], seeds, first_env, spec, config.action_mapping, Renewal(failures, make, seed)
    )
