"""Connects the simulators with the core."""

from __future__ import annotations

_ISAAC_LAB = "asyncrl.contrib.simulators.isaaclab:IsaacLabEnv"
_JAX = "asyncrl.contrib.simulators.jax_envs"
_MANISKILL = "asyncrl.contrib.simulators.maniskill:ManiSkillEnv"

SIMULATORS = {
    "isaaclab": ("isaaclab", _ISAAC_LAB, False),
    "isaaclab_tasks": ("isaaclab", _ISAAC_LAB, False),
    "mjlab": ("mjlab", _ISAAC_LAB, False),
    "mani_skill": ("maniskill", _MANISKILL, False),
    "brax": ("brax", f"{_JAX}:JaxEnv", True),
    "mujoco_playground": ("playground", f"{_JAX}:JaxEnv", True),
}
ENV_MAKERS = {"brax": f"{_JAX}:brax_maker", "mujoco_playground": f"{_JAX}:playground_maker"}
