"""The policy in NumPy is the model's: same parameters, values and log-probs, actions from the same distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from layouts import vector_observation

from asyncrl import native
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec
from asyncrl.inference.array_policy import ArrayPolicy
from asyncrl.inference.native_policy import NativePolicy
from asyncrl.models.actor_critic import ActorCritic
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
]


def flat_model(spec: EnvSpec, settings: dict[str, Any]) -> tuple[ActorCritic, FlatParameters]:
    """A model whose parameters and statistics are all far from their initial values."""
    model = ActorCritic(spec, TrainConfig(**settings))
    flat = FlatParameters(model, with_grad=False)
    generator = torch.Generator().manual_seed(5)
    flat.data.copy_(0.3 * torch.randn(flat.size, generator=generator))
    model.statistics.copy_(torch.rand(model.statistics.shape, generator=generator) + 0.5)
    return model, flat


def native_policy(model: ActorCritic, seed: int) -> Any:
    kernels = native.kernels()
    assert kernels is not None
    return NativePolicy(kernels, model, seed) if NativeModel.fits(model) else ArrayPolicy(model, seed)


@pytest.mark.parametrize("make", [ArrayPolicy, native_policy], ids=["numpy", "native"])
@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
@pytest.mark.parametrize("settings", VARIANTS, ids=lambda variant: ",".join(variant) or "default")
def test_it_computes_what_the_model_computes(spec: EnvSpec, settings: dict[str, Any], make: Any) -> None:
    model, flat = flat_model(spec, settings)
    policy = make(model, seed=3)
    obs = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)) * 4.0
    obs[0, 0] = 1e6
    for _ in range(2):
        result = policy.act(obs.numpy())
        parameters, normalized_value = model(model.normalize_obs(obs))
        torch.testing.assert_close(torch.from_numpy(result.action_parameters), parameters, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(
            torch.from_numpy(result.value), model.denormalize_value(normalized_value), atol=2e-5, rtol=1e-5
        )
        log_prob = model.distribution.log_prob(parameters, torch.from_numpy(result.action))
        torch.testing.assert_close(torch.from_numpy(result.log_prob), log_prob, atol=2e-5, rtol=1e-5)
        assert result.action.dtype == (np.int64 if spec is CHOICE else np.float32)
        assert {array.dtype for array in result[1:]} == {np.dtype(np.float32)}
        flat.data.mul_(0.9)  # what the model is given in place, the policy has at once
        model.statistics.mul_(1.1)


def test_it_leaves_the_observations_as_they_are() -> None:
    model, _ = flat_model(BOX, {})
    obs = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    before = obs.copy()
    ArrayPolicy(model, seed=0).act(obs)
    np.testing.assert_array_equal(obs, before)


@pytest.mark.parametrize("squash", [False, True])
def test_continuous_actions_have_the_mean_and_deviation_of_their_distribution(squash: bool) -> None:
    model, _ = flat_model(BOX, {"squash_actions": squash})
    result = ArrayPolicy(model, seed=1).act(np.ones((100_000, 5), dtype=np.float32))
    mean, log_std = result.action_parameters[0, :3], result.action_parameters[0, 3:]
    standard_error = np.exp(log_std) / np.sqrt(100_000)
    assert (np.abs(result.action.mean(0) - mean) < 5.0 * standard_error).all()
    assert (np.abs(result.action.std(0) - np.exp(log_std)) < 5.0 * standard_error).all()
    assert abs(np.corrcoef(result.action[:, 0], result.action[:, 1])[0, 1]) < 0.02


def test_choices_are_drawn_as_often_as_they_are_likely() -> None:
    model, _ = flat_model(CHOICE, {})
    result = ArrayPolicy(model, seed=1).act(np.ones((100_000, 5), dtype=np.float32))
    probability = np.exp(result.action_parameters[0])
    frequency = np.bincount(result.action, minlength=4) / 100_000
    assert (np.abs(frequency - probability) < 5.0 * np.sqrt(probability * (1.0 - probability) / 100_000)).all()


def test_seeds_decide_the_actions() -> None:
    model, _ = flat_model(BOX, {})
    obs = np.ones((4, 5), dtype=np.float32)
    first, again, other = (ArrayPolicy(model, seed).act(obs).action for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
