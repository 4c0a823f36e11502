"""What the model computes: acting, normalization, initial weights, and which network a gradient reaches."""

from typing import Any

import pytest
import torch
from critics import with_values
from layouts import vector_observation

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import block_size
from asyncrl.models.sac import SacActor, TwinCritic
from asyncrl.models.sizes import num_model_parameters, num_statistics, weights_block_size

BOX = EnvSpec("Box", vector_observation(5, "float64"), BoxAction((3,), (-1.0,) * 3, (1.0,) * 3, "float32"), None)
CHOICE = EnvSpec("Choice", vector_observation(5, "float64"), DiscreteAction(4, 0), None)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"actor_critic_share_weights": True, "nonlinearity": "elu"},
    {"adaptive_stddev": True, "nonlinearity": "relu", "encoder_mlp_layers": [8]},
    {"squash_actions": True, "policy_initialization": "torch_default"},
    {"encoder_mlp_layers": []},
]


@pytest.fixture(params=VARIANTS, ids=lambda variant: ",".join(variant) or "default")
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    variant: dict[str, Any] = request.param
    return variant


@torch.no_grad()
@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
def test_acting_gives_what_the_forward_pass_and_the_distribution_say(spec: EnvSpec, settings: dict[str, Any]) -> None:
    model = with_values(ActorCritic(spec, TrainConfig(**settings)))
    model.statistics.copy_(torch.rand_like(model.statistics) + 0.5)
    obs = torch.randn(6, 5)
    result = model.act(obs, torch.Generator().manual_seed(1))
    parameters, normalized_value = model(model.normalize_obs(obs))
    torch.testing.assert_close(result.action_parameters, parameters)
    torch.testing.assert_close(result.value, normalized_value * model.return_std + model.return_mean)
    torch.testing.assert_close(result.log_prob, model.distribution.log_prob(parameters, result.action))
    torch.testing.assert_close(model.normalize_return(result.value), normalized_value)
    assert torch.equal(model.act(obs, deterministic=True).action, model.distribution.mode(result.action_parameters))
    again = model.act(obs, torch.Generator().manual_seed(1))
    assert torch.equal(result.action, again.action)


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
def test_sizes_are_known_without_building_the_model(spec: EnvSpec, settings: dict[str, Any]) -> None:
    config = TrainConfig(**settings)
    model = with_values(ActorCritic(spec, config))
    assert spec.action.num_parameters == model.distribution.num_parameters
    assert num_model_parameters(spec, config) == sum(parameter.numel() for parameter in model.parameters())
    assert num_statistics(spec, config) == model.statistics.numel()
    assert weights_block_size(spec, config) == block_size(model)


def test_observations_are_normalized_and_clipped_only_if_asked() -> None:
    obs = torch.tensor([[3.0, 3.0, 3.0, 3.0, 1e6]])
    for normalize, expected in ((True, [[1.0, 1.0, 1.0, 1.0, 10.0]]), (False, obs.tolist())):
        model = with_values(ActorCritic(BOX, TrainConfig(normalize_input=normalize)))
        model.obs_mean.fill_(1.0)
        model.obs_std.fill_(2.0)
        assert model.normalize_obs(obs).tolist() == expected
        out = torch.empty_like(obs)
        assert model.normalize_obs(obs, out=out) is out
        assert out.tolist() == expected


def test_statistics_are_one_buffer_that_follows_the_module() -> None:
    model = ActorCritic(BOX, TrainConfig()).to(torch.float64)
    model.statistics.copy_(torch.arange(12.0))
    parts = (model.obs_mean, model.obs_std, model.return_mean, model.return_std)
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10], [11]]
    assert "statistics" in model.state_dict()
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("shared", [False, True])
def test_separate_networks_keep_the_value_loss_away_from_the_actor(shared: bool) -> None:
    model = with_values(ActorCritic(BOX, TrainConfig(actor_critic_share_weights=shared)))
    model(torch.randn(4, 5)).normalized_value.sum().backward()
    actor = [parameter for name, parameter in model.named_parameters() if name.startswith("actor")]
    assert all((parameter.grad is not None) == shared for parameter in actor)


@pytest.mark.parametrize("make", [ActorCritic, SacActor, TwinCritic])
def test_initial_weights_follow_from_the_seed_alone(make: Any) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = make(BOX, TrainConfig(seed=3))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    second, other = make(BOX, TrainConfig(seed=3)), make(BOX, TrainConfig(seed=4))
    weights, same, others = (torch.nn.utils.parameters_to_vector(each.parameters()) for each in (first, second, other))
    assert torch.equal(weights, same) and not torch.equal(weights, others)


@torch.no_grad()
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_policy_starts_near_zero_with_the_asked_deviation(adaptive: bool) -> None:
    model = ActorCritic(BOX, TrainConfig(adaptive_stddev=adaptive, initial_stddev=0.3))
    mean, log_std = model(torch.randn(100, 5)).action_parameters.chunk(2, dim=-1)
    assert float(mean.abs().max()) < 0.1
    torch.testing.assert_close(log_std.exp(), torch.full((100, 3), 0.3), atol=0.03, rtol=0.0)


@torch.no_grad()
def test_a_state_dependent_deviation_depends_on_the_observation() -> None:
    spread = {}
    for adaptive in (False, True):
        model = ActorCritic(BOX, TrainConfig(adaptive_stddev=adaptive))
        spread[adaptive] = float(model(torch.randn(100, 5)).action_parameters[:, 3:].std(0).max())
    assert spread[False] == 0.0
    assert spread[True] > 0.0
