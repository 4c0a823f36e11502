"""Evaluates a policy: a fixed number of episodes, frozen weights and statistics, the environment's own rewards."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from asyncrl.config.errors import UsageError
from asyncrl.envs.errors import EnvironmentFailed, environment_traceback
from asyncrl.envs.factory import env_seed, make_run_env
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch
from asyncrl.policy import Policy

# Far from the indices of a run's own environments, so that no evaluation episode has the seed of a training episode.
_FIRST_SEED_IDX = 1_000_000_000


@dataclass(frozen=True)
class EvaluationResult:
    """Evaluation episodes of one policy.

    Attributes:
        returns: sum of the environment's own rewards in each episode.
        lengths: steps of each episode.
        env_steps: environment steps that the policy was trained for.
        checkpoint: path of the policy's checkpoint.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    env_steps: int | None = None
    checkpoint: str | None = None

    @property
    def mean_reward(self) -> float:
        return statistics.fmean(self.returns)

    @property
    def std_reward(self) -> float | None:
        """Standard deviation of the returns (with n - 1); None for a single episode."""
        return statistics.stdev(self.returns) if len(self.returns) > 1 else None

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean return, by Student's t over episodes; None for a single episode.

        It is about this policy only: policies of other training seeds may differ by more.
        """
        if self.std_reward is None:
            return None
        half = student_t_975(len(self.returns) - 1) * self.std_reward / math.sqrt(len(self.returns))
        return self.mean_reward - half, self.mean_reward + half

    @property
    def mean_ep_length(self) -> float:
        return statistics.fmean(self.lengths)

    def to_json(self) -> str:
        return json.dumps(
            {
                "mean_reward": self.mean_reward,
                "std_reward": self.std_reward,
                "ci95": self.ci95,
                "mean_ep_length": self.mean_ep_length,
                "episodes": len(self.returns),
                "env_steps": self.env_steps,
                "checkpoint": self.checkpoint,
            }
        )

    def to_text(self) -> str:
        text = f"return {self.mean_reward:.2f}"
        if self.std_reward is not None and self.ci95 is not None:
            text += f" +- {self.std_reward:.2f} (95 % interval of the mean: {self.ci95[0]:.2f} to {self.ci95[1]:.2f})"
        return f"{text}, {self.mean_ep_length:.1f} steps an episode, {len(self.returns)} episodes"


def evaluate(
    policy: Policy,
    *,
    episodes: int,
    num_envs: int = 8,
    seed: int = 0,
    deterministic: bool = False,
    report: Callable[[int, int], None] | None = None,
    report_every_s: float = 5.0,
    make: Callable[[int], gymnasium.Env[Any, Any]] | None = None,
) -> EvaluationResult:
    """Plays a policy for a fixed number of episodes, all of which count.

    The seed and the environment of each episode are fixed beforehand: the first N episodes that end would favour short
    ones.

    Args:
        policy: the policy; only its random generator changes.
        episodes: number of episodes.
        num_envs: environments whose actions are computed in one forward pass.
        seed: seed of the episodes.
        deterministic: take the mode of the action distribution instead of a sample.
        report: called now and then with the numbers of finished episodes and of steps; an exception that it raises
            ends the evaluation.
        report_every_s: seconds between two calls of `report`.
        make: makes the environment of an index; None makes those of the policy's run.

    Raises:
        EnvironmentFailed: the environment's own code raised.
        UsageError: the environment cannot be made.
    """
    layout = policy.spec.observation
    codec = ObservationCodec(layout)
    lanes: list[_Lane] = []
    try:
        num_lanes = min(num_envs, episodes)
        for idx in range(num_lanes):
            env = _make(policy) if make is None else make(idx)
            lanes.append(_Lane(env, seed, list(range(idx, episodes, num_lanes))))
        obs = np.zeros((num_lanes, layout.row_size), dtype=layout.row_dtype)
        state = policy.initial_state(num_lanes)
        for row, lane in enumerate(lanes):
            lane.write(lane.reset(), codec, obs[row])
        playing, reported_at = list(lanes), time.monotonic()
        while playing:
            actions, state = policy.step(obs, state, deterministic)
            for row, lane in enumerate(playing):
                num_finished = len(lane.finished)
                next_obs = lane.step(actions[row])
                if next_obs is not None:
                    lane.write(next_obs, codec, obs[row])
                if len(lane.finished) > num_finished:
                    state[row] = 0.0
            if not all(lane.episodes for lane in playing):
                is_playing = [bool(lane.episodes) for lane in playing]
                obs, state = obs[is_playing], state[is_playing]
                playing = [lane for lane in playing if lane.episodes]
            if report is not None and time.monotonic() - reported_at >= report_every_s:
                reported_at = time.monotonic()
                report(sum(len(lane.finished) for lane in lanes), sum(lane.num_steps for lane in lanes))
    finally:
        for lane in lanes:
            lane.env.close()
    finished = {episode: result for lane in lanes for episode, result in lane.finished.items()}
    returns, lengths = zip(*(finished[episode] for episode in range(episodes)), strict=True)
    return EvaluationResult(returns, lengths)


def _make(policy: Policy) -> gymnasium.Env[Any, Any]:
    try:
        return make_run_env(policy.config)
    except (UsageError, EnvironmentFailed):
        raise
    except Exception as error:
        raise EnvironmentFailed(f"The environment could not be made:\n{environment_traceback(error)}") from error


class _Lane:
    """One environment and the indices of the episodes that it still has to play."""

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int, episodes: list[int]) -> None:
        self.env, self.episodes = env, episodes
        self.finished: dict[int, tuple[float, int]] = {}
        self.num_steps = 0
        self._seed = seed
        self._return, self._length = 0.0, 0

    def reset(self) -> Any:
        """Begins the next episode and returns its first observation."""
        self._return, self._length = 0.0, 0
        seed = env_seed(self._seed, _FIRST_SEED_IDX + self.episodes[0])
        return self._call("reset", lambda: self.env.reset(seed=seed))[0]

    def step(self, action: Any) -> Any:
        """Takes a step and returns the observation to act on next; None after the last episode."""
        obs, reward, terminated, truncated, _ = self._call("step", lambda: self.env.step(action))
        self._return += float(reward)
        self._length += 1
        self.num_steps += 1
        if not (terminated or truncated):
            return obs
        self.finished[self.episodes.pop(0)] = (self._return, self._length)
        return self.reset() if self.episodes else None

    def write(self, obs: Any, codec: ObservationCodec, row: npt.NDArray[Any]) -> None:
        """Writes an observation of the current episode to `row [row_size]`."""
        try:
            codec.write(obs, row)
        except (ObservationMismatch, ValueError, TypeError, IndexError) as error:
            text = f"The environment returned an observation that does not match its space, {self._moment}: {error}"
            raise EnvironmentFailed(text) from error

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            where = f"The environment failed in {name}, {self._moment}"
            raise EnvironmentFailed(f"{where}:\n{environment_traceback(error)}") from error

    @property
    def _moment(self) -> str:
        return f"episode {self.episodes[0]}, at its step {self._length}"


def student_t_975(degrees_of_freedom: int) -> float:
    """Returns the 97.5 % quantile of Student's t, by bisection of its distribution function.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    low, high = 0.0, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _two_sided_t(middle, degrees_of_freedom) < 0.95 else (low, middle)
    return (low + high) / 2


def _two_sided_t(t: float, degrees_of_freedom: int) -> float:
    """Probability that Student's t lies between -t and t."""
    is_odd = degrees_of_freedom % 2 == 1
    theta = math.atan(t / math.sqrt(degrees_of_freedom))
    cosine = math.cos(theta)
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for k in range(3 if is_odd else 2, degrees_of_freedom + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    if is_odd:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total
