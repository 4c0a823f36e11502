"""Every column is answered by the policy that `policy_idx` names, with that policy's newest weights and version."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Tuple
from small_runs import BOX, CHOICE, CountingWaker, planned, small_arena

from asyncrl.buffers.control import WorkerDeaths
from asyncrl.buffers.layout import policy_prefix
from asyncrl.buffers.messages import IndexRing, RequestTable
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import AgentSpaces, EnvSpec
from asyncrl.inference.acting import ActingPolicy
from asyncrl.inference.acting_policies import ActingPolicies
from asyncrl.inference.worker import InferenceWorker
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.rollout.worker import LocalActions, RemoteActions

NUM_POLICIES = 3
SMALL = {"encoder_mlp_layers": [8], "policy_initialization": "torch_default"}
PLAN = dataclasses.replace(
    planned(rollout=4, batch_size=80, num_workers=2, num_envs_per_worker=5), num_policies=NUM_POLICIES
)


class Acting:
    """Policies over slots whose observations all differ, played in a random order."""

    def __init__(self, settings: list[dict[str, Any]], spec: EnvSpec = BOX) -> None:
        self.models, made = [], []
        for number, own in enumerate(settings):
            of_policy = spec.kinds[number % len(spec.kinds)]
            model = ActorCritic(of_policy, TrainConfig(**{**SMALL, **own}))
            generator = torch.Generator().manual_seed(number)
            flat = FlatParameters(model, with_grad=False)
            flat.data.copy_(0.4 * torch.randn(flat.size, generator=generator))
            model.statistics.copy_(torch.rand(model.statistics.shape, generator=generator) + 0.5)
            self.models.append((model, flat))
            made.append(ActorCritic(of_policy, TrainConfig(**{**SMALL, **own})))
        plan = dataclasses.replace(PLAN, rnn_state_size=max(model.rnn_state_size for model in made))
        self.arena, self.slots = small_arena(plan, spec, [block_size(model) for model in made])
        generator = np.random.default_rng(0)
        self.slots.obs[:] = generator.normal(size=self.slots.obs.shape)
        self.slots.rnn_state[:] = generator.normal(size=self.slots.rnn_state.shape)
        self.slots.policy_idx[:] = generator.integers(NUM_POLICIES, size=self.slots.policy_idx.shape)
        self.channels = [WeightsChannel(self.arena.scoped(policy_prefix(idx))) for idx in range(NUM_POLICIES)]
        cpu = torch.device("cpu")
        parts = zip(made, self.channels, strict=True)
        policies = [ActingPolicy(model, channel, self.slots, cpu, 7) for model, channel in parts]
        self.policies = ActingPolicies(policies, self.slots, seed=1)

    def publish(self, policy_idx: int, version: int) -> None:
        model, flat = self.models[policy_idx]
        block = torch.empty(block_size(model))
        write_block(model, flat, block)
        self.channels[policy_idx].publish(block.numpy(), version, env_steps=0)

    def check(self, place: tuple[int, int], versions: list[int]) -> None:
        slots = self.slots
        for column, policy_idx in enumerate(slots.policy_idx[place].tolist()):
            at = (*place, column)
            model = self.models[policy_idx][0]
            state = torch.from_numpy(slots.rnn_state[at][None, : model.rnn_state_size])
            obs = torch.from_numpy(slots.obs[at][None, : model.layout.row_size])
            expected = model.act(obs, torch.Generator(), state)
            assert slots.policy_version[at] == versions[policy_idx]
            np.testing.assert_allclose(slots.value[at], expected.value[0], rtol=1e-4, atol=1e-5)
            if place[1] == slots.rollout:
                continue
            stored = torch.from_numpy(slots.action_parameters[at][None, : model.distribution.num_parameters])
            torch.testing.assert_close(stored, expected.action_parameters, rtol=1e-4, atol=1e-5)
            action = np.asarray(slots.action[at])
            action = action if action.ndim == 0 else action[: model.distribution.num_actions]
            log_prob = model.distribution.log_prob(stored, torch.from_numpy(action[None]))
            torch.testing.assert_close(torch.tensor(slots.log_prob[at]), log_prob[0], rtol=1e-4, atol=1e-5)
            after = slots.rnn_state[place[0], place[1] + 1, column, : model.rnn_state_size]
            np.testing.assert_allclose(after, expected.rnn_state[0], rtol=1e-4, atol=1e-5)


ALIKE = [{}] * NUM_POLICIES
JOINT = spec_of_spaces(
    Box(-1.0, 1.0, (2,), np.float64),
    Tuple((Discrete(3), Box(-1.0, 1.0, (2,), np.float32), Discrete(2))),
    "Joint",
    max_episode_steps=None,
)


def of_kinds(*spaces: tuple[Any, Any]) -> EnvSpec:
    found = [spec_of_spaces(observation, action, "Kinds", None) for observation, action in spaces]
    distinct = tuple(AgentSpaces(spec.observation, spec.action) for spec in found)
    agents = tuple(f"agent_{number}" for number in range(len(found)))
    return dataclasses.replace(found[0], agents=agents, spaces=distinct, of_agents=tuple(range(len(found))))


NARROW, WIDE = (Box(-1.0, 1.0, (size,), np.float32) for size in (2, 5))
CASES: dict[str, tuple[list[dict[str, Any]], EnvSpec, bool]] = {
    "box": (ALIKE, BOX, True),
    "choice": (ALIKE, CHOICE, True),
    "joint": (ALIKE, JOINT, True),
    "shared": ([{"actor_critic_share_weights": True}] * NUM_POLICIES, BOX, True),
    "unnormalized": ([{"normalize_input": False, "adaptive_stddev": True}] * NUM_POLICIES, BOX, True),
    "squashed": ([{"squash_actions": True}] * NUM_POLICIES, BOX, True),
    "unlike": ([{}, {"encoder_mlp_layers": [5, 6]}, {"nonlinearity": "relu"}], BOX, False),
    "kinds": (ALIKE, of_kinds((NARROW, Discrete(3)), (WIDE, Discrete(2)), (NARROW, Discrete(6))), False),
    "kinds_of_boxes": (ALIKE, of_kinds(*((WIDE, Box(-1.0, 1.0, (size,), np.float32)) for size in (1, 3, 2))), False),
    "kinds_of_equal_size": (ALIKE, of_kinds(*((WIDE, MultiDiscrete(each)) for each in ((2, 3), (3, 2)))), False),
    "recurrent": ([{"use_rnn": True, "rnn_size": 6}, {}, {"use_rnn": True, "rnn_size": 4}], CHOICE, False),
}


@pytest.mark.parametrize("case", CASES)
def test_each_column_is_answered_by_its_policy(case: str) -> None:
    settings, spec, is_together = CASES[case]
    acting = Acting(settings, spec)
    assert (acting.policies._together is not None) == is_together
    for policy_idx in range(NUM_POLICIES):
        acting.publish(policy_idx, 10 * policy_idx + 1)
    for places in ([(0, 0)], [(3, 1), (1, 2), (4, 4)], [(2, 3), (0, 4)], [(2, 0)]):
        acting.policies.answer(places)
        for place in places:
            acting.check(place, [1, 11, 21])


@pytest.mark.parametrize("settings", [ALIKE, CASES["unlike"][0]], ids=["together", "each"])
def test_newer_weights_of_one_policy_concern_its_columns_only(settings: list[dict[str, Any]]) -> None:
    acting = Acting(settings)
    for policy_idx in range(NUM_POLICIES):
        acting.publish(policy_idx, policy_idx)
    acting.slots.policy_idx[0, 0] = acting.slots.policy_idx[0, 1] = [1, 0, 2, 1, 1]
    acting.slots.obs[0, 1] = acting.slots.obs[0, 0]
    acting.policies.answer([(0, 0)])
    acting.models[1][1].data.mul_(0.5)
    acting.publish(1, 8)
    acting.policies.answer([(0, 1)])
    acting.check((0, 1), [0, 8, 2])
    has_changed = acting.slots.value[0, 1] != acting.slots.value[0, 0]
    assert has_changed.tolist() == [True, False, False, True, True]
    assert acting.slots.policy_version[0, :2].tolist() == [[1, 0, 2, 1, 1], [8, 0, 2, 8, 8]]


def test_a_policy_that_plays_no_column_needs_no_weights_yet() -> None:
    acting = Acting(ALIKE)
    acting.publish(2, 5)
    acting.slots.policy_idx[0, 0] = 2
    acting.policies.answer([(0, 0)])
    acting.check((0, 0), [-1, -1, 5])
    acting.slots.policy_idx[0, 1] = [2, 2, 0, 2, 2]
    with pytest.raises(RuntimeError, match="before any weights were published"):
        acting.policies.answer([(0, 1)])


@pytest.mark.parametrize("is_central", [False, True], ids=["local", "central"])
def test_rollout_and_inference_workers_act_with_several_policies(is_central: bool) -> None:
    acting = Acting(ALIKE)
    for policy_idx in range(NUM_POLICIES):
        acting.publish(policy_idx, 3 + policy_idx)
    places = {0: (0, 1), 1: (5, 2)}
    if is_central:
        table = RequestTable(acting.arena)
        rings = {worker: IndexRing(acting.arena, f"requests.{worker}") for worker in places}
        wakers = dict.fromkeys(rings, CountingWaker())
        deaths = WorkerDeaths(acting.arena, has_server=True, has_slots=False)
        server = InferenceWorker(0, acting.policies, 5, table, rings, wakers, 1, 0.0, deaths)
        for split_idx, place in places.items():
            RemoteActions(table, rings[split_idx], CountingWaker()).request(split_idx, *place)  # type: ignore[arg-type]
        server.poll()
        assert server.report().num_forward_passes == 1
        assert not any(table.is_open(split_idx) for split_idx in places)
    else:
        for split_idx, place in places.items():
            assert LocalActions(acting.policies).request(split_idx, *place)
    for place in places.values():
        acting.check(place, [3, 4, 5])


def test_policies_that_act_together_draw_from_their_distributions() -> None:
    acting = Acting(ALIKE)
    for policy_idx in range(NUM_POLICIES):
        acting.publish(policy_idx, 1)
    slots, draws = acting.slots, []
    for _ in range(4000):
        acting.policies.answer([(0, 0)])
        draws.append(slots.action[0, 0, :, 0].copy())
    mean, log_std = slots.action_parameters[0, 0].T
    standard_error = np.exp(log_std) / np.sqrt(len(draws))
    assert (np.abs(np.mean(draws, 0) - mean) < 5.0 * standard_error).all()
    correlations = np.corrcoef(np.array(draws).T) - np.eye(5)
    assert np.abs(correlations).max() < 0.08
