"""Policies in NumPy and in C are the model's: parameters, values and log-probs, actions from the same distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from layouts import vector_observation
from unavoidable import needs_native_core

from asyncrl import native
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec
from asyncrl.inference.acting import ArrayPolicy
from asyncrl.inference.native_policy import NativePolicy
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.factory import ActingModel, make_acting_model
from asyncrl.models.flat import FlatParameters
from asyncrl.models.native_model import NativeModel

BOX = EnvSpec("Box", vector_observation(5, "float64"), BoxAction((3,), (-1.0,) * 3, (1.0,) * 3, "float32"), None)
CHOICE = EnvSpec("Choice", vector_observation(5, "float64"), DiscreteAction(4, 0), None)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"actor_critic_share_weights": True, "nonlinearity": "elu"},
    {"actor_critic_share_weights": False, "normalize_input": False},
    {"adaptive_stddev": True, "nonlinearity": "relu", "encoder_mlp_layers": [8]},
    {"squash_actions": True, "policy_initialization": "torch_default"},
    {"encoder_mlp_layers": []},
    {"algo": "sac"},
    {"algo": "sac", "nonlinearity": "elu"},
    {"algo": "sac", "normalize_input": False, "nonlinearity": "relu", "encoder_mlp_layers": [8]},
    {"algo": "sac", "encoder_mlp_layers": []},
]


def flat_model(spec: EnvSpec, settings: dict[str, Any]) -> tuple[ActingModel, FlatParameters]:
    """A model whose parameters and statistics are all far from their initial values."""
    model = make_acting_model(spec, TrainConfig(**settings))
    flat = FlatParameters(model, with_grad=False)
    generator = torch.Generator().manual_seed(5)
    flat.data.copy_(0.3 * torch.randn(flat.size, generator=generator))
    model.statistics.copy_(torch.rand(model.statistics.shape, generator=generator) + 0.5)
    return model, flat


def native_policy(model: ActingModel, seed: int) -> NativePolicy:
    kernels = native.kernels()
    assert kernels is not None and isinstance(model, ActorCritic) and NativeModel.fits(model)
    return NativePolicy(kernels, model, seed)


KNOWN_IN_C = [settings for settings in VARIANTS if not {"algo", "squash_actions"} & settings.keys()]
CASES = [
    *(pytest.param(ArrayPolicy, settings, id=f"numpy {settings}") for settings in VARIANTS),
    *(pytest.param(native_policy, settings, id=f"C {settings}", marks=needs_native_core) for settings in KNOWN_IN_C),
]


@pytest.mark.parametrize(("make", "settings"), CASES)
@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
def test_it_computes_what_the_model_computes(spec: EnvSpec, settings: dict[str, Any], make: Any) -> None:
    model, flat = flat_model(spec, settings)
    policy = make(model, seed=3)
    obs = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)) * 4.0
    obs[0, 0] = 1e6
    before = obs.clone()
    for _ in range(2):
        result, expected = policy.act(obs.numpy()), model.act(obs)
        for name in ("action_parameters", "value") if hasattr(expected, "value") else ("action_parameters",):
            found = torch.from_numpy(getattr(result, name))
            torch.testing.assert_close(found, getattr(expected, name), atol=2e-5, rtol=1e-5)
        parameters, action = (torch.from_numpy(array) for array in (result.action_parameters, result.action))
        log_prob = model.distribution.log_prob(parameters, action)
        tolerance = 1e-4 if "algo" in settings else 2e-5  # standard deviations of SAC may be small beside the means
        torch.testing.assert_close(torch.from_numpy(result.log_prob), log_prob, atol=tolerance, rtol=tolerance / 2)
        assert result.action.dtype == (np.int64 if spec is CHOICE else np.float32)
        assert {array.dtype for array in result[1:4]} == {np.dtype(np.float32)}
        flat.data.mul_(0.9)  # what the model is given in place, the policy has at once
        model.statistics.mul_(1.1)
    assert torch.equal(obs, before)


MAKERS = [pytest.param(ArrayPolicy, id="numpy"), pytest.param(native_policy, id="C", marks=needs_native_core)]


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        pytest.param(ArrayPolicy, {}, id="numpy"),
        pytest.param(ArrayPolicy, {"squash_actions": True}, id="numpy squashed"),
        pytest.param(native_policy, {}, id="C", marks=needs_native_core),
        pytest.param(native_policy, {"adaptive_stddev": True}, id="C adaptive", marks=needs_native_core),
    ],
)
def test_continuous_actions_have_the_mean_and_standard_deviation_of_their_distribution(
    make: Any, settings: dict[str, Any]
) -> None:
    model, _ = flat_model(BOX, settings)
    result = make(model, seed=1).act(np.ones((100_000, 5), dtype=np.float32))
    mean, log_std = result.action_parameters[0, :3], result.action_parameters[0, 3:]
    standard_error = np.exp(log_std) / np.sqrt(100_000)
    assert (np.abs(result.action.mean(0) - mean) < 5.0 * standard_error).all()
    assert (np.abs(result.action.std(0) - np.exp(log_std)) < 5.0 * standard_error).all()
    assert abs(np.corrcoef(result.action[:, 0], result.action[:, 1])[0, 1]) < 0.02


@pytest.mark.parametrize("make", MAKERS)
def test_choices_are_as_frequent_as_they_are_probable(make: Any) -> None:
    model, _ = flat_model(CHOICE, {})
    result = make(model, seed=1).act(np.ones((100_000, 5), dtype=np.float32))
    probabilities = np.exp(result.action_parameters[0])
    found = np.bincount(result.action, minlength=len(probabilities)) / 100_000
    assert probabilities.min() > 0.02 and np.ptp(probabilities) > 0.1
    assert (np.abs(found - probabilities) < 5.0 * np.sqrt(probabilities / 100_000)).all()


@pytest.mark.parametrize("make", MAKERS)
def test_seeds_decide_the_actions(make: Any) -> None:
    model, _ = flat_model(BOX, {})
    obs = np.ones((4, 5), dtype=np.float32)
    first, again, other = (make(model, seed).act(obs).action for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
