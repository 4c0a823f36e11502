"""Atari games one by one and all at once show a policy the same, and evaluation plays whole games."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl.envs.factory import make_env, make_vector_env
from asyncrl.envs.probe import probe

pytestmark = pytest.mark.usefixtures("probes_here")

WITHOUT_CHANCE = {"noop_max": 0, "repeat_action_probability": 0.0}
ACTIONS = np.random.default_rng(0).integers(0, 4, 700)


def test_ales_vectorized_environment_gives_what_the_wrappers_give_to_the_bit() -> None:
    env = make_env("ALE/Breakout-v5", WITHOUT_CHANCE, in_training=True)
    vector_env = make_vector_env("ALE/Breakout-v5", WITHOUT_CHANCE, 2)
    observation, (expected, _) = env.reset()[0], vector_env.reset(seed=1)
    ends: list[int] = []
    for action in ACTIONS:
        np.testing.assert_array_equal(observation, expected[0])
        observation, reward, terminated, truncated, _ = env.step(int(action))
        expected, rewards, terminations, truncations, infos = vector_env.step(np.array([action, 0]))
        assert (reward, terminated, truncated) == (rewards[0], terminations[0], truncations[0])
        if terminated:
            observation = env.reset()[0]
            ends.append(int(infos["lives"][0]))
    assert ends[:5] == [4, 3, 2, 1, 5], "four lives of a game that continues, then the next game"
    vector_env.close()


def test_rewards_are_the_games_own() -> None:
    env = make_env("ALE/SpaceInvaders-v5", WITHOUT_CHANCE, in_training=True)
    vector_env = make_vector_env("ALE/SpaceInvaders-v5", WITHOUT_CHANCE, 2)
    env.reset()
    vector_env.reset(seed=1)
    rewards = []
    for action in ACTIONS[:150]:
        _, reward, terminated, _, _ = env.step(int(action))
        rewards.append((reward, vector_env.step(np.array([action, 0]))[1][0]))
        if terminated:
            env.reset()
    assert all(one == other for one, other in rewards)
    assert max(rewards)[0] >= 5
    vector_env.close()


def test_a_game_that_is_cut_off_shows_the_same_last_screen() -> None:
    kwargs = {**WITHOUT_CHANCE, "max_num_frames_per_episode": 80}
    env, vector_env = make_env("ALE/Pong-v5", kwargs, in_training=True), make_vector_env("ALE/Pong-v5", kwargs, 2)
    env.reset()
    vector_env.reset(seed=1)
    truncated = False
    while not truncated:
        observation, _, _, truncated, _ = env.step(2)
        *_, truncations, infos = vector_env.step(np.array([2, 2]))
        assert truncated == truncations[0]
    np.testing.assert_array_equal(observation, infos["final_obs"][0])
    vector_env.close()


def test_an_evaluation_plays_whole_games() -> None:
    env = make_env("ALE/Breakout-v5", WITHOUT_CHANCE)
    env.reset()
    seen = set()
    for action in ACTIONS:
        _, _, terminated, _, info = env.step(int(action))
        seen.add(info["lives"])
        if terminated:
            break
    assert terminated and seen == {5, 4, 3, 2, 1, 0}


def test_a_seeded_reset_begins_a_game_where_a_life_was_lost() -> None:
    env = make_env("ALE/Breakout-v5", WITHOUT_CHANCE, in_training=True)
    env.reset()
    assert any(env.step(int(action))[2] for action in ACTIONS)
    assert lives(env) == 4
    env.reset(seed=3)
    assert lives(env) == 5


def lives(env: gymnasium.Env[Any, Any]) -> int:
    return env.unwrapped.ale.lives()  # type: ignore[attr-defined]


def test_one_step_is_four_frames_unless_said_otherwise() -> None:
    for kwargs, frames in (({}, 4), ({"frameskip": 2}, 2)):
        env = make_env("ALE/Pong-v5", {**WITHOUT_CHANCE, **kwargs})
        env.reset()
        assert env.step(0)[4]["episode_frame_number"] == frames


def test_the_vectorized_environment_is_taken_for_preprocessed_games_alone() -> None:
    assert probe("ALE/Pong-v5", env_backend="auto").is_vectorized
    raw = probe("ALE/Pong-v5", env_backend="auto", atari_preprocessing=False)
    assert not raw.is_vectorized
    assert raw.observation.parts[0].shape == (210, 160, 3)


def test_a_screen_is_stored_as_bytes_of_an_image() -> None:
    part = probe("ALE/Pong-v5").observation.parts[0]
    assert (part.kind, part.shape, part.dtype) == ("image", (4, 84, 84), "uint8")
    assert isinstance(make_env("ALE/Pong-v5").action_space, gymnasium.spaces.Discrete)
