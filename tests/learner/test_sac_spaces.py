"""SAC's update on actions of every kind, masks and images: by autograd, against brute force and the passes by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_learners import make, small_config
from torch import Tensor
from transitions import BOX, CHOICE, draw, one_step
from unavoidable import needs_cuda

from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.models import distributions
from asyncrl.models.distributions import ActionParts, make_distribution
from asyncrl.models.flat import FlatParameters
from asyncrl.models.sac import SacActor
from asyncrl.models.sizes import num_model_parameters, trained_sizes
from asyncrl.models.uniform import UniformPolicy

NUMBERS = spaces.Box(-1.0, 1.0, (3,))
MIXED = spaces.Tuple(
    (spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)), spaces.MultiDiscrete([2, 2]), spaces.Discrete(2))
)
PAIR = spec_of_spaces(NUMBERS, spaces.MultiDiscrete([2, 3]), "Pair", None)
BOTH = spec_of_spaces(NUMBERS, MIXED, "Both", None)
MASKED = spec_of_spaces(
    spaces.Dict({"action_mask": spaces.MultiBinary(5), "state": NUMBERS}), spaces.MultiDiscrete([2, 3]), "Masked", None
)
PICTURE = spec_of_spaces(spaces.Box(0, 255, (8, 8, 1), np.uint8), spaces.MultiDiscrete([2, 3]), "Picture", None)
SPECS = {"pair": PAIR, "both": BOTH, "masked": MASKED, "picture": PICTURE}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


def rows_of(spec: EnvSpec, size: int, generator: torch.Generator) -> Tensor:
    layout = spec.observation
    if layout.num_pixels:
        return torch.randint(256, (size, layout.row_size), generator=generator, dtype=torch.uint8)
    rows = torch.randn(size, layout.row_size, generator=generator)
    if layout.num_mask:
        rows[:, layout.num_features :] = (torch.rand(size, layout.num_mask, generator=generator) < 0.6).float()
    return rows


def batch_of(spec: EnvSpec, size: int = 12, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    obs, after = (rows_of(spec, size, generator) for _ in range(2))
    distribution = make_distribution(spec.action, squash=True)
    parameters = distribution.parameters_of(torch.zeros(size, distribution.num_parameters), None)
    action, _ = distribution.sample(parameters, generator)
    return one_step(obs, action, torch.randn(size, generator=generator), after, torch.full((size,), 0.9))


def places_of_groups(monkeypatch: pytest.MonkeyPatch, most: int) -> ActionParts:
    monkeypatch.setattr(distributions, "MOST_COMBINATIONS", most)
    return ActionParts(make_distribution(BOTH.action, squash=True))


@pytest.mark.parametrize("most", [1000, 1], ids=["joint", "factorized"])
def test_choices_are_valued_by_combination_or_one_by_one(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = places_of_groups(monkeypatch, most)
    distribution, sizes = make_distribution(BOTH.action, squash=True), [3, 2, 2, 2]
    generator = torch.Generator().manual_seed(0)
    parameters = distribution.parameters_of(torch.randn(4, distribution.num_parameters, generator=generator), None)
    # Parameters in the order of the space: 3 logits, 2 means, 2 log standard deviations, 2 + 2 logits, 2 logits.
    starts = [0, 7, 9, 11]
    each = [parameters[:, start : start + size] for start, size in zip(starts, sizes, strict=True)]
    log_probs, values = parts.log_probs_of(parameters), torch.randn(2, 4, parts.num_values, generator=generator)
    assert (parts.num_continuous, parts.columns, parts.sizes) == (2, [1, 2], sizes)
    torch.testing.assert_close(parts.gaussian_of(parameters), parameters[:, 3:7])
    combinations = list(itertools.product(*map(range, sizes)))
    expected = torch.zeros(4)
    for combination in combinations:
        probability = math.prod(part[:, choice].exp() for part, choice in zip(each, combination, strict=True))
        first, *rest = combination
        action = torch.tensor([[first, 0.3, -0.4, *rest]]).expand(4, -1)
        value = parts.chosen_values(values, action)
        if most == 1:
            by_hand = sum(values[0, :, place + choice] for place, choice in zip([0, 3, 5, 7], combination, strict=True))
        else:
            by_hand = values[0, :, combinations.index(combination)]
        torch.testing.assert_close(value[0], by_hand)
        expected = expected + probability * value[0]
    torch.testing.assert_close((log_probs.exp() * values[0]).sum(-1), expected)
    entropy = sum(-(part.exp() * part).sum(-1) for part in each)
    torch.testing.assert_close(-(log_probs.exp() * log_probs).sum(-1), entropy)
    torch.testing.assert_close(
        parts.continuous_of(torch.tensor([[1.0, 0.3, -0.4, 0, 0, 0]])), torch.tensor([[0.3, -0.4]]).tanh()
    )


@pytest.mark.parametrize("most", [1000, 1], ids=["joint", "factorized"])
def test_soft_values_of_choices_that_depend_on_one_another(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bandit: of two choices with rewards that add up, or that are 1 only where both fit each other."""
    monkeypatch.setattr(distributions, "MOST_COMBINATIONS", most)
    alpha, pairs = 0.5, torch.tensor(list(itertools.product(range(2), range(3))), dtype=torch.float32)
    reward = pairs[:, 0] - 0.5 * pairs[:, 1]
    if most > 1:
        reward = reward + 2.0 * ((pairs[:, 0] == 1) & (pairs[:, 1] == 2))
    obs = torch.zeros(6, 3)
    batch = one_step(obs, pairs, reward, obs, torch.zeros(6))
    learner = make(PAIR, encoder_mlp_layers=[], learning_rate=0.03, ent_coef=alpha)
    learner.train([batch] * 800)
    parts = learner.model.parts
    with torch.no_grad():
        found = parts.log_probs_of(learner.model(obs[:1]))[0]
        values = learner.critic.values(learner.model.inputs_of(obs), torch.empty(6, 0))
        torch.testing.assert_close(parts.chosen_values(values, pairs)[0], reward, atol=0.02, rtol=0.0)
    if most == 1:
        firsts, seconds = (torch.tensor([0.0, 1.0]) / alpha, torch.tensor([0.0, -0.5, -1.0]) / alpha)
        expected = torch.cat((firsts.log_softmax(0), seconds.log_softmax(0)))
        torch.testing.assert_close(found.exp(), expected.exp(), atol=0.02, rtol=0.0)
        return
    # The best policy with independent choices, by coordinate ascent on its soft value.
    table, first = reward.view(2, 3), torch.full((2,), 0.5)
    for _ in range(200):
        second = (first @ table / alpha).softmax(0)
        first = (table @ second / alpha).softmax(0)
    torch.testing.assert_close(found.exp(), torch.outer(first, second).flatten(), atol=0.02, rtol=0.0)


@every_spec
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_every_space_is_trained(spec: EnvSpec, n_step: int, precision: str) -> None:
    learner = make(spec, n_step=n_step, normalize_input=True, precision=precision)
    batch = batch_of(spec)
    between = batch.next_obs.unsqueeze(1).expand(-1, n_step - 1, -1)
    batch = batch._replace(between_obs=between, between_discount=torch.full((12, n_step - 1), 0.9))
    before = learner.state_dict()
    learner.observe(batch.obs)
    metrics = learner.train([batch] * 3)
    assert metrics is not None and all(map(math.isfinite, dataclasses.astuple(metrics)))
    after = learner.state_dict()
    for name in ("actor.value.0", "critic.value.0", "target_critic", "log_ent_coef"):
        assert not torch.equal(before.optimizer[name], after.optimizer[name]), name
    config = small_config(n_step=n_step, normalize_input=True)
    assert num_model_parameters(spec, config) == before.optimizer["actor.value.0"].numel()
    assert trained_sizes(spec, config)["critic"] == before.optimizer["critic.value.0"].numel()


@pytest.mark.gpu
@needs_cuda
@every_spec
def test_updates_of_every_space_are_captured(spec: EnvSpec) -> None:
    learner = make(spec, device=torch.device("cuda"), compile="cuda_graph", normalize_input=True)
    metrics = learner.train([batch_of(spec)] * 8)
    assert metrics is not None and all(map(math.isfinite, dataclasses.astuple(metrics)))
    assert learner.notice is None


@every_spec
def test_the_actor_step_goes_up_the_soft_value_and_leaves_the_critics_alone(spec: EnvSpec) -> None:
    learner, batch = make(spec, learning_rate=1e-3, ent_coef=0.1), batch_of(spec, 64)
    losses = [learner.train([batch._replace(reward=batch.reward * 0.0)]) for _ in range(30)]
    assert losses[0] is not None and losses[-1] is not None
    assert losses[-1].actor_loss < losses[0].actor_loss


def test_forbidden_choices_are_never_taken_and_the_target_entropy_is_that_of_allowed_ones() -> None:
    learner = make(MASKED, learning_rate=5e-3, encoder_mlp_layers=[32])
    batch = batch_of(MASKED, 64)
    mask = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])  # log 2 nats each at most
    for rows in (batch.obs, batch.next_obs):
        rows[:, 3:] = mask
    metrics = learner.train([batch._replace(reward=torch.zeros(64))] * 50)
    assert metrics is not None
    parameters = learner.model(*learner.model.inputs_of(batch.obs)).detach()
    assert float(parameters.exp()[:, 2].max()) == 0.0
    obs, max_entropy_of = learner.model.inputs_of(batch.obs), learner.algorithm.parts.max_entropy_of
    largest = [2.0 * math.log(2.0)] * 64
    assert max_entropy_of(learner.model.mask_of(obs.floats)).tolist() == pytest.approx(largest)
    nothing = obs._replace(floats=torch.cat((obs.floats[:, :3], torch.zeros(64, 5)), dim=1))  # allows everything
    largest = [math.log(2.0) + math.log(3.0)] * 64
    assert max_entropy_of(learner.model.mask_of(nothing.floats)).tolist() == pytest.approx(largest)
    action = learner.model.act(batch.obs).action
    assert 0.0 not in action[:, 1].tolist()


@pytest.mark.parametrize(
    ("spec", "target"),
    [(PAIR, 0.5 * math.log(2 * 3)), (BOTH, -2.0 + 0.5 * math.log(3 * 2 * 2 * 2)), (MASKED, 0.5 * math.log(2 * 2))],
    ids=["pair", "both", "masked"],
)
def test_the_wanted_entropy_is_minus_one_for_each_number_and_half_the_largest_of_choices(
    spec: EnvSpec, target: float
) -> None:
    learner, batch = make(spec), batch_of(spec, 64)
    if spec is MASKED:
        batch.obs[:, 3:] = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
    metrics = learner.train([batch])
    assert metrics is not None
    moment = float(learner.state_dict().optimizer["actor.exp_avg.1"])
    assert moment == pytest.approx(0.1 * (metrics.entropy - target), abs=1e-6)


def test_a_replay_is_filled_with_allowed_choices_and_actions_of_the_whole_range() -> None:
    distribution = make_distribution(MASKED.action, squash=True)
    rows = np.zeros((500, 8), np.float32)
    rows[:, 3:] = [1, 0, 0, 1, 1]
    action = UniformPolicy(distribution, 0, MASKED.observation).act(rows).action
    assert set(action[:, 0]) == {0.0} and set(action[:, 1]) == {1.0, 2.0}
    both = UniformPolicy(make_distribution(BOTH.action, squash=True), 0, BOTH.observation).act(
        np.zeros((500, 3), np.float32)
    )
    assert set(both.action[:, 0]) == {0.0, 1.0, 2.0} and set(both.action[:, 5]) == {0.0, 1.0}
    unit = np.tanh(both.action[:, 1:3])
    assert unit.min() < -0.95 and unit.max() > 0.95 and abs(float(unit.mean())) < 0.1


def test_a_tuple_of_one_box_is_trained_as_the_box() -> None:
    box = spaces.Box(-1.0, 1.0, (2,))
    alone, within = (make(spec_of_spaces(NUMBERS, space, "Box", None)) for space in (box, spaces.Tuple((box,))))
    assert alone.train(draw(BOX, 3)) == within.train(draw(BOX, 3))


def test_a_plain_perceptron_is_trained_by_passes_and_others_by_autograd() -> None:
    assert SacActor(BOX, small_config()).has_passes and SacActor(CHOICE, small_config()).has_passes
    for spec in SPECS.values():
        actor = SacActor(spec, small_config())
        assert not actor.has_passes
        FlatParameters(actor)
