"""Compares the rewards of `step` with those of `compute_reward`, because hindsight experience replay trains on both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from asyncrl.config.errors import UsageError
from asyncrl.contrib.hindsight.goals import ACHIEVED_GOAL, COMPUTE_REWARD, DESIRED_GOAL, goal_problem
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS
from asyncrl.envs.interface import allowed_action, find_method, without_bookkeeping
from asyncrl.envs.spec import EnvSpec

_STEPS, _STEPPING_S = 50, 1.0
_SHARES = (0.0, *np.geomspace(1e-4, 1.0, 40).tolist())
"""Distances of goals that are tried, as shares of the distance between the achieved and the desired goal."""
_TOLERANCE = 1e-3  # of the largest reward: wrappers may round goals to float32


def goal_reward_findings(
    env: gymnasium.Env[Any, Any], spec: EnvSpec, env_id: str, enter: Callable[[str], None]
) -> list[str]:
    """One sentence if `step` and `compute_reward` differ in the reward of the same step.

    Few steps reach a goal. So the innermost environment is also made to return other desired goals, near and far, with
    its own rewards for them: wrappers that change rewards, or goals but not `compute_reward`, then give another one.

    Args:
        env: as training uses it. It is stepped if it is a single environment with goals.
        spec: its spaces.
        env_id: for messages.
        enter: called with the name of each method before the method is called.

    Raises:
        UsageError: `compute_reward` did not return one number.
    """
    if spec.is_vectorized or goal_problem(spec) is not None:
        return []
    compute = find_method(env, COMPUTE_REWARD)
    inner, _ = without_bookkeeping(env)
    pairs: list[tuple[float, float]] = []

    def judge(achieved_goal: Any, desired_goal: Any, info: Any) -> float:
        enter(f"{COMPUTE_REWARD}()")
        reward = np.asarray(compute(np.array(achieved_goal), np.array(desired_goal), info))
        if reward.size != 1:
            text = f"{COMPUTE_REWARD}() returned an array of shape {reward.shape} for single goals; expected one number"
            raise UsageError(f"{env_id}: {text}.")
        return float(reward.reshape(()))

    def compare(num_steps: int, other_goals: _OtherGoals | None = None) -> None:
        obs, stop_at = None, time.monotonic() + _STEPPING_S
        for number in range(num_steps):
            if time.monotonic() > stop_at:
                return
            if obs is None:
                enter("reset()")
                obs = inner.reset()[0]
            # An environment may choose its next goal in the step that reaches one.
            goals = [np.array(obs[DESIRED_GOAL])] if other_goals is None else []
            if other_goals is not None:
                other_goals.share = _SHARES[number]
            action = allowed_action((inner.observation_space, inner.action_space), obs)
            if action is None:
                return
            enter("step()")
            obs, reward, terminated, truncated, info = inner.step(action)
            computed = [judge(obs[ACHIEVED_GOAL], goal, info) for goal in [*goals, obs[DESIRED_GOAL]]]
            pairs.append((float(reward), min(computed, key=lambda found: abs(found - float(reward)))))
            obs = None if terminated or truncated else obs

    compare(_STEPS)
    innermost = _innermost_with_rewards(inner)
    if innermost is not inner:
        with contextlib.suppress(*ENVIRONMENT_EXCEPTIONS):  # other goals than its own are a trial
            compare(len(_SHARES), _OtherGoals(innermost))
    numbers = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    numbers = numbers[np.isfinite(numbers).all(1)]
    differences = np.abs(numbers[:, 0] - numbers[:, 1])
    if not (differences > _TOLERANCE * np.abs(numbers).max(initial=0.0)).any():
        return []
    reward, computed = numbers[differences.argmax()]
    return [
        f"step() and {COMPUTE_REWARD}() give a step different rewards, {reward:g} and {computed:g}, and --her_goals "
        f"trains on both: a wrapper that changes rewards or goals needs a {COMPUTE_REWARD}() that does the same; "
        "--reward_scale scales both"
    ]


def _innermost_with_rewards(env: Any) -> Any:
    """The innermost layer with a `compute_reward` of its own."""
    found = env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        found = env if hasattr(env, COMPUTE_REWARD) else found
    return found


class _OtherGoals:
    """Replaces the desired goal that an environment returns, and its reward by that for the new goal.

    Attributes:
        share: distance of the new goal, see `_SHARES`.
    """

    def __init__(self, env: Any) -> None:
        self._step, self._compute = env.step, getattr(env, COMPUTE_REWARD)
        self.share = 1.0
        env.step = self._changed_step

    def _changed_step(self, action: Any) -> tuple[Any, ...]:
        obs, _, *ends, info = self._step(action)
        goal = _between(obs[ACHIEVED_GOAL], obs[DESIRED_GOAL], self.share)
        reward = float(np.asarray(self._compute(np.array(obs[ACHIEVED_GOAL]), goal.copy(), info)).item())
        return {**obs, DESIRED_GOAL: goal}, reward, *ends, info


def _between(achieved_goal: Any, desired_goal: Any, share: float) -> npt.NDArray[Any]:
    achieved, desired = np.asarray(achieved_goal), np.asarray(desired_goal)
    goal: npt.NDArray[Any] = achieved + share * (desired.astype(np.float64) - achieved)
    return goal.astype(desired.dtype)
