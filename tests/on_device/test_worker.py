"""The worker that steps environments of tensors and fills the learner's dataset."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layouts import vector_observation
from small_runs import new_control, planned
from tensor_envs import make_cart_pole

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.modes.tensors.env_group import TensorEnvGroup
from asyncrl.modes.tensors.worker import DeviceWorker

CPU = torch.device("cpu")
CART_POLE = EnvSpec("CartPole", vector_observation(4), DiscreteAction(2, 0), None)
NUM_ENVS, ROLLOUT = 4, 8


def recurrent_datasets(max_episode_steps: int, count: int) -> list[Dataset]:
    """Consecutive datasets of one trajectory of each environment, in sequences of half its length.

    The environments reset themselves in the step that ends an episode.
    """
    settings: dict[str, Any] = {"rollout": ROLLOUT, "recurrence": ROLLOUT // 2, "use_rnn": True, "rnn_size": 5}
    settings |= {"num_workers": 1, "num_envs_per_worker": NUM_ENVS, "batch_size": NUM_ENVS * ROLLOUT}
    plan = planned(env_backend="tensor", **settings)
    config = TrainConfig(encoder_mlp_layers=[8], **settings)
    learner = OnPolicyLearner(ActorCritic(CART_POLE, config), config, CPU)
    group = TensorEnvGroup(make_cart_pole(NUM_ENVS, max_episode_steps), 7, CART_POLE, "raw", CPU)
    worker = DeviceWorker(group, learner, CART_POLE, plan, CPU, 0, new_control())
    datasets = []
    for _ in range(count):
        worker.poll()
        assert worker.take_dataset(0, 0.0) == []
        tensors = worker.collect([]).tensors()
        datasets.append(Dataset(**{name: tensor.clone() for name, tensor in tensors.items()}))
        worker.release([])
    return datasets


@pytest.mark.parametrize(("max_episode_steps", "begins_anew"), [(ROLLOUT, True), (3 * ROLLOUT, False)])
def test_a_recurrent_state_is_zero_where_a_trajectory_begins_with_a_reset(
    max_episode_steps: int, begins_anew: bool
) -> None:
    first, second = recurrent_datasets(max_episode_steps, 2)
    assert not first.terminated.any(), "no pole falls in so few steps"
    assert first.truncated[-1].all() == begins_anew
    assert torch.equal(first.obs[-1], second.obs[0]) != begins_anew
    assert not first.rnn_state[0].any() and first.rnn_state[1].any(1).all()
    assert second.rnn_state[0].any(1).tolist() == [not begins_anew] * NUM_ENVS


def test_what_was_collected_before_other_weights_were_taken_over_is_dropped() -> None:
    worker = DeviceWorker.__new__(DeviceWorker)
    worker._version, worker._max_lag, worker.dropped_samples = 3, 10, 0
    worker._num_columns, worker._num_valid, worker._is_full = 4, 30, True
    assert worker.take_dataset(13, 0.0) == [], "not too old"
    assert worker.take_dataset(14, 0.0) is None
    assert (worker.dropped_samples, worker._num_columns, worker._is_full) == (30, 0, False)
    assert worker.take_dataset(14, 0.0) is None and worker.dropped_samples == 30
