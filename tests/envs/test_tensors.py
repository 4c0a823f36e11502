"""Tensors mean what arrays mean, and what is not known is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from probe_envs import EndlessReward
from tensor_envs import AsTensors

from asyncrl.config.errors import UsageError
from asyncrl.config.value_types import ActionMapping
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch
from asyncrl.envs.probe import probe
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.tensors import ArraysOfTensors, TensorActions, TensorRows

pytestmark = pytest.mark.usefixtures("probes_here")

CPU = torch.device("cpu")
VECTOR = Box(-1, 1, (3,), np.float64)
NESTED = Dict({"a": VECTOR, "b": Tuple((Box(0, 255, (9, 9), np.uint8), MultiDiscrete([3, 2], start=[1, 0])))})
TREE = Dict({"move": Box(-2, 4, (2,), np.float32), "rest": Tuple((Discrete(3, start=1), MultiBinary(2)))})


def tensors_of(nested: Any) -> Any:
    if isinstance(nested, dict):
        return {key: tensors_of(inner) for key, inner in nested.items()}
    return tuple(map(tensors_of, nested)) if isinstance(nested, tuple) else torch.from_numpy(nested)


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
    "space",
    [
        VECTOR,
        Box(0, 255, (9, 9), np.uint8),
        Box(0, 1, (3, 12, 12)),
        Box(0, 9, (2,), np.int64),
        Discrete(4, start=-1),
        MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 5]]),
        NESTED,
        Dict({"mask": MultiBinary(5), "action_mask": MultiBinary(2), "image": Box(0, 255, (9, 9, 3), np.uint8)}),
    ],
    ids=str,
)
def test_rows_are_those_that_arrays_become(space: Space[Any]) -> None:
    spec = spec_of_spaces(space, Discrete(2), "X", None)
    space.seed(0)
    samples = [space.sample() for _ in range(4)]
    observations = concatenate(space, samples, create_empty_array(space, 4))
    expected = np.zeros((4, spec.observation.row_size), spec.observation.row_dtype)
    ObservationCodec(spec.observation).write_batch(observations, expected)
    found = TensorRows(spec, 4, CPU).rows_of(tensors_of(observations))
    assert str(found.dtype) == f"torch.{spec.observation.row_dtype}"
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("mapping", ["raw", "rescaled", "squashed"])
def test_nested_actions_are_those_that_arrays_become(mapping: ActionMapping) -> None:
    spec = spec_of_spaces(VECTOR, TREE, "X", None)
    rng = np.random.default_rng(0)
    choices = [rng.integers(0, count, (5, 1)) for count in (3, 2, 2)]
    actions = np.concatenate([2 * rng.standard_normal((5, 2)), *choices], axis=1).astype(np.float32)
    expected = ActionAdapter(spec, mapping).to_vector_env(actions)
    found = TensorActions(spec, mapping, CPU).to_env(torch.from_numpy(actions))
    for each, wanted in ((found["move"], expected["move"]), *zip(found["rest"], expected["rest"], strict=True)):
        np.testing.assert_allclose(each.numpy(), wanted, rtol=1e-6)
        assert each.numpy().dtype == wanted.dtype


def test_a_choice_that_the_space_does_not_have_is_no_number() -> None:
    spec = spec_of_spaces(Discrete(4, start=2), Discrete(2), "X", None)
    rows = TensorRows(spec, 3, CPU).rows_of(torch.tensor([2, 5, 6]))
    assert rows[:2].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert rows[2].isnan().all()


def test_a_part_that_is_missing_is_named() -> None:
    spec = spec_of_spaces(NESTED, Discrete(2), "X", None)
    with pytest.raises(ObservationMismatch, match="b/1: shape"):
        TensorRows(spec, 2, CPU).rows_of({"a": torch.zeros(2, 3), "b": (torch.zeros(2, 9, 9), torch.zeros(2, 3))})
    with pytest.raises(ObservationMismatch, match="a is not in the observation"):
        TensorRows(spec, 2, CPU).rows_of({})


def test_an_environment_of_tensors_is_recognized() -> None:
    spec = probe("tensor_envs:TensorCartPole-v0", env_backend="auto")
    assert spec.gives_tensors and spec == probe("tensor_envs:TensorCartPole-v0", env_backend="tensor")
    assert (spec.is_vectorized, spec.observation_size, spec.max_episode_steps) == (True, 4, 500)
    made = probe("tensor_envs:make_cart_pole", {"max_episode_steps": 20}, env_backend="auto")
    assert made.gives_tensors and made.observation == spec.observation
    assert not probe("tensor_envs:ArrayCartPole-v0", env_backend="auto").gives_tensors
    assert probe("tensor_envs:TensorCartPole-v0", env_backend="gym_vector") == spec
    with pytest.raises(UsageError, match="gives tensors: --env_backend is auto, tensor or gym_vector for it, not gym"):
        probe("tensor_envs:TensorCartPole-v0", env_backend="gym")


@pytest.mark.parametrize("backend", ["auto", "tensor", "gym_vector"])
def test_the_probe_reads_the_reward_shaping_of_a_simulator(backend: str) -> None:
    spec = probe("tensor_envs:ShapedCartPole", env_backend=backend)
    assert spec.gives_tensors and spec.reward_shaping == (("bonus", 1.0),)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_what_gives_tensors_can_be_stepped_with_arrays(mode: AutoresetMode) -> None:
    def make() -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([lambda: EndlessReward(False), lambda: EndlessReward(True, 7)], autoreset_mode=mode)

    arrays, converted = make(), ArraysOfTensors(AsTensors(make()))
    expected, found = arrays.reset(seed=3)[0], converted.reset(seed=3)[0]
    for step in range(30):
        actions = np.array([step % 2, 0])
        np.testing.assert_array_equal(found, expected)
        (expected, *numbers, infos), (found, *own_numbers, own_infos) = arrays.step(actions), converted.step(actions)
        for number, own in zip(numbers, own_numbers, strict=True):
            np.testing.assert_array_equal(own, number)
        has_ended = np.logical_or(*numbers[1:])
        assert bool(own_infos) == (has_ended.any() and mode == AutoresetMode.SAME_STEP)
        for env in np.flatnonzero(has_ended) if mode == AutoresetMode.SAME_STEP else ():
            np.testing.assert_array_equal(own_infos["final_obs"][env], infos["final_obs"][env])
        if mode == AutoresetMode.DISABLED and has_ended.any():
            expected, found = (env.reset(options={"reset_mask": has_ended})[0] for env in (arrays, converted))


def test_masks_are_refused_where_an_action_may_be_chosen_with_another_ones_mask() -> None:
    assert probe("tensor_envs:make_masked", {"autoreset_mode": "NextStep"}, env_backend="tensor").gives_tensors
    with pytest.raises(UsageError, match="its autoreset mode is SAME_STEP, which may apply another"):
        probe("tensor_envs:make_masked", {"autoreset_mode": "SameStep"}, env_backend="tensor")


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
