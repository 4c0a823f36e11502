"""Draws sequences of consecutive rows from the replay, with the recurrent state in which the policy saw the first.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.contrib.recurrent_replay.stripes import RecurrentStripes
from asyncrl.envs.spec import ObservationLayout
from asyncrl.learner.replay_sampler import IntArray, ReplaySampler


class Sequences(NamedTuple):
    """N sequences of T rows; the first K rows, `burn_in`, only warm up recurrent states.

    They may contain ends of episodes: the row after one begins the next episode. The final observation of a truncated
    episode has a row, too, which is not a sample.

    Attributes:
        obs: [N, T + 1, D] float32 or uint8, raw; the last one is the next observation of the last row.
        action: [N, T - K, A] float32 or [N, T - K] int64, as the distribution produced it (before squashing).
        reward: [N, T - K] float32.
        discount: [N, T - K] float32, weight of the value of the next observation: gamma, and 0 where the episode
            terminated.
        weight: [N, T - K] float32, 1 for samples, 0 for other rows.
        begins: [N, T + 1] bool, rows that begin an episode; the first one does if its state is 0.
        rnn_state: [N, S] float32, of the policy that acted, before the first row.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    weight: Tensor
    begins: Tensor
    rnn_state: Tensor

    def to(self, device: torch.device) -> Sequences:
        """The same sequences on `device`; fields that are there already are not copied."""
        return Sequences(*(tensor.to(device) for tensor in self))


class SequenceSampler(ReplaySampler):
    """Draws `Sequences`: each begins at a valid row, and all of its rows are complete and of one environment."""

    def __init__(self, stripes: RecurrentStripes, recurrence: int, burn_in: int, **settings: Any) -> None:
        """Prepares to draw sequences of `burn_in + recurrence` rows.

        Args:
            stripes: the replay, of a recurrent policy.
            recurrence: rows of a sequence that are trained on.
            burn_in: rows before them.
            settings: further arguments of `ReplaySampler`, with one step.
        """
        super().__init__(stripes, **settings)
        assert self._n_step == 1
        self._recurrence, self._burn_in = recurrence, burn_in
        self._num_rows = burn_in + recurrence
        self._rnn_state = torch.from_numpy(stripes.rnn_state).flatten(0, 2)

    def sample(self, num_batches: int, batch_size: int) -> list[Any]:
        """Draws batches of `Sequences` with `batch_size` rows to train on; see `ReplaySampler`."""
        return super().sample(num_batches, batch_size // self._recurrence)

    def _gather(self, *where: IntArray) -> Any:
        """The sequences that start at (split, row, environment)."""
        split, row, env = (np.expand_dims(each, 1) for each in where)
        rows = np.broadcast_arrays(split, row + np.arange(self._num_rows), env)
        places = self._places(*rows)
        steps, shape = super()._gather(*(np.ravel(each) for each in rows)), places.shape
        fields = (steps.obs, steps.next_obs, steps.action, steps.reward, steps.discount)
        obs, next_obs, action, reward, discount = (torch.unflatten(field, 0, shape) for field in fields)
        valid = torch.from_numpy(self._valid[places])
        begins = torch.zeros(shape[0], shape[1] + 1, dtype=torch.bool)
        begins[:, 1:] = self._terminated[torch.from_numpy(places)] | ~valid
        trained = slice(self._burn_in, None)
        return Sequences(
            obs=torch.cat((obs, next_obs[:, -1:]), dim=1),
            action=action[:, trained],
            reward=torch.where(valid, reward, 0.0)[:, trained],
            discount=discount[:, trained],
            weight=valid[:, trained].to(torch.float32),
            begins=begins,
            rnn_state=self._rnn_state[torch.from_numpy(places[:, 0])],
        )


def make_sampler(stripes: RecurrentStripes, layout: ObservationLayout, **arguments: Any) -> SequenceSampler:
    """The sampler of a run."""
    return SequenceSampler(stripes, **arguments)
