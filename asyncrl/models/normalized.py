"""Running statistics in a model, with which it normalizes observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.buffers.inference_buffer import InferenceBuffer
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import ObservationLayout
from asyncrl.models.exploration import Exploration

OBS_CLIP = 10.0


class NormalizedModel(nn.Module):
    """A model with a buffer `statistics` float32 that begins with mean (F) and standard deviation (F) of observations'
    numbers.

    It is not trained: the learner sets it, and it is published with the parameters.

    Attributes:
        layout: layout of the rows of observations.
        observation_size: the numbers F of an observation.
        normalizes_obs: False without `normalize_input`.
        has_passes: whether hand-written passes can train it and NumPy can act with it.
        obs_mean, obs_std: [F] views of `statistics`.
    """

    statistics: Tensor
    obs_mean: Tensor
    obs_std: Tensor
    act: Callable[..., Any]
    has_passes: bool

    def __init__(self, layout: ObservationLayout, normalizes_obs: bool) -> None:
        super().__init__()
        self.layout = layout
        self.observation_size = layout.num_floats
        self.normalizes_obs = normalizes_obs

    @property
    def runs_in_arrays(self) -> bool:
        """Whether `ArrayPolicy` can act with it."""
        return self.has_passes

    def act_in_training(self, rows: Tensor, generator: torch.Generator | None, rnn_state: Tensor) -> dict[str, Tensor]:
        """Acts as `act`; returns the fields of `asyncrl.buffers.inference_buffer.ActorOutput` that it gives."""
        fields: dict[str, Tensor] = self.act(rows, generator, rnn_state)._asdict()
        return fields

    def make_exploration(
        self, config: TrainConfig, buffer: InferenceBuffer, num_splits: int, seed: int
    ) -> Exploration | None:
        """What replaces the actions that this model draws in training; None if nothing does.

        Args:
            config: the settings.
            buffer: where its actions go.
            num_splits: splits of the whole run.
            seed: for the noise.
        """
        return None

    def _add_statistics(self, num_others: int = 0) -> None:
        """Adds means 0 and standard deviations 1, first of observations, then of `num_others` numbers."""
        pairs = [(torch.zeros(size), torch.ones(size)) for size in (self.observation_size, num_others)]
        self.register_buffer("statistics", torch.cat([tensor for pair in pairs for tensor in pair]))
        self._refresh_references()

    def _apply(self, fn: Any, recurse: bool = True) -> NormalizedModel:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._refresh_references()
        return self

    def _refresh_references(self) -> None:
        """Caches views: finding them in modules takes as long as the arithmetic of a small layer."""
        size, statistics = self.observation_size, self.statistics
        self.obs_mean, self.obs_std = statistics[:size], statistics[size : 2 * size]
        self._normalized = None
        if not all(self.layout.normalized):
            self._normalized = torch.tensor(self.layout.normalized, device=statistics.device)

    def normalize_obs(self, obs: Tensor, out: Tensor | None = None, statistics: Tensor | None = None) -> Tensor:
        """Numbers `[..., F]` in units of their standard deviation, clipped to +-10; unchanged without
        `normalize_input`.

        Args:
            obs: raw numbers of observations.
            out: result, may be `obs`; by default a new tensor.
            statistics: [2F] means and standard deviations instead of the model's.
        """
        if not self.normalizes_obs:
            return obs if out is None or out is obs else out.copy_(obs)
        mean, std = (self.obs_mean, self.obs_std) if statistics is None else statistics.chunk(2)
        return torch.sub(obs, mean, out=out).div_(std).clamp_(-OBS_CLIP, OBS_CLIP)

    def set_obs_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Sets new statistics `[F]`; choices, flags and masks are never normalized."""
        if self._normalized is not None:
            mask = self._normalized.to(mean.device)
            mean, std = mean.where(mask, 0.0), std.where(mask, 1.0)
        self.obs_mean.copy_(mean)
        self.obs_std.copy_(std)
