"""TD3's update against a plain reference with autograd, on a problem whose answer is known, and what it promises."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from linear_networks import networks_of_linear_layers
from replay_learners import make
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from transitions import BOX, CHOICE, draw

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.td3 import Td3Learner
from asyncrl.models.td3 import DeterministicActor


class Reference:
    """TD3 as in the paper, one network at a time, with PyTorch's modules, autograd and Adam."""

    def __init__(self, learner: Td3Learner, config: TrainConfig) -> None:
        self.config = config
        (self.actor,) = networks_of_linear_layers(learner.model.mlp)
        self.critics = nn.ModuleList(networks_of_linear_layers(learner.critic.mlp))
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.generator = torch.Generator().set_state(learner._generator.get_state())
        self.optimizers = [
            torch.optim.Adam(module.parameters(), lr=config.learning_rate, eps=config.adam_eps)
            for module in (self.critics, self.actor)
        ]
        self.updates = 0

    def values(self, critics: nn.ModuleList, obs: Tensor, action: Tensor) -> list[Tensor]:
        return [critic(torch.cat((obs, action), -1)).squeeze(-1) for critic in critics]

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, module: nn.Module) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), self.config.max_grad_norm or math.inf)
        optimizer.step()

    def update(self, batch: Transitions) -> dict[str, float]:
        config = self.config
        self.updates += 1
        noise = torch.randn((len(batch.reward), 2), generator=self.generator, dtype=torch.float64)
        with torch.no_grad():
            smoothing = (noise * config.target_policy_noise).clamp(-config.target_noise_clip, config.target_noise_clip)
            action = (self.target_actor(batch.next_obs).tanh() + smoothing).clamp(-1.0, 1.0)
            smaller = torch.min(*self.values(self.target_critics, batch.next_obs, action))
            target = batch.reward + batch.discount * smaller
        values = self.values(self.critics, batch.obs, batch.action.tanh())
        critic_loss = 0.5 * sum(mse_loss(value, target) for value in values)
        self.step(self.optimizers[0], critic_loss, self.critics)
        step_metrics = {"critic_loss": critic_loss.item(), "q_mean": torch.stack(values).mean().item()}
        if self.updates % config.policy_delay == 0:
            actor_loss = -self.values(self.critics, batch.obs, self.actor(batch.obs).tanh())[0].mean()
            self.step(self.optimizers[1], actor_loss, self.actor)
            step_metrics["actor_loss"] = actor_loss.item()
            for old, new in ((self.target_actor, self.actor), (self.target_critics, self.critics)):
                for target_parameter, parameter in zip(old.parameters(), new.parameters(), strict=True):
                    target_parameter.data.lerp_(parameter.data, config.tau)
        return step_metrics


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"nonlinearity": "relu", "encoder_mlp_layers": [16, 8], "max_grad_norm": 0.3},
        {"policy_delay": 1, "target_policy_noise": 0.7, "target_noise_clip": 0.1},
        {"policy_delay": 3, "n_step": 3, "critic_layer_norm": True},
    ],
    ids=lambda settings: ",".join(settings) or "default",
)
@pytest.mark.parametrize("by", ["passes", "autograd"])
def test_updates_are_those_of_a_plain_reference(by: str, settings: dict[str, Any]) -> None:
    settings = {"learning_rate": 0.01, "adam_eps": 1e-3, "tau": 0.1, "nonlinearity": "tanh", **settings}
    learner = make(BOX, double=True, by=by, algo="td3", **{"policy_delay": 2, **settings})
    reference = Reference(learner, learner._config)
    for batch in draw(BOX, 6, dtype=torch.float64, n_step=settings.get("n_step", 1)):
        step_metrics = reference.update(batch)
        metrics = learner.train([batch])
        for name, metric in step_metrics.items():
            assert getattr(metrics, name) == pytest.approx(metric, rel=1e-9), name
    obs, inputs = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 5, dtype=torch.float64)
    for actor, expected in ((learner.model, reference.actor), (learner.target_actor, reference.target_actor)):
        torch.testing.assert_close(actor.mlp(obs)[0], expected(obs))
    for critic, many in ((learner.critic, reference.critics), (learner.target_critic, reference.target_critics)):
        torch.testing.assert_close(critic.mlp(inputs), torch.stack([each(inputs) for each in many]))


def test_the_policy_finds_the_best_action_of_each_observation() -> None:
    learner = make(
        BOX, algo="td3", policy_delay=2, encoder_mlp_layers=[64], learning_rate=0.003, nonlinearity="relu", tau=0.02
    )
    batches = []
    for batch in draw(BOX, 1500, size=64):
        obs = batch.obs.tanh()
        action = batch.action.tanh()
        paid = -((action - 0.8 * obs[:, :2]) ** 2).sum(-1)
        batches.append(batch._replace(obs=obs, reward=paid, discount=torch.zeros_like(paid)))
    learner.train(batches)
    obs = draw(BOX, 1, size=200, seed=8)[0].obs.tanh()
    assert (learner.model(obs).tanh() - 0.8 * obs[:, :2]).abs().mean().item() < 0.1


def test_choices_are_refused() -> None:
    with pytest.raises(UsageError, match="--algo=td3 needs continuous actions, and Choice has "):
        DeterministicActor(CHOICE, TrainConfig(algo="td3"))
