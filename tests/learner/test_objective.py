"""The decoupled objective, passes that are left out, advantages that are computed again, and how these are scaled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from datasets import BOX, CHOICE, CPU, MASKED, Actor, present_values, train_on
from torch import Tensor

from asyncrl.algorithms import ppo
from asyncrl.algorithms.losses import Samples, Step, gae, vtrace
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.ranks import Ranks
from asyncrl.models.actor_critic import ActorCritic

SPECS = pytest.mark.parametrize("spec", [BOX, CHOICE, MASKED], ids=["box", "choice", "masked"])
WHOLE = {"num_batches_per_epoch": 1, "shuffle_minibatches": False}
MEMORY = {"use_rnn": True, "rnn_size": 5, "rollout": 8, "recurrence": 4}
ROLLOUT, LENGTH = 8, 4


def make(spec: EnvSpec, **settings: Any) -> tuple[OnPolicyLearner, Actor]:
    config = TrainConfig(**{"batch_size": 64, "num_batches_per_epoch": 2, "encoder_mlp_layers": [16], **settings})
    torch.manual_seed(3)
    return OnPolicyLearner(ActorCritic(spec, config), config, CPU), Actor(spec, config)


def collect(actor: Actor, version: int, **more: Any) -> Dataset:
    """A dataset; of a policy with memory its states run through all rows and begin again where episodes do."""
    dataset = actor.collect(version, **more)
    if actor.model.rnn_state_size == 0:
        return dataset
    state = torch.rand(actor.num_columns, actor.model.rnn_state_size, generator=actor.generator) - 0.5
    states, results = [], []
    for row, begins in enumerate(dataset.begins):
        state = state.masked_fill(begins.unsqueeze(1), 0.0)
        states.append(state)
        results.append(actor.model.act(dataset.obs[row], actor.generator, state))
        state = results[-1].rnn_state
    action, log_prob, value, parameters, _ = (torch.stack(field) for field in zip(*results, strict=True))
    return dataclasses.replace(
        dataset,
        rnn_state=torch.stack(states[:-1:LENGTH]),
        action=action[:-1],
        log_prob=log_prob[:-1],
        value=value,
        action_parameters=parameters[:-1],
    )


def lagging(spec: EnvSpec, **settings: Any) -> tuple[OnPolicyLearner, Actor, Dataset]:
    """A learner, the policy of some steps before with its statistics, and a dataset that this has collected."""
    learner, actor = make(spec, **{"learning_rate": 0.05, **settings})
    train_on(learner, collect(actor, actor.receive(learner), shift=3.0))
    version = actor.receive(learner)
    dataset = collect(actor, version)
    train_on(learner, collect(actor, version, shift=-4.0))
    learner.publication()
    return learner, actor, dataset


def recorded_minibatches(monkeypatch: pytest.MonkeyPatch) -> list[Samples]:
    """Copies of the minibatches of all passes from now on."""
    batches: list[Samples] = []
    draw = ppo.Minibatches.draw

    def record(minibatches: ppo.Minibatches) -> list[Samples]:
        drawn = draw(minibatches)
        batches.extend(Samples._make(None if field is None else field.clone() for field in batch) for batch in drawn)
        return drawn

    monkeypatch.setattr(ppo.Minibatches, "draw", record)
    return batches


def of_rows(field: Tensor) -> Tensor:
    """Rows `[T, C, ...]` of sequences `[N, L, ...]`."""
    return field.unflatten(0, (ROLLOUT // LENGTH, -1)).transpose(1, 2).flatten(0, 1)


@SPECS
def test_without_lag_the_decoupled_objective_is_ppo_to_the_bit(spec: EnvSpec) -> None:
    settings: dict[str, Any] = {"num_epochs": 3, "kl_loss_coeff": 0.1, "lr_schedule": "kl_adaptive_minibatch"}
    settings |= {"learning_rate": 0.01, "ppo_clip_ratio": 0.05, "entropy_loss_coeff": 0.01}
    (clip, actor), (decoupled, _) = make(spec, **settings), make(spec, ppo_objective="decoupled", **settings)
    for number in range(3):
        dataset = actor.collect(actor.receive(clip), shift=float(number))
        decoupled.publication()
        expected, found = (train_on(learner, dataset) for learner in (clip, decoupled))
        assert expected is not None and expected.clip_fraction > 0.0
        assert found == dataclasses.replace(expected, effective_sample_size=found.effective_sample_size)
    assert torch.equal(clip.publication(), decoupled.publication())


@pytest.mark.parametrize("settings", [{}, MEMORY], ids=["plain", "memory"])
@SPECS
def test_an_older_version_with_the_same_weights_counts_as_the_present_one(
    spec: EnvSpec, settings: dict[str, Any]
) -> None:
    settings = {"num_epochs": 3, "kl_loss_coeff": 0.1, "learning_rate": 0.01, "rollout": ROLLOUT, **settings}
    (clip, actor), (decoupled, _) = make(spec, **settings), make(spec, ppo_objective="decoupled", **settings)
    dataset = collect(actor, actor.receive(clip), shift=2.0)
    for learner in (clip, decoupled):
        learner.publication()
        learner.policy_version += 1
    expected, found = (train_on(learner, dataset) for learner in (clip, decoupled))
    assert found is not None and expected is not None
    for name, value in dataclasses.asdict(expected).items():
        assert getattr(found, name) == (None if value is None else pytest.approx(value, rel=1e-3, abs=1e-5)), name
    torch.testing.assert_close(decoupled.publication(), clip.publication(), rtol=1e-3, atol=1e-4)


@SPECS
def test_the_decoupled_loss_is_that_of_the_paper_in_every_pass(spec: EnvSpec) -> None:
    settings = {"num_epochs": 2, "value_loss_coeff": 0.0, "kl_loss_coeff": 0.5, "ppo_clip_ratio": 0.02}
    more = {"ppo_objective": "decoupled", "behaviour_weight_cap": 1.1, "recompute_values": False}
    learner, actor, dataset = lagging(spec, **WHOLE, **settings, **more)
    at, distribution, parameters = dataset.valid, learner.model.distribution, list(learner.model.parameters())
    inputs, action = actor.model.inputs_of(dataset.obs[:-1][at]), dataset.action[at]
    ends = (dataset.terminated, dataset.truncated, dataset.valid)
    advantage = gae(dataset.reward, dataset.value, *ends, 0.99, 0.95).advantages[at]
    advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    before = learner.model(*inputs).action_parameters.detach()
    weight = (distribution.log_prob(before, action) - dataset.log_prob[at]).exp().clamp(max=1.1)
    assert (weight == 1.1).any() and weight.min() < 0.9
    step_metrics = []

    def note(is_last: bool = False) -> None:
        present = learner.model(*inputs).action_parameters
        log_ratio = distribution.log_prob(present, action) - distribution.log_prob(before, action)
        ratio = log_ratio.exp()
        policy_loss = -(weight * torch.minimum(ratio * advantage, ratio.clamp(0.98, 1.02) * advantage)).mean()
        kl_loss = 0.5 * distribution.kl(before, present).mean()
        gradients = torch.autograd.grad(policy_loss + kl_loss, parameters, allow_unused=True)
        norm = torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]).norm()
        clipped = ((ratio - 1.0).abs() > 0.02).float().mean()
        approx_kl = (ratio - 1.0 - log_ratio).mean()
        step_metrics.append([float(metric.detach()) for metric in (policy_loss, kl_loss, norm, clipped, approx_kl)])

    note()
    metrics = train_on(learner, dataset, 0, note)
    assert metrics is not None
    found = [metrics.policy_gradient_loss, metrics.kl_loss, metrics.grad_norm, metrics.clip_fraction, metrics.approx_kl]
    expected = torch.tensor(step_metrics[:2]).mean(0)
    assert 0.0 < expected[3] < 0.5, "some ratios are clipped in the second pass"
    torch.testing.assert_close(torch.tensor(found), expected, rtol=2e-3, atol=1e-6)
    assert metrics.effective_sample_size == pytest.approx(float(weight.mean() ** 2 / weight.square().mean()), rel=1e-4)
    assert metrics.max_ratio_deviation_first_batch < 1e-5


def test_every_schedule_of_the_rate_follows_the_divergence_from_the_policy_before_training() -> None:
    # The policy that acted is far away, and small steps change nothing: the rate grows.
    for schedule in ("kl_adaptive_minibatch", "kl_adaptive_epoch"):
        for objective, grows in (("clip", False), ("decoupled", True)):
            learner, _, dataset = lagging(BOX, ppo_objective=objective, lr_schedule=schedule, kl_loss_coeff=0.1)
            dataset.action_parameters[..., :2] += 2.0
            learner._learning_rate.value = 1e-5
            train_on(learner, dataset)
            assert (learner._learning_rate.value > 1e-5) == grows


def test_with_a_memory_the_policy_before_training_is_that_of_the_sequences() -> None:
    learner, actor, dataset = lagging(BOX, ppo_objective="decoupled", **MEMORY)
    samples = learner._prepare(dataset).samples
    assert samples.weight is not None
    expected = torch.zeros(dataset.valid.shape)
    for row in range(ROLLOUT):
        if row % LENGTH == 0:
            state = dataset.rnn_state[row // LENGTH]
        state = state.masked_fill(dataset.begins[row].unsqueeze(1), 0.0)
        (parameters, _), state = learner.model.step(actor.model.inputs_of(dataset.obs[row]), state)
        expected[row] = learner.model.distribution.log_prob(parameters, dataset.action[row]).detach()
    at = dataset.valid
    torch.testing.assert_close(of_rows(samples.log_prob)[at], expected[at], rtol=1e-4, atol=1e-5)
    weight = (expected - dataset.log_prob).exp().clamp(max=5.0)
    torch.testing.assert_close(of_rows(samples.weight)[at], weight[at], rtol=1e-4, atol=1e-5)
    assert weight[at].std() > 0.01
    metrics = train_on(learner, dataset)
    assert metrics is not None and metrics.max_ratio_deviation_first_batch < 1e-5


def test_with_vtrace_the_weight_of_an_action_counts_once() -> None:
    # V-trace's advantage of an action has the weights of those that follow, not its own.
    learner, actor, dataset = lagging(BOX, ppo_objective="decoupled", with_vtrace=True, num_epochs=1, **WHOLE)
    at, model = dataset.valid, learner.model
    parameters = model(*actor.model.inputs_of(dataset.obs[:-1][at])).action_parameters.detach()
    log_ratios = torch.zeros(at.shape)
    log_ratios[at] = model.distribution.log_prob(parameters, dataset.action[at]) - dataset.log_prob[at]
    values = present_values(learner, dataset)
    ends = (dataset.terminated, dataset.truncated, at)
    advantage = vtrace(log_ratios, dataset.reward, values, *ends, 0.99, 0.95, max_rho=1.0, max_c=1.0).advantages[at]
    advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    weight = log_ratios[at].exp().clamp(max=5.0)
    metrics = train_on(learner, dataset)
    assert metrics is not None
    assert metrics.policy_gradient_loss == pytest.approx(-float((weight * advantage).mean()), rel=1e-3)


def divergences_of_passes(make_learner: Callable[..., tuple[OnPolicyLearner, Dataset]], num_epochs: int) -> list[float]:
    """Mean approximate KL divergence of each pass, from runs of 1, 2, ... passes whose metrics are means of all."""
    sums = [0.0]
    for number in range(1, num_epochs + 1):
        learner, dataset = make_learner(num_epochs=number)
        metrics = train_on(learner, dataset)
        assert metrics is not None
        sums.append(number * metrics.approx_kl)
    return [after - before for before, after in zip(sums, sums[1:], strict=False)]


@pytest.mark.parametrize("objective", ["clip", "decoupled"])
def test_passes_are_left_out_after_one_whose_mean_divergence_is_above_the_target(objective: str) -> None:
    def make_learner(**settings: Any) -> tuple[OnPolicyLearner, Dataset]:
        learner, actor = make(BOX, learning_rate=0.01, ppo_objective=objective, **settings)
        dataset = actor.collect(actor.receive(learner), ends=False)
        dataset.valid[:] = True  # passes of as many samples
        return learner, dataset

    passes = divergences_of_passes(make_learner, 4)
    assert passes[1] > 1.5 * passes[0]
    first = (1.5 * passes[0], 2)  # the first of two minibatches has divergence 0, so the second alone is above this
    assert passes == sorted(passes) and passes[1] < 0.8 * passes[2] < passes[3]
    for target, expected in ((0.9 * passes[2], 3), (1.1 * passes[2], 4), (0.9 * passes[0], 1), (None, 6), first):
        learner, dataset = make_learner(num_epochs=6, target_kl=target)
        were_last: list[bool] = []
        train_on(learner, dataset, 0, were_last.append)
        assert were_last == [False] * (expected - 1) + [True]
        assert learner.policy_version == 2 * expected


def test_a_divergence_that_is_not_a_number_ends_the_passes() -> None:
    for log_ratio, expected in ((0.0, False), (float("inf"), True), (float("nan"), True)):
        step = Step(torch.zeros(7), torch.full((4,), log_ratio))
        assert ppo.exceeds_target_kl([step], 0.5, Ranks()) == expected


def test_lag_alone_ends_an_update_by_the_clipped_objective_only() -> None:
    for objective, expected in (("clip", 1), ("decoupled", 3)):
        learner, _, dataset = lagging(BOX, num_epochs=3, ppo_objective=objective, target_kl=1e-4)
        learner._learning_rate.value = 1e-6
        were_last: list[bool] = []
        train_on(learner, dataset, 0, were_last.append)
        assert len(were_last) == expected


@pytest.mark.parametrize(
    ("settings", "recomputes"),
    [({}, True), ({"with_vtrace": True}, True), (MEMORY, True), ({}, False)],
    ids=["gae", "vtrace", "memory", "off"],
)
def test_each_pass_has_the_advantages_of_the_critic_before_it(
    settings: dict[str, Any], recomputes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = {"num_epochs": 3, "target_kl": None, "ppo_objective": "clip", "recompute_advantages": recomputes}
    settings = {**WHOLE, "normalize_advantage": False, **passes, **settings}
    learner, actor, dataset = lagging(BOX, **settings)
    newest = Actor(BOX, learner._config)
    newest.receive(learner)
    inputs, at, config = newest.model.inputs_of(dataset.obs.flatten(0, 1)), dataset.valid, learner._config
    before = torch.zeros(at.shape)
    if config.with_vtrace:
        parameters = newest.model(*actor.model.inputs_of(dataset.obs[:-1][at])).action_parameters.detach()
        before[at] = newest.model.distribution.log_prob(parameters, dataset.action[at])
    estimates = []

    def estimate(is_last: bool = False) -> None:
        """What the next pass is to be trained with, in units of rewards."""
        result = learner.model.unroll(inputs, dataset.rnn_state[0], dataset.begins)
        values = learner.model.denormalize_value(result.normalized_value.detach()).view(dataset.value.shape)
        rest = (dataset.reward, values, dataset.terminated, dataset.truncated, at, config.gamma, config.gae_lambda)
        if config.with_vtrace:
            found = vtrace(before - dataset.log_prob, *rest, max_rho=1.0, max_c=1.0)
            estimates.append((values, found.advantages, found.returns))
        else:
            estimates.append((values, *gae(*rest)))

    counts = learner._statistics.return_moments.count, learner._statistics.obs_moments.count
    batches = recorded_minibatches(monkeypatch)
    estimate()
    train_on(learner, dataset, 0, estimate)
    assert len(batches) == 3
    for batch, (values, advantages, returns) in zip(
        batches, estimates if recomputes else estimates[:1] * 3, strict=False
    ):
        expected = {"advantage": advantages, "normalized_return": learner.model.normalize_return(returns)}
        expected["normalized_value"] = learner.model.normalize_return(values[:-1])
        for name, field in expected.items():
            found = getattr(batch, name)
            found = of_rows(found)[at] if batch.valid is not None else found
            torch.testing.assert_close(found, field[at], rtol=1e-3, atol=1e-4, msg=name)
    moved = (estimates[2][1] - estimates[0][1])[at].abs().mean()
    assert moved > 0.01, "the critic moves enough to be seen"
    statistics = learner._statistics
    counts = statistics.return_moments.count - counts[0], statistics.obs_moments.count - counts[1]
    assert counts == (dataset.num_valid, dataset.num_valid), "statistics take a dataset in once"


@pytest.mark.parametrize("over", ["minibatch", "dataset"])
def test_advantages_are_normalized_over_what_was_asked_for(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, actor = make(BOX, num_batches_per_epoch=4, num_epochs=2, normalize_advantage_over=over)
    batches = recorded_minibatches(monkeypatch)
    train_on(learner, actor.collect(actor.receive(learner)))
    for epoch in (batches[:4], batches[4:]):
        parts = [batch.advantage for batch in epoch]
        means = torch.stack([part.mean() for part in parts])
        assert torch.allclose(means, torch.zeros(4), atol=1e-5) == (over == "minibatch")
        assert float(torch.cat(parts).mean()) == pytest.approx(0.0, abs=1e-4)
        assert float(torch.cat(parts).std(correction=0)) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("over", ["minibatch", "dataset"])
def test_rows_of_sequences_that_are_no_samples_have_no_part_in_the_normalization(over: str) -> None:
    learner, actor = make(BOX, num_batches_per_epoch=4, normalize_advantage_over=over, **MEMORY)
    samples = learner._prepare(collect(actor, actor.receive(learner))).samples
    assert samples.valid is not None and 0.1 < (~samples.valid).float().mean() < 0.5
    samples.advantage[~samples.valid] = 1000.0
    made = ppo.Minibatches(samples, learner._config, learner._generator, learner.ranks).draw()
    parts = [batch.advantage[batch.valid] for batch in made]
    assert len(parts) == 4
    for part in parts if over == "minibatch" else [torch.cat(parts)]:
        assert float(part.mean()) == pytest.approx(0.0, abs=1e-5)
        assert float(part.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
