"""Vectorized environments fill slots by the same rules, except that a terminated episode's final row is kept, too."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from small_runs import planned, small_arena

from asyncrl.buffers.control import RunControl
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.making import make_vector_env
from asyncrl.envs.probe import probe
from asyncrl.rollout.env_group import StepRows
from asyncrl.rollout.failures import FailureLog, Renewal, WrongObservation
from asyncrl.rollout.vector_env_group import VectorEnvGroup

NUM_ENVS, ROLLOUT = 3, 60


class Filled:
    """Slots of CartPole filled one after the other by a policy that pushes at random."""

    def __init__(
        self, num_slots: int, max_episode_steps: int, fail: Callable[[CartPoleVectorEnv], None] | None = None
    ) -> None:
        """`fail` is called with the environment before row 30 of each slot; it is made anew when it fails."""
        kwargs = {"max_episode_steps": max_episode_steps}
        spec = probe("CartPole-v1", env_backend="gym_vector")
        self.made = []

        def make() -> CartPoleVectorEnv:
            self.made.append(make_vector_env("CartPole-v1", kwargs, NUM_ENVS))
            return self.made[-1]

        plan = planned(num_workers=1, num_envs_per_worker=NUM_ENVS)
        self.control = RunControl(small_arena(plan)[0], 1)
        renewal = Renewal(FailureLog(0, TrainConfig(), self.control), make, lambda env_idx, steps: steps)
        self.group = VectorEnvGroup(make(), 7, 0, spec, False, renewal)
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


@pytest.mark.parametrize("max_episode_steps", [500, 6])
def test_rows_are_steps_of_cart_pole_and_the_row_after_an_end_is_not(max_episode_steps: int) -> None:
    run = Filled(num_slots=2, max_episode_steps=max_episode_steps)
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


def test_only_what_gymnasium_has_vectorized_is_taken() -> None:
    assert probe("CartPole-v1", env_backend="auto").is_vectorized
    assert not probe("CartPole-v1", env_backend="gym").is_vectorized
    assert not probe("Pendulum-v1", env_backend="auto").is_vectorized
    with pytest.raises(UsageError, match="Pendulum-v1 has no vectorized implementation to use: none is registered"):
        probe("Pendulum-v1", env_backend="gym_vector")


def fail_to_step(env: CartPoleVectorEnv) -> None:
    def step(_: object) -> None:
        raise RuntimeError("broken")

    env.step = step


def lose_a_number(env: CartPoleVectorEnv) -> None:
    env.state[1, 2] = np.nan


@pytest.mark.parametrize(("fail", "num_made"), [(fail_to_step, 3), (lose_a_number, 1)])
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
    failures = run.group.take_failures()
    assert (failures.num_failures, failures.num_not_finite) == ((2, 0) if num_made == 3 else (0, 2))


def test_observations_of_another_shape_are_refused() -> None:
    def shrink(env: CartPoleVectorEnv) -> None:
        step = env.step
        env.step = lambda actions: (step(actions)[0][:, :1], *step(actions)[1:])

    with pytest.raises(WrongObservation, match=r"observation has shape \(3, 1\), its space says \(3, 4\)"):
        Filled(num_slots=1, max_episode_steps=500, fail=shrink)
