"""State-dependent exploration: the formula, how long noise is held, and that actions and log-probabilities agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from datasets import BOX, CPU
from gymnasium import spaces
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.state_dependent_exploration.models import (
    MIN_VARIANCE,
    StateDependentActorCritic,
    state_dependent_log_std,
)
from asyncrl.contrib.state_dependent_exploration.noise import HeldNoise, StateDependentExploration
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.inference.acting import make_act
from asyncrl.inference.device_acting import DeviceActor
from asyncrl.learner.sac import SacLearner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.factory import make_acting_model
from asyncrl.models.flat import FlatParameters
from asyncrl.models.sac import SacActor
from asyncrl.models.sizes import num_model_parameters

ALGORITHMS: list[dict[str, Any]] = [
    {"algo": "ppo"},
    {"algo": "ppo", "actor_critic_share_weights": True, "squash_actions": True},
    {"algo": "ppo", "use_rnn": True, "rnn_size": 6},
    {"algo": "sac", "encoder_mlp_layers": [7, 5]},
]


def make_model(spec: EnvSpec = BOX, **settings: Any) -> tuple[Any, TrainConfig]:
    """A model whose parameters are all far from their initial values."""
    config = TrainConfig(**{"use_sde": True, "encoder_mlp_layers": [8], **settings})
    model = make_acting_model(spec, config)
    flat = FlatParameters(model)
    generator = torch.Generator().manual_seed(5)
    flat.data.copy_(0.4 * torch.randn(flat.size, generator=generator))
    model.statistics.copy_(torch.rand(model.statistics.shape, generator=generator) + 0.5)
    return model.eval(), config


def test_the_deviation_is_that_of_features_times_a_matrix_drawn_element_by_element() -> None:
    generator = torch.Generator().manual_seed(0)
    features, log_std = torch.randn(3, 4, generator=generator), torch.randn(4, 2, generator=generator)
    found = state_dependent_log_std(features, log_std).exp()
    for row in range(3):
        for action in range(2):
            variance = sum((features[row, f] * log_std[f, action].exp()) ** 2 for f in range(4))
            assert found[row, action] == pytest.approx(float((variance + MIN_VARIANCE) ** 0.5), rel=1e-5)
    matrices = torch.randn(200_000, 4, 2, generator=generator) * log_std.exp()
    drawn = torch.einsum("bf,nfa->nba", features, matrices).std(0)
    torch.testing.assert_close(found, drawn, rtol=0.02, atol=0.0)


def test_deviations_keep_their_precision_under_autocast() -> None:
    features, log_std = torch.rand(5, 4).bfloat16(), torch.randn(4, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = state_dependent_log_std(features, log_std)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, state_dependent_log_std(features.float(), log_std))


def test_the_heads_of_actor_and_critic_are_exact_under_autocast() -> None:
    model, _ = make_model(algo="ppo")
    exact = 200.6  # bfloat16 would make it 201
    with torch.no_grad():
        for head in (model.policy_head, model.value_head):
            head.weight.zero_()
            head.bias[...] = exact
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result = model(torch.rand(5, 3))
    for outputs in (result.action_parameters[:, :2], result.normalized_value):
        torch.testing.assert_close(outputs, torch.full_like(outputs, exact), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_gradients_of_a_log_probability_are_those_of_the_formula(algo: str) -> None:
    model, _ = make_model(algo=algo, normalize_input=False)
    obs = torch.randn(1, 3)
    parameters = model(obs)[0] if algo == "ppo" else model(obs)
    mean, std = parameters[0, :2].detach(), parameters[0, 2:].detach().exp()
    raw = torch.tensor([[0.3, -0.8]])
    model.distribution.log_prob(parameters, raw).sum().backward()
    features = (model.actor if algo == "ppo" else model.encoder)(model.inputs_of(obs)).detach()[0]
    sigma = model.log_std.detach().exp()
    # d log N / d log sigma[f, a] = (features[f] sigma[f, a] / std[a])^2 (((raw - mean) / std)^2 - 1)
    share = (features[:, None] * sigma / std) ** 2
    expected = share * (((raw[0] - mean) / std) ** 2 - 1.0)
    torch.testing.assert_close(model.log_std.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("algo", "reaches"), [("ppo", False), ("sac", True)])
def test_the_deviation_trains_the_features_of_sac_alone(algo: str, reaches: bool) -> None:
    model, _ = make_model(algo=algo, normalize_input=False)
    obs = torch.randn(5, 3)
    parameters = model(obs)[0] if algo == "ppo" else model(obs)
    parameters[:, 2:].sum().backward()
    gradient = next((model.actor if algo == "ppo" else model.encoder).parameters()).grad
    assert bool(gradient.abs().max() > 0) is reaches
    assert model.log_std.grad.abs().min() > 0


@pytest.mark.parametrize("settings", ALGORITHMS, ids=str)
def test_numpy_and_pytorch_act_with_the_parameters_that_training_computes(settings: dict[str, Any]) -> None:
    model, _ = make_model(**settings)
    obs = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    state = np.random.default_rng(2).normal(size=(20, model.rnn_state_size)).astype(np.float32)
    assert model.runs_in_arrays is not bool(settings.get("use_rnn"))
    answer = make_act(model, CPU, seed=1)(obs, state)
    inputs = model.inputs_of(torch.from_numpy(obs))
    with torch.no_grad():
        result, _ = model.step(inputs, torch.from_numpy(state))
    parameters = result if isinstance(result, Tensor) else result.action_parameters
    np.testing.assert_allclose(answer.action_parameters, parameters, rtol=1e-4, atol=1e-5)
    features = torch.from_numpy(np.array(answer.features))
    own = state_dependent_log_std(features, model.log_std.detach())
    np.testing.assert_allclose(answer.action_parameters[:, 2:], own, rtol=1e-4, atol=1e-5)
    actor = DeviceActor(model, CPU, seed=1)  # as on an accelerator
    of_device = actor.act(*actor.gather([(obs[:10], state[:10]), (obs[10:], state[10:])]))
    np.testing.assert_allclose(of_device.action_parameters, answer.action_parameters, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_device.features, answer.features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", ALGORITHMS, ids=str)
def test_an_action_is_the_mean_plus_features_times_the_held_matrix(settings: dict[str, Any]) -> None:
    model, config = make_model(**settings, sde_sample_freq=3)
    buffer = Places(num_envs=4)
    exploration = model.make_exploration(config, buffer, 2, seed=7)
    assert isinstance(exploration, StateDependentExploration)
    obs = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    answer = make_act(model, CPU, seed=1)(obs, np.zeros((8, model.rnn_state_size), np.float32))
    found = exploration.apply([(1, 0), (0, 0)], answer)
    sigma = model.log_std.detach().exp().numpy()
    for position, (split, env) in enumerate([(split, env) for split in (1, 0) for env in range(4)]):
        matrix = exploration._noise[split]._matrices[env]
        for action in range(2):
            noise = sum(answer.features[position, f] * sigma[f, action] * matrix[f, action] for f in range(len(sigma)))
            expected = answer.action_parameters[position, action] + noise
            assert found.action[position, action] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    parameters = torch.from_numpy(np.array(answer.action_parameters))
    log_prob = model.distribution.log_prob(parameters, torch.from_numpy(found.action))
    np.testing.assert_allclose(found.log_prob, log_prob.detach(), rtol=1e-5)
    matrices = np.concatenate([exploration._noise[split]._matrices for split in (0, 1)])
    assert len(np.unique(matrices)) == matrices.size, "each environment has a matrix that no other has"


class Places:
    """A buffer in which the test says where episodes begin; a place is (split, row)."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def beginnings(self, place: tuple[int, int]) -> tuple[int, np.ndarray, bool]:
        return place[0], np.zeros(self.num_envs, dtype=bool), True


def kept(noise: HeldNoise, rows: list[tuple[list[bool], bool]]) -> np.ndarray:
    """For each environment and step the number of the matrix, counted from 0."""
    seen: list[list[float]] = [[] for _ in rows[0][0]]
    numbers = []
    for begins, takes_action in rows:
        first = noise.at(np.array(begins), takes_action)[:, 0, 0]
        if not takes_action:
            continue
        for known, value in zip(seen, first.tolist(), strict=True):
            if value not in known:
                known.append(value)
        numbers.append([known.index(value) for known, value in zip(seen, first.tolist(), strict=True)])
    return np.array(numbers).T


def test_noise_is_held_for_its_steps_and_drawn_anew_where_an_episode_begins() -> None:
    no, first = [False, False], [True, False]
    rows = [(no, True)] * 4 + [(first, True)] + [(no, True)] * 4
    noise = HeldNoise((2, 3, 2), 3, np.random.default_rng(0))
    assert kept(noise, rows).tolist() == [[0, 0, 0, 1, 2, 2, 2, 3, 3], [0, 0, 0, 1, 1, 1, 2, 2, 2]]
    noise = HeldNoise((2, 3, 2), -1, np.random.default_rng(0))
    assert kept(noise, rows).tolist() == [[0] * 4 + [1] * 5, [0] * 9]
    noise = HeldNoise((2, 3, 2), 1, np.random.default_rng(0))
    assert kept(noise, rows).tolist() == [list(range(9))] * 2


def test_a_row_without_an_action_counts_no_step_and_hands_its_beginnings_on() -> None:
    no, first = [False, False], [True, False]
    noise = HeldNoise((2, 3, 2), 4, np.random.default_rng(0))
    rows = [(no, True), (no, True), (first, False), (no, True), (no, True), (no, True)]
    assert kept(noise, rows).tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]]


def test_noise_follows_from_the_seed_whatever_order_splits_are_served_in() -> None:
    def matrices(seed: int, orders: list[list[int]]) -> np.ndarray:
        model, config = make_model(algo="ppo", sde_sample_freq=1)
        exploration = model.make_exploration(config, Places(num_envs=2), 2, seed)
        assert isinstance(exploration, StateDependentExploration)
        for order in orders:
            for split in order:
                answer = make_act(model, CPU, seed=1)(np.ones((2, 3), np.float32), np.zeros((2, 0), np.float32))
                exploration.apply([(split, 0)], answer)
        return np.stack([exploration._noise[split]._matrices for split in (0, 1)])

    first = matrices(3, [[0, 1], [0, 1]])
    assert (matrices(3, [[1, 0], [0, 1]]) == first).all()
    assert (matrices(4, [[0, 1], [0, 1]]) != first).all()


@pytest.mark.parametrize("settings", ALGORITHMS, ids=str)
def test_the_arena_has_room_for_its_parameters_and_first_deviations_are_those_of_the_settings(settings: Any) -> None:
    config = TrainConfig(**{"encoder_mlp_layers": [8], **settings}, use_sde=True, initial_stddev=0.5)
    model: Any = make_acting_model(BOX, config)
    assert sum(each.numel() for each in model.parameters()) == num_model_parameters(BOX, config)
    ones = torch.ones(1, len(model.log_std))
    found = state_dependent_log_std(ones, model.log_std.detach()).exp()
    torch.testing.assert_close(found, torch.full((1, 2), 0.5), rtol=1e-4, atol=0.0)
    if isinstance(model, StateDependentActorCritic):
        model.limit_stddev(0.2)
        found = state_dependent_log_std(ones, model.log_std.detach()).exp()
        torch.testing.assert_close(found, torch.full((1, 2), 0.2), rtol=1e-3, atol=0.0)


def test_switched_off_the_models_are_the_plain_ones() -> None:
    assert type(make_acting_model(BOX, TrainConfig())) is ActorCritic
    assert type(make_acting_model(BOX, TrainConfig(algo="sac"))) is SacActor


def test_images_are_possible() -> None:
    image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    spec = spec_of_spaces(image, spaces.Box(-1.0, 1.0, (2,)), "Images", None)
    for algo in ("ppo", "sac"):
        model, _ = make_model(spec, algo=algo, encoder_conv_mlp_layers=[8])
        assert not model.runs_in_arrays
        answer = make_act(model, CPU, seed=1)(
            np.zeros((2, 192), np.uint8), np.zeros((2, model.rnn_state_size), np.float32)
        )
        assert answer.features.shape == (2, 8)


def test_weight_decay_leaves_the_deviations_alone() -> None:
    model, config = make_model(algo="sac", weight_decay=0.1)
    learner = SacLearner(model, config, BOX, CPU)
    decayed = {each.data_ptr() for each in learner._actor._decayed}
    assert model.log_std.data_ptr() not in decayed and model.mlp.head_bias.data_ptr() in decayed
