"""Simulators that step many environments at once, as `gymnasium.vector.VectorEnv` of tensors.

    isaaclab, mjlab      `ManagerBasedRLEnv`, `DirectRLEnv`         asyncrl.contrib.simulators.isaaclab
    maniskill            `BaseEnv`, `ManiSkillVectorEnv`            asyncrl.contrib.simulators.maniskill
    brax, playground     environments in JAX, through DLPack        asyncrl.contrib.simulators.jax_envs

A callable with a parameter `num_envs` that returns one of them is an environment (`--env=MODULE:function`).
"""
