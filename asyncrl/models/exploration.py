"""Noise with which a policy of continuous actions explores. It is drawn where the policy acts, and only in training.

White noise averages out in bodies that need many equal actions to get anywhere; correlated noise moves them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.buffers.inference_buffer import ActorOutput
from asyncrl.buffers.pinning import to_device
from asyncrl.config.schema import TrainConfig
from asyncrl.models.distributions import ActionDistribution, ActionParts, Deterministic
from asyncrl.models.uniform import LARGEST_UNIT, raw_of_unit
from asyncrl.processes.seeding import Stream, derive_seed

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


class Exploration(Protocol):
    """Replaces the actions that a policy has drawn by others that explore."""

    def apply(self, places: Sequence[tuple[int, int]], answer: ActorOutput) -> ActorOutput:
        """The answer with other actions, unless they were drawn uniformly; it changes no array of the given one.

        Args:
            places: (split or slot, row) of each split in the batch.
            answer: for all of these splits.
        """


class CorrelatedNoise:
    """Stationary Gaussian noise of standard deviation 1 in each column: a sum of autoregressive processes of order 1.

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


class ActionNoise:
    """Replaces the continuous numbers of a policy's actions by ones with noise, for each environment of each split.

    A Gaussian policy's numbers are mean + standard deviation x noise: with white noise that is what it draws itself. A
    certain action gets noise in [-1, 1] units, as in TD3. Noise continues over the ends of episodes, as it does in
    time.
    """

    def __init__(
        self, distribution: ActionDistribution, config: TrainConfig, num_splits: int, num_envs: int, seed: int
    ) -> None:
        """The splits of the whole run decide the environments' standard deviations; `seed` is the noise's."""
        self._parts = ActionParts(distribution)
        self._adds = isinstance(distribution, Deterministic)
        last = config.exploration_stddev if config.exploration_stddev_max is None else config.exploration_stddev_max
        stddevs = np.linspace(config.exploration_stddev, last, num_splits * num_envs, dtype=np.float32)
        self._stddevs = stddevs.reshape(num_splits, num_envs)
        generator = np.random.Generator(np.random.SFC64(derive_seed(seed, Stream.EXPLORATION)))
        shape = (num_envs, self._parts.num_continuous)
        self._noise = [CorrelatedNoise(config.exploration_noise, shape, generator) for _ in range(num_splits)]

    def apply(self, places: Sequence[tuple[int, int]], answer: ActorOutput) -> ActorOutput:
        """See `Exploration.apply`; a place is (split, row)."""
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


def make_action_noise(
    distribution: ActionDistribution, config: TrainConfig, num_splits: int, num_envs: int, seed: int
) -> ActionNoise | None:
    """The noise for actions of a replay's policy; None if the policy draws such actions itself."""
    is_drawn = config.exploration_noise == "white" or ActionParts(distribution).num_continuous == 0
    if is_drawn and not isinstance(distribution, Deterministic):
        return None
    return ActionNoise(distribution, config, num_splits, num_envs, seed)
