"""Noise with which a policy of continuous actions explores. It is drawn where the policy acts, and only in training.

White noise averages out in bodies that need many equal actions to get anywhere; correlated noise moves them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from asyncrl.buffers.inference_buffer import ActorOutput, InferenceBuffer
from asyncrl.buffers.pinning import to_device
from asyncrl.config.schema import TrainConfig
from asyncrl.models.distributions import ActionParts, Deterministic
from asyncrl.models.sac import SacActor
from asyncrl.models.state_dependent import StateDependentActorCritic, StateDependentSacActor
from asyncrl.models.uniform import LARGEST_UNIT, raw_of_unit
from asyncrl.runtime.seeding import Stream, derive_seed

FloatArray = npt.NDArray[np.float32]
NoiseKind = Literal["white", "pink", "ou"]

_CORRELATION_STEPS: dict[str, tuple[float, ...]] = {
    "white": (0.0,),
    # theta = 0.15 for each step, as in Lillicrap et al. 2016 (arXiv:1509.02971).
    "ou": (-1.0 / math.log(0.85),),
    # Equal parts whose times are powers of a constant add up to a spectrum of about 1 / frequency.
    "pink": tuple(4.0**power for power in range(-1, 6)),
}
"""Steps after which the correlation of each part of the noise has fallen to 1/e."""


class CorrelatedNoise:
    """Stationary Gaussian noise of deviation 1 in each column: a sum of autoregressive processes of order 1.

    Pink noise: Eberhard et al. 2023, "Pink Noise Is All You Need". Ornstein-Uhlenbeck noise: Lillicrap et al. 2016.
    """

    def __init__(self, kind: NoiseKind, shape: tuple[int, ...], generator: np.random.Generator) -> None:
        """Starts anywhere in time; `shape` is that of the noise of one step."""
        steps = np.array(_CORRELATION_STEPS[kind]).reshape(-1, *(1 for _ in shape))
        with np.errstate(divide="ignore"):
            kept = np.exp(-1.0 / steps)
        self._kept, self._added = kept.astype(np.float32), np.sqrt(1.0 - kept**2).astype(np.float32)
        self._scale = np.float32(1.0 / math.sqrt(len(steps)))
        self._generator = generator
        self._parts = generator.standard_normal((len(steps), *shape), dtype=np.float32)

    def draw(self) -> FloatArray:
        """The noise of the next step."""
        self._parts *= self._kept
        self._parts += self._added * self._generator.standard_normal(self._parts.shape, dtype=np.float32)
        noise: FloatArray = self._parts.sum(0) * self._scale
        return noise


class Exploration:
    """Replaces the continuous numbers of a policy's actions by ones with noise, for each environment of each split.

    A Gaussian policy's numbers are mean + deviation x noise: with white noise that is what it draws itself. A certain
    action gets noise in [-1, 1] units, as in TD3. Noise continues over the ends of episodes, as it does in time.
    """

    def __init__(self, model: SacActor, config: TrainConfig, num_splits: int, num_envs: int, seed: int) -> None:
        """Takes the splits of the whole run, which decide the environments' deviations; `seed` is for the noise."""
        self._parts = ActionParts(model.distribution)
        self._adds = isinstance(model.distribution, Deterministic)
        last = config.exploration_stddev if config.exploration_stddev_max is None else config.exploration_stddev_max
        stddevs = np.linspace(config.exploration_stddev, last, num_splits * num_envs, dtype=np.float32)
        self._stddevs = stddevs.reshape(num_splits, num_envs)
        generator = np.random.Generator(np.random.SFC64(derive_seed(seed, Stream.EXPLORATION)))
        shape = (num_envs, self._parts.num_continuous)
        self._noise = [CorrelatedNoise(config.exploration_noise, shape, generator) for _ in range(num_splits)]

    @staticmethod
    def is_needed(model: SacActor, config: TrainConfig) -> bool:
        """Whether the policy does not draw such actions itself."""
        if isinstance(model.distribution, Deterministic):
            return True
        return config.exploration_noise != "white" and model.parts.num_continuous > 0

    def apply(self, places: Sequence[tuple[int, int]], answer: ActorOutput) -> ActorOutput:
        """The answer with other actions, unless they were drawn uniformly; it changes no array of the given one.

        Args:
            places: (split, row) of each split in the batch.
            answer: for all of these splits.
        """
        if answer.action_parameters.size == 0:
            return answer
        splits = [split for split, _ in places]
        noise = np.concatenate([self._noise[split].draw() for split in splits])
        parameters = answer.action_parameters
        if self._adds:
            noise *= self._stddevs[splits].reshape(-1, 1)
            return answer._replace(action=raw_of_unit(np.tanh(parameters) + noise))
        parts, action = self._parts, answer.action.copy()
        action[:, parts.columns] = parameters[:, parts.means] + np.exp(parameters[:, parts.log_stds]) * noise
        return answer._replace(action=action)

    def explored(self, action: Tensor, parameters: Tensor) -> Tensor:
        """As `apply` for the only split, with actions `[E, A]` of a device; only the noise goes there."""
        noise = self._noise[0].draw()
        if self._adds:
            noise *= self._stddevs[0][:, np.newaxis]
        (sent,) = to_device([torch.from_numpy(noise)], action.device)
        if self._adds:
            return (parameters.tanh() + sent).clamp_(-LARGEST_UNIT, LARGEST_UNIT).atanh_()
        mean, log_std = self._parts.to(action.device).gaussian_of(parameters).chunk(2, dim=1)
        return self._parts.with_continuous(action, mean + log_std.exp() * sent)


class StateDependentExploration:
    """Replaces actions by mean + `features @ (sigma * matrix)` (gSDE, see `asyncrl.models.state_dependent`).

    Each environment has a matrix `[F, A]` of standard normal numbers, which is drawn anew when it has been used for
    `sde_sample_freq` steps and where an episode begins. The deviations sigma are those of the present weights, so an
    action and its log-probability are always of the same policy.
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
        self._steps = config.sde_sample_freq
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
        """The matrices of the next step; those that are used up or belong to an ended episode are drawn anew.

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


def make_exploration(
    model: nn.Module, config: TrainConfig, buffer: InferenceBuffer, num_splits: int, num_envs: int, seed: int
) -> Exploration | StateDependentExploration | None:
    """What replaces the actions that `model` draws; None where the policy draws them itself.

    Args:
        model: the model that acts.
        config: the settings.
        buffer: where its actions go.
        num_splits: splits of the whole run.
        num_envs: environments of each.
        seed: for the noise.
    """
    if isinstance(model, StateDependentActorCritic | StateDependentSacActor):
        return StateDependentExploration(model, config, buffer, seed)
    if isinstance(model, SacActor) and Exploration.is_needed(model, config):
        return Exploration(model, config, num_splits, num_envs, seed)
    return None
