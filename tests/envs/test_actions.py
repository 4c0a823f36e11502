"""What the environment gets for the policy's actions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from layouts import vector_observation

from asyncrl.config.errors import UsageError
from asyncrl.envs.actions import ActionAdapter, can_squash, has_own_unit
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec

INF = float("inf")
OBSERVATION = spaces.Box(-1.0, 1.0, (3,))
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def spec(action: BoxAction | DiscreteAction) -> EnvSpec:
    return EnvSpec("Some-v0", vector_observation(3), action, None)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_choices_are_in_their_spaces_whatever_its_dtype(dtype: str) -> None:
    space = spaces.Discrete(3, start=-1, dtype=np.dtype(dtype).type)
    tree = spaces.Dict({"a": space, "b": spaces.Discrete(2)})
    of_tree = spec_of_spaces(OBSERVATION, tree, "Some-v0", None)
    assert space.contains(ActionAdapter(spec_of_spaces(OBSERVATION, space, "Some-v0", None), "raw").to_env(2))
    adapter = ActionAdapter(of_tree, "raw")
    assert all(map(tree.contains, adapter.to_env_batch(np.array([[0, 1], [2, 0]]))))
    assert EnvSpec.from_data(json.loads(json.dumps(of_tree.to_data()))).action.leaves[0].dtype == dtype
    usual = spaces.Dict({"a": spaces.Discrete(3, start=-1), "b": spaces.Discrete(2)})
    assert of_tree == spec_of_spaces(OBSERVATION, usual, "Some-v0", None), "what was saved before fits"


def test_keys_that_are_no_text_are_refused() -> None:
    for position in range(2):
        both: list[Any] = [OBSERVATION, spaces.Discrete(2)]
        both[position] = spaces.Dict({1: both[position]})  # type: ignore[dict-item]
        with pytest.raises(UsageError, match="whose keys must be texts, not 1"):
            spec_of_spaces(*both, "Some-v0", None)


def test_a_box_action_is_clipped_only_where_its_bounds_are_finite() -> None:
    action = BoxAction((3,), (-0.4, -INF, -1.0), (0.4, 2.0, INF), "float32")
    adapter = ActionAdapter(spec(action), mapping="raw")
    given = np.array([[3.0, -100.0, 100.0], [-0.1, 5.0, -5.0]], dtype=np.float32)
    before = given.copy()
    np.testing.assert_allclose(adapter.to_env_batch(given), [[0.4, -100.0, 100.0], [-0.1, 2.0, -1.0]])
    assert np.array_equal(given, before)


def test_the_bounds_of_a_number_are_its_unit_where_both_are_finite() -> None:
    action = BoxAction((4,), (-0.4, 0.0, -INF, -1.0), (0.4, 100.0, 2.0, INF), "float32")
    adapter = ActionAdapter(spec(action), "rescaled")
    given = np.array([[1.0, 1.0, -100.0, 100.0], [-0.5, 0.5, 5.0, -5.0], [-3.0, -3.0, 0.5, 0.5]], dtype=np.float32)
    wanted = [[0.4, 100.0, -100.0, 100.0], [-0.2, 75.0, 2.0, -1.0], [-0.4, 0.0, 0.5, 0.5]]
    np.testing.assert_allclose(adapter.to_env_batch(given), wanted, rtol=1e-6)


def test_bounds_of_plus_and_minus_one_leave_every_bit_as_it_was() -> None:
    draws = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32) * np.float32(1e-3)
    units = spec(BoxAction((2,), (-1.0, -1.0), (1.0, 1.0), "float32"))
    np.testing.assert_array_equal(ActionAdapter(units, "rescaled").to_env_batch(draws), draws)


@pytest.mark.parametrize(
    ("dtype", "low", "high", "has_range"),
    [
        ("float32", -_LARGEST_FLOAT32, _LARGEST_FLOAT32, False),
        ("float32", 0.0, _LARGEST_FLOAT32, False),
        ("float32", 0.0, 0.9 * _LARGEST_FLOAT32, False),
        ("float64", -_LARGEST_FLOAT32, _LARGEST_FLOAT32, False),  # made for float32, declared otherwise
        ("float64", 0.0, float(np.finfo(np.float64).max), False),
        ("float16", -65504.0, 65504.0, False),
        ("float32", -INF, 1.0, False),
        ("float16", 0.0, 1000.0, True),
        ("float32", -1e30, 1e30, True),
    ],
)
def test_bounds_near_the_largest_number_count_as_infinite_and_cannot_be_squashed(
    dtype: str, low: float, high: float, has_range: bool
) -> None:
    action = BoxAction((1,), (low,), (high,), dtype)
    with np.errstate(all="raise"):
        got = ActionAdapter(spec(action), "rescaled").to_env(np.array([0.25], np.float32))
    assert got[0] == (pytest.approx((low + high) / 2 + 0.25 * (high - low) / 2, rel=1e-3) if has_range else 0.25)
    assert can_squash(action) == has_range
    if not has_range:
        with pytest.raises(ValueError, match="not finite"):
            ActionAdapter(spec(action), "squashed")


@pytest.mark.parametrize(
    ("action", "differs"),
    [
        (DiscreteAction(2, 0), False),
        (BoxAction((2,), (-1.0, -INF), (1.0, 5.0), "float32"), False),
        (BoxAction((2,), (-1.0, -1.0), (1.0, 1.5), "float32"), True),
    ],
)
def test_the_unit_matters_where_bounds_are_not_plus_and_minus_one(
    action: BoxAction | DiscreteAction, differs: bool
) -> None:
    assert has_own_unit(action) == differs


def test_a_squashed_action_covers_the_bounds_exactly() -> None:
    adapter = ActionAdapter(spec(BoxAction((2,), (-2.0, 0.1), (6.0, 0.3), "float32")), mapping="squashed")
    samples = np.array([[0.0, 0.0], [50.0, -50.0], [np.arctanh(0.5), np.arctanh(-0.5)]], dtype=np.float32)
    got = adapter.to_env_batch(samples)
    np.testing.assert_allclose(got, [[2.0, 0.2], [6.0, 0.1], [4.0, 0.15]], rtol=1e-6)
    assert (got <= np.array([6.0, 0.3], np.float32)).all() and (got >= np.array([-2.0, 0.1], np.float32)).all()
