"""Observations that travel as float16: which ones, how they are rounded, and how many bytes they take."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from contrib.ray_pools.pool_game import Game
from gymnasium.spaces import Box, Dict, Discrete
from small_runs import BOX, planned, small_arena

from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools.batches import PackedObservations, float16_row_bytes
from asyncrl.contrib.ray_pools.rules import float16_problems
from asyncrl.contrib.ray_pools.sent_rows import RowCodec
from asyncrl.contrib.ray_pools.sent_slots import slot_record
from asyncrl.contrib.ray_pools.traffic import Traffic
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import ObservationLayout, ObservationPart
from asyncrl.run.setup import RunSetup

MIXED = ObservationLayout(
    (
        ObservationPart(("a",), "numbers", (2,), "float64"),
        ObservationPart(("b",), "numbers", (1,), "int64"),
        ObservationPart(("c",), "choices", (), "int64", (3,), (0,)),
        ObservationPart(("d",), "image", (8, 9), "uint8"),
    )
)
REPRESENTABLE = [0.0, -0.0, 1.0, -2.5, 65504.0, -65504.0, 2.0**-24, 2049.0 - 1.0, 0.333251953125]


def sent(values: Any, layout: ObservationLayout) -> np.ndarray:
    """What arrives of observations [items, rows, row_size]."""
    values = np.ascontiguousarray(values, layout.row_dtype)
    there, here = PackedObservations(values, layout), PackedObservations(arrived := np.zeros_like(values), layout)
    for item in range(len(values)):
        out = np.empty(there.num_bytes, np.uint8)
        there.pack(item, out)
        here.unpack(out, item)
    return arrived


def vector(size: int) -> ObservationLayout:
    return ObservationLayout((ObservationPart((), "numbers", (size,), "float32"),))


def test_representable_numbers_arrive_as_they_are_and_others_rounded() -> None:
    values = np.array(REPRESENTABLE, np.float32).reshape(1, 1, -1)
    arrived = sent(values, vector(values.size))
    assert arrived.tobytes() == values.tobytes()
    odd = np.array([[[0.1, 70_000.0, -np.inf, np.nan]]], np.float32)
    expected = np.array([[[np.float16(0.1), 65504.0, -65504.0, np.nan]]], np.float32)
    np.testing.assert_array_equal(sent(odd, vector(4)), expected)


def test_integers_and_images_travel_as_they_are() -> None:
    assert MIXED.row_size == 4 * 6 + 72
    assert float16_row_bytes(MIXED) == 2 * 2 + 4 + 2 * 3 + 72
    values = np.random.default_rng(1).integers(0, 255, (3, 2, MIXED.row_size)).astype(np.uint8)
    numbers = values[..., :24].view(np.float32)
    numbers[:] = [0.1, 2.0, 16_777_215.0, 0.0, 1.0, 0.0]
    arrived = sent(values, MIXED)
    assert arrived[..., 24:].tobytes() == values[..., 24:].tobytes()
    expected = [float(np.float16(0.1)), 2.0, 16_777_215.0, 0.0, 1.0, 0.0]
    np.testing.assert_array_equal(arrived[..., :24].view(np.float32), np.broadcast_to(expected, (3, 2, 6)))


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_slot_and_a_row_are_smaller_by_half_of_their_observations(algo: str) -> None:
    plan = planned(algo=algo, cluster="ray", num_envs_per_worker=3, batch_size=12, rollout=4, replay_size=100)
    sizes: list[int] = []
    for observations in ("float32", "float16"):
        config = TrainConfig(cluster="ray", cluster_observations=observations)
        if algo == "ppo":
            arena, _ = small_arena(plan)
        else:
            arena = Game(1.0, 0, [1], num_envs=3, warmup=1000).arena
        spec = BOX if algo == "ppo" else dataclasses.replace(BOX, observation=vector(4))
        setup = RunSetup(config, plan, spec, arena, Path(), None, 0)
        sizes.append(slot_record(setup).num_bytes if algo == "ppo" else RowCodec(setup).row_bytes)
    full, half = sizes
    # Slots have 5 rows of observations of 2 numbers; a row of a replay has one of 4 numbers.
    assert full - half == 3 * (5 * 2 if algo == "ppo" else 4) * 2
    saved = Traffic.of(plan, BOX, 10).step_bytes - Traffic.of(plan, BOX, 10, has_float16=True).step_bytes
    assert saved == pytest.approx(2 * 2 * 5 / 4 if algo == "ppo" else 2 * 2)


def test_rows_of_a_replay_arrive_as_float16_with_the_first_observations_of_a_pool() -> None:
    game = Game(1.0, num_local=0, pools=[1], num_envs=2, warmup=1000, observations="float16")
    (pool,) = game.pools
    pool.stripes.obs_at((0, 0))[:] = 0.1
    for _ in range(3):
        pool.move()
    pool.step(0)
    for _ in range(2):
        pool.move()
    assert game.stripes.num_rows[0] == 1
    assert (game.stripes.obs_at((0, 0)) == np.float32(np.float16(0.1))).all()
    np.testing.assert_array_equal(game.stripes.obs_at((0, 1)), pool.stripes.obs_at((0, 1)))


def test_a_bound_that_float16_cannot_hold_is_refused() -> None:
    space = Dict(
        {
            "far": Box(-1e5, 1e5, (2,)),
            "count": Box(0, 10**6, (1,), np.int64),
            "free": Box(-np.inf, np.inf, (2,)),
            "as_free": Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (2,), np.float32),
            "near": Box(-65504.0, 3.0, (2,)),
            "one": Discrete(3),
        }
    )
    spec = spec_of_spaces(space, gymnasium.spaces.Discrete(2), "Far-v0", None, "auto")
    (problem,) = float16_problems(spec)
    assert problem.text == (
        "--cluster_observations=float16 ends at 65504, and far of Far-v0 may be as large as 100000."
    )
