"""What the environment gets for the policy's actions."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.envs.actions import ActionAdapter, can_squash
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec, vector_observation

INF = float("inf")


def spec(action: BoxAction | DiscreteAction) -> EnvSpec:
    return EnvSpec("Some-v0", vector_observation(3), action, None)


def test_a_choice_is_counted_from_the_spaces_start() -> None:
    adapter = ActionAdapter(spec(DiscreteAction(n=3, start=-1)), squash=False)
    choices = np.array([0, 2, 1])
    assert adapter.to_env_batch(choices).tolist() == [-1, 1, 0]
    assert choices.tolist() == [0, 2, 1]
    single = adapter.to_env(2)
    assert single == 1 and isinstance(single, np.int64)


def test_a_box_action_is_clipped_only_where_its_bounds_are_finite() -> None:
    action = BoxAction((3,), (-0.4, -INF, -1.0), (0.4, 2.0, INF), "float32")
    adapter = ActionAdapter(spec(action), squash=False)
    given = np.array([[3.0, -100.0, 100.0], [-0.1, 5.0, -5.0]], dtype=np.float32)
    before = given.copy()
    np.testing.assert_allclose(adapter.to_env_batch(given), [[0.4, -100.0, 100.0], [-0.1, 2.0, -1.0]])
    assert np.array_equal(given, before)


def test_a_squashed_action_covers_the_bounds_exactly() -> None:
    adapter = ActionAdapter(spec(BoxAction((2,), (-2.0, 0.1), (6.0, 0.3), "float32")), squash=True)
    samples = np.array([[0.0, 0.0], [50.0, -50.0], [np.arctanh(0.5), np.arctanh(-0.5)]], dtype=np.float32)
    got = adapter.to_env_batch(samples)
    np.testing.assert_allclose(got, [[2.0, 0.2], [6.0, 0.1], [4.0, 0.15]], rtol=1e-6)
    assert (got <= np.array([6.0, 0.3], np.float32)).all() and (got >= np.array([-2.0, 0.1], np.float32)).all()


def test_shape_and_dtype_are_the_environments() -> None:
    action = BoxAction((2, 2), (-1.0,) * 4, (1.0,) * 4, "float64")
    adapter = ActionAdapter(spec(action), squash=False)
    got = adapter.to_env_batch(np.array([[0.1, 0.2, 0.3, 0.4]] * 5, dtype=np.float32))
    assert got.shape == (5, 2, 2) and got.dtype == np.float64
    np.testing.assert_allclose(
        adapter.to_env(np.array([0.1, 0.2, 0.3, 0.4], np.float32)), [[0.1, 0.2], [0.3, 0.4]], 1e-6
    )


def test_what_the_environment_does_to_its_action_does_not_reach_the_slot() -> None:
    adapter = ActionAdapter(spec(BoxAction((1,), (-1.0,), (1.0,), "float32")), squash=False)
    stored = np.array([[0.5]], dtype=np.float32)
    adapter.to_env_batch(stored)[0][:] = 9.0
    assert stored[0, 0] == 0.5


def test_unbounded_actions_cannot_be_squashed() -> None:
    largest = float(np.finfo(np.float32).max)
    for bound in (INF, largest):
        action = BoxAction((1,), (-bound,), (bound,), "float32")
        assert not can_squash(action)
        with pytest.raises(ValueError, match="not finite"):
            ActionAdapter(spec(action), squash=True)
