"""Evaluates a policy: a fixed number of episodes, frozen weights and statistics, the environment's own rewards."""

from __future__ import annotations

import bdb
import contextlib
import dataclasses
import functools
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.agents import AgentsEnv, AgentsState
from asyncrl.envs.errors import (
    ENVIRONMENT_EXCEPTIONS,
    FATAL_IN_A_ROW,
    FIRST_STEPS,
    EnvironmentFailed,
    environment_traceback,
    kind_of,
)
from asyncrl.envs.factory import env_seed, make_run_env
from asyncrl.envs.interface import numbers_among, numbers_at_end, step_problem
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch
from asyncrl.envs.showing import FilmedEnv
from asyncrl.envs.spaces import read_spec, seed_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.observers.reports import mean_extra_stats
from asyncrl.processes.forks import use_one_thread_in_a_fork
from asyncrl.processes.seeding import (
    Stream,
    derive_seed,
    restoring_global_generators,
    role_seed,
    seed_global_generators,
)

# Far from the indices of a run's own environments, so that no evaluation episode has the seed of a training episode.
_FIRST_SEED_IDX = 1_000_000_000
_SEEDS_OF_ATTEMPT = 10_000_000
"""An episode that a failure ended begins again with a seed so many further: the failure may follow from the seed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationResult:
    """Evaluation episodes of one policy.

    Attributes:
        returns: sum of the environment's own rewards in each episode; the mean over the agents, if there are several.
        lengths: steps of each episode.
        env_steps: environment steps that the policy was trained for.
        checkpoint: path of the policy's checkpoint.
        returns_by_agent: returns of each agent, by its name; `returns` are their means. Empty for a single agent.
        extra_stats: the environment's own numbers of each episode; empty if it has none.
        ended_at_s: seconds from the start of the evaluation to the end of each episode.
        num_lost: episodes that a failure of the environment ended. Each was replaced by one with another seed.
        seeds: seed of the environment in each episode.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    env_steps: int | None = None
    checkpoint: str | None = None
    returns_by_agent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    extra_stats: tuple[Mapping[str, float], ...] = ()
    ended_at_s: tuple[float, ...] = field(default=(), compare=False)
    num_lost: int = 0
    seeds: tuple[int, ...] = field(default=(), compare=False)

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
        return mean_ci95(self.returns)

    @property
    def mean_ep_length(self) -> float:
        return statistics.fmean(self.lengths)

    def to_data(self) -> dict[str, Any]:
        """JSON values of the result."""
        return {
            "mean_reward": self.mean_reward,
            "std_reward": self.std_reward,
            "ci95": self.ci95,
            "mean_ep_length": self.mean_ep_length,
            "episodes": len(self.returns),
            "env_steps": self.env_steps,
            "checkpoint": self.checkpoint,
            **({"lost_episodes": self.num_lost} if self.num_lost > 0 else {}),
            **({"mean_reward_by_agent": self._mean_by_agent} if self.returns_by_agent else {}),
            **({"episode_extra_stats": means} if (means := self.mean_extra_stats) else {}),
        }

    def to_text(self) -> str:
        text = f"return {self.mean_reward:.2f}"
        if self.std_reward is not None and self.ci95 is not None:
            text += f" +- {self.std_reward:.2f} (95 % interval of the mean: {self.ci95[0]:.2f} to {self.ci95[1]:.2f})"
        text += f", {self.mean_ep_length:.1f} steps an episode, {len(self.returns)} episodes"
        if self.num_lost > 0:
            text += f"; {self.num_lost} more were lost, because the environment failed"
        means = {**self._mean_by_agent, **self.mean_extra_stats}
        return "\n".join([text, *(f"{name}: {mean:.2f}" for name, mean in means.items())])

    def for_agents(self, agents: Sequence[int]) -> EvaluationResult:
        """The same episodes, with the returns of these agents only, by their numbers; itself if they are all."""
        own = {name: each for agent, (name, each) in enumerate(self.returns_by_agent.items()) if agent in agents}
        if len(own) == len(self.returns_by_agent):
            return self
        returns = tuple(map(statistics.fmean, zip(*own.values(), strict=True)))
        return dataclasses.replace(self, returns=returns, returns_by_agent=own)

    @property
    def mean_extra_stats(self) -> dict[str, float]:
        """Mean of each of the environment's own numbers, over the episodes that have it."""
        return mean_extra_stats(self.extra_stats)

    @property
    def _mean_by_agent(self) -> dict[str, float]:
        return {name: statistics.fmean(returns) for name, returns in self.returns_by_agent.items()}


class EvaluationCut(EnvironmentFailed):
    """The environment failed too often.

    Attributes:
        result: the episodes that were finished before; None without one.
    """

    def __init__(self, text: str, result: EvaluationResult | None) -> None:
        super().__init__(text)
        self.result = result


class _WrongValue(EnvironmentFailed):
    """The environment returned a value that cannot be read, which a new one would return again."""


class Player(Protocol):
    """What playing needs of a `Policy`."""

    def initial_state(self, num_envs: int) -> npt.NDArray[np.float32]:
        """Recurrent states `[num_envs, S]` at the start of episodes."""

    def step(
        self, rows: npt.NDArray[Any], state: npt.NDArray[np.float32], deterministic: bool
    ) -> tuple[Any, npt.NDArray[np.float32]]:
        """Actions for rows of observations, and the states after them, as `Policy.step`."""


class PlayedPolicy(Player, Protocol):
    """A player that knows its environment: a `Policy`, or players for all agents of an environment."""

    spec: EnvSpec
    config: TrainConfig


MOST_STEPS = 200_000
"""Steps after which an episode counts as one without an end, for which an evaluation would wait for ever."""

MakeEnv = Callable[[int], gymnasium.Env[Any, Any]]
"""Makes the environment of an index."""

Choose = Callable[[int, int], int]
"""Which player plays an agent, by the agent's number, in an episode, by its number."""


def evaluate(
    policy: PlayedPolicy,
    *,
    episodes: int,
    num_envs: int = 8,
    seed: int = 0,
    deterministic: bool = False,
    report: Callable[[int, int], None] | None = None,
    report_every_s: float = 5.0,
    make: MakeEnv | None = None,
    others: Sequence[Player] = (),
    choose: Choose = lambda agent, episode: 0,
    max_steps: int | None = None,
    global_seed: int | None = None,
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
        others: further players of agents.
        choose: which of `(policy, *others)` plays an agent in an episode; each plays agents with one kind of spaces.
        max_steps: steps after which an episode ends here, although it would continue; None for no limit.
        global_seed: seed of Python's, NumPy's and PyTorch's global generators and of the environments' spaces; by
            default derived from `seed`. The generators are restored at the end, because training may continue here.

    Raises:
        EvaluationCut: the environment failed more often than `max_env_failures` allows, or a new one failed in the same
            way at once, `FATAL_IN_A_ROW` times in a row. After other failures it is recreated, and the episode counts
            as lost.
        EnvironmentFailed: it returned a value that is wrong or not finite.
        UsageError: the environment cannot be made, has other spaces than the policy's, or an episode has no end.
    """
    use_one_thread_in_a_fork()
    spec, players = policy.spec, (policy, *others)
    lanes: list[_Lane] = []
    failures = _Failures(policy.config.max_env_failures)
    started_at = time.monotonic()
    global_seed = role_seed(seed, "evaluate") if global_seed is None else global_seed

    def make_one(idx: int) -> gymnasium.Env[Any, Any]:
        env = make_checked_env(policy.config) if make is None else make(idx)
        seed_spaces(env, derive_seed(global_seed, Stream.EVALUATION, idx))
        return env

    ending = contextlib.ExitStack()
    ending.enter_context(restoring_global_generators())
    try:
        seed_global_generators(global_seed)
        # A simulator of tensors may take long to start, and much of the device.
        num_lanes = 1 if spec.gives_tensors else min(num_envs, episodes)
        for idx in range(num_lanes):
            make_lane = _AgentsLane if spec.agents else _Lane
            own = list(range(idx, episodes, num_lanes))
            lanes.append(make_lane(functools.partial(make_one, idx), spec, seed, own, choose, max_steps, failures))
            if idx == 0:
                _check_spaces(lanes[0].env, policy)
        size = spec.num_agents
        row_sizes = [spec.kinds[spec.kind_of(agent)].observation.row_size for agent in range(size)]
        obs = np.zeros((num_lanes * size, max(row_sizes)), dtype=spec.observation.row_dtype)
        states = [player.initial_state(len(obs)) for player in players]
        for row, lane in enumerate(lanes):
            lane.begin(obs[row * size : (row + 1) * size])
        playing, reported_at = list(lanes), time.monotonic()
        while playing:
            chosen = [each for lane in playing for each in lane.players]
            actions = _act(players, chosen, obs, row_sizes, states, deterministic)
            for row, lane in enumerate(playing):
                columns = slice(row * size, (row + 1) * size)
                begins = lane.advance(actions[columns], obs[columns])
                for state in states:
                    state[columns][begins] = 0.0
            if not all(lane.episodes for lane in playing):
                is_playing = np.repeat([bool(lane.episodes) for lane in playing], size)
                obs, states = obs[is_playing], [state[is_playing] for state in states]
                playing = [lane for lane in playing if lane.episodes]
            if report is not None and time.monotonic() - reported_at >= report_every_s:
                reported_at = time.monotonic()
                report(sum(len(lane.finished) for lane in lanes), sum(lane.num_steps for lane in lanes))
    except EvaluationCut as cut:
        cut.result = _result(lanes, spec, seed, started_at, failures)
        raise
    finally:
        for lane in lanes:
            ending.callback(_close, lane.env)
        ending.close()
    result = _result(lanes, spec, seed, started_at, failures)
    assert result is not None
    return result


def _result(
    lanes: Sequence[_Lane], spec: EnvSpec, seed: int, started_at: float, failures: _Failures
) -> EvaluationResult | None:
    """The episodes that are finished; None without one."""
    finished = {episode: result for lane in lanes for episode, result in lane.finished.items()}
    played = [finished[episode] for episode in sorted(finished)]
    if not played:
        return None
    by_agent = zip(*(episode.returns for episode in played), strict=True)
    return EvaluationResult(
        tuple(statistics.fmean(episode.returns) for episode in played),
        tuple(episode.length for episode in played),
        returns_by_agent=dict(zip(spec.agents, by_agent, strict=False)),
        extra_stats=tuple(episode.extra_stats for episode in played),
        ended_at_s=tuple(episode.ended_at - started_at for episode in played),
        num_lost=failures.num_lost,
        seeds=tuple(episode.seed for episode in played),
    )


class _Failures:
    """The failures of an evaluation's environments, and the decision whether it continues."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.num_lost = self._num = 0
        self._known: set[tuple[object, ...]] = set()
        self._same_in_a_row: dict[int, tuple[tuple[object, ...], int]] = {}

    def record(self, lane: int, failure: EnvironmentFailed, step: int) -> None:
        """Counts a failure of an environment at a step of its episode.

        Raises:
            EvaluationCut: there were too many, or this one would come again.
        """
        if isinstance(failure, EvaluationCut):
            raise failure
        cause = failure.__cause__
        comes_again = (UsageError, SystemExit, bdb.BdbQuit, ObservationMismatch)
        if cause is None or isinstance(failure, _WrongValue) or isinstance(cause, comes_again):
            raise EvaluationCut(str(failure), None) from cause
        self._num += 1
        kind = kind_of(cause)
        before, count = self._same_in_a_row.get(lane, (kind, 0))
        count = count + 1 if kind == before and (step <= FIRST_STEPS or count == 0) else 1
        self._same_in_a_row[lane] = kind, count
        if count >= FATAL_IN_A_ROW or self._num > self._most:
            text = f"the environment failed {self._num} times (--max_env_failures={self._most}); the last failure:\n"
            raise EvaluationCut(str(failure) if self._num <= self._most else text + str(failure), None) from cause
        if kind not in self._known:
            self._known.add(kind)
            log.warning("%s\nThe environment is made again, and the evaluation continues.", failure)

    def record_episode(self, lane: int) -> None:
        """Records that an episode was finished, so the environment works in principle."""
        self._same_in_a_row.pop(lane, None)

    def retry(self, lane: int, call: Callable[[], Any]) -> Any:
        """Calls a function that makes an environment, again after a failure."""
        while True:
            try:
                return call()
            except EnvironmentFailed as failure:
                self.record(lane, failure, 0)


def _check_spaces(env: gymnasium.Env[Any, Any], policy: PlayedPolicy) -> None:
    """Refuses an environment that has changed since the training: the policy's actions would mean something else."""
    config, inner = policy.config, env.unwrapped
    present = read_spec(
        inner if isinstance(inner, AgentsEnv) else env, config.env_id, config.image_channels, config.image_keys
    )
    if _as_networks_need(present) != _as_networks_need(policy.spec):
        text = f"{config.env_id} has spaces that the policy was not trained with"
        raise UsageError(f"{text}: {present} instead of {policy.spec}.")


def _as_networks_need(spec: EnvSpec) -> tuple[object, ...]:
    return [kind.shape_of_networks for kind in spec.kinds], spec.agents, spec.of_agents


def _close(env: gymnasium.Env[Any, Any]) -> None:
    """Closes an environment; UsageError of what recorded it passes, and its own error only ends in the log."""
    try:
        env.close()
    except UsageError:
        raise
    except ENVIRONMENT_EXCEPTIONS:
        log.warning("an environment failed in close()", exc_info=True)


def _act(
    players: Sequence[Player],
    chosen: Sequence[int],
    obs: npt.NDArray[Any],
    row_sizes: Sequence[int],
    states: list[npt.NDArray[np.float32]],
    deterministic: bool,
) -> Any:
    """The actions of the chosen player of each row `[B]`; the players' states `[B, S]` move on.

    `row_sizes` are those of one environment's agents; a player gets the beginnings of the rows.
    """
    if len(players) == 1:
        actions, states[0] = players[0].step(obs, states[0], deterministic)
        return actions
    mixed: list[Any] = [None] * len(obs)
    for idx, player in enumerate(players):
        rows = np.flatnonzero(np.asarray(chosen) == idx)
        if len(rows) > 0:
            own = obs[rows, : row_sizes[rows[0] % len(row_sizes)]]
            actions, states[idx][rows] = player.step(own, states[idx][rows], deterministic)
            for row, action in zip(rows.tolist(), actions, strict=True):
                mixed[row] = action
    return mixed


def make_checked_env(config: TrainConfig) -> gymnasium.Env[Any, Any]:
    """Makes an environment of a run.

    Raises:
        EnvironmentFailed: its own code raised.
        UsageError: it cannot be made.
    """
    try:
        return make_run_env(config)
    except (UsageError, EnvironmentFailed):
        raise
    except ENVIRONMENT_EXCEPTIONS as error:
        raise EnvironmentFailed(f"The environment could not be made:\n{environment_traceback(error)}") from error


@dataclass(frozen=True)
class _FinishedEpisode:
    """Returns of the agents, steps, the environment's own numbers, when it ended (`time.monotonic`), its seed."""

    returns: tuple[float, ...]
    length: int
    extra_stats: dict[str, float]
    ended_at: float
    seed: int


class _Lane:
    """One environment and the indices of the episodes that it still has to play."""

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        spec: EnvSpec,
        seed: int,
        episodes: list[int],
        choose: Choose,
        max_steps: int | None,
        failures: _Failures,
    ) -> None:
        self.episodes, self._lane = episodes, episodes[0]
        self._make, self._failures = make, failures
        self.env: gymnasium.Env[Any, Any] = failures.retry(self._lane, make)
        self._attempt = 0  # of the present episode
        self.players: list[int] = []  # of each agent, in the present episode
        self._choose = choose
        self._max_steps = math.inf if max_steps is None else max_steps
        self.finished: dict[int, _FinishedEpisode] = {}
        self._extra_stats: dict[str, float] = {}
        self.num_steps = 0
        kinds = [spec.kinds[spec.kind_of(agent)].observation for agent in range(spec.num_agents)]
        self._codecs = [(ObservationCodec(layout), layout.row_size) for layout in kinds]
        self._seed = seed
        self._agents = spec.agents
        self._returns, self._length = [0.0] * spec.num_agents, 0

    def begin(self, rows: npt.NDArray[Any]) -> None:
        """Begins the next episode; after a failure in another environment, and with another seed."""
        while True:
            try:
                self.reset(rows)
                return
            except EnvironmentFailed as failure:
                self._renew(failure)

    def advance(self, actions: Any, rows: npt.NDArray[Any]) -> list[int]:
        """`step`; if the environment fails, its episode is lost and begins again in another environment."""
        try:
            return self.step(actions, rows)
        except EnvironmentFailed as failure:
            self._renew(failure)
            self.begin(rows)
            return list(range(len(self._returns)))

    def _renew(self, failure: EnvironmentFailed) -> None:
        self._failures.record(self._lane, failure, self._length)
        self._failures.num_lost += 1
        self._attempt += 1
        made = self._failures.retry(self._lane, self._make)
        if isinstance(self.env, FilmedEnv) and isinstance(made, FilmedEnv):  # the video continues
            failed, self.env.env = self.env.env, made.env
            _close(failed)
        else:
            _close(self.env)
            self.env = made

    @property
    def _episode_seed(self) -> int:
        return episode_seed(self._seed, self.episodes[0] + self._attempt * _SEEDS_OF_ATTEMPT)

    def reset(self, rows: npt.NDArray[Any]) -> Any:
        """Begins the next episode and writes its first observation to `rows [N, row_size]`, N being 1."""
        self._returns, self._length, self._extra_stats = [0.0] * len(self._returns), 0, {}
        self.players = [self._choose(agent, self.episodes[0]) for agent in range(len(self._returns))]
        seed = self._episode_seed
        obs = self._call("reset", lambda: self.env.reset(seed=seed))[0]
        self._write(obs, rows)
        return obs

    def step(self, actions: Any, rows: npt.NDArray[Any]) -> list[int]:
        """Takes a step and writes the observation to act on next, if there is one; returns the rows that begin."""
        result = self._call("step", lambda: self.env.step(actions[0]))
        try:
            obs, reward, terminated, truncated, info = result
            reward = float(reward)
            is_over = bool(terminated or truncated or self._length + 1 >= self._max_steps)
            numbers = numbers_at_end(info) if is_over else {}
        except Exception as error:
            text = f"The environment returned a wrong value, {self._moment}"
            problem = step_problem(result, is_end=True) or str(error)
            raise _WrongValue(f"{text}: {problem}") from error
        self._add_reward(0, reward)
        self._count_step()
        if not is_over:
            self._write(obs, rows)
            return []
        self._extra_stats.update(numbers)
        return self._end(rows)

    def _add_reward(self, place: int, reward: float) -> None:
        if not math.isfinite(reward):
            raise EnvironmentFailed(f"The environment returned a reward that is not finite, {self._moment}: {reward}")
        self._returns[place] += reward

    def _count_step(self) -> None:
        self._length += 1
        self.num_steps += 1
        if self._length > MOST_STEPS and self._max_steps == math.inf:
            raise UsageError(endless_episode(MOST_STEPS))

    def _end(self, rows: npt.NDArray[Any]) -> list[int]:
        """Ends the episode and begins the next one, if there is one."""
        ended_at, seed = time.monotonic(), self._episode_seed
        of_episode = _FinishedEpisode(tuple(self._returns), self._length, self._extra_stats, ended_at, seed)
        self.finished[self.episodes.pop(0)] = of_episode
        self._failures.record_episode(self._lane)
        self._attempt = 0
        if self.episodes:
            self.begin(rows)
        return list(range(len(self._returns)))

    def _write(self, obs: Any, rows: npt.NDArray[Any]) -> None:
        try:
            self._write_rows(obs, rows)
        except (ObservationMismatch, ValueError, TypeError, IndexError) as error:
            text = f"The environment returned an observation that does not match its space, {self._moment}: {error}"
            raise EnvironmentFailed(text) from error

    def _write_rows(self, obs: Any, rows: npt.NDArray[Any]) -> None:
        self._codecs[0][0].write(obs, rows[0])

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except UsageError:  # of what records the environment
            raise
        except ENVIRONMENT_EXCEPTIONS as error:
            where = f"The environment failed in {name}, {self._moment}"
            raise EnvironmentFailed(f"{where}:\n{environment_traceback(error)}") from error

    @property
    def _moment(self) -> str:
        return f"episode {self.episodes[0]}, at its step {self._length}"


class _AgentsLane(_Lane):
    """One environment of several agents. Its episode ends when each agent has ended one, of which the first counts."""

    def reset(self, rows: npt.NDArray[Any]) -> Any:
        rows[:] = 0  # of agents that wait for their turn
        state: AgentsState = super().reset(rows)
        self._has_ended = [False] * len(self._returns)
        self._was_present = state.is_present
        return state

    def step(self, actions: Any, rows: npt.NDArray[Any]) -> list[int]:
        state: AgentsState = self._call("step", lambda: self.env.step(actions))[0]
        self._count_step()
        begins = []
        for place, was_present in enumerate(self._was_present):
            if was_present and not self._has_ended[place]:
                self._add_reward(place, float(state.reward[place]))
            has_ended = state.terminated[place] or state.truncated[place]
            if has_ended and not self._has_ended[place]:
                numbers = numbers_among(state.extra_stats[place])
                self._extra_stats.update((f"{self._agents[place]}_{name}", number) for name, number in numbers.items())
            self._has_ended[place] |= has_ended
            if has_ended or not was_present:
                begins.append(place)
        self._was_present = state.is_present
        if state.is_over or all(self._has_ended) or self._length >= self._max_steps:
            return self._end(rows)
        self._write(state, rows)
        return begins

    def _write_rows(self, obs: AgentsState, rows: npt.NDArray[Any]) -> None:
        for row, of_agent, (codec, row_size) in zip(rows, obs.obs, self._codecs, strict=True):
            if of_agent is not None:
                codec.write(of_agent, row[:row_size])


def endless_episode(num_steps: int) -> str:
    """What to tell of an episode that has had more steps than can be waited for."""
    return (
        f"An episode has not ended after {num_steps:,} steps, so it cannot be evaluated: give the environment a time "
        "limit (max_episode_steps where it is registered, or gymnasium.wrappers.TimeLimit)."
    )


def episode_seed(seed: int, episode: int) -> int:
    """The seed of the environment in an episode of an evaluation with this seed."""
    return env_seed(seed, _FIRST_SEED_IDX + episode)


def mean_ci95(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % confidence interval of the mean by Student's t; None for a single value."""
    return ci95_of(statistics.fmean(values), statistics.stdev(values), len(values)) if len(values) > 1 else None


def ci95_of(mean: float, std: float, count: int) -> tuple[float, float]:
    """The interval of `mean_ci95`, from mean and standard deviation (with n - 1) of at least two values."""
    half = student_t_975(count - 1) * std / math.sqrt(count)
    return mean - half, mean + half


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
