"""Vectorized environments fill slots by the same rules, in each of Gymnasium's autoreset modes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array
from probe_envs import Sentinel
from small_runs import new_recovery
from unavoidable import needs_envpool

from asyncrl.buffers.replay import StepRows
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.factory import check_vectorized, make_run_vector_env
from asyncrl.envs.observations import ObservationCodec
from asyncrl.envs.probe import probe
from asyncrl.envs.spaces import read_spec, spec_of_spaces
from asyncrl.rollout.failures import WrongObservation
from asyncrl.rollout.vector_env_group import VectorEnvGroup, row_flags

NUM_ENVS, ROLLOUT = 3, 60


class Filled:
    """Slots of CartPole filled one after the other by a policy that pushes at random."""

    def __init__(
        self,
        num_slots: int,
        max_episode_steps: int,
        fail: Callable[[CartPoleVectorEnv], None] | None = None,
        backend: str = "gym_vector",
    ) -> None:
        """`fail` is called with the environment before row 30 of each slot; it is recreated when it fails."""
        kwargs = {"max_episode_steps": max_episode_steps}
        config = TrainConfig(env="CartPole-v1", env_kwargs=kwargs, env_backend=backend)
        spec = probe("CartPole-v1", env_backend=backend)
        self.made = []

        def make() -> VectorEnv[Any, Any, Any]:
            self.made.append(make_run_vector_env(config, NUM_ENVS))
            return self.made[-1]

        self.group = VectorEnvGroup(make(), 7, 0, spec, "raw", new_recovery(make))
        shape = (num_slots, ROLLOUT, NUM_ENVS)
        self.obs = np.full((num_slots, ROLLOUT + 1, NUM_ENVS, 4), np.nan, np.float32)
        self.action = np.random.default_rng(0).integers(0, 2, shape)
        self.reward = np.full(shape, np.nan, np.float32)
        self.terminated, self.truncated, self.valid = (np.ones(shape, bool) for _ in range(3))
        self.num_steps = 0
        last = np.empty((NUM_ENVS, 4), np.float32)
        self.group.reset(last)
        for slot in range(num_slots):
            self.group.start_slot(last, self.obs[slot, 0])
            for row in range(ROLLOUT):
                if fail is not None and row == 30:
                    fail(self.made[-1])
                fields = (field[slot, row] for field in (self.reward, self.terminated, self.truncated, self.valid))
                self.num_steps += self.group.step(self.action[slot, row], StepRows(*fields, self.obs[slot, row + 1]))
            last = self.obs[slot, -1]


@pytest.mark.parametrize("backend", ["gym_vector", pytest.param("envpool", marks=needs_envpool)])
@pytest.mark.parametrize("max_episode_steps", [500, 6])
def test_rows_are_steps_of_cart_pole_and_the_row_after_an_end_is_not(max_episode_steps: int, backend: str) -> None:
    run = Filled(num_slots=2, max_episode_steps=max_episode_steps, backend=backend)
    single = gymnasium.make("CartPole-v1").unwrapped
    done_before = np.zeros(NUM_ENVS, bool)
    for slot in range(2):
        for row in range(ROLLOUT):
            np.testing.assert_array_equal(run.valid[slot, row], ~done_before)
            for env in range(NUM_ENVS):
                following = run.obs[slot, row + 1, env]
                if not run.valid[slot, row, env]:
                    assert (np.abs(following) <= 0.05).all(), "a reset observation"
                    assert run.reward[slot, row, env] == 0.0
                    continue
                single.reset()
                single.state = tuple(run.obs[slot, row, env].astype(np.float64))
                expected, _, terminated, _, _ = single.step(int(run.action[slot, row, env]))
                np.testing.assert_allclose(following, expected, atol=1e-5)
                assert run.reward[slot, row, env] == 1.0
                assert run.terminated[slot, row, env] == terminated
            done_before = run.terminated[slot, row] | run.truncated[slot, row]
        assert not (run.terminated & run.truncated).any()
    assert (run.truncated.any(), run.terminated.any()) == ((True, False) if max_episode_steps == 6 else (False, True))
    assert run.num_steps == run.valid.sum()
    episodes = run.group.take_episodes()
    assert len(episodes) == (run.terminated | run.truncated).sum()
    assert all(episode.episode_return == episode.length for episode in episodes)
    assert run.group.take_episodes() == ()


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("as_flags", [np.array, torch.tensor])
def test_a_step_that_both_terminates_and_truncates_terminates(
    mode: AutoresetMode, as_flags: Callable[..., Any]
) -> None:
    terminated, truncated = as_flags([False, True, False, True]), as_flags([False, False, True, True])
    flags = row_flags(mode, as_flags([False] * 4), terminated, truncated)
    assert flags.valid.all() and flags.is_step.all()
    assert flags.terminated.tolist() == [False, True, False, True]
    assert flags.truncated.tolist() == [False, False, True, False]
    assert flags.holds_final_obs.tolist() == [
        False,
        mode == AutoresetMode.NEXT_STEP,
        True,
        mode == AutoresetMode.NEXT_STEP,
    ]


class Exploding(gymnasium.Env[Any, Any]):
    """Terminates after three steps; shows numbers that are none then (`when` is "end"), or a step before ("step")."""

    observation_space, action_space = Box(-np.inf, np.inf, (2,), np.float32), Discrete(2)

    def __init__(self, when: str) -> None:
        self._when = when

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self._num_steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._num_steps += 1
        is_over = self._num_steps == 3
        is_lost = self._when == ("end" if is_over else "step") and self._num_steps > 1
        return np.full(2, np.nan if is_lost else 1.0, np.float32), 1.0, is_over, False, {}


@pytest.mark.parametrize(("when", "num_lost"), [("end", 0), ("step", 2)])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_final_observation_of_a_terminated_episode_may_be_no_number(
    mode: AutoresetMode, when: str, num_lost: int
) -> None:
    env = SyncVectorEnv([lambda: Exploding(when), lambda: Exploding("never")], autoreset_mode=mode)
    spec = spec_of_spaces(env.single_observation_space, env.single_action_space, "Exploding", None)
    group = VectorEnvGroup(env, 7, 0, spec, "raw", new_recovery(lambda: env))
    obs = np.empty((2, 2), np.float32)
    group.reset(obs)
    valid = []
    for _ in range(3):
        rows = StepRows(np.empty(2, np.float32), *(np.empty(2, bool) for _ in range(3)), obs)
        group.step(np.zeros(2, np.int64), rows)
        valid.append(rows.valid.tolist())
        assert np.isfinite(obs).all()
    assert valid.count([False, False]) == (1 if num_lost else 0)
    assert len(group.take_lost()) == num_lost


def test_only_what_gymnasium_has_vectorized_is_taken() -> None:
    assert probe("CartPole-v1", env_backend="auto").is_vectorized
    assert not probe("CartPole-v1", env_backend="gym").is_vectorized
    assert not probe("Pendulum-v1", env_backend="auto").is_vectorized
    with pytest.raises(UsageError, match="Pendulum-v1 has no vectorized implementation to use: none is registered"):
        probe("Pendulum-v1", env_backend="gym_vector")


class NumberedSentinel(Sentinel):
    """A `Sentinel` that knows its number without a seed; its observation may be a Dict of two parts."""

    def __init__(self, number: int, nested: bool = False) -> None:
        super().__init__(run_seed=0)
        self._number = number
        self._nested = nested
        if nested:
            self.observation_space = Dict({"where": Box(-np.inf, np.inf, (2,)), "step": Box(-np.inf, np.inf, (1,))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        obs, info = super().reset()
        return self._nest(obs), info

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            odd = {"odd": 0.5} if self._number % 2 else {}
            stats = {"number": self._number, **odd, "nested": {"left": "out"}}
            info = {"episode_extra_stats": stats, "is_success": self._number == 2}
        return self._nest(obs), reward, terminated, truncated, info

    def _end(self, reward: float) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.full(3, NEVER_STORED, np.float32), reward, True, False, {}

    def _nest(self, obs: np.ndarray) -> Any:
        return {"where": obs[:2], "step": obs[2:]} if self._nested else obs

    def at(self, episode: int, step: int) -> NumberedSentinel:
        """The same environment in that state."""
        self._episode, self._step = episode, step
        return self


class FinalObsInOneBatch(VectorWrapper):
    """Gives `final_obs` as C++ environments do: one array for all environments, or arrays nested as the space is."""

    def step(self, actions: Any) -> Any:
        *result, infos = self.env.step(actions)
        if "final_obs" in infos:
            space, final_obs = self.single_observation_space, infos["final_obs"]
            nothing = create_empty_array(space, 1)
            nothing = {key: part[0] for key, part in nothing.items()} if isinstance(nothing, dict) else nothing[0]
            rows = [nothing if obs is None else obs for obs in final_obs]
            infos["final_obs"] = concatenate(space, rows, create_empty_array(space, len(rows)))
        return *result, infos


NEVER_STORED = 1e4
NUM_SENTINELS, SENTINEL_ROLLOUT, NUM_SLOTS = 4, 9, 12
KINDS = [
    pytest.param((mode, nested, batched), id=f"{mode.name}{'-nested' * nested}{'-batched' * batched}")
    for mode in AutoresetMode
    for nested in (False, True)
    for batched in ((False, True) if mode == AutoresetMode.SAME_STEP else (False,))
]
in_each_mode = pytest.mark.parametrize("run", KINDS, indirect=True)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest) -> FilledBySentinels:
    """Slots that are filled once for all tests that read them."""
    return FilledBySentinels(*request.param)


def sentinels(mode: AutoresetMode, nested: bool, batched: bool) -> VectorEnv[Any, Any, Any]:
    makers = [lambda number=number: NumberedSentinel(number, nested) for number in range(NUM_SENTINELS)]
    env = SyncVectorEnv(makers, autoreset_mode=mode)
    return FinalObsInOneBatch(env) if batched else env


class FilledBySentinels:
    """Slots `[S, T or T+1, E, ...]` filled with random actions, and what each slot's beginning was said to be."""

    def __init__(self, mode: AutoresetMode, nested: bool, batched: bool) -> None:
        spec = read_spec(NumberedSentinel(0, nested), "Sentinels")
        self.mode = mode
        self.group = VectorEnvGroup(sentinels(mode, nested, batched), 7, 0, spec, "raw")
        shape = (NUM_SLOTS, SENTINEL_ROLLOUT, NUM_SENTINELS)
        self.action = np.random.default_rng(0).uniform(-0.4, 0.4, (*shape, 2)).astype(np.float32)
        self.reward = np.full(shape, np.nan, np.float32)
        self.terminated, self.truncated, self.valid = (np.ones(shape, bool) for _ in range(3))
        self.begun: list[list[int]] = []
        self.num_steps = 0
        rows = np.full((NUM_SLOTS, SENTINEL_ROLLOUT + 1, NUM_SENTINELS, 3), np.nan, np.float32)
        last = np.empty((NUM_SENTINELS, 3), np.float32)
        self.group.reset(last)
        for slot in range(NUM_SLOTS):
            self.begun.append(self.group.start_slot(last, rows[slot, 0]))
            for row in range(SENTINEL_ROLLOUT):
                fields = (field[slot, row] for field in (self.reward, self.terminated, self.truncated, self.valid))
                self.num_steps += self.group.step(self.action[slot, row], StepRows(*fields, rows[slot, row + 1]))
            last = rows[slot, -1]
        codec = ObservationCodec(spec.observation)
        self.obs = np.apply_along_axis(lambda row: flat_sentinel(codec.read(row)), -1, rows)

    def holds_final_obs(self, slot: int, env: int) -> bool:
        return bool(self.truncated[slot, -1, env])


def flat_sentinel(observation: Any) -> np.ndarray:
    return np.concatenate([observation["where"], observation["step"]]) if isinstance(observation, dict) else observation


@in_each_mode
def test_a_valid_row_is_the_step_of_a_single_environment_in_the_same_state(
    run: FilledBySentinels,
) -> None:
    mode = run.mode
    num_ends = {"terminated": 0, "truncated": 0}
    for slot, row, env in np.argwhere(run.valid):
        number, episode, step = (int(part) for part in run.obs[slot, row, env])
        assert number == env, "a row of observations belongs to its environment"
        single = NumberedSentinel(number).at(episode, step)
        expected, reward, terminated, truncated, _ = single.step(run.action[slot, row, env])
        assert run.reward[slot, row, env] == np.float32(reward)
        assert (run.terminated[slot, row, env], run.truncated[slot, row, env]) == (terminated, truncated)
        if terminated and mode != AutoresetMode.NEXT_STEP:
            expected = np.array([number, episode + 1, 0], np.float32)
        np.testing.assert_array_equal(run.obs[slot, row + 1, env], expected)
        num_ends["terminated"] += terminated
        num_ends["truncated"] += truncated
    assert min(num_ends.values()) > 10


@in_each_mode
def test_the_row_after_a_truncation_is_not_valid_and_the_next_episode_follows_it(
    run: FilledBySentinels,
) -> None:
    mode = run.mode
    num_lost = 0
    for slot, row, env in np.argwhere(~run.valid):
        if row > 0:
            assert run.truncated[slot, row - 1, env] or (
                run.terminated[slot, row - 1, env] and mode == AutoresetMode.NEXT_STEP
            )
            episode = run.obs[slot, row - 1, env, 1]
        else:
            assert mode == AutoresetMode.NEXT_STEP, "elsewhere a slot begins with the reset observation"
            episode = run.obs[slot - 1, -2, env, 1]
        assert run.reward[slot, row, env] == 0.0
        assert not run.terminated[slot, row, env]
        assert not run.truncated[slot, row, env]
        following = run.obs[slot, row + 1, env]
        if mode == AutoresetMode.NEXT_STEP:
            np.testing.assert_array_equal(following, [env, episode + 1, 0])
        else:
            was_one_step = Sentinel.length(env, int(episode) + 1) == 1
            np.testing.assert_array_equal(following, [env, episode + 2, 0] if was_one_step else [env, episode + 1, 1])
            num_lost += 1
    ends = run.truncated | (run.terminated & (mode == AutoresetMode.NEXT_STEP))
    np.testing.assert_array_equal(run.valid[:, 1:], ~ends[:, :-1])
    assert (num_lost > 10) == (mode != AutoresetMode.NEXT_STEP)
    assert run.num_steps == run.valid.sum(), "rows that are not valid are no steps of the run"


@in_each_mode
def test_a_slot_begins_where_the_one_before_ended_or_with_the_next_episode(
    run: FilledBySentinels,
) -> None:
    mode = run.mode
    num_begun = 0
    for slot in range(1, NUM_SLOTS):
        held = [env for env in range(NUM_SENTINELS) if run.holds_final_obs(slot - 1, env)]
        assert run.begun[slot] == ([] if mode == AutoresetMode.NEXT_STEP else held)
        for env in range(NUM_SENTINELS):
            last, first = run.obs[slot - 1, -1, env], run.obs[slot, 0, env]
            np.testing.assert_array_equal(first, [env, last[1] + 1, 0] if env in run.begun[slot] else last)
        num_begun += len(held)
    assert num_begun > 0


@in_each_mode
def test_episodes_are_those_of_the_environments_lost_steps_included(
    run: FilledBySentinels,
) -> None:
    mode = run.mode
    singles, expected = [NumberedSentinel(number) for number in range(NUM_SENTINELS)], []
    played = [[0.0, 0, False] for single in singles if single.reset()]
    for actions in run.action.reshape(-1, NUM_SENTINELS, 2):
        for single, action, episode in zip(singles, actions, played, strict=True):
            if mode == AutoresetMode.NEXT_STEP and episode[2]:
                single.reset()
                episode[:] = [0.0, 0, False]
                continue
            _, reward, terminated, truncated, info = single.step(action)
            episode[:] = [episode[0] + reward, episode[1] + 1, terminated or truncated]
            if episode[2]:
                stats = {**info["episode_extra_stats"], "is_success": float(info["is_success"])}
                del stats["nested"]  # no number
                expected.append((episode[0], episode[1], stats))
                if mode != AutoresetMode.NEXT_STEP:
                    single.reset()
                    episode[:] = [0.0, 0, False]
    episodes = run.group.take_episodes()
    assert [episode.length for episode in episodes] == [length for _, length, _ in expected]
    np.testing.assert_allclose([episode.episode_return for episode in episodes], [total for total, _, _ in expected])
    assert [episode.extra_stats for episode in episodes] == [stats for _, _, stats in expected]


class Renewed:
    """A group whose environments are recreated when they fail, and what they were stepped with."""

    def __init__(self, mode: AutoresetMode) -> None:
        self.made: list[VectorEnv[Any, Any, Any]] = []

        def make() -> VectorEnv[Any, Any, Any]:
            self.made.append(sentinels(mode, False, False))
            return self.made[-1]

        spec = read_spec(NumberedSentinel(0), "Sentinels")
        self.group = VectorEnvGroup(make(), 7, 0, spec, "raw", new_recovery(make))
        self.obs = np.empty((NUM_SENTINELS, 3), np.float32)
        self.group.reset(self.obs)
        self.num_rows = np.zeros(NUM_SENTINELS, int)  # valid ones of each one's episode

    def step(self) -> StepRows:
        fields = [np.ones(NUM_SENTINELS, dtype) for dtype in (np.float32, bool, bool, bool)]
        rows = StepRows(*fields, self.obs)
        self.group.step(np.zeros((NUM_SENTINELS, 2), np.float32), rows)
        if not self.group.lost:
            self.num_rows += rows.valid
            self.num_rows[rows.terminated | rows.truncated] = 0
        return rows


def fail(*_: object, **__: object) -> Any:
    sys.exit()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_failure_takes_back_the_rows_of_the_episodes_that_were_begun(mode: AutoresetMode) -> None:
    for num_steps in range(12):
        run = Renewed(mode)
        for _ in range(num_steps):
            run.step()
        run.made[-1].step = fail  # type: ignore[method-assign]
        rows = run.step()
        assert not (rows.valid | rows.terminated | rows.truncated).any()
        assert [lost.episode_steps for lost in run.group.take_lost()] == run.num_rows.tolist()
        np.testing.assert_array_equal(run.obs, [[env, 0, 0] for env in range(NUM_SENTINELS)])
        assert run.step().valid.all(), "nothing waits for a reset"


def test_a_reset_that_fails_loses_the_step_of_all() -> None:
    run = Renewed(AutoresetMode.DISABLED)
    run.made[-1].reset = fail  # type: ignore[method-assign]
    while not run.group.lost:
        rows = run.step()
    assert len(run.made) == 2
    assert not (rows.valid | rows.terminated | rows.truncated).any()
    assert rows.reward.tolist() == [0.0] * NUM_SENTINELS
    np.testing.assert_array_equal(run.obs, [[env, 0, 0] for env in range(NUM_SENTINELS)])


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_a_first_observation_that_is_not_finite_is_never_begun_with(
    mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = NumberedSentinel._begin

    def begin_badly_after_a_truncation(self: NumberedSentinel) -> np.ndarray:
        obs = begin(self)
        is_after_one = self._episode > 0 and self.is_truncated(self._number, self._episode - 1)
        return obs * np.nan if is_after_one else obs

    run = Renewed(mode)
    monkeypatch.setattr(NumberedSentinel, "_begin", begin_badly_after_a_truncation)
    for _ in range(12):
        if not run.group.lost:
            rows = run.step()
    assert run.group.lost
    assert not rows.truncated.any() and not rows.valid.any()


def test_a_truncation_without_its_final_observation_is_said() -> None:
    class ForgetsFinalObs(VectorWrapper):
        def step(self, actions: Any) -> Any:
            *result, _ = self.env.step(actions)
            return *result, {}

    spec = read_spec(NumberedSentinel(0), "Sentinels")
    env = ForgetsFinalObs(sentinels(AutoresetMode.SAME_STEP, False, False))
    group = VectorEnvGroup(env, 7, 0, spec, "raw")
    group.reset(np.empty((NUM_SENTINELS, 3), np.float32))
    fields = [np.zeros(NUM_SENTINELS, dtype) for dtype in (np.float32, bool, bool, bool)]
    rows = StepRows(*fields, np.empty((NUM_SENTINELS, 3), np.float32))
    with pytest.raises(WrongObservation, match="have no final_obs"):  # noqa: PT012
        for _ in range(12):
            group.step(np.zeros((NUM_SENTINELS, 2), np.float32), rows)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_an_action_mask_is_taken_where_no_action_meets_another_observations_mask(mode: AutoresetMode) -> None:
    class Masked(gymnasium.Env[Any, Any]):
        observation_space = Dict({"action_mask": Box(0, 1, (2,), np.int8), "obs": Box(-1, 1, (1,))})
        action_space = Discrete(2)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            return self.observation_space.sample(), {}

    def make_vectorized(num_envs: int) -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([Masked] * num_envs, autoreset_mode=mode)

    gymnasium.register("MaskedVector-v0", Masked, vector_entry_point=make_vectorized)
    try:
        obstacle, _ = check_vectorized(
            "MaskedVector-v0", {}, gymnasium.make("MaskedVector-v0", disable_env_checker=True)
        )
        assert (obstacle is None) == (mode == AutoresetMode.NEXT_STEP)
        assert obstacle is None or mode.name in obstacle
    finally:
        del gymnasium.registry["MaskedVector-v0"]


def fail_to_step(env: CartPoleVectorEnv) -> None:
    def step(_: object) -> None:
        raise RuntimeError("broken")

    env.step = step


def reward_in_words(env: CartPoleVectorEnv) -> None:
    step = env.step

    def step_so(actions: Any) -> Any:
        obs, _, *rest = step(actions)
        return obs, ["one"] * 3, *rest

    env.step = step_so


def lose_a_number(env: CartPoleVectorEnv) -> None:
    env.state[1, 2] = np.nan


@pytest.mark.parametrize(("fail", "num_made"), [(fail_to_step, 3), (reward_in_words, 3), (lose_a_number, 1)])
def test_a_failure_of_one_loses_the_step_of_all_and_all_begin_anew(
    fail: Callable[[CartPoleVectorEnv], None], num_made: int
) -> None:
    run = Filled(num_slots=2, max_episode_steps=500, fail=fail)
    assert len(run.made) == num_made
    for slot in range(2):
        assert not run.valid[slot, 30].any()
        assert not (run.terminated | run.truncated)[slot, 30].any()
        assert (np.abs(run.obs[slot, 31]) <= 0.05).all(), "reset observations"
        assert run.valid[slot, 31].all()
    assert np.isfinite(run.obs).all() and np.isfinite(run.reward).all()
    assert run.num_steps == run.valid.sum()
    assert [(lost.env, lost.has_failed) for lost in run.group.take_lost()] == [
        (env, num_made == 3) for env in range(3)
    ] * 2
    failures = run.group.failures.take()
    assert (failures.num_failures, failures.num_not_finite) == ((2, 0) if num_made == 3 else (0, 2))


def test_observations_of_another_shape_are_refused() -> None:
    def shrink(env: CartPoleVectorEnv) -> None:
        step = env.step
        env.step = lambda actions: (step(actions)[0][:, :1], *step(actions)[1:])

    with pytest.raises(WrongObservation, match=r"has shape \(3, 1\), for a batch of 3 it must have \(3, 4\)"):
        Filled(num_slots=1, max_episode_steps=500, fail=shrink)
