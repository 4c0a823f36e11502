"""Makes the environments of a split, one by one or vectorized as the probe of the environment decided."""

from __future__ import annotations

from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.making import env_seed, make_run_env, make_run_vector_env
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.split import StepsEnvironments
from asyncrl.rollout.vector_env_group import VectorEnvGroup


def build_env_group(
    config: TrainConfig, plan: ResourcePlan, spec: EnvSpec, split_idx: int, env_steps: int
) -> StepsEnvironments:
    """The environments of split `split_idx`, each with a seed of its own (a vectorized one has one for all).

    Args:
        config: settings of the run.
        plan: for the number of environments.
        spec: what the probe found.
        split_idx: number of the split.
        env_steps: steps that the run was trained on before.
    """
    first_env = split_idx * plan.envs_per_split
    last_env = first_env + plan.envs_per_split
    seeds = [env_seed(config.seed, env_idx, env_steps) for env_idx in range(first_env, last_env)]
    if spec.is_vectorized:
        vector_env, seed = make_run_vector_env(config, plan.envs_per_split, seeds[0])
        return VectorEnvGroup(vector_env, seed, first_env, spec, config.squashes)
    envs = [make_run_env(config, in_training=True) for _ in seeds]
    return EnvGroup(envs, seeds, first_env, spec, config.squashes)
