"""EnvPool's environments, one by one and in a pool, and what is said without it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from unavoidable import needs_envpool

from asyncrl.config.errors import UsageError
from asyncrl.envs.factory import make_env
from asyncrl.envs.pooled import PooledVectorEnv
from asyncrl.envs.probe import probe


def refusal(env_id: str, **env_kwargs: object) -> str:
    with pytest.raises(UsageError) as caught:
        PooledVectorEnv(env_id, env_kwargs, num_envs=2)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_installs_it_is_said_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert "pip install envpool" in refusal("CartPole-v1")


@needs_envpool
def test_an_unknown_id_or_argument_is_named() -> None:
    assert "CartPole-v1" in refusal("CartPol-v1")
    assert "widht" in refusal("CartPole-v1", widht=3)


@needs_envpool
def test_a_pooled_environment_plays_the_episodes_of_a_pool_with_its_seed() -> None:
    pool, env = PooledVectorEnv("CartPole-v1", {}, num_envs=1), make_env("CartPole-v1", backend="envpool")
    env.reset(seed=9)
    expected, observation = pool.reset(seed=5)[0], env.reset(seed=5)[0]
    num_ends = 0
    for action in np.random.default_rng(0).integers(0, 2, 60):
        np.testing.assert_array_equal(observation, expected[0])
        expected, reward, terminated, _, _ = pool.step(np.array([action]))
        observation, *result = env.step(int(action))
        assert result[:2] == [reward[0], terminated[0]]
        if terminated[0]:
            num_ends += 1
            expected, observation = pool.step(np.array([action]))[0], env.reset()[0]
    assert num_ends > 0
    pool.close()
    env.close()


@needs_envpool
def test_spaces_and_time_limit_are_those_of_the_pool() -> None:
    spec = probe("CartPole-v1", {"max_episode_steps": 77}, env_backend="envpool")
    assert (spec.is_vectorized, spec.max_episode_steps, spec.observation_size) == (True, 77, 4)
