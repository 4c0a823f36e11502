"""Matrix products by AMX: operands in two bfloat16 parts, so that 16 of 24 significant bits take part."""

from __future__ import annotations

import ctypes
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
import torch
from critics import with_values
from datasets import CPU
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from unavoidable import needs_tiles

from asyncrl import native
from asyncrl.algorithms.losses import Samples
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.learner.fast.native_update import NativeUpdate
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.native_model import NativeModel

pytestmark = needs_tiles

FloatArray = npt.NDArray[np.float32]
ERROR = 3 * 2**-16  # of both operands, and the product of their low parts
OBS, ACTIONS = 130, 3


class Matrix(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("row_stride", ctypes.c_int64), ("column_stride", ctypes.c_int64)]


def described(array: FloatArray) -> Matrix:
    return Matrix(array.ctypes.data, *(stride // 4 for stride in array.strides))


def tile_product(a: FloatArray, b: FloatArray, bias: FloatArray | None, c: FloatArray) -> None:
    function = ctypes.CFUNCTYPE(None, Matrix, Matrix, *[ctypes.c_int64] * 3, ctypes.c_void_p, Matrix, ctypes.c_void_p)(
        native.tile_product()
    )
    (num_rows, depth), num_columns = a.shape, b.shape[1]
    pairs = -(-depth // 32) * 16
    scratch = np.full(2 * (32 + -(-num_columns // 32) * 32) * pairs + 16, np.nan, np.float32)
    bias_at = None if bias is None else bias.ctypes.data
    function(described(a), described(b), num_rows, num_columns, depth, bias_at, described(c), scratch.ctypes.data)


def array(rng: np.random.Generator, shape: tuple[int, int], is_transposed: bool) -> FloatArray:
    drawn = rng.standard_normal(shape).astype(np.float32) * 10.0 ** rng.uniform(-3, 3)
    return np.asfortranarray(drawn) if is_transposed and min(shape) > 1 else drawn


@settings(max_examples=300, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 100)] * 3),
    transposed=st.tuples(*[st.booleans()] * 3),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_a_product_by_tiles_has_16_bits(
    shape: tuple[int, int, int], transposed: tuple[bool, bool, bool], has_bias: bool, seed: int
) -> None:
    rng, (num_rows, num_columns, depth) = np.random.default_rng(seed), shape
    a, b = array(rng, (num_rows, depth), transposed[0]), array(rng, (depth, num_columns), transposed[1])
    bias = rng.standard_normal(num_rows).astype(np.float32) if has_bias else None
    memory = np.full(num_rows * num_columns + 64, 7.0, np.float32)  # and what lies behind the result
    c = memory[:-64].reshape((num_rows, num_columns), order="F" if transposed[2] else "C")
    tile_product(a, b, bias, c)
    exact, bound = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    if bias is not None:
        exact, bound = exact + bias[:, None], bound + np.abs(bias[:, None])
    assert (np.abs(c - exact) <= ERROR * bound).all()
    assert (memory[-64:] == 7.0).all()


def test_numbers_that_are_not_finite_reach_the_product() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        a, b = np.ones((40, 50), np.float32), np.ones((50, 40), np.float32)
        a[3, 7] = bad
        c = np.zeros((40, 40), np.float32)
        tile_product(a, b, None, c)
        assert not np.isfinite(c[3]).any() and np.isfinite(np.delete(c, 3, 0)).all()


def learner_with(product: int | None, layers: list[int]) -> OnPolicyLearner:
    spec = spec_of_spaces(spaces.Box(-1.0, 1.0, (OBS,)), spaces.Box(-1.0, 1.0, (ACTIONS,)), "X", None)
    config = TrainConfig(encoder_mlp_layers=layers, adam_eps=1e-3, max_grad_norm=0.0)
    torch.manual_seed(0)
    with mock.patch.object(NativeUpdate, "tile_product", product):
        learner = OnPolicyLearner(with_values(ActorCritic(spec, config)), config, CPU)
    learner.publication()
    return learner


def samples(learner: OnPolicyLearner, num_samples: int) -> Samples:
    """Samples of the learner's own policy."""
    generator, model = torch.Generator().manual_seed(1), learner.model
    floats = torch.randn(num_samples, OBS, generator=generator)
    with torch.no_grad():
        parameters, values = model(floats, None)
        action, log_prob = model.distribution.sample(parameters, generator)
    advantage, errors = torch.randn(2, num_samples, generator=generator)
    fields = {
        "floats": floats,
        "action": action,
        "action_parameters": parameters,
        "log_prob": log_prob,
        "advantage": advantage,
        "normalized_return": values + errors,
        "normalized_value": values,
    }
    return Samples(**{name: fields.get(name) for name in Samples._fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("num_samples", [1, 33, 64])
@pytest.mark.parametrize("layers", [[256, 200], [300], [40, 900, 40]], ids=str)
def test_steps_by_tiles_are_those_in_float32(layers: list[int], num_samples: int) -> None:
    tiles, vectors = learner_with(native.tile_product(), layers), learner_with(None, layers)
    for learner in (tiles, vectors):
        assert isinstance(learner._step, NativeUpdate)
    batch = samples(tiles, num_samples)
    (metrics, log_ratio), (expected, _) = (learner._take_step(batch, 1e-3) for learner in (tiles, vectors))
    assert log_ratio.exp().sub(1.0).abs().max() < 5e-4  # the policy acted in float32
    torch.testing.assert_close(metrics[[1, 2, 6]], expected[[1, 2, 6]], rtol=1e-3, atol=2e-4)
    difference = (tiles._gradient - vectors._gradient).norm() / vectors._gradient.norm()
    assert 0.0 < difference < 1e-3
    torch.testing.assert_close(tiles._flat.data, vectors._flat.data, rtol=0.0, atol=2e-5)


def test_small_layers_and_heads_do_not_use_tiles() -> None:
    learner = learner_with(None, [300, 64])
    record = NativeModel(learner.model, native.tile_product()).record
    assert [record.actor.layers[depth].tile_product is not None for depth in (0, 1)] == [True, False]
    assert record.policy_head.tile_product is None and record.value_head.tile_product is None
