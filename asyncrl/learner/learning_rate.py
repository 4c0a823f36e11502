"""The learning rate's schedules."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig

_FACTOR = 1.5
_TOLERANCE = 2.0


class LearningRate:
    """The learning rate of the next optimizer step.

    The adaptive schedules are those of Sample Factory (and rl_games): divide by 1.5 where the KL divergence is above
    twice the threshold, multiply by 1.5 where it is below half of it.

    Attributes:
        value: the rate.
        is_adaptive: whether the schedule needs the KL divergences.
    """

    def __init__(self, config: TrainConfig, num_ranks: int = 1) -> None:
        self._config = config
        self._scale: float = {"none": 1.0, "linear": float(num_ranks), "sqrt": math.sqrt(num_ranks)}[config.scale_lr]
        self.value = config.learning_rate * self._scale
        self.is_adaptive = config.lr_schedule in ("kl_adaptive_minibatch", "kl_adaptive_epoch")

    def start_dataset(self, env_steps_before: int) -> None:
        """Follow the linear schedule to 0 at `train_for_env_steps`; a dataset is trained at one rate."""
        if self._config.lr_schedule == "linear_decay":
            remaining = max(0.0, 1.0 - env_steps_before / self._config.train_for_env_steps)
            self.value = self._config.learning_rate * self._scale * remaining

    def follow(self, config: TrainConfig) -> None:
        """Takes a new `learning_rate` if that has changed; schedules continue from it."""
        if config.learning_rate != self._config.learning_rate:
            self.value = config.learning_rate * self._scale
        self._config = config

    def go_on_with(self, of_one_rank: float) -> None:
        """Takes over `of_one_rank` of a checkpoint, which knows nothing of how many ranks go on with it."""
        self.value = of_one_rank * self._scale

    @property
    def of_one_rank(self) -> float:
        """The rate without the factor that `scale_lr` gives it for the number of ranks."""
        return self.value / self._scale

    def after_minibatch(self, kl: Tensor | None) -> None:
        """Adapt to the KL divergence of one minibatch."""
        if self._config.lr_schedule == "kl_adaptive_minibatch" and kl is not None:
            self._adapt(kl)

    def after_epoch(self, kls: list[Tensor | None]) -> None:
        """Adapt to the mean KL divergence of an epoch's minibatches."""
        if self._config.lr_schedule == "kl_adaptive_epoch":
            self._adapt(torch.stack([kl for kl in kls if kl is not None]).mean())

    def _adapt(self, kl: Tensor) -> None:
        divergence, target = float(kl), self._config.lr_schedule_kl_threshold
        if divergence > _TOLERANCE * target:
            self.value = max(self.value / _FACTOR, self._config.lr_adaptive_min)
        elif divergence < target / _TOLERANCE:
            self.value = min(self.value * _FACTOR, self._config.lr_adaptive_max)
