"""Updates on sequences are those of networks that are stepped row by row, with masks and burn-in."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from transitions import BOX, CHOICE, CPU

from asyncrl.algorithms import sac
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.recurrent_replay.learner import RecurrentSacLearner, RecurrentTd3Learner
from asyncrl.contrib.recurrent_replay.sampler import Sequences
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.cores import RecurrentCore, unroll_after
from asyncrl.models.encoders import Inputs
from asyncrl.models.sac import SacActor, TwinCritic
from asyncrl.models.td3 import DeterministicActor

MASKED = spec_of_spaces(
    spaces.Dict({"action_mask": spaces.MultiBinary(4), "state": spaces.Box(-1.0, 1.0, (3,))}),
    spaces.Discrete(4),
    "Masked",
    None,
)
SIZE, LENGTH, BURN_IN = 5, 4, 3
SPECS = pytest.mark.parametrize("spec", [BOX, CHOICE, MASKED], ids=["box", "choice", "masked"])
Learner = RecurrentSacLearner | RecurrentTd3Learner


def make(spec: EnvSpec = BOX, algo: str = "sac", double: bool = True, **settings: Any) -> Any:
    defaults: dict[str, Any] = {
        "use_rnn": True,
        "rnn_size": 6,
        "encoder_mlp_layers": [8],
        "nonlinearity": "tanh",
        "policy_delay": 1,
        "normalize_input": False,
        "max_grad_norm": 0.0,
        "precision": "float32",
        "ent_coef": 0.2,
    }
    config = TrainConfig(**{"algo": algo, **defaults, **settings})
    actor = SacActor(spec, config) if algo == "sac" else DeterministicActor(spec, config)
    kind = RecurrentSacLearner if algo == "sac" else RecurrentTd3Learner
    return kind(actor.double() if double else actor, config, spec, CPU)


def draw(spec: EnvSpec, num: int, seed: int = 5, dtype: torch.dtype = torch.float64, size: int = 6) -> list[Sequences]:
    """Sequences in which episodes end anywhere: truncated (the final row is not a sample) or terminated."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    batches = []
    for _ in range(num):
        num_rows = BURN_IN + LENGTH
        valid = torch.rand(SIZE, num_rows, generator=generator) < 0.8
        terminated = (torch.rand(SIZE, num_rows, generator=generator) < 0.2) & valid
        valid[0], terminated[0] = True, False  # one sequence without an end
        begins = torch.zeros(SIZE, num_rows + 1, dtype=torch.bool)
        begins[:, 1:] = terminated | ~valid
        choice, obs = torch.randint(4, (SIZE, LENGTH), generator=generator), randn(SIZE, num_rows + 1, 3)
        if spec is MASKED:
            allowed = torch.rand(SIZE, num_rows + 1, 4, generator=generator) < 0.6
            obs = torch.cat((obs, allowed.to(dtype)), dim=2)
        batches.append(
            Sequences(
                obs=obs,
                action=randn(SIZE, LENGTH, 2) if spec is BOX else choice,
                reward=randn(SIZE, LENGTH),
                discount=0.9 * (~terminated[:, BURN_IN:]).to(dtype),
                weight=valid[:, BURN_IN:].to(dtype),
                begins=begins,
                rnn_state=0.5 * randn(SIZE, size),
            )
        )
    return batches


def stepped(network: Any, batch: Sequences, column: int, state: Tensor) -> list[Tensor]:
    """Features of the rows of one sequence after the burn-in, row by row."""
    features = []
    for row in range(batch.obs.shape[1]):
        if batch.begins[column, row]:
            state = torch.zeros_like(state)
        if row == BURN_IN:
            state = state.detach()
        output, state = network.core.step(network.encoder(Inputs(batch.obs[column, row : row + 1])), state)
        features.append(output)
    return features[BURN_IN:]


def samples_of(batch: Sequences) -> list[tuple[int, int]]:
    """(sequence, row after the burn-in) of all samples, in the order of the learner's noise."""
    return [(column, row) for row in range(LENGTH) for column in range(SIZE) if batch.weight[column, row]]


def features_of(network: nn.Module, batch: Sequences, is_critic: bool) -> list[list[Tensor]]:
    size = network.core.state_size
    states = [torch.zeros(1, size).double() if is_critic else batch.rnn_state[idx : idx + 1] for idx in range(SIZE)]
    return [stepped(network, batch, column, states[column]) for column in range(SIZE)]


def noise_of(learner: Any, num_draws: int) -> Tensor:
    """The noise of the learner's next update, `[draws, row, sequence, 1, continuous actions]`."""
    generator = torch.Generator().set_state(learner._generator.get_state())
    num_continuous = learner.model.parts.num_continuous
    noise = torch.randn(num_draws * LENGTH * SIZE, num_continuous, generator=generator, dtype=torch.float64)
    return noise.view(num_draws, LENGTH, SIZE, 1, num_continuous)


def acted(actor: SacActor, features: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Continuous actions, their log-probability, and those of choices, from features of one row."""
    parameters = actor.parameters_of(actor.mlp(features)[0], actor.mask_of(obs))
    sample = sac.draw_squashed(actor.parts.gaussian_of(parameters), noise)
    return sample.action, sample.log_prob, actor.parts.log_probs_of(parameters)


def gradient_of(module: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


@SPECS
@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_an_update_of_sac_is_that_of_networks_stepped_row_by_row(spec: EnvSpec, rnn_type: str) -> None:
    learner = make(spec, rnn_type=rnn_type, tau=0.25)
    (batch,) = draw(spec, 1, size=learner.model.rnn_state_size)
    learner.target_critic.mlp.head_bias.add_(1.0)
    before = learner.state_dict().optimizer
    actor, critic, target_critic = (
        copy.deepcopy(each) for each in (learner.model, learner.critic, learner.target_critic)
    )
    parts, alpha = learner.algorithm.parts, torch.tensor(0.2, dtype=torch.float64)
    noise, samples = noise_of(learner, 2), samples_of(batch)
    of_actor, of_critic = features_of(actor, batch, False), features_of(critic, batch, True)
    of_target = features_of(target_critic, batch, True)
    trained_obs = batch.obs[:, BURN_IN:].unsqueeze(2)
    loss = torch.zeros(()).double()
    for column, row in samples:
        with torch.no_grad():
            later = of_actor[column][row + 1], trained_obs[column, row + 1]
            action, log_prob, log_probs = acted(actor, *later, noise[1, row, column])
            next_values = target_critic.combine(of_target[column][row + 1], action)
            next_value = sac.soft_value(next_values, log_probs, log_prob, alpha)
            target = batch.reward[column, row] + batch.discount[column, row] * next_value
        taken = batch.action[column, row : row + 1]
        outputs = critic.combine(of_critic[column][row], parts.continuous_of(taken).double())
        values = parts.chosen_values(outputs, taken)
        loss = loss + 0.5 * (values - target).square().sum() / len(samples)
    loss.backward()
    metrics = learner.train([batch])
    assert metrics.critic_loss == pytest.approx(loss.item(), rel=1e-9)
    moments = learner.state_dict().optimizer
    torch.testing.assert_close(moments["critic.exp_avg.0"], 0.1 * gradient_of(critic))
    followed = before["target_critic"].lerp(moments["critic.value.0"], 0.25)
    torch.testing.assert_close(moments["target_critic"], followed)
    # The policy is trained with the critics after their step.
    of_critic = features_of(learner.critic, batch, True)
    cost = torch.zeros(()).double()
    for column, row in samples:
        own = of_actor[column][row], trained_obs[column, row]
        action, log_prob, log_probs = acted(actor, *own, noise[0, row, column])
        values = learner.critic.combine(of_critic[column][row].detach(), action)
        cost = cost - sac.soft_value(values, log_probs, log_prob, alpha).sum() / len(samples)
    cost.backward(inputs=list(actor.parameters()))
    assert metrics.actor_loss == pytest.approx(cost.item(), rel=1e-9)
    torch.testing.assert_close(moments["actor.exp_avg.0"], 0.1 * gradient_of(actor))


@SPECS
def test_the_entropy_coefficient_is_adapted_by_the_entropy_of_the_samples(spec: EnvSpec) -> None:
    """Of choices, half of the largest entropy that the samples' masks allow is wanted."""
    learner = make(spec, ent_coef="auto", initial_ent_coef=0.2)
    (batch,) = draw(spec, 1, size=learner.model.rnn_state_size)
    assert not batch.weight.all()
    actor, noise, samples = copy.deepcopy(learner.model), noise_of(learner, 2), samples_of(batch)
    features, trained_obs = features_of(actor, batch, False), batch.obs[:, BURN_IN:].unsqueeze(2)
    entropy, largest = 0.0, 0.0
    for column, row in samples:
        obs = trained_obs[column, row]
        _, log_prob, log_probs = acted(actor, features[column][row], obs, noise[0, row, column])
        entropy -= float((log_prob + (log_probs.exp() * log_probs).sum()).detach()) / len(samples)
        num_allowed = int(obs[0, 3:].sum()) or 4  # a mask that forbids all is ignored
        largest += math.log(num_allowed if spec is MASKED else 4) / len(samples)
    metrics = learner.train([batch])
    assert metrics.entropy == pytest.approx(entropy, rel=1e-9)
    target = -2.0 if spec is BOX else 0.5 * largest
    moment = float(learner.state_dict().optimizer["actor.exp_avg.1"])
    assert moment == pytest.approx(0.1 * (entropy - target), rel=1e-6)


@pytest.mark.parametrize("has_gradient", [True, False])
def test_the_masks_of_an_unrolled_policy_are_those_of_its_own_rows(has_gradient: bool) -> None:
    actor = make(MASKED).model
    (batch,) = draw(MASKED, 1)
    rows, begins, state, expected = batch.obs.transpose(0, 1), batch.begins.t(), batch.rnn_state, []
    for row, has_begun in zip(rows, begins, strict=True):
        parameters, state = actor.step(Inputs(row), state.masked_fill(has_begun.unsqueeze(1), 0.0))
        expected.append(parameters)
    with torch.set_grad_enabled(has_gradient):
        found = actor.unroll(Inputs(rows.flatten(0, 1)), batch.rnn_state, begins, BURN_IN)
    torch.testing.assert_close(found.detach(), torch.cat(expected[BURN_IN:]).detach())


def test_an_update_of_td3_is_that_of_networks_stepped_row_by_row() -> None:
    learner = make(algo="td3", tau=0.25)
    (batch,) = draw(BOX, 1, size=learner.model.rnn_state_size)
    learner.target_critic.mlp.head_bias.add_(1.0)
    learner.target_actor.mlp.head_bias.add_(0.5)
    before = learner.state_dict().optimizer
    actor, target_actor = copy.deepcopy(learner.model), copy.deepcopy(learner.target_actor)
    critic, target_critic = copy.deepcopy(learner.critic), copy.deepcopy(learner.target_critic)
    (noise,), samples = noise_of(learner, 1), samples_of(batch)
    of_actor, of_target_actor = features_of(actor, batch, False), features_of(target_actor, batch, False)
    of_critic, of_target_critic = features_of(critic, batch, True), features_of(target_critic, batch, True)
    loss = torch.zeros(()).double()
    for column, row in samples:
        with torch.no_grad():
            smoothing = (noise[row, column] * 0.2).clamp(-0.5, 0.5)
            next_output = target_actor.mlp(of_target_actor[column][row + 1])[0]
            next_action = (next_output.tanh() + smoothing).clamp(-1.0, 1.0)
            next_value = target_critic.combine(of_target_critic[column][row + 1], next_action).amin(0)
            target = batch.reward[column, row] + batch.discount[column, row] * next_value
        values = critic.combine(of_critic[column][row], batch.action[column, row : row + 1].tanh())
        loss = loss + 0.5 * (values - target).square().sum() / len(samples)
    loss.backward()
    metrics = learner.train([batch])
    assert metrics.critic_loss == pytest.approx(loss.item(), rel=1e-9)
    moments = learner.state_dict().optimizer
    torch.testing.assert_close(moments["critic.exp_avg.0"], 0.1 * gradient_of(critic))
    for name, trained in (("target_critic", "critic.value.0"), ("target_actor", "actor.value.0")):
        torch.testing.assert_close(moments[name], before[name].lerp(moments[trained], 0.25))
    of_critic, cost = features_of(learner.critic, batch, True), torch.zeros(()).double()
    for column, row in samples:
        action = actor.mlp(of_actor[column][row])[0].tanh()
        cost = cost - learner.critic.combine(of_critic[column][row].detach(), action)[0].sum() / len(samples)
    cost.backward(inputs=list(actor.parameters()))
    assert metrics.actor_loss == pytest.approx(cost.item(), rel=1e-9)
    torch.testing.assert_close(moments["actor.exp_avg.0"], 0.1 * gradient_of(actor))


@pytest.mark.parametrize(("rnn_type", "num_layers"), [("gru", 2), ("lstm", 1)])
@pytest.mark.parametrize("has_gradient", [True, False])
def test_burn_in_from_a_stored_state_gives_what_steps_from_the_first_row_of_an_episode_give(
    rnn_type: str, num_layers: int, has_gradient: bool
) -> None:
    torch.manual_seed(0)
    config = TrainConfig(use_rnn=True, rnn_type=rnn_type, rnn_num_layers=num_layers, rnn_size=5)
    core = RecurrentCore(4, config)
    features, begins = torch.randn(12, 3, 4), torch.zeros(12, 3, dtype=torch.bool)
    begins[5, 0] = begins[7, 1] = begins[9, 2] = True  # within the burn-in, at the first row after it, later
    state, states, outputs = torch.zeros(3, core.state_size), [], []
    with torch.no_grad():
        for row, has_begun in zip(features, begins, strict=True):
            state = state.masked_fill(has_begun.unsqueeze(1), 0.0)
            states.append(state)
            output, state = core.step(row, state)
            outputs.append(output)
    with torch.set_grad_enabled(has_gradient):
        inputs = Inputs(features[3:].flatten(0, 1))
        found = unroll_after(lambda each: each.floats, core, inputs, states[3], begins[3:], burn_in=4)
    torch.testing.assert_close(found.detach(), torch.stack(outputs[7:]).flatten(0, 1), atol=1e-6, rtol=1e-5)


def test_no_gradient_flows_into_the_burn_in() -> None:
    actor = make().model
    (batch,) = draw(BOX, 1)
    obs = batch.obs.transpose(0, 1).flatten(0, 1).requires_grad_()
    begins = torch.zeros_like(batch.begins.t())
    with torch.enable_grad():
        output = actor.unroll(Inputs(obs), batch.rnn_state, begins, BURN_IN)
        output.square().sum().backward()
    by_row = obs.grad.view(-1, SIZE, 3).abs().sum((1, 2))
    assert (by_row[:BURN_IN] == 0.0).all() and (by_row[BURN_IN:] > 0.0).all()
    state = batch.rnn_state.clone().requires_grad_()
    with torch.enable_grad():
        actor.unroll(Inputs(obs), state, begins, 0).sum().backward()
    assert state.grad.any()


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_rows_that_are_no_samples_count_nothing(algo: str) -> None:
    learners = [make(algo=algo) for _ in range(2)]
    (batch,) = draw(BOX, 1, size=learners[0].model.rnn_state_size)
    other = Sequences(*(field.clone() for field in batch))
    assert not batch.weight.all()
    other.reward[batch.weight == 0] = 77.0
    other.action[batch.weight == 0] = 3.0
    assert learners[0].train([batch]) == learners[1].train([other])
    assert torch.equal(learners[0].publication(), learners[1].publication())


@pytest.mark.parametrize("algo", ["sac", "td3"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_restored_learner_continues_to_the_bit(algo: str, precision: str) -> None:
    settings = {"precision": precision, "normalize_input": True, "ent_coef": "auto", "policy_delay": 2}
    learner, restored = (make(algo=algo, double=False, seed=seed, **settings) for seed in (0, 9))
    batches = draw(BOX, 8, dtype=torch.float32, size=learner.model.rnn_state_size)
    learner.observe(torch.cat([batch.obs for batch in batches]))
    learner.train(batches[:3])
    restored.load_state_dict(learner.state_dict())
    assert learner.train(batches[3:]) == restored.train(batches[3:])
    assert torch.equal(learner.publication(), restored.publication())


def test_a_model_without_a_core_is_refused() -> None:
    class Plain(SacActor):
        def build(self, spec: EnvSpec, config: TrainConfig) -> None:
            super().build(spec, config.model_copy(update={"use_rnn": False}))

    with pytest.raises(UsageError, match="--use_rnn=True: the model Plain has no recurrent core"):
        Plain(BOX, TrainConfig(algo="sac", use_rnn=True))


def test_critics_that_would_not_be_called_are_refused() -> None:
    class Plain(TwinCritic):
        def values(self, inputs: Inputs, action: torch.Tensor) -> torch.Tensor:
            return super().values(inputs, action)

    class Actor(SacActor):
        def make_critic(self, spec: EnvSpec, config: TrainConfig) -> TwinCritic:
            return self.make(spec, config)

    for settings, words in (({}, "override values"), ({"use_rnn": False}, "have no recurrent core")):
        Actor.make = staticmethod(  # type: ignore[attr-defined]
            lambda spec, config, settings=settings: Plain(spec, config.model_copy(update=settings))
        )
        config = TrainConfig(algo="sac", use_rnn=True, rnn_size=4, encoder_mlp_layers=[8])
        with pytest.raises(UsageError, match=words):
            RecurrentSacLearner(Actor(BOX, config), config, BOX, torch.device("cpu"))
