"""Every size follows from the spaces and the plan."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from layouts import vector_observation
from small_runs import planned, small_arena

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl, TrainedSteps
from asyncrl.buffers.layout import policy_prefix
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec
from asyncrl.modes.choice import arena_specs

# 2 workers x 2 splits x 3 environments, 5 steps; 24 columns are 8 slots, and 4 more for the splits.
SIZES = {"rollout": 5, "batch_size": 120, "num_workers": 2, "num_envs_per_worker": 6, "worker_num_splits": 2}
PLAN = planned(inference_mode="central", **SIZES)
BODY = EnvSpec("Body", vector_observation(348, "float64"), BoxAction((17,), (-0.4,) * 17, (0.4,) * 17, "float32"), 1000)
GAME = EnvSpec("Game", vector_observation(9, "int32"), DiscreteAction(6, -1), None)


def test_rings_hold_all_that_can_be_under_way() -> None:
    shapes = {spec.name: spec.shape for spec in arena_specs(BODY, PLAN, num_weights=1000)}
    for worker in range(2):
        assert shapes[f"granted.{worker}.items"] == shapes[f"ready.{worker}.items"] == (12,)
        assert shapes[f"requests.{worker}.items"] == (4,)
    assert shapes["splits.request_seq"] == (4,)
    assert shapes["weights.buffers"] == (2, 1000)


SEVERAL = dataclasses.replace(PLAN, num_policies=3)


def test_with_one_policy_nothing_is_allocated_for_several() -> None:
    names = {spec.name for spec in arena_specs(BODY, PLAN, num_weights=1000)}
    assert not any(name.startswith("policy.") for name in names)
    assert not {"slots.policy_idx", "slots.filled"} & names
    _, slots = small_arena(PLAN, BODY)
    assert slots.policy_idx is None and slots.filled is None


def test_several_policies_have_weights_and_words_of_their_own() -> None:
    arena = Arena.create(arena_specs(BODY, SEVERAL, [10, 20, 30]))
    for policy_idx, num_weights in enumerate((10, 20, 30)):
        own = arena.scoped(policy_prefix(policy_idx))
        WeightsChannel(own).publish(np.full(num_weights, policy_idx, np.float32), 7 + policy_idx, 0)
        RunControl(own, 2).num_saves = policy_idx
        assert len(own.words("taken")) == SEVERAL.num_slots == 3 * 4
        assert len(own.words("trained_env_steps")) == len(own.words("trained_agent_steps")) == 1
        assert len(own.words("ready.1.items")) == 2 * (3 + 3), "each of the worker's slots twice"
    steps = [TrainedSteps(arena, policy_idx, 3) for policy_idx in range(3)]
    assert [each.share for each in steps] == [0, 0, 0]
    steps[0].record(100, 100)  # the policy of the first agent: each environment step counts in a row of this agent
    steps[1].record(0, 60)
    steps[2].record(20, 40)
    assert [each.share for each in steps] == [60, 36, 24] and steps[1].env_steps_by_others == 120
    versions = [WeightsChannel(arena.scoped(policy_prefix(policy_idx))).newest.version for policy_idx in range(3)]
    assert versions == [7, 8, 9]
    assert [RunControl(arena.scoped(policy_prefix(policy_idx)), 2).num_saves for policy_idx in range(3)] == [0, 1, 2]
    assert RunControl(arena, 2).num_saves == 0, "the common words are others"
    assert arena.find_array("weights.buffers") is None and arena.find_array("granted.0.items") is None
    slots = TrajectorySlots(arena)
    assert slots.policy_idx is not None and slots.filled is not None
    assert (slots.policy_idx.dtype, slots.policy_idx.shape) == (np.int16, (12, 6, 3))
    assert slots.policy_version.shape == (12, 6, 3) and slots.chosen_at.shape == (12, 6)
    assert len(slots.filled) == 12


def test_weights_of_another_number_of_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="weights of 2 policies, but the plan has 3"):
        arena_specs(BODY, SEVERAL, [10, 20])
    with pytest.raises(ValueError, match="weights of 2 policies, but the plan has 1"):
        arena_specs(BODY, PLAN, [10, 20])
