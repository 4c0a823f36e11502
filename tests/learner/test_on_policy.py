"""The training iteration against a plain reference, against its invariants, and on tasks whose answer is known."""

# torch.distributions is not typed.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import dataclasses
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from critics import with_values
from datasets import BOX, CHOICE, CPU, Actor, present_values, train_on
from graph_stand_ins import FixedCall
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from asyncrl.algorithms.losses import STEP_METRICS, Samples, vtrace
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.shared_tensors import shared_tensor_specs
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner import autograd_step, update_runner
from asyncrl.learner.autograd_step import AutogradStep
from asyncrl.learner.dataset import CountedDataset, Dataset
from asyncrl.learner.fast.graphed_step import GraphedStep
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.models.actor_critic import ActorCritic, ForwardResult
from asyncrl.models.cores import RecurrentCore
from asyncrl.models.encoders import Inputs
from asyncrl.modes.hogwild.storage import Copies, SharedStorage
from asyncrl.processes.children import RunFailed

SMALL: dict[str, Any] = {"batch_size": 64, "num_batches_per_epoch": 2, "num_epochs": 2, "encoder_mlp_layers": [16]}


def make(spec: EnvSpec, **settings: Any) -> tuple[OnPolicyLearner, Actor]:
    config = TrainConfig(**{**SMALL, **settings})
    return OnPolicyLearner(with_values(ActorCritic(spec, config)), config, CPU), Actor(spec, config)


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
@pytest.mark.parametrize("squash", [False, True])
def test_the_first_ratio_is_one_under_the_statistics_of_the_behaviour(spec: EnvSpec, squash: bool) -> None:
    # With the decoupled objective the first ratio is 1 whatever the statistics are.
    settings = {"learning_rate": 0.0, "kl_loss_coeff": 1.0, "ppo_objective": "clip"}
    learner, actor = make(spec, squash_actions=squash, **settings)
    # Every dataset is collected under one publication and trained after the next has gone out, as async does.
    waiting = actor.collect(actor.receive(learner))
    for shift in (5.0, -20.0, 40.0):
        following = actor.collect(actor.receive(learner), shift=shift)
        metrics = train_on(learner, waiting)
        assert metrics.max_ratio_deviation_first_batch < 1e-5
        assert abs(metrics.kl_loss) < 1e-6
        waiting = following


@pytest.mark.parametrize("memory", [{}, {"use_rnn": True, "rollout": 8}], ids=["", "recurrent"])
def test_new_statistics_of_samples_alone_go_out_with_the_next_publication(memory: dict[str, Any]) -> None:
    learner, actor = make(BOX, **memory)
    dataset = actor.collect(actor.receive(learner), shift=7.0)
    train_on(learner, dataset)
    actor.receive(learner)
    samples = dataset.obs[:-1][dataset.valid]
    torch.testing.assert_close(actor.model.obs_mean, samples.mean(0))
    torch.testing.assert_close(actor.model.obs_std, samples.std(0, correction=0), atol=1e-4, rtol=1e-4)


def test_new_statistics_of_returns_change_no_prediction() -> None:
    learner, actor = make(BOX, learning_rate=0.0, reward_scale=50.0)
    obs = torch.randn(40, 3)
    actor.receive(learner)
    before = actor.model.denormalize_value(actor.model(obs)[1])
    train_on(learner, actor.collect(0))
    assert float(learner.model.return_std) > 5.0
    after = learner.model.denormalize_value(learner.model(obs)[1])
    torch.testing.assert_close(after, before, atol=1e-3, rtol=1e-4)


def test_each_sample_keeps_the_statistics_of_its_own_behaviour() -> None:
    learner, actor = make(BOX, learning_rate=0.0, ppo_objective="clip")
    first = actor.receive(learner)
    old = actor.collect(first, shift=7.0)
    train_on(learner, old)
    new = actor.collect(actor.receive(learner), shift=-3.0)
    later = new.tensors()
    mixed = Dataset(**{name: torch.cat((field, later[name]), 1) for name, field in old.tensors().items()})
    assert train_on(learner, mixed).max_ratio_deviation_first_batch < 1e-5
    mixed.policy_version.fill_(first)
    assert train_on(learner, mixed).max_ratio_deviation_first_batch > 1e-3


def test_a_version_that_was_never_published_is_refused() -> None:
    learner, actor = make(BOX)
    actor.receive(learner)
    dataset = actor.collect(3)
    with pytest.raises(LookupError, match=r"versions \[3\], but .* are \[0\]"):
        train_on(learner, dataset)


def test_old_publications_are_forgotten() -> None:
    learner, actor = make(BOX, max_policy_lag=4, num_epochs=1)
    first = actor.collect(actor.receive(learner))
    for _ in range(2):
        train_on(learner, first)
        actor.receive(learner)
    train_on(learner, first)
    actor.receive(learner)
    with pytest.raises(LookupError, match=r"are \[2, 4, 6\]"):
        train_on(learner, first)


def test_one_step_equals_plain_autograd() -> None:
    config = TrainConfig(
        batch_size=128,
        num_batches_per_epoch=1,
        num_epochs=1,
        shuffle_minibatches=False,
        encoder_mlp_layers=[16],
        learning_rate=0.01,
        entropy_loss_coeff=0.05,
        kl_loss_coeff=0.3,
        ppo_clip_value=0.1,
        max_grad_norm=0.2,
        reward_scale=2.0,
        reward_clip=1.5,
    )
    learner, actor = OnPolicyLearner(with_values(ActorCritic(BOX, config)), config, CPU), Actor(BOX, config)
    train_on(learner, actor.collect(actor.receive(learner)))
    dataset = actor.collect(actor.receive(learner), shift=1.0)
    # Half of the samples come from a policy that is a little off, so that ratios, clipping and KL are not trivial.
    dataset.action_parameters[::2] += 0.2
    log_prob = actor.model.distribution.log_prob(dataset.action_parameters, dataset.action)
    dataset.log_prob.copy_(log_prob.view_as(dataset.log_prob))
    reference = ActorCritic(BOX, config)
    reference.load_state_dict(actor.model.state_dict())
    state = learner.state_dict().optimizer
    metrics = train_on(learner, dataset)
    reference.renormalize_returns(learner.model.return_mean, learner.model.return_std)
    grad_norm = _reference_step(reference, dataset, config, state["exp_avg"], state["exp_avg_sq"])
    assert metrics.grad_norm == pytest.approx(grad_norm, rel=1e-4)
    for ours, theirs in zip(learner.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def _reference_step(
    model: ActorCritic, dataset: Dataset, config: TrainConfig, exp_avg: Tensor, exp_avg_sq: Tensor
) -> float:
    """The textbook's PPO and Adam, sample by sample where that is clearer; returns the gradient's norm."""
    reward = (dataset.reward * config.reward_scale).clamp(-1.5, 1.5)
    advantages = torch.zeros_like(reward)
    for column in range(reward.shape[1]):
        following = 0.0
        for row in reversed(range(reward.shape[0])):
            ends = bool(dataset.terminated[row, column] or dataset.truncated[row, column])
            next_value = 0.0 if dataset.terminated[row, column] else float(dataset.value[row + 1, column])
            delta = float(reward[row, column]) + config.gamma * next_value - float(dataset.value[row, column])
            following = delta + (0.0 if ends else config.gamma * config.gae_lambda * following)
            advantages[row, column] = following
    at = dataset.valid
    advantage, old_value = advantages[at], dataset.value[:-1][at]
    returns = (advantage + old_value - model.return_mean) / model.return_std
    old_value = (old_value - model.return_mean) / model.return_std
    advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    mean, value = _plain_forward(model, ((dataset.obs[:-1][at] - model.obs_mean) / model.obs_std).clamp(-10, 10))
    assert model.log_std is not None
    policy = Independent(Normal(mean, model.log_std.exp()), 1)
    old_mean, old_log_std = dataset.action_parameters[at].chunk(2, dim=-1)
    behaviour = Independent(Normal(old_mean, old_log_std.exp()), 1)
    ratio = (policy.log_prob(dataset.action[at]) - behaviour.log_prob(dataset.action[at])).exp()
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    clipped_value = old_value + (value - old_value).clamp(-0.1, 0.1)
    value_error = torch.max((value - returns) ** 2, (clipped_value - returns) ** 2)
    loss = (-surrogate + 0.5 * value_error - 0.05 * policy.entropy() + 0.3 * kl_divergence(behaviour, policy)).mean()
    torch.autograd.backward(loss)
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
    start = 0
    for parameter in model.parameters():
        assert parameter.grad is not None
        part = slice(start, start + parameter.numel())
        first = 0.9 * exp_avg[part] + 0.1 * parameter.grad.flatten()
        second = 0.999 * exp_avg_sq[part] + 0.001 * parameter.grad.flatten() ** 2
        step = (first / (1 - 0.9**2)) / ((second / (1 - 0.999**2)).sqrt() + config.adam_eps)
        parameter.data -= config.learning_rate * step.view_as(parameter)
        start += parameter.numel()
    return norm


def _hidden(encoder: Any, obs: Tensor) -> Tensor:
    features: Tensor = encoder.encoders[0].linears[0](obs).tanh()
    return features


def _plain_forward(model: ActorCritic, obs: Tensor) -> tuple[Tensor, Tensor]:
    assert model.critic is not None
    return model.policy_head(_hidden(model.actor, obs)), model.value_head(_hidden(model.critic, obs)).squeeze(-1)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@pytest.mark.parametrize("garbage", [1e6, float("nan")])
def test_rows_without_an_action_change_nothing(algo: str, garbage: float) -> None:
    weights = []
    for pollute in (False, True):
        learner, actor = make(BOX, algo=algo, entropy_loss_coeff=0.01, kl_loss_coeff=0.1)
        dataset = actor.collect(actor.receive(learner))
        hidden = ~dataset.valid
        assert hidden.any()
        if pollute:
            for field in (dataset.action, dataset.action_parameters, dataset.log_prob, dataset.reward):
                field[hidden] = garbage
            dataset.obs[:-1][hidden] = garbage
            dataset.policy_version[hidden] = 999
            dataset.terminated[hidden] = True
        train_on(learner, dataset)
        weights.append(learner.publication())
    assert torch.equal(weights[0], weights[1])


def test_every_sample_is_seen_once_in_each_epoch_in_another_order() -> None:
    learner, actor = make(BOX, num_epochs=2, normalize_input=False)
    batches: list[Tensor] = []
    take_step = learner._take_step

    def noting(batch: Samples, learning_rate: float) -> tuple[Tensor, Tensor]:
        batches.append(batch.floats[:, 0].clone())
        return take_step(batch, learning_rate)

    learner._take_step = noting
    dataset = actor.collect(actor.receive(learner))
    train_on(learner, dataset)
    assert len(batches) == 4
    expected = dataset.obs[:-1][dataset.valid][:, 0]
    first, second = torch.cat(batches[:2]), torch.cat(batches[2:])
    assert torch.equal(first.sort().values, expected.sort().values)
    assert torch.equal(second.sort().values, expected.sort().values)
    assert not torch.equal(first, second)
    assert abs(len(batches[0]) - len(batches[1])) <= 1


def test_versions_count_steps_and_every_epoch_can_publish() -> None:
    learner, actor = make(BOX, num_epochs=3)
    dataset = actor.collect(actor.receive(learner))
    versions: list[int] = []
    train_on(learner, dataset, 0, lambda _: versions.append(learner.policy_version))
    assert versions == [2, 4, 6]


def test_the_entropy_bonus_widens_the_policy() -> None:
    for spec in (BOX, CHOICE):
        learner, actor = make(spec, entropy_loss_coeff=1.0, value_loss_coeff=0.0, learning_rate=0.01)
        learner.model.policy_head.weight.data.mul_(100.0)
        actor.receive(learner)
        dataset = dataclasses.replace(actor.collect(0, ends=False), value=torch.zeros(9, 16))
        dataset.reward.zero_()
        obs = dataset.obs.flatten(0, 1)
        before = actor.model.distribution.entropy(actor.model.act(obs).action_parameters).mean()
        metrics = train_on(learner, dataset)
        actor.receive(learner)
        actor.model.statistics.copy_(learner.model.statistics)
        after = actor.model.distribution.entropy(actor.model.act(obs).action_parameters).mean()
        assert float(after) > float(before) + 1e-3
        assert metrics.entropy_loss == pytest.approx(-float(before), abs=0.1)


@pytest.mark.parametrize("squash", [False, True])
def test_entropy_and_deviation_are_reported_without_an_entropy_bonus(squash: bool) -> None:
    for spec in (BOX, CHOICE):
        learner, actor = make(spec, entropy_loss_coeff=0.0, squash_actions=squash and spec is BOX)
        version = actor.receive(learner)
        if actor.model.log_std is not None:
            actor.model.log_std.data.fill_(math.log(0.3))
        dataset = actor.collect(version)
        parameters = dataset.action_parameters[dataset.valid]
        metrics = train_on(learner, dataset)
        assert metrics is not None
        assert metrics.entropy_loss == 0.0
        assert metrics.entropy == pytest.approx(float(actor.model.distribution.entropy(parameters).mean()), rel=1e-5)
        assert metrics.std == (None if spec is CHOICE else pytest.approx(0.3, rel=1e-5))


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_a_contextual_bandit_is_solved(algo: str) -> None:
    learner, actor = make(CHOICE, algo=algo, learning_rate=0.02, num_batches_per_epoch=1)

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        return (action == obs.argmax(-1)).float()

    for _ in range(200):
        train_on(learner, actor.collect(actor.receive(learner), reward, ends=False))
    dataset = actor.collect(actor.receive(learner), reward, ends=False)
    assert float(dataset.reward.mean()) > 0.9  # a third by chance


@pytest.mark.parametrize("squash", [False, True])
def test_a_continuous_action_moves_to_its_best_value(squash: bool) -> None:
    learner, actor = make(BOX, learning_rate=0.02, squash_actions=squash, initial_stddev=0.5)

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        taken = action.tanh() if squash else action
        return -(taken - torch.tensor([0.7, -0.4])).square().sum(-1)

    for _ in range(80):
        train_on(learner, actor.collect(actor.receive(learner), reward, ends=False))
    actor.receive(learner)
    best = actor.model.act(torch.randn(50, 3), deterministic=True).action.mean(0)
    torch.testing.assert_close(best.tanh() if squash else best, torch.tensor([0.7, -0.4]), atol=0.12, rtol=0.0)


def test_the_limit_of_the_deviation_falls_in_the_second_half_of_the_run() -> None:
    learner, actor = make(BOX, learning_rate=0.0, initial_stddev=0.8, final_stddev=0.2, train_for_env_steps=1000)
    assert learner.model.log_std is not None
    with torch.no_grad():
        learner.model.log_std.copy_(torch.tensor([2.0, 0.3]).log())  # one has grown while there is no limit
    for env_steps, expected in ((499, 2.0), (500, 0.8), (750, 0.4), (1000, 0.2), (1500, 0.2)):
        metrics = train_on(learner, actor.collect(actor.receive(learner)), env_steps)
        assert metrics is not None
        assert metrics.max_ratio_deviation_first_batch < 1e-4, "acting has the same limit"
        actor.receive(learner)  # the policy that acts has it, too
        deviations = actor.model.act(torch.zeros(1, 3)).action_parameters[0, 2:].exp()
        torch.testing.assert_close(deviations, torch.tensor([expected, min(expected, 0.3)]))


@pytest.mark.parametrize("squash_actions", [False, True], ids=["arrays", "autograd"])
@pytest.mark.parametrize(("env_steps", "clip", "entropy"), [(0, 0.02, 0.0), (500, 0.03, 0.05), (2000, 0.04, 0.1)])
def test_clip_range_and_entropy_change_linearly(
    env_steps: int, clip: float, entropy: float, squash_actions: bool
) -> None:
    settings: dict[str, Any] = {"train_for_env_steps": 1000, "squash_actions": squash_actions, "target_kl": None}
    finals = {"ppo_clip_ratio": 0.02, "final_ppo_clip_ratio": 0.04, "final_entropy_loss_coeff": 0.1}
    scheduled, actor = make(BOX, **settings, **finals)
    constant, _ = make(BOX, **settings, ppo_clip_ratio=clip, entropy_loss_coeff=entropy)
    assert isinstance(scheduled._step, AutogradStep) == squash_actions
    dataset = actor.collect(actor.receive(scheduled))
    constant.publication()
    found, expected = (dataclasses.astuple(train_on(each, dataset, env_steps)) for each in (scheduled, constant))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(scheduled.publication(), constant.publication(), rtol=1e-4, atol=1e-6)
    assert expected[STEP_METRICS.index("entropy_loss")] < 0.0 or entropy == 0.0


def test_a_change_of_the_clip_range_moves_the_schedule() -> None:
    learner, actor = make(BOX, final_ppo_clip_ratio=0.4, train_for_env_steps=1000)
    learner.set_hyperparameters(Hyperparameters(ppo_clip_ratio=0.1))
    train_on(learner, actor.collect(actor.receive(learner)), 500)
    assert learner._step.config.ppo_clip_ratio == pytest.approx(0.25)


@pytest.mark.parametrize(("recomputed", "expected"), [(True, [1.0 + 2.0 - 4.0, 2.0 - 4.0]), (False, [6.0, -8.0])])
def test_advantages_are_those_of_the_present_critic_only_if_asked(recomputed: bool, expected: list[float]) -> None:
    # The critic says 4 everywhere; when acting it had said 0, 10 and 100. Two steps, the second one terminates;
    # gamma 0.5 and lambda 0: r + 0.5 V' - V, and r - V.
    settings = {"normalize_input": False, "normalize_returns": False, "gamma": 0.5, "gae_lambda": 0.0}
    learner, actor = make(BOX, recompute_values=recomputed, **settings)
    weight, bias = learner.model.heads[1]
    with torch.no_grad():
        weight.zero_()
        bias.fill_(4.0)
    actor.num_rows, actor.num_columns = 2, 1
    learner.publication()
    learner.policy_version += 1  # the samples are of the version before
    dataset = dataclasses.replace(
        actor.collect(version=0, ends=False),
        reward=torch.tensor([[1.0], [2.0]]),
        value=torch.tensor([[0.0], [10.0], [100.0]]),
        terminated=torch.tensor([[False], [True]]),
    )
    update = learner._prepare(dataset)
    samples, raw_values, raw_returns = update.samples, update.raw_values, update.raw_returns
    assert samples.advantage.tolist() == expected
    assert raw_values.tolist() == ([4.0, 4.0] if recomputed else [0.0, 10.0])
    assert raw_returns.tolist() == (raw_values + samples.advantage).tolist()


def test_recomputed_values_are_those_of_raw_observations_in_units_of_rewards() -> None:
    learner, actor = make(BOX, recompute_values=True)
    for shift in (0.0, 30.0):
        train_on(learner, actor.collect(actor.receive(learner), shift=shift))
    dataset = actor.collect(actor.receive(learner), shift=30.0)
    torch.testing.assert_close(present_values(learner, dataset), dataset.value, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_vtrace_weighs_with_the_present_policy_and_changes_nothing_without_lag(spec: EnvSpec, algo: str) -> None:
    plain, actor = make(spec, algo=algo, ppo_objective="clip")
    bounds = {"vtrace_rho": 2.0, "vtrace_c": 1.2}
    corrected, _ = make(spec, algo=algo, ppo_objective="clip", with_vtrace=True, **bounds)
    for learner in (plain, corrected):
        train_on(learner, actor.collect(actor.receive(learner), shift=2.0))
        actor = Actor(spec, learner._config)
    corrected.load_state_dict(plain.state_dict())
    dataset = actor.collect(actor.receive(plain))
    actor.receive(corrected)
    without_lag = [learner._prepare(dataset).samples.advantage for learner in (plain, corrected)]
    torch.testing.assert_close(*without_lag, atol=1e-4, rtol=1e-4)

    with torch.no_grad():
        corrected.model.policy_head.bias[0] += 1.0 if spec is BOX else 2.0
    values = present_values(corrected, dataset)
    samples = corrected._prepare(dataset).samples
    parameters, _ = corrected.model(*samples.inputs)
    log_ratios = torch.zeros(dataset.valid.shape)
    log_prob = corrected.model.distribution.log_prob(parameters, samples.action)
    log_ratios[dataset.valid] = (log_prob - samples.log_prob).detach()
    assert log_ratios.exp().max() > 2.0, "both bounds are reached"
    ends = (dataset.terminated, dataset.truncated, dataset.valid)
    expected = vtrace(log_ratios, dataset.reward, values, *ends, 0.99, 0.95, max_rho=2.0, max_c=1.2)
    torch.testing.assert_close(samples.advantage, expected.advantages[dataset.valid], atol=1e-4, rtol=1e-4)
    returns = corrected.model.normalize_return(expected.returns[dataset.valid])
    torch.testing.assert_close(samples.normalized_return, returns, atol=1e-4, rtol=1e-4)
    if algo == "ppo":  # whose ratio weighs the action
        assert samples.weight is None
    else:
        assert samples.weight is not None
        torch.testing.assert_close(samples.weight, expected.weights[dataset.valid], atol=1e-4, rtol=1e-4)


def test_the_rate_decays_to_zero_at_the_end_of_the_run() -> None:
    learner, actor = make(
        BOX, lr_schedule="linear_decay", learning_rate=0.4, train_for_env_steps=1000, normalize_returns=False
    )
    version = actor.receive(learner)
    dataset, parameter = actor.collect(version), learner.model.value_head.weight
    rates, has_moved = [], []
    for env_steps in (0, 250, 1000, 2000):
        before = parameter.detach().clone()
        rates.append(train_on(learner, dataset, env_steps).learning_rate)
        has_moved.append(not torch.equal(parameter, before))
    assert rates == pytest.approx([0.4, 0.3, 0.0, 0.0])
    assert has_moved == [True, True, False, False]


@pytest.mark.parametrize(("schedule", "num_changes"), [("kl_adaptive_minibatch", 4), ("kl_adaptive_epoch", 2)])
@pytest.mark.parametrize(("shift", "factor"), [(0.0, 1.5), (2.0, 1 / 1.5)])
def test_adaptive_rates_follow_the_divergence(schedule: str, num_changes: int, shift: float, factor: float) -> None:
    learner, actor = make(BOX, lr_schedule=schedule, learning_rate=1e-5, num_epochs=2)
    dataset = actor.collect(actor.receive(learner))
    dataset.action_parameters[..., :2] += shift
    train_on(learner, dataset)
    assert learner.state_dict().scalars["learning_rate"] == pytest.approx(1e-5 * factor**num_changes)


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
@pytest.mark.parametrize(
    "settings",
    [
        {"ppo_clip_value": 0.1, "entropy_loss_coeff": 0.01, "kl_loss_coeff": 0.2},
        {"algo": "a2c", "with_vtrace": True, "num_epochs": 1},
        {"lr_schedule": "kl_adaptive_minibatch", "learning_rate": 1e-3},
        {"ppo_objective": "decoupled", "recompute_advantages": True, "normalize_advantage_over": "dataset"},
        {"use_rnn": True, "rnn_size": 8, "rollout": 8, "kl_loss_coeff": 0.2, "entropy_loss_coeff": 0.01},
        {"use_rnn": True, "rnn_size": 8, "rollout": 8, "rnn_type": "lstm", "algo": "a2c", "num_epochs": 2},
    ],
    ids=["ppo", "a2c", "adaptive", "decoupled", "gru", "lstm"],
)
def test_minibatches_filled_up_for_a_graph_train_as_those_that_are_not(
    spec: EnvSpec, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_runner, "GraphedFunction", FixedCall)
    settings = {"num_batches_per_epoch": 3, **settings}
    (plain, actor), (graphed, _) = make(spec, **settings), make(spec, compile="cuda_graph", **settings)
    for number in range(3):
        dataset = actor.collect(actor.receive(plain), shift=float(number))
        graphed.publication()
        assert dataset.num_valid < dataset.valid.numel(), "minibatches are smaller than they may be"
        found, expected = (train_on(each, dataset) for each in (graphed, plain))
        assert found is not None and expected is not None
        for name, value in dataclasses.asdict(expected).items():
            wanted = None if value is None else pytest.approx(value, rel=1e-3, abs=1e-5)
            assert getattr(found, name) == wanted, name
        torch.testing.assert_close(graphed.publication(), plain.publication(), rtol=1e-4, atol=1e-5)
    assert graphed.notice is None
    assert isinstance(graphed._step, GraphedStep) and graphed._step.runner.makes_graphs
    graphs = graphed._step.runner._graphs
    assert graphs is not None and len(graphs) <= 2, "few numbers of pieces"
    num_calls = [function.num_calls for _, function in graphs.values()]
    assert max(num_calls) > 2 and sum(num_calls) == 9 * plain._config.num_epochs


@pytest.mark.parametrize("memory", [{}, {"use_rnn": True, "rollout": 8}], ids=["", "recurrent"])
def test_a_learner_without_a_device_for_graphs_goes_on_plainly_and_says_so(memory: dict[str, Any]) -> None:
    (plain, actor), (graphed, _) = make(BOX, **memory), make(BOX, compile="cuda_graph", **memory)
    dataset = actor.collect(actor.receive(plain))
    for learner in (plain, graphed):
        learner.publication()
        train_on(learner, dataset)
    torch.testing.assert_close(graphed.publication(), plain.publication(), rtol=1e-4, atol=1e-5)
    notice = graphed.notice
    assert notice is not None and "--compile=cuda_graph" in notice


class OwnCore(ActorCritic):
    """Its core may be unrolled in any way."""

    def build(self, config: TrainConfig) -> None:
        super().build(config)
        if config.use_rnn:
            self.actor_core = type("Core", (RecurrentCore,), {})(self.actor.output_size, config)


class OwnUnroll(ActorCritic):
    def unroll(self, inputs: Inputs, rnn_state: Tensor, begins: Tensor) -> ForwardResult:  # type: ignore[override]
        return super().unroll(inputs, rnn_state, begins)


def test_what_does_not_fit_into_a_graph_runs_plainly() -> None:
    config = TrainConfig(batch_size=64, num_batches_per_epoch=2, encoder_mlp_layers=[16], compile="cuda_graph")
    arena = Arena.create(shared_tensor_specs({"model": 1000}, {"obs": 3, "return": 1}, num_workers=1))
    of_ranks = ParameterStore(SimpleNamespace(num_ranks=2, rank=0))
    for storage in (SharedStorage(arena, 1), SharedStorage(arena, 1, Copies.PULLED)):
        assert not storage.is_capturable

    def is_graphed(more: dict[str, Any], model: type[ActorCritic] = ActorCritic, **kwargs: Any) -> bool:
        own = config.model_copy(update=more)
        return isinstance(OnPolicyLearner(model(BOX, own), own, CPU, **kwargs)._step, GraphedStep)

    assert is_graphed({}) and is_graphed({}, storage=of_ranks) and is_graphed({"use_rnn": True})
    assert is_graphed({}, OwnCore) and not is_graphed({"use_rnn": True}, OwnCore)
    assert is_graphed({}, OwnUnroll) and not is_graphed({"use_rnn": True}, OwnUnroll)


@pytest.mark.parametrize(
    "memory", [{}, {"use_rnn": True}, {"use_rnn": True, "rnn_type": "lstm"}], ids=["", "gru", "lstm"]
)
@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
def test_reduced_products_give_nearly_the_same_gradients(spec: EnvSpec, memory: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"encoder_mlp_layers": [64, 64], "num_batches_per_epoch": 1, "num_epochs": 1, **memory}
    settings["rollout"] = 8
    (exact, actor), (reduced, _) = make(spec, **settings), make(spec, precision="bf16", **settings)
    dtypes = set()
    reduced.model.actor.register_forward_hook(lambda module, given, features: dtypes.add(features.dtype))
    for _ in range(5):
        dataset = actor.collect(actor.receive(exact))
        reduced.load_state_dict(exact.state_dict())
        for learner in (exact, reduced):
            learner.publication()
            assert train_on(learner, dataset) is not None
        cosine = torch.nn.functional.cosine_similarity(exact._gradient, reduced._gradient, dim=0)
        assert cosine > 0.99
    assert dtypes == {torch.bfloat16}
    assert all(tensor.dtype == torch.float32 for tensor in reduced.model.parameters())


def test_numbers_that_the_host_knows_already_change_nothing() -> None:
    learners = []
    for knows in (False, True):
        learner, actor = make(BOX, normalize_input=True)
        for _ in range(3):
            dataset = actor.collect(actor.receive(learner))
            if knows:
                known = {"counted_valid": dataset.num_valid, "version": learner.policy_version}
                dataset = CountedDataset(**dataset.tensors(), **known)
            train_on(learner, dataset)
        learners.append(learner)
    assert torch.equal(*(learner.publication() for learner in learners))


VTRACE = {"algo": "a2c", "num_epochs": 1, "with_vtrace": True}


def test_without_lag_vtrace_corrects_nothing_in_reduced_precision_either() -> None:
    learner, actor = make(BOX, precision="bf16", encoder_mlp_layers=[64, 64], **VTRACE)
    for _ in range(3):
        dataset = actor.collect(actor.receive(learner))
        log_ratios = learner._prepare(dataset).log_ratios
        assert log_ratios is not None and log_ratios.abs().max() < 1e-4
        train_on(learner, dataset)


@pytest.mark.parametrize("settings", [{}, VTRACE, {"precision": "bf16"}], ids=["ppo", "vtrace", "bf16"])
def test_one_pass_over_images_gives_what_separate_passes_give(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of_spaces(spaces.Box(0, 255, (12, 12, 1), np.uint8), spaces.Discrete(3), "Screen", None)
    usual = {"ppo_objective": "decoupled", "encoder_conv_mlp_layers": [8], "normalize_returns": False}
    learner, actor = make(spec, **{**usual, **settings})
    config = learner._config
    rows: list[int] = []
    learner.model.actor.register_forward_pre_hook(lambda module, given: rows.append(len(given[0].floats)))
    for _ in range(3):
        dataset = actor.collect(actor.receive(learner))
        train_on(learner, dataset)
        prepared, num_rows = [], []
        for same_inputs, at_once in ((True, 50), (False, 10_000)):
            monkeypatch.setattr(learner, "_trains_on_present_outputs", same_inputs)
            monkeypatch.setattr(autograd_step, "_IMAGES_AT_ONCE", at_once)
            rows.clear()
            prepared.append(learner._prepare(dataset))
            num_rows.append(sum(rows))
        monkeypatch.undo()
        assert learner._trains_on_present_outputs
        assert num_rows == [9 * 16, 9 * 16 + int(dataset.valid.sum())]
        samples, is_reduced = prepared[0].samples, config.precision == "bf16"  # a kernel may round by the batch's size
        rounding = {"rtol": 0.02, "atol": 0.02} if is_reduced else {"rtol": 1e-4, "atol": 1e-5}
        for name, found in samples.non_null_fields().items():
            torch.testing.assert_close(found, getattr(prepared[1].samples, name), **rounding)
        (parameters, _), _ = learner._outputs.samples(samples)
        if config.algorithm.uses_ratio:  # in training the first ratio is 1, in reduced precision, too
            log_prob = learner.model.distribution.log_prob(parameters, samples.action)
            torch.testing.assert_close(log_prob, samples.log_prob, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(prepared[0].raw_values, prepared[1].raw_values, **rounding)
        assert not torch.equal(prepared[0].raw_values, dataset.value[:-1].flatten()), "the dataset is old"


def test_a_restored_learner_continues_to_the_bit() -> None:
    settings: dict[str, Any] = {"lr_schedule": "kl_adaptive_epoch", "kl_loss_coeff": 0.1}
    learner, actor = make(BOX, **settings)
    for _ in range(2):
        train_on(learner, actor.collect(actor.receive(learner)))
    state = learner.state_dict()
    restored, _ = make(BOX, seed=5, **settings)
    restored.load_state_dict(state)
    dataset = actor.collect(actor.receive(learner))
    for each in (learner, restored):
        each.publication()
        train_on(each, dataset)
    assert torch.equal(learner.publication(), restored.publication())
    assert learner.policy_version == restored.policy_version
    assert learner.state_dict().scalars == restored.state_dict().scalars
    assert state.scalars["policy_version"] == 8


def test_weights_that_are_not_numbers_are_never_published() -> None:
    learner, actor = make(BOX)
    dataset = actor.collect(actor.receive(learner))
    dataset.reward[dataset.valid] = float("inf")
    before = learner.state_dict()
    published: list[torch.Tensor] = []
    # Two passes of two minibatches, whose steps are left out: nothing but the count of steps is another than it was.
    for num_skipped in (4, 8):
        assert train_on(learner, dataset, 0, lambda _: published.append(learner.publication())) is None
        assert learner.skipped_steps == num_skipped
    after = learner.state_dict()
    for name, _ in learner.model.named_parameters():
        # The first units of returns have a standard deviation of the square root of 1 + 1e-5, which the critic's head
        # follows.
        torch.testing.assert_close(before.model[name], after.model[name])
    for name in ("exp_avg", "exp_avg_sq", "step", "return_mean", "return_variance"):
        assert torch.equal(before.optimizer[name], after.optimizer[name]), name
    assert all(torch.isfinite(block).all() for block in published)
    with pytest.raises(RunFailed, match="training has diverged: 12 optimizer steps in a row") as caught:
        train_on(learner, dataset)
    assert caught.value.is_final
    assert "value_loss inf" in caught.value.details or "value_loss nan" in caught.value.details
    assert "normalized_return: none is finite" in caught.value.details
    assert re.search(r"^obs: -?\d.* to ", caught.value.details, re.MULTILINE)


def test_one_bad_minibatch_costs_its_own_step_only() -> None:
    learner, actor = make(BOX, num_epochs=1, shuffle_minibatches=False)
    dataset = actor.collect(actor.receive(learner))
    dataset.log_prob[0, 0] = float("nan")
    before = learner.state_dict()
    metrics = train_on(learner, dataset)
    after = learner.state_dict()
    assert metrics is not None and all(map(math.isfinite, dataclasses.astuple(metrics)))
    assert learner.skipped_steps == 1
    assert int(after.optimizer["step"]) == int(before.optimizer["step"]) + 1
    assert not torch.equal(before.optimizer["exp_avg"], after.optimizer["exp_avg"])


def test_metrics_of_the_first_minibatch_are_of_the_first_that_has_samples() -> None:
    """With ranks, a minibatch may have no sample in one of them, and the steps before it may have been skipped."""
    learner, actor = make(BOX, num_epochs=1, num_batches_per_epoch=2, batch_size=16)
    dataset = actor.collect(actor.receive(learner))
    log_ratios = iter([torch.empty(0), torch.tensor([0.0, math.log(1.5)])])
    learner._take_step = lambda batch, learning_rate: (torch.zeros(7), next(log_ratios))
    metrics = train_on(learner, dataset)
    assert metrics is not None
    assert metrics.max_ratio_deviation_first_batch == pytest.approx(0.5)


def test_a_step_on_sequences_reads_no_row_that_is_not_a_sample() -> None:
    learner, actor = make(BOX, use_rnn=True, rnn_size=8, rollout=8)
    samples = learner._prepare(actor.collect(actor.receive(learner))).samples
    assert samples.valid is not None and not samples.valid.all()
    garbage = {
        name: getattr(samples, name).masked_fill(~samples.valid, 1e3)
        for name in ("log_prob", "advantage", "normalized_return")
    }
    gradients, log_ratios = [], []
    for batch in (samples, samples._replace(**garbage)):
        log_ratios.append(learner._take_step(batch, 0.0)[1])
        gradients.append(learner._gradient.clone())
    assert torch.equal(*gradients) and torch.equal(*log_ratios)
    assert len(log_ratios[0]) == int(samples.valid.sum())


@pytest.mark.parametrize("schedule", ["kl_adaptive_minibatch", "kl_adaptive_epoch"])
def test_a_minibatch_of_sequences_without_a_sample_changes_nothing(schedule: str) -> None:
    memory = {"use_rnn": True, "rnn_size": 8, "rollout": 8, "shuffle_minibatches": False, "lr_schedule": schedule}
    (learner, actor), (expected, _) = make(BOX, **memory), make(BOX, **memory, num_batches_per_epoch=1)
    expected.load_state_dict(learner.state_dict())
    expected.publication()
    for _ in range(2):
        dataset = actor.collect(actor.receive(learner))
        dataset.valid[:, 8:] = False  # the columns of the second of two minibatches
        metrics = train_on(learner, dataset)
        alone = train_on(expected, Dataset(**{name: field[:, :8] for name, field in dataset.tensors().items()}))
        assert metrics.value_loss == pytest.approx(alone.value_loss) and learner.skipped_steps == 0
        expected.policy_version = learner.policy_version
        torch.testing.assert_close(learner.publication(), expected.publication())
    assert learner._learning_rate.value == expected._learning_rate.value


def first_choice(obs: Tensor, action: Tensor) -> Tensor:
    """Reward 1 for choice 1 where the first number is positive, and for choice 0 elsewhere."""
    return (action == (obs[..., 0] > 0.0)).float()


def no_reward(obs: Tensor, action: Tensor) -> Tensor:
    return torch.zeros_like(obs[..., 0])


def test_values_come_out_in_units_of_rewards() -> None:
    learner, actor = make(CHOICE, learning_rate=0.02)
    for _ in range(60):
        dataset = actor.collect(actor.receive(learner), lambda obs, _: 100.0 + 10.0 * obs[..., 0], ends=False)
        metrics = train_on(learner, dataset)
    actor.receive(learner)
    obs = torch.tensor([[-3.0, 0.0, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    torch.testing.assert_close(actor.model.act(obs).value, torch.tensor([70.0, 100.0, 130.0]), atol=8.0, rtol=0.0)
    assert metrics.explained_variance > 0.9


def make_as_shipped(**settings: Any) -> tuple[OnPolicyLearner, Actor]:
    """With the critic's own first weights."""
    config = TrainConfig(**{"batch_size": 64, "num_batches_per_epoch": 2, "encoder_mlp_layers": [16], **settings})
    return OnPolicyLearner(ActorCritic(CHOICE, config), config, CPU), Actor(CHOICE, config)


def test_a_task_is_learned_as_well_at_any_scale_of_rewards() -> None:
    learned = []
    for scale in (1e-4, 1.0, 1e3):
        learner, actor = make_as_shipped(reward_scale=scale, learning_rate=0.003)
        rewards = []
        for _ in range(60):
            dataset = actor.collect(actor.receive(learner), first_choice)
            rewards.append(float(dataset.reward.mean()))
            train_on(learner, dataset)
        learned.append(sum(rewards[-10:]) / 10)
    assert min(learned) > 0.75  # a third by chance
    assert learned[1] == pytest.approx(learned[2], abs=0.05)


@pytest.mark.parametrize("num_before", [0, 20])
def test_the_gradient_stays_bounded_through_a_phase_without_reward(num_before: int) -> None:
    learner, actor = make_as_shipped(learning_rate=0.003)
    norms = []
    for number in range(num_before + 60):
        reward = first_choice if number < num_before else no_reward
        norms.append(train_on(learner, actor.collect(actor.receive(learner), reward)).grad_norm)
    assert max(norms[num_before:]) < 2.0
    assert float(learner.model.value_head.weight.detach().norm()) < 2.0
