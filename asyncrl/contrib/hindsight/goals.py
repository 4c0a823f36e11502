"""Environments with goals: Dict observations with `achieved_goal` and `desired_goal`, and a method `compute_reward`.

The interface is that of `GoalEnv` of Gymnasium-Robotics.
"""

from __future__ import annotations

from asyncrl.envs.spec import EnvSpec, ObservationLayout

ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"
COMPUTE_REWARD, COMPUTE_TERMINATED = "compute_reward", "compute_terminated"
"""Methods of the environment: `(achieved_goal, desired_goal, info)`. It may have no `compute_terminated`."""


def desired_goal_place(layout: ObservationLayout) -> slice:
    """Position of the desired goal among the float32 numbers of a row; an empty slice without one (`goal_problem`)."""
    found = zip(layout.parts, layout.places, strict=True)
    return next((place for part, place in found if part.path == (DESIRED_GOAL,)), slice(0, 0))


def goal_problem(spec: EnvSpec) -> str | None:
    """What an environment lacks for other goals to be stored, or None."""
    parts = {part.path: part for part in spec.observation.parts}
    achieved, desired = (parts.get((name,)) for name in (ACHIEVED_GOAL, DESIRED_GOAL))
    if achieved is None or desired is None or {achieved.kind, desired.kind} - {"numbers", "flags"}:
        return f"observations with arrays of numbers {ACHIEVED_GOAL} and {DESIRED_GOAL}"
    if achieved.shape != desired.shape:
        return f"{ACHIEVED_GOAL} and {DESIRED_GOAL} of the same shape, not {achieved.shape} and {desired.shape}"
    if not spec.computes_reward:
        return f"a method {COMPUTE_REWARD}({ACHIEVED_GOAL}, {DESIRED_GOAL}, info) of the environment"
    return None
