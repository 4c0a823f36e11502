"""Tensors mean what arrays mean, and what is not known is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import ActionMapping
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.observations import ObservationCodec
from asyncrl.envs.probe import probe
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.tensors import TensorActions, TensorRows, check_spaces

CPU = torch.device("cpu")
VECTOR = Box(-1, 1, (3,), np.float64)


@pytest.mark.parametrize("mapping", ["raw", "rescaled", "squashed"])
@pytest.mark.parametrize(
    "space",
    [
        Box(np.array([-2.0, 0.0]), np.array([1.0, 5.0]), dtype=np.float64),
        Box(-1, 1, (2, 1), np.float32),
        Discrete(4, start=3),
        MultiDiscrete([3, 2], start=[1, -1]),
    ],
    ids=str,
)
def test_actions_are_those_that_arrays_become(space: Space[Any], mapping: ActionMapping) -> None:
    spec = spec_of_spaces(VECTOR, space, "X", None)
    rng = np.random.default_rng(0)
    if isinstance(space, Box):
        actions = (2 * rng.standard_normal((5, 2))).astype(np.float32)
    elif isinstance(space, Discrete):
        actions = rng.integers(0, 4, 5)
    else:
        actions = rng.integers(0, 2, (5, 2)).astype(np.float32)
    expected = ActionAdapter(spec, mapping).to_env_batch(actions)
    found = TensorActions(spec, mapping, CPU).to_env(torch.from_numpy(actions))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert found.shape == expected.shape
    assert all(space.contains(action.astype(space.dtype)) for action in found.numpy())


@pytest.mark.parametrize(
    "space", [VECTOR, Box(0, 255, (9, 9), np.uint8), Box(0, 1, (3, 12, 12)), Box(0, 9, (2,), np.int64)], ids=str
)
def test_rows_are_those_that_arrays_become(space: Box) -> None:
    spec = spec_of_spaces(space, Discrete(2), "X", None)
    check_spaces(spec)
    observations = np.stack([space.sample() for _ in range(4)])
    expected = np.zeros((4, spec.observation.row_size), spec.observation.row_dtype)
    ObservationCodec(spec.observation).write_batch(observations, expected)
    found = TensorRows(spec, 4, CPU).rows_of(torch.from_numpy(observations))
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize(
    ("observation", "action"),
    [(Dict({"a": VECTOR}), Discrete(2)), (Discrete(4), Discrete(2)), (VECTOR, Dict({"a": Discrete(2)}))],
    ids=str,
)
def test_other_spaces_are_refused(observation: Space[Any], action: Space[Any]) -> None:
    with pytest.raises(UsageError, match="--env_backend=tensor takes"):
        check_spaces(spec_of_spaces(observation, action, "X", None))


def test_the_probe_finds_spaces_and_limit_of_what_is_vectorized_alone() -> None:
    spec = probe("tensor_envs:TensorCartPole-v0", env_backend="tensor")
    assert (spec.is_vectorized, spec.observation_size, spec.max_episode_steps) == (True, 4, 500)
    arrays = probe("tensor_envs:ArrayCartPole-v0", env_backend="gym_vector")
    assert (arrays.is_vectorized, arrays.observation_size) == (True, 4)


def test_the_probe_finds_whether_environments_are_reset_within_a_step() -> None:
    assert probe("tensor_envs:TensorCartPole-v0", env_backend="tensor").resets_within_step
    for mode in AutoresetMode:
        kwargs = {"autoreset_mode": mode.value, "terminates": True}
        spec = probe("probe_envs:VectorEndlessReward-v0", kwargs, env_backend="gym_vector")
        assert spec.resets_within_step == (mode != AutoresetMode.NEXT_STEP)
    assert not probe("CartPole-v1", env_backend="gym").resets_within_step


def test_what_is_vectorized_alone_is_never_stepped_one_by_one() -> None:
    assert probe("tensor_envs:ArrayCartPole-v0", env_backend="auto").is_vectorized
    with pytest.raises(UsageError, match="only as a vectorized environment: give --env_backend=gym_vector"):
        probe("tensor_envs:ArrayCartPole-v0", env_backend="gym")
    for backend in ("auto", "gym_vector", "tensor"):
        with pytest.raises(UsageError, match=r'its metadata\["autoreset_mode"\] is None'):
            probe("tensor_envs:Modeless-v0", env_backend=backend)


def test_arrays_are_no_tensors() -> None:
    with pytest.raises(UsageError, match="ArrayCartPole-v0 gives ndarray, not tensors"):
        probe("tensor_envs:ArrayCartPole-v0", env_backend="tensor")
    with pytest.raises(UsageError, match="has no vectorized implementation to use"):
        probe("Pendulum-v1", env_backend="tensor")
