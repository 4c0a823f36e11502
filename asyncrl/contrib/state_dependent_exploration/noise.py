"""Noise matrices of state-dependent exploration: how long each environment holds its own, and the actions with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.buffers.inference_buffer import ActorOutput, InferenceBuffer
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.state_dependent_exploration.settings import StateDependentSettings
from asyncrl.models.arrays import FloatArray
from asyncrl.processes.seeding import Stream, derive_seed

if TYPE_CHECKING:
    from asyncrl.contrib.state_dependent_exploration.models import StateDependentActorCritic, StateDependentSacActor


class StateDependentExploration:
    """Replaces actions by mean + `features @ (sigma * matrix)`, see `models.py`.

    Each environment has a matrix `[F, A]` of standard normal numbers, which is drawn again when it has been used for
    `sde_sample_freq` steps and where an episode begins. The standard deviations sigma come from the present weights,
    so an action and its log-probability are always of the same policy.
    """

    def __init__(
        self,
        model: StateDependentActorCritic | StateDependentSacActor,
        config: TrainConfig,
        buffer: InferenceBuffer,
        seed: int,
    ) -> None:
        """Takes the model that acts, whose weights may change, and the buffer that tells where episodes begin."""
        self._model = model
        self._buffer = buffer
        self._steps = StateDependentSettings.of(config).sde_sample_freq
        self._seed = seed
        self._noise: dict[int, HeldNoise] = {}

    def apply(self, places: Sequence[tuple[int, int]], answer: ActorOutput) -> ActorOutput:
        """As `Exploration.apply`, for places of slots or of a replay, with the log-probabilities of the actions."""
        if answer.features.size == 0:
            return answer
        assert self._model.log_std is not None
        sigma: FloatArray = self._model.log_std.detach().exp().cpu().numpy()
        matrices = np.concatenate([self._matrices_at(place, sigma.shape) for place in places])
        noise = np.matmul(answer.features[:, np.newaxis], sigma * matrices)[:, 0]
        action = answer.action_parameters[:, : noise.shape[1]] + noise
        parameters = torch.from_numpy(answer.action_parameters)
        log_prob = self._model.distribution.log_prob(parameters, torch.from_numpy(action))
        return answer._replace(action=action, log_prob=log_prob.numpy())

    def _matrices_at(self, place: tuple[int, int], shape: tuple[int, ...]) -> FloatArray:
        split_idx, begins, takes_action = self._buffer.beginnings(place)
        noise = self._noise.get(split_idx)
        if noise is None:
            # Of each split alone: in which order splits are served depends on time.
            seed = derive_seed(self._seed, Stream.EXPLORATION, split_idx)
            generator = np.random.Generator(np.random.SFC64(seed))
            noise = self._noise[split_idx] = HeldNoise((len(begins), *shape), self._steps, generator)
        return noise.at(begins, takes_action)


class HeldNoise:
    """Standard normal matrices `[E, F, A]`, one for each environment of a split, that are held for some steps."""

    def __init__(self, shape: tuple[int, ...], num_steps: int, generator: np.random.Generator) -> None:
        """`num_steps` is how long a matrix is held; -1 is until the episode ends."""
        self._num_steps = num_steps
        self._generator = generator
        self._matrices = np.zeros(shape, dtype=np.float32)
        self._steps_left = np.zeros(shape[0], dtype=np.int64)

    def at(self, begins: npt.NDArray[np.bool_], takes_action: bool) -> FloatArray:
        """The matrices of the next step; matrices that are used up or belong to an ended episode are drawn again.

        Args:
            begins: [E], environments in which an episode begins.
            takes_action: whether there is a step; otherwise beginnings are kept for the next call.
        """
        self._steps_left[begins] = 0
        if takes_action:
            used_up = np.flatnonzero(self._steps_left == 0)
            if len(used_up) > 0:
                shape = (len(used_up), *self._matrices.shape[1:])
                self._matrices[used_up] = self._generator.standard_normal(shape, dtype=np.float32)
                self._steps_left[used_up] = self._num_steps
            self._steps_left -= 1
        return self._matrices
