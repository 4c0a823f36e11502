"""Every size follows from the spaces and the plan."""

from __future__ import annotations

import pytest
from layouts import vector_observation
from small_runs import planned, small_arena

from asyncrl.buffers.layout import arena_bytes, arena_specs
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec

# 2 workers x 2 splits x 3 environments, 5 steps; 24 columns are 8 slots, and 4 more for the splits.
PLAN = planned(
    rollout=5,
    batch_size=120,
    num_workers=2,
    num_envs_per_worker=6,
    worker_num_splits=2,
    inference_mode="central",
)
BODY = EnvSpec("Body", vector_observation(348, "float64"), BoxAction((17,), (-0.4,) * 17, (0.4,) * 17, "float32"), 1000)
GAME = EnvSpec("Game", vector_observation(9, "int32"), DiscreteAction(6, -1), None)


@pytest.mark.parametrize(
    ("spec", "action_dtype", "action_shape", "num_parameters"),
    [(BODY, "float32", (17,), 34), (GAME, "int64", (), 6)],
    ids=["box", "discrete"],
)
def test_fields_follow_from_the_spaces(
    spec: EnvSpec, action_dtype: str, action_shape: tuple[int, ...], num_parameters: int
) -> None:
    _, slots = small_arena(PLAN, spec)
    assert (slots.num_slots, slots.rollout, slots.num_envs) == (12, 5, 3)
    assert slots.obs.shape == (12, 6, 3, spec.observation_size)
    assert slots.value.shape == (12, 6, 3)
    assert (slots.action.dtype, slots.action.shape) == (action_dtype, (12, 5, 3, *action_shape))
    assert slots.action_parameters.shape == (12, 5, 3, num_parameters)
    for field in (slots.log_prob, slots.reward, slots.terminated, slots.truncated, slots.valid):
        assert field.shape == (12, 5, 3)
    assert slots.policy_version.shape == slots.chosen_at.shape == (12, 6)


def test_rings_hold_all_that_can_be_under_way() -> None:
    shapes = {spec.name: spec.shape for spec in arena_specs(BODY, PLAN, num_weights=1000)}
    for worker in range(2):
        assert shapes[f"granted.{worker}.items"] == shapes[f"ready.{worker}.items"] == (12,)
        assert shapes[f"requests.{worker}.items"] == (4,)
    assert shapes["splits.request_seq"] == (4,)
    assert shapes["weights.buffers"] == (2, 1000)


def test_the_arenas_size_is_the_sum_of_its_arrays_and_their_padding() -> None:
    rows = 12 * 5 * 3
    per_row = 4 * (17 + 34 + 1 + 1) + 3
    with_extra_row = 12 * 6 * 3 * 4 * (348 + 1)
    weights = 2 * 1000 * 4
    training_info = 2 * (32 << 10)
    least = rows * per_row + with_extra_row + weights + training_info
    specs = arena_specs(BODY, PLAN, num_weights=1000)
    assert least < arena_bytes(BODY, PLAN, num_weights=1000) <= least + 12 * 6 * 16 + 128 * len(specs)
