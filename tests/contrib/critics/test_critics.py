"""SAC with critics of blocks: the joint pass, the bins, what follows a step, and values whose answer is known."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from contrib.critics.critic_sets import CRITICS, critic_set
from replay_learners import make
from transitions import BOX, CHOICE, draw
from unavoidable import needs_cuda

from asyncrl.algorithms import sac
from asyncrl.algorithms.off_policy import Steps
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.critics.block_network import BatchRenorm, UnitLinear, normalizing_by_batch
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.encoders import Inputs
from asyncrl.models.flat import FlatParameters, read_block
from asyncrl.models.sac import SacActor
from asyncrl.models.sizes import weights_block_size

SPECS = pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
# Parts of different papers in one network, each with bins.
UNIT_WEIGHTS: dict[str, Any] = {**critic_set("simba_v2"), "use_target_critics": False, "weight_decay": 0.1}
RENORMALIZED: dict[str, Any] = {**critic_set("simba"), "batch_renorm": True, "value_bins": 11}


def renorms(network: torch.nn.Module) -> list[BatchRenorm]:
    return [layer for layer in network.modules() if isinstance(layer, BatchRenorm)]


@SPECS
def test_without_target_critics_both_observations_are_one_batch(spec: EnvSpec) -> None:
    """The critics' gradient and statistics are those of a joint pass; the targets have no gradient (CrossQ)."""
    settings = {**critic_set("crossq"), "ent_coef": 0.2, "policy_delay": 1}
    learner = make(spec, double=True, **settings)
    (batch,) = draw(spec, 1, dtype=torch.float64)
    critic, actor = copy.deepcopy(learner.critic), copy.deepcopy(learner.model)
    size, alpha = len(batch.reward), 0.2
    generator = torch.Generator().set_state(learner._generator.get_state())
    noise = torch.randn(2 * size, learner.algorithm.parts.num_continuous, generator=generator, dtype=torch.float64)
    with torch.no_grad():  # the policy acts with its running statistics
        parameters = actor(batch.next_obs)
        sample = sac.draw_squashed(learner.algorithm.parts.gaussian_of(parameters), noise[size:])
    obs, next_obs = batch.obs, batch.next_obs
    for layer in renorms(critic):
        layer.uses_batch = True
    actions = torch.cat((learner.algorithm.parts.continuous_of(batch.action).double(), sample.action))
    both = critic.values(Inputs(torch.cat((obs, next_obs))), actions)
    if spec is BOX:
        next_value = both[:, size:, 0].detach().amin(0) - alpha * sample.log_prob
        values = both[:, :size, 0]
    else:
        next_value = (parameters.exp() * (both[:, size:].detach().amin(0) - alpha * parameters)).sum(-1)
        values = torch.stack([q.gather(1, batch.action.unsqueeze(1)).squeeze(1) for q in both[:, :size]])
    target = batch.reward + batch.discount * next_value
    loss = sum(0.5 * ((q - target) ** 2).mean() for q in values)
    loss.backward()

    metrics = learner.train([batch])
    assert metrics.critic_loss == pytest.approx(float(loss.detach()), rel=1e-9)
    expected = torch.cat([(0 * p if p.grad is None else p.grad).flatten() for p in critic.parameters()])
    moment = learner.state_dict().optimizer["critic.exp_avg.0"]  # after one step (1 - beta1) times the gradient
    torch.testing.assert_close(moment, 0.5 * expected)
    first, of_actor = renorms(learner.critic)[0], renorms(learner.model)[0]
    joint = torch.cat((torch.cat((obs, next_obs)), actions), dim=1)
    torch.testing.assert_close(first.running_mean.detach()[0, 0], 0.01 * joint.mean(0))
    torch.testing.assert_close(first.running_variance.detach()[0, 0], 0.99 + 0.01 * joint.var(0, correction=0))
    torch.testing.assert_close(of_actor.running_mean.detach()[0, 0], 0.01 * obs.mean(0))  # its own pass alone
    assert "target_critic" not in learner.state_dict().optimizer
    # The policy is trained with the statistics of its batch, and with critics that have their running ones.
    for layer in renorms(actor):
        layer.uses_batch = True
    with torch.no_grad():
        parameters = actor(obs)
        sample = sac.draw_squashed(learner.algorithm.parts.gaussian_of(parameters), noise[:size])
        values = learner.critic.values(Inputs(obs), sample.action)
        log_probs = learner.algorithm.parts.log_probs_of(parameters)
        cost = -sac.soft_value(values, log_probs, sample.log_prob, torch.tensor(alpha)).mean()
    assert metrics.actor_loss == pytest.approx(float(cost), rel=1e-6)


@SPECS
@pytest.mark.parametrize(
    "settings",
    [{}, UNIT_WEIGHTS, RENORMALIZED, {**RENORMALIZED, "use_target_critics": False}],
    ids=["perceptrons", "unit weights without targets", "renormalized", "renormalized without targets"],
)
def test_bins_are_trained_towards_the_projected_distribution(spec: EnvSpec, settings: dict[str, Any]) -> None:
    common = {"value_bins": 7, "value_limit": 2.0, "ent_coef": 0.2, "n_step": 2, "normalize_input": False}
    learner = make(spec, double=True, **{**settings, **common})
    (batch,) = draw(spec, 1, dtype=torch.float64, n_step=2)
    if learner.target_critic is not None:
        head_bias = learner.target_critic.mlp.head_bias
        head_bias.add_(torch.linspace(-1.0, 1.0, head_bias.shape[1]))
    critic, target_critic, actor = (
        copy.deepcopy(each) for each in (learner.critic, learner.target_critic, learner.model)
    )
    size, support = len(batch.reward), torch.linspace(-2.0, 2.0, 7).double()
    generator = torch.Generator().set_state(learner._generator.get_state())
    noise = torch.randn(3 * size, learner.algorithm.parts.num_continuous, generator=generator, dtype=torch.float64)
    target = torch.zeros(size, 7, dtype=torch.float64)
    with torch.no_grad():
        entropy = []
        for obs, own in ((batch.between_obs[:, 0], noise[size : 2 * size]), (batch.next_obs, noise[2 * size :])):
            parameters = actor(obs)
            sample = sac.draw_squashed(learner.algorithm.parts.gaussian_of(parameters), own)
            entropy.append(-sample.log_prob if spec is BOX else -(parameters.exp() * parameters).sum(-1))
    numbers = learner.algorithm.parts.continuous_of(batch.action).double()
    for layer in renorms(critic):
        layer.uses_batch = True
    if target_critic is None:  # both observations are one batch
        joint = Inputs(torch.cat((batch.obs, batch.next_obs)))
        log_probs, next_log_probs = critic.predictions(joint, torch.cat((numbers, sample.action))).split(size, dim=1)
    else:
        log_probs = critic.predictions(Inputs(batch.obs), numbers)
        next_log_probs = target_critic.predictions(Inputs(batch.next_obs), sample.action)
    with torch.no_grad():
        bins = next_log_probs.exp()  # [2, B, N, 7]
        choices = torch.ones(size, 1).double() if spec is BOX else parameters.exp()
        for row in range(size):
            for choice in range(choices.shape[1]):
                smaller = min(bins[:, row, choice], key=lambda each: float(each @ support))
                for probability, value in zip(smaller, support, strict=True):
                    after = batch.discount[row] * (value + 0.2 * entropy[1][row])
                    between = 0.2 * batch.between_discount[row, 0] * entropy[0][row]
                    total = float(batch.reward[row] + between + after)
                    nearness = (1.0 - (support - min(max(total, -2.0), 2.0)).abs() / (support[1] - support[0])).clamp(0)
                    target[row] += choices[row, choice] * probability * nearness
    chosen = torch.zeros(size, dtype=torch.int64) if spec is BOX else batch.action
    taken = torch.stack([q[torch.arange(size), chosen] for q in log_probs])
    loss = -(target * taken).sum(-1).mean(-1).sum()
    loss.backward()
    metrics = learner.train([batch])
    # The bins are float32 numbers, so their distances are equal but for rounding.
    assert metrics.critic_loss == pytest.approx(float(loss.detach()), rel=1e-6)
    assert metrics.q_mean == pytest.approx(float((taken.detach().exp() @ support).mean()), rel=1e-6)
    expected = torch.cat([(0 * p if p.grad is None else p.grad).flatten() for p in critic.parameters()])
    moment = learner.state_dict().optimizer["critic.exp_avg.0"]
    torch.testing.assert_close(moment, 0.1 * expected, rtol=1e-5, atol=1e-7)


@CRITICS
@pytest.mark.parametrize(
    ("spec", "discount", "value"), [(BOX, 0.8, 5.0), (CHOICE, 0.0, 1.0)], ids=["truncated", "terminated"]
)
def test_reward_one_for_ever_is_worth_more_than_once(critic: str, spec: EnvSpec, discount: float, value: float) -> None:
    settings = {**critic_set(critic), "ent_coef": 1e-6, "learning_rate": 0.01, "tau": 0.2, "value_limit": 10.0}
    learner = make(spec, **{**settings, "normalize_input": False})
    batches = []
    for batch in draw(spec, 400):
        ones = torch.ones_like(batch.reward)
        batches.append(batch._replace(reward=ones, discount=discount * ones))
    learner.train(batches)
    obs = torch.cat([batch.obs for batch in batches[-5:]])
    action = torch.zeros(len(obs), 2 if spec is BOX else 0)
    values = learner.critic.values(Inputs(obs), action).detach()
    assert float(values.mean()) == pytest.approx(value, rel=0.1)


@CRITICS
@pytest.mark.parametrize(("spec", "precision"), [(BOX, "float32"), (CHOICE, "bf16")], ids=["float32", "bf16"])
def test_a_restored_learner_continues_to_the_bit(critic: str, spec: EnvSpec, precision: str) -> None:
    settings = {**critic_set(critic), "precision": precision}
    learner, restored = make(spec, **settings), make(spec, seed=9, **settings)
    batches = draw(spec, 8)
    learner.observe(batches[0].obs)
    learner.train(batches[:4])
    restored.load_state_dict(learner.state_dict())
    assert learner.train(batches[4:]) == restored.train(batches[4:])
    assert torch.equal(learner.publication(), restored.publication())
    first, second = learner.state_dict().optimizer, restored.state_dict().optimizer
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.gpu
@needs_cuda
@SPECS
@CRITICS
def test_updates_of_every_critic_are_captured(spec: EnvSpec, critic: str) -> None:
    learner = make(spec, device=torch.device("cuda"), compile="cuda_graph", **critic_set(critic))
    metrics = learner.train(draw(spec, 8))
    assert metrics is not None and all(map(math.isfinite, dataclasses.astuple(metrics)))
    assert learner.notice is None


@CRITICS
@pytest.mark.parametrize(("field", "bad"), [("obs", math.nan), ("reward", math.inf), ("next_obs", math.nan)])
def test_steps_along_what_is_not_finite_are_left_out(critic: str, field: str, bad: float) -> None:
    learner = make(BOX, **{**critic_set(critic), "policy_delay": 1, "normalize_input": False})
    batches = draw(BOX, 3)
    learner.train(batches[:1])
    getattr(batches[1], field)[2] = bad
    before = learner.state_dict()
    assert learner.train([batches[1]]) is None
    after = learner.state_dict()
    for name, tensor in before.optimizer.items():
        if name.startswith("critic") and not name.startswith("critic.value"):
            assert torch.equal(tensor, after.optimizer[name]), name
    weights = (state.optimizer["critic.value.0"] for state in (before, after))
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-7)  # lengths of weights are rounded again
    assert all(torch.isfinite(tensor).all() for tensor in after.optimizer.values())
    assert learner.train(batches[2:]) is not None


def test_statistics_take_no_part_in_weight_decay() -> None:
    learner = make(BOX, **{**critic_set("crossq"), "weight_decay": 1.0, "learning_rate": 0.5})
    layer = renorms(learner.critic)[0]
    obs = [batch._replace(obs=batch.obs + 100.0, next_obs=batch.next_obs + 100.0) for batch in draw(BOX, 1)]
    learner.train(obs)
    assert layer.running_mean[0, 0, :3].mean().item() == pytest.approx(1.0, abs=0.02)
    assert layer.running_variance[0, 0].min().item() > 0.98 and layer.num_updates.item() == 1.0


def test_the_policy_acts_with_statistics_that_are_published() -> None:
    settings = {**critic_set("crossq"), "policy_delay": 1}
    learner = make(BOX, **settings)
    learner.train(draw(BOX, 5))
    acting = SacActor(BOX, TrainConfig(**{**settings, "seed": 5}))
    read_block(acting, FlatParameters(acting, with_grad=False), learner.publication())
    obs = torch.randn(4, 3)
    expected = learner.model.act(obs, deterministic=True).action
    assert torch.equal(acting.act(obs, deterministic=True).action, expected)
    assert torch.equal(acting.act(obs[:1], deterministic=True).action[0], expected[0])  # not those of the batch
    assert float(renorms(acting)[0].num_updates) == 5


@SPECS
@pytest.mark.parametrize("settings", [UNIT_WEIGHTS, RENORMALIZED], ids=["unit weights", "renormalized"])
def test_all_blocks_work_together(spec: EnvSpec, settings: dict[str, Any]) -> None:
    """Every parameter is trained, and what follows a step is done beside weight decay, bins and statistics."""
    learner = make(spec, **{**settings, "tau": 0.25})
    networks = learner.critic, learner.model
    initial = copy.deepcopy(networks)
    for batch in draw(spec, 3):
        learner.observe(batch.obs)
        before = learner.state_dict().optimizer
        metrics = learner.train([batch])
        assert metrics is not None and all(map(math.isfinite, dataclasses.astuple(metrics)))
        after = learner.state_dict().optimizer
        if learner.target_critic is not None:
            followed = before["target_critic"].lerp(after["critic.value.0"], 0.25)
            torch.testing.assert_close(after["target_critic"], followed)
            assert not any(layer.uses_batch for layer in renorms(learner.target_critic))
    assert learner.skipped_steps == 0
    assert (learner.target_critic is None) == (settings is UNIT_WEIGHTS)
    for network, old in zip(networks, initial, strict=True):
        for (name, parameter), (_, other) in zip(network.named_parameters(), old.named_parameters(), strict=True):
            assert not torch.equal(parameter, other), name
        unit_layers = [layer for layer in network.modules() if isinstance(layer, UnitLinear)]
        for layer in unit_layers:
            lengths = layer.weight.detach().norm(dim=-1)
            torch.testing.assert_close(lengths, torch.ones_like(lengths))
        assert [layer.num_updates.item() for layer in renorms(network)] == [3.0] * len(renorms(network))
        assert bool(unit_layers) == (settings is UNIT_WEIGHTS) and bool(renorms(network)) == (settings is RENORMALIZED)


@CRITICS
def test_the_plan_knows_the_size_of_a_publication(critic: str) -> None:
    config = TrainConfig(**critic_set(critic))
    assert weights_block_size(BOX, config) == make(BOX, **critic_set(critic)).block_size


def test_statistics_of_batches_are_for_the_update_even_if_it_fails() -> None:
    learner = make(BOX, **critic_set("crossq"))

    def fail() -> None:
        with normalizing_by_batch(learner.critic):
            assert all(layer.uses_batch for layer in renorms(learner.critic))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert renorms(learner.critic) and not any(layer.uses_batch for layer in renorms(learner.critic))


def test_critics_with_bins_compute_products_in_bf16_for_the_policy_too() -> None:
    learner = make(BOX, precision="bf16", **critic_set("simba_v2"))
    seen = []
    for layer in learner.critic.modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    (batch,) = draw(BOX, 1)
    steps = Steps(batch, batch.next_obs, learner.model, learner.in_reduced_precision)
    steps.policy_values(learner.critic, torch.zeros(len(batch.obs), 2))
    assert torch.bfloat16 in seen
