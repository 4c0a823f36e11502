"""Answers land beside the observations that they belong to, under the version of the weights that gave them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from critics import with_values
from small_runs import BOX, CHOICE, planned, small_arena

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.replay import ReplayStripes, replay_specs
from asyncrl.buffers.weights import WeightsChannel, weights_specs
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.inference.acting import ActingPolicy
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.factory import make_acting_model
from asyncrl.models.flat import FlatParameters, block_size, write_block

CONFIG = TrainConfig(encoder_mlp_layers=[8], policy_initialization="torch_default")
PLAN = planned(batch_size=24, num_workers=2, num_envs_per_worker=3)


class Acting:
    """A policy over an arena whose observations all differ."""

    def __init__(self, spec: EnvSpec = BOX) -> None:
        self.model = with_values(ActorCritic(spec, CONFIG))
        self.arena, self.slots = small_arena(PLAN, spec, block_size(self.model))
        self.slots.obs[:] = np.random.default_rng(0).normal(size=self.slots.obs.shape)
        self.channel = WeightsChannel(self.arena)
        self.policy = ActingPolicy(ActorCritic(spec, CONFIG), self.channel, self.slots, torch.device("cpu"), seed=0)

    def publish(self, version: int, return_mean: float = 0.0) -> None:
        self.model.statistics[-2] = return_mean
        block = torch.empty(block_size(self.model))
        write_block(self.model, FlatParameters(self.model), block)
        self.channel.publish(block.numpy(), version, env_steps=0)

    def expected_value(self, place: tuple[int, int]) -> torch.Tensor:
        return self.model.act(torch.from_numpy(self.slots.obs[place]), torch.Generator()).value


def test_nobody_acts_before_weights_were_published() -> None:
    with pytest.raises(RuntimeError, match="before any weights were published"):
        Acting().policy.answer([(0, 0)])


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
@pytest.mark.parametrize("places", [[(2, 1)], [(5, 0), (1, 1), (3, 0)]], ids=["one", "batch"])
def test_each_split_gets_the_answers_to_its_own_rows(spec: EnvSpec, places: list[tuple[int, int]]) -> None:
    acting = Acting(spec)
    acting.publish(version=12)
    acting.policy.answer([(0, 0), (0, 1), (4, 0), (4, 1)])  # a larger batch before, whose rows must not come back
    acting.policy.answer(places)
    slots = acting.slots
    for place in places:
        torch.testing.assert_close(torch.from_numpy(slots.value[place]), acting.expected_value(place))
        parameters, _ = acting.model(acting.model.normalize_obs(torch.from_numpy(slots.obs[place])))
        stored = torch.from_numpy(slots.action_parameters[place])
        torch.testing.assert_close(stored, parameters.detach())
        log_prob = acting.model.distribution.log_prob(stored, torch.from_numpy(slots.action[place]))
        torch.testing.assert_close(torch.from_numpy(slots.log_prob[place]), log_prob)
        assert slots.policy_version[place] == 12
    written = set(zip(*np.nonzero(~np.isnan(slots.value).any(-1)), strict=True))
    assert written == {(0, 0), (0, 1), (4, 0), (4, 1), *places}


def test_the_row_after_the_last_step_gets_a_value_and_no_action() -> None:
    acting = Acting()
    acting.publish(version=0)
    last = (1, PLAN.rollout)
    acting.policy.answer([(0, 0), last])
    torch.testing.assert_close(torch.from_numpy(acting.slots.value[last]), acting.expected_value(last))
    assert np.isnan(acting.slots.log_prob[1]).all()
    assert np.isnan(acting.slots.log_prob[2:]).all()


def test_newer_weights_are_taken_over_with_their_statistics_and_their_version() -> None:
    acting = Acting()
    acting.publish(version=4)
    acting.policy.answer([(0, 0)])
    acting.policy.answer([(0, 1)])
    acting.publish(version=8, return_mean=100.0)
    acting.policy.answer([(1, 0)])
    assert acting.slots.policy_version[0].tolist()[:2] == [4, 4]
    assert acting.slots.policy_version[1, 0] == acting.policy.version == 8
    assert np.abs(acting.slots.value[0, :2]).max() < 50.0
    torch.testing.assert_close(torch.from_numpy(acting.slots.value[1, 0]), acting.expected_value((1, 0)))


@pytest.mark.parametrize("settings", [{"algo": "td3"}, {"algo": "sac", "exploration_noise": "pink"}], ids=str)
def test_actions_of_the_warm_up_are_uniform_whatever_noise_follows(settings: dict[str, Any]) -> None:
    config = TrainConfig(**settings, encoder_mlp_layers=[8])
    model = make_acting_model(BOX, config)
    num_envs = 400
    rows = replay_specs(BOX, 1, num_envs, 10 * num_envs)
    arena = Arena.create([*rows, *weights_specs(block_size(model))])
    stripes, channel = ReplayStripes(arena), WeightsChannel(arena)
    stripes.obs[:] = 1.0
    exploration = model.make_exploration(config, stripes, 1, seed=1)
    policy = ActingPolicy(model, channel, stripes, torch.device("cpu"), seed=2, exploration=exploration)
    block = write_block(model, policy._flat).numpy()
    channel.publish(block, 0, env_steps=0)
    policy.answer([(0, 0)])
    covered = np.abs(np.tanh(stripes.store_action(0, 0)))
    assert 0.45 < covered.mean() < 0.55 and covered.max() > 0.95
    channel.publish(block, 1, env_steps=0)
    policy.answer([(0, 1)])
    assert not 0.45 < np.abs(np.tanh(stripes.store_action(0, 1))).mean() < 0.55
