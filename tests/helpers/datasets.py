"""Datasets as roles would collect them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from critics import with_values
from gymnasium import spaces
from layouts import vector_observation
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, read_block
from asyncrl.observers.reports import TrainMetrics

MASKED = spec_of_spaces(
    spaces.Dict({"action_mask": spaces.MultiBinary(3), "state": spaces.Box(-9.0, 9.0, (3,))}),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))),
    "Masked",
    None,
)
BOX = EnvSpec("Box", vector_observation(3, "float64"), BoxAction((2,), (-1.0,) * 2, (1.0,) * 2, "float32"), None)
CHOICE = EnvSpec("Choice", vector_observation(3, "float64"), DiscreteAction(3, 0), None)
CPU = torch.device("cpu")
Reward = Callable[[Tensor, Tensor], Tensor]


class Actor:
    """Collects datasets as roles do: with the weights and statistics of a publication, never with the learner's own."""

    def __init__(self, spec: EnvSpec, config: TrainConfig, num_rows: int = 8, num_columns: int = 16) -> None:
        self.model = with_values(ActorCritic(spec, config))
        self.flat = FlatParameters(self.model, with_grad=False)
        self.generator = torch.Generator().manual_seed(11)
        self.num_rows, self.num_columns = num_rows, num_columns

    def receive(self, learner: OnPolicyLearner) -> int:
        read_block(self.model, self.flat, learner.publication())
        return learner.policy_version

    def collect(self, version: int, reward: Reward | None = None, shift: float = 0.0, ends: bool = True) -> Dataset:
        num_rows, num_columns = self.num_rows, self.num_columns
        if self.model.layout.num_pixels > 0:
            size = (num_rows + 1, num_columns, self.model.layout.row_size)
            obs = torch.randint(256, size, dtype=torch.uint8, generator=self.generator)
        else:
            obs = torch.randn(num_rows + 1, num_columns, 3, generator=self.generator) * 3.0 + shift
        if self.model.layout.num_mask > 0:
            allowed = torch.rand(num_rows + 1, num_columns, self.model.layout.num_mask, generator=self.generator) < 0.6
            obs = torch.cat((obs, allowed.float()), -1)
        result = self.model.act(obs.flatten(0, 1), self.generator)
        action, log_prob, value, parameters, state = (
            part.clone().view(num_rows + 1, num_columns, *part.shape[1:]) for part in result
        )
        shape = (num_rows, num_columns)
        terminated = torch.rand(shape, generator=self.generator) < 0.1
        truncated = torch.rand(shape, generator=self.generator) < 0.2
        if not ends:
            terminated, truncated = torch.ones_like(terminated), torch.zeros_like(truncated)
        valid = torch.ones(shape, dtype=torch.bool)
        for row in range(1, num_rows):
            valid[row] = ~(truncated[row - 1] & valid[row - 1])
        noise = torch.randn(shape, generator=self.generator)
        return Dataset(
            obs=obs,
            rnn_state=state[:1],
            action=action[:-1],
            action_parameters=parameters[:-1],
            log_prob=log_prob[:-1],
            value=value,
            reward=noise if reward is None else reward(obs[:-1], action[:-1]),
            terminated=terminated & valid,
            truncated=truncated & valid,
            valid=valid,
            policy_version=torch.full(shape, version),
        )


def present_values(learner: OnPolicyLearner, dataset: Dataset) -> Tensor:
    """Values `[T+1, C]` of the learner's critic now, in units of rewards."""
    statistics = learner._statistics.obs_statistics
    return learner._present_outputs(dataset, statistics)[1]


def train_on(
    learner: OnPolicyLearner,
    dataset: Dataset,
    env_steps_before: int = 0,
    after_pass: Callable[[bool], Any] | None = None,
) -> TrainMetrics | None:
    """One whole update; `after_pass` gets whether the pass was the last, and ends the update by returning True."""
    for progress in learner.updates(dataset, env_steps_before):
        if progress.ends_pass and after_pass is not None and after_pass(progress.is_last) is True:
            break
    return learner.take_metrics()
