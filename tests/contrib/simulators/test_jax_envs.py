"""Environments in JAX become vectorized environments of tensors that share their memory."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from run_helper import mean_return, run
from tensor_groups import CPU
from unavoidable import PREFIX

from asyncrl import validate
from asyncrl.contrib.simulators.jax_envs import JaxEnv
from asyncrl.contrib.simulators.wrapping import wrap
from asyncrl.envs.factory import as_vector_env, make_vector_env
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.modes.tensors.env_group import TensorEnvGroup

pytestmark = pytest.mark.skipif(
    find_spec("brax") is None,
    reason="Brax is not installed" if sys.version_info >= (3, 11) else f"{PREFIX}no JAX for this Python",
)
LENGTH = 4


def counter() -> Any:
    """An environment in JAX with the interface of both libraries: it counts, and ends if the action is positive."""
    import jax
    from flax import struct

    @struct.dataclass
    class State:
        data: Any
        obs: Any
        reward: Any
        done: Any
        metrics: Any
        info: Any

    def state_of(count: Any, start: Any, done: Any) -> State:
        obs = {"state": count[None], "privileged_state": jax.numpy.stack((count, start))}
        return State({"count": count, "start": start}, obs, count, done, {"counted": count}, {})

    class Counter:
        observation_size = {"state": (1,), "privileged_state": 2}
        action_size = 1

        def reset(self, key: Any) -> State:
            start = jax.random.uniform(key)
            return state_of(start, start, jax.numpy.zeros(()))

        def step(self, state: State, action: Any) -> State:
            count = state.data["count"] + 1.0
            return state_of(count, state.data["start"], (action[0] > 0).astype(float))

    Counter.__module__ = "mujoco_playground._src.counter"
    return Counter()


def test_ends_final_observations_and_metrics_are_those_of_the_environment() -> None:
    assert as_vector_env(counter(), "module:make", 2).num_envs == 2
    env = wrap("playground", counter(), num_envs=2, episode_length=LENGTH)
    assert env.single_observation_space == Dict(
        {"state": Box(-np.inf, np.inf, (1,)), "privileged_state": Box(-np.inf, np.inf, (2,))}
    )
    spec = spec_of_spaces(env.single_observation_space, env.single_action_space, "Counter", None)
    group = TensorEnvGroup(env, 3, spec, "raw", CPU)
    first = group.reset()
    starts = first[:, 0]
    assert first.shape == (2, 3) and starts[0] != starts[1]
    for row in range(1, LENGTH + 1):
        step = group.step(torch.tensor([[-1.0], [1.0 if row == 2 else -1.0]]))
        counted = torch.tensor([row, row - 2 if row > 2 else row])
        torch.testing.assert_close(step.reward, starts + counted)
        assert step.terminated.tolist() == [False, row == 2]
        assert step.truncated.tolist() == [row == LENGTH, False]
        expected = starts + counted * torch.tensor([1.0, row != 2])  # terminated: the next episode has begun
        torch.testing.assert_close(step.next_rows, torch.stack((expected, starts, expected), dim=1)[:, [0, 1, 2]])
        group.record_ends([step.ends], int(step.ends.ended.sum()))
    episodes = group.take_episodes()
    assert [episode.length for episode in episodes] == [2, LENGTH]
    assert episodes[1].extra_stats["counted"] == pytest.approx(10 + 4 * starts[0].item(), rel=1e-5)
    step = group.step(torch.full((2, 1), -1.0))
    assert step.valid.tolist() == [False, True], "the row of the final observation"
    torch.testing.assert_close(step.next_rows[0, 0], starts[0] + 1.0)


def test_memory_is_shared_and_actions_are_repeated() -> None:
    import jax

    env: Any = wrap("brax", counter(), num_envs=3, episode_length=6, action_repeat=3)
    obs, _ = env.reset(seed=1)
    states, *_ = env._carry
    assert obs["privileged_state"].data_ptr() == states.obs["privileged_state"].unsafe_buffer_pointer()
    actions = torch.full((3, 1), -1.0)
    assert jax.dlpack.from_dlpack(actions).unsafe_buffer_pointer() == actions.data_ptr()
    after, reward, _, truncated, _ = env.step(actions)
    torch.testing.assert_close(after["state"], obs["state"] + 3.0)
    torch.testing.assert_close(reward, 3 * obs["state"][:, 0] + 6.0)
    assert not truncated.any() and env.step(actions)[3].all() and env.spec.max_episode_steps == 2


def test_environments_of_a_package_are_found_by_name() -> None:
    env = make_vector_env("brax:fast", {"episode_length": LENGTH}, num_envs=2)
    assert isinstance(env, JaxEnv) and env.num_envs == 2
    assert env.spec is not None and env.spec.max_episode_steps == LENGTH


@pytest.mark.usefixtures("probes_here")
def test_an_unknown_name_is_one_sentence_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main(["--env=brax:antt"]) == 2
    printed = capsys.readouterr().err
    assert "error: brax has no environment 'antt'; the nearest is ant. It has ant, fast, " in printed
    assert "Traceback" not in printed


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_pendulum_of_brax_is_balanced(tmp_path: Path) -> None:
    kwargs = {"backend": "spring", "episode_length": 200}
    settings = {"num_workers": 1, "num_envs_per_worker": 128, "rollout": 16, "batch_size": 512, "num_epochs": 8}
    settings |= {"num_batches_per_epoch": 4, "learning_rate": 2e-3, "gamma": 0.98, "normalize_input": True}
    settings |= {"lr_schedule": "constant", "encoder_mlp_layers": [64, 64]}
    finished = run(
        tmp_path,
        "serial",
        "brax:inverted_pendulum",
        env_backend="tensor",
        env_kwargs=kwargs,
        **settings,
        train_for_env_steps=100_000,
    )
    assert mean_return(finished, episodes=5) > 150.0
