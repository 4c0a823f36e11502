"""SAC with more than two critics: two that are drawn give the targets, and all of them train the policy (REDQ)."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from replay_learners import make
from transitions import BOX, CHOICE, draw

from asyncrl.algorithms import sac
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.fast.sac_passes import SacPasses
from asyncrl.models.encoders import Inputs


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
def test_targets_are_of_the_drawn_pair_and_the_policy_follows_the_mean(spec: EnvSpec) -> None:
    """Each critic, and the policy, has the gradient that a loop over critics gives."""
    alpha = 0.2
    learner = make(spec, double=True, num_critics=5, ent_coef=alpha, learning_rate=0.0)
    with torch.no_grad():  # so that the pair decides the targets
        learner.target_critic.mlp.head_bias.add_(torch.arange(5.0, dtype=torch.float64).view(5, 1))
    (batch,) = draw(spec, 1, dtype=torch.float64)
    inputs, actor, critic = learner._inputs_of(batch, True), learner.model, learner.critic
    noise, pair = inputs[-2:]
    size = len(batch.reward)
    assert len(set(pair.tolist())) == 2

    def q_of(network: torch.nn.Module, idx: int, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return network.values(Inputs(obs), action)[idx]

    with torch.no_grad():
        parameters = actor(batch.next_obs)
        sample = sac.draw_squashed(learner.algorithm.parts.gaussian_of(parameters), noise[size:])
        both = [q_of(learner.target_critic, idx, batch.next_obs, sample.action) for idx in pair.tolist()]
        smaller = torch.minimum(*both)
        if spec is BOX:
            next_value = smaller[:, 0] - alpha * sample.log_prob
        else:
            next_value = (parameters.exp() * (smaller - alpha * parameters)).sum(1)
        target = batch.reward + batch.discount * next_value
    losses = []
    for idx in range(5):
        q = q_of(critic, idx, batch.obs, learner.algorithm.parts.continuous_of(batch.action).double())
        chosen = q[:, 0] if spec is BOX else q.gather(1, batch.action.unsqueeze(1))[:, 0]
        losses.append(0.5 * ((chosen - target) ** 2).mean())
    of_critics = torch.autograd.grad(sum(losses), list(critic.parameters()))
    parameters = actor(batch.obs)
    sample = sac.draw_squashed(learner.algorithm.parts.gaussian_of(parameters), noise[:size])
    mean = torch.stack([q_of(critic, idx, batch.obs, sample.action) for idx in range(5)]).mean(0)
    if spec is BOX:
        policy_loss = (alpha * sample.log_prob - mean[:, 0]).mean()
    else:
        policy_loss = (parameters.exp() * (alpha * parameters - mean)).sum(1).mean()
    of_actor = torch.autograd.grad(policy_loss, list(actor.parameters()))

    with torch.no_grad():
        critic_figures, actor_figures = learner._update(inputs, True)
    assert actor_figures is not None
    assert critic_figures[0].item() == pytest.approx(float(sum(losses).detach()), rel=1e-9)
    assert actor_figures[0].item() == pytest.approx(float(policy_loss.detach()), rel=1e-9)
    moments = learner.state_dict().optimizer  # after one step a tenth of the gradient
    for name, gradients in (("critic", of_critics), ("actor", of_actor)):
        expected = torch.cat([each.flatten() for each in gradients])
        torch.testing.assert_close(moments[f"{name}.exp_avg.0"], 0.1 * expected)


def test_each_pair_is_drawn_equally_often_and_two_critics_draw_none() -> None:
    learner, (batch,) = make(BOX, num_critics=4), draw(BOX, 1)
    pairs = Counter(frozenset(learner._inputs_of(batch, True)[-1].tolist()) for _ in range(3000))
    assert len(pairs) == 6 and all(len(pair) == 2 for pair in pairs)
    assert all(400 < count < 600 for count in pairs.values())
    two = make(BOX)
    assert isinstance(two._step.__self__, SacPasses)
    assert len(two._inputs_of(batch, True)) == len(batch) + 1
    assert learner._step == learner._update


def test_more_critics_are_trained_with_several_steps_and_continue_from_a_checkpoint() -> None:
    learner, other = (make(BOX, num_critics=3, seed=seed, n_step=3) for seed in (1, 2))
    batches = draw(BOX, 4, n_step=3)
    assert learner.train(batches[:2]) is not None
    other.load_state_dict(learner.state_dict())
    learner.train(batches[2:])
    other.train(batches[2:])
    first, second = (each.state_dict().optimizer for each in (learner, other))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
