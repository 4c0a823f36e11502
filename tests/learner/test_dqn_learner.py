"""DQN's policy, targets and updates, against their formulas and a plain reference with autograd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gymnasium import spaces
from linear_networks import networks_of_linear_layers
from replay_learners import make
from torch.nn.functional import smooth_l1_loss
from transitions import BOX, CHOICE, draw, one_step

from asyncrl.algorithms.dqn import double_target, exploration_rate
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.distributions import FORBIDDEN
from asyncrl.models.dqn import QNetwork, best_choice, dueling_values, epsilon_greedy
from asyncrl.models.flat import FlatParameters, read_block

MASKED = spec_of_spaces(
    spaces.Dict({"action_mask": spaces.MultiBinary(3), "state": spaces.Box(-1.0, 1.0, (3,))}),
    spaces.Discrete(3),
    "Masked",
    None,
)


def make_dqn(spec: EnvSpec = CHOICE, **settings: Any) -> Any:
    learner = make(spec, algo="dqn", **{"learning_rate": 0.01, **settings})
    assert (learner._step != learner._update) == (spec is not MASKED and settings.get("by") != "autograd")
    return learner


def test_the_best_choice_is_taken_and_others_are_drawn_by_epsilon() -> None:
    values = torch.tensor([[1.0, 3.0, 2.0, 0.0], [5.0, 3.0, 2.0, 0.0]])
    expected = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1]])
    torch.testing.assert_close(epsilon_greedy(values, torch.tensor([0.4])).exp(), expected)
    greedy = epsilon_greedy(values, torch.tensor([0.0]))
    assert greedy.argmax(-1).tolist() == best_choice(values).tolist() == [1, 0]
    assert (greedy == FORBIDDEN).sum() == 6 and torch.isfinite(greedy).all()


def test_what_a_mask_forbids_is_neither_best_nor_drawn() -> None:
    values = torch.tensor([[1.0, 3.0, 2.0, 0.0], [1.0, 3.0, 2.0, 0.0]])
    mask = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    probability = epsilon_greedy(values, torch.tensor([0.4]), mask).exp()
    torch.testing.assert_close(probability, torch.tensor([[0.2, 0.0, 0.8, 0.0], [0.1, 0.7, 0.1, 0.1]]))
    assert best_choice(values, mask).tolist() == [2, 1]


def test_a_dueling_network_adds_advantages_around_their_mean() -> None:
    outputs = torch.tensor([[1.0, 2.0, 6.0, 10.0]])  # advantages, then the state's value
    torch.testing.assert_close(dueling_values(outputs), torch.tensor([[8.0, 9.0, 13.0]]))


def test_the_trained_network_chooses_and_the_target_network_says_what_it_is_worth() -> None:
    values, target_values = torch.tensor([[0.0, 9.0, 1.0]] * 3), torch.tensor([[7.0, 2.0, 5.0]] * 3)
    reward, discount = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.0, 0.5])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    found = double_target(reward, discount, values, target_values, mask)
    torch.testing.assert_close(found, torch.tensor([1.0 + 0.5 * 2.0, 1.0, 1.0 + 0.5 * 5.0]))


def test_what_the_mask_of_the_next_observation_forbids_is_not_its_best_choice() -> None:
    learner = make_dqn(MASKED, prioritized_replay=True)
    with torch.no_grad():
        for network in (learner.model, learner.target_model):
            network.mlp.layers()[-1].weight.zero_()
            network.mlp.head_bias.copy_(torch.tensor([0.0, 9.0, 1.0]))
    obs, next_obs = torch.tensor([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]]), torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 1.0]])
    learner.train([one_step(obs, torch.tensor([0]), torch.tensor([1.0]), next_obs, torch.tensor([0.5]))])
    assert learner.td_errors is not None
    assert learner.td_errors.tolist() == [[1.0 + 0.5 * 1.0]]


def test_before_the_first_update_choices_are_as_random_as_the_schedule_says() -> None:
    """Also with the weights of a run that has ended (`--init_from`)."""
    learner = make_dqn(exploration_fraction=0.5, train_for_env_steps=1000)
    learner.model.epsilon.fill_(0.05)
    learner.set_exploration(100)
    assert float(learner.model.epsilon) == pytest.approx(exploration_rate(learner._config, 100)) == pytest.approx(0.81)


@pytest.mark.parametrize(
    "settings", [{}, {"dueling": True, "tau": 0.3}, {"max_grad_norm": 0.05, "nonlinearity": "relu"}]
)
@pytest.mark.parametrize("by", ["passes", "autograd"])
def test_updates_are_those_of_a_plain_reference(by: str, settings: dict[str, Any]) -> None:
    learner = make_dqn(by=by, prioritized_replay=True, **settings)
    config = learner._config
    (network,) = networks_of_linear_layers(learner.model.mlp)
    (target,) = networks_of_linear_layers(learner.target_model.mlp)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=config.adam_eps)

    def values(of: torch.nn.Module, obs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = of(obs)
        if not config.dueling:
            return outputs
        advantage = outputs[:, :4]
        return outputs[:, 4:] + advantage - advantage.mean(1, keepdim=True)

    for batch in draw(CHOICE, 5):
        batch = batch._replace(weight=torch.rand(len(batch.reward), generator=torch.Generator().manual_seed(1)))
        metrics = learner.train([batch])
        rows = torch.arange(len(batch.reward))
        with torch.no_grad():
            best = values(network, batch.next_obs).argmax(1)
            wanted = batch.reward + batch.discount * values(target, batch.next_obs)[rows, best]
        chosen = values(network, batch.obs)[rows, batch.action]
        loss = (batch.weight * smooth_l1_loss(chosen, wanted, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm or math.inf)
        optimizer.step()
        with torch.no_grad():
            for own, other in zip(target.parameters(), network.parameters(), strict=True):
                own.lerp_(other, config.tau)
        assert metrics is not None and learner.td_errors is not None
        torch.testing.assert_close(learner.td_errors, (chosen - wanted).abs().detach().unsqueeze(0))
        found = (metrics.loss, metrics.q_mean, metrics.grad_norm)
        assert found == pytest.approx((loss.item(), chosen.mean().item(), norm.item()), rel=1e-4)
    obs = draw(CHOICE, 1, seed=9)[0].obs
    for own, plain in ((learner.model, network), (learner.target_model, target)):
        torch.testing.assert_close(own.values(own.inputs_of(obs)), values(plain, obs), rtol=1e-4, atol=1e-5)


def test_exploration_falls_with_the_steps_and_is_published_and_not_trained() -> None:
    schedule = {"train_for_env_steps": 1000, "exploration_initial_eps": 0.9, "exploration_final_eps": 0.1}
    learner = make_dqn(**schedule, exploration_fraction=0.5, weight_decay=0.5, learning_rate=0.1)
    config = learner._config
    assert [exploration_rate(config, steps) for steps in (0, 250, 500, 1000)] == pytest.approx([0.9, 0.5, 0.1, 0.1])
    at_once = make_dqn(**schedule, exploration_fraction=0.0)._config
    assert exploration_rate(at_once, 0) == pytest.approx(0.1)
    acting = QNetwork(CHOICE, config)
    flat = FlatParameters(acting, with_grad=False)
    for steps, epsilon in ((0, 0.9), (250, 0.5), (700, 0.1)):
        metrics = learner.train(draw(CHOICE, 2), steps)
        read_block(acting, flat, learner.publication())
        assert metrics is not None and metrics.exploration_rate == pytest.approx(epsilon)
        assert float(acting.epsilon) == pytest.approx(epsilon)
        parameters = acting.act(draw(CHOICE, 1)[0].obs).action_parameters.exp()
        assert parameters.min().item() == pytest.approx(epsilon / 4)
        assert parameters.max().item() == pytest.approx(1 - epsilon * 3 / 4)


def test_other_actions_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--algo=dqn needs an action that is one choice, and Box has"):
        QNetwork(BOX, TrainConfig(algo="dqn"))
