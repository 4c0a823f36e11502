"""Recurrent states are those with which the policy saw the observations of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from contrib.recurrent_replay.states import new_states
from replay_workers import ENDLESS, Worker
from small_runs import BOX, ScriptedEnv

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.weights import WeightsChannel, weights_specs
from asyncrl.config.schema import TrainConfig
from asyncrl.inference.acting import ActingPolicy
from asyncrl.models.factory import make_acting_model
from asyncrl.models.flat import block_size, write_block
from asyncrl.rollout.env_group import EnvGroup


def test_a_recurrent_state_is_stored_before_each_observation_and_is_zero_where_an_episode_begins() -> None:
    steps: list[Any] = [(1.0, 0.0, False, False), (2.0, 0.0, False, True), (4.0, 0.0, True, False)]
    steps += [(5.0, 0.0, False, False), RuntimeError("broken"), (9.0, 0.0, False, False)]
    run = Worker(steps, use_rnn=True, rnn_size=3)
    run.limits.set(None, ENDLESS)
    run.step()
    run.worker.report()  # an episode must end before an environment may fail
    run.step(6)
    assert run.stripes.rnn_state.shape == (2, run.stripes.capacity, 1, 3)
    # Row 2 holds a final observation, row 3 terminates, the step of row 5 fails.
    assert run.stripes.rnn_state[0, :8, 0, 0].tolist() == [0, 1, 2, 0, 0, 1, 0, 1]
    assert run.stripes.valid[0, :7, 0].tolist() == [True, True, False, True, True, False, True]
    run.stripes.close_episodes(0)
    run.stripes.rnn_state[0, 8] = 5.0
    env = EnvGroup([ScriptedEnv(steps)], [0], 0, BOX, "squashed")
    follower = run.split(env)
    assert follower.begin() and follower.place == (0, 8)
    assert not run.stripes.rnn_state[0, 8].any()


def test_actions_of_the_warm_up_are_uniform_and_change_the_state() -> None:
    config, num_envs = TrainConfig(algo="sac", use_rnn=True, rnn_size=4, encoder_mlp_layers=[8]), 400
    model = make_acting_model(BOX, config)
    stripes = new_states(1, num_envs, 10, BOX, model.rnn_state_size)
    channel = WeightsChannel(Arena.create(weights_specs(block_size(model))))
    stripes.obs[:], stripes.rnn_state[:] = 1.0, 0.0
    policy = ActingPolicy(model, channel, stripes, torch.device("cpu"), seed=2)
    channel.publish(write_block(model, policy._flat).numpy(), 0, env_steps=0)
    policy.answer([(0, 0)])
    covered = np.abs(np.tanh(stripes.store_action(0, 0)))
    assert 0.45 < covered.mean() < 0.55 and covered.max() > 0.95
    assert stripes.rnn_state[0, 1].any() and not stripes.rnn_state[0, 2].any()
