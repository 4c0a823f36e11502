"""Action distributions as functions of one parameter tensor `[B, P]`, which is what a slot stores of them.

A Gaussian's parameters are its means and log-deviations (P = 2A), a categorical one's are its normalized logits
(P = n), a joint distribution's are those of its independent parts, one behind the other. None of the functions keeps
state, so behaviour and current policy are compared by their tensors alone.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from asyncrl.envs.spec import Action, BoxAction, DiscreteAction, LeafAction, TreeAction

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)
_NUM_QUADRATURE_NODES = 12

LOG_STD_RANGE = (-5.0, 5.0)
MOST_COMBINATIONS = 128
"""Of several choices, up to which each combination has a value of its own in SAC."""

FORBIDDEN = -1e9
"""The logit of a choice that is not allowed: finite, so that 0 * it is 0."""


class Sample(NamedTuple):
    """Actions and their log-probabilities `[B]` under the distribution that produced them."""

    action: Tensor
    log_prob: Tensor


FloatArray = npt.NDArray[np.float32]


class ArraySample(NamedTuple):
    """A `Sample` as NumPy arrays, for roles that act on a CPU."""

    action: npt.NDArray[Any]
    log_prob: FloatArray


class ActionDistribution(ABC):
    """A family of distributions over actions.

    Attributes:
        num_parameters: P, elements of one distribution's parameters.
        action_shape: shape of one stored action: (A,) or ().
        action_dtype: float32, or int64 for a single choice.
        num_deviations: how many of the parameters are log-deviations.
        deviation_positions: which they are.
        num_logits: how many are logits.
    """

    num_parameters: int
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    num_deviations = 0
    num_logits = 0
    deviation_positions: Sequence[int] = ()

    @abstractmethod
    def parameters_of(self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None = None) -> Tensor:
        """Turn a network's outputs into parameters `[B, P]`.

        Args:
            outputs: [B, P]; with `log_std` those of deviations are missing.
            log_std: [num_deviations], log-deviations that do not depend on the observation.
            mask: [B, num_logits], 0 for choices that are not allowed; where it allows nothing, everything is allowed.
        """

    @abstractmethod
    def parameter_arrays_of(
        self, outputs: FloatArray, log_std: FloatArray | None, mask: FloatArray | None = None
    ) -> FloatArray:
        """What `parameters_of` does, on NumPy arrays; `outputs` may be overwritten."""

    @abstractmethod
    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        """Draw one action for each row of `parameters: [B, P]`; no gradient flows through the draw."""

    def choose(self, parameters: Tensor, generator: torch.Generator | None, deterministic: bool) -> Sample:
        """Draw one action for each row of `parameters: [B, P]`, or take the mode."""
        if not deterministic:
            return self.sample(parameters, generator)
        action = self.mode(parameters)
        return Sample(action, self.log_prob(parameters, action))

    @abstractmethod
    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        """What `sample` does, on NumPy arrays."""

    @abstractmethod
    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Log-probability (density) `[B]` of stored actions."""

    @abstractmethod
    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropy `[B]` in nats."""

    @abstractmethod
    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:
        """KL(old || new) `[B]` in nats."""

    @abstractmethod
    def mode(self, parameters: Tensor) -> Tensor:
        """The action that deterministic play takes, in the form in which actions are stored."""


class DiagonalGaussian(ActionDistribution):
    """Independent normal distributions; parameters are A means, then A log-deviations."""

    action_dtype = torch.float32

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions
        self.num_parameters = 2 * num_actions
        self.action_shape = (num_actions,)
        self.num_deviations = num_actions
        self.deviation_positions = range(num_actions, 2 * num_actions)
        self._log_normalizer = num_actions * _HALF_LOG_TWO_PI

    def parameters_of(self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None = None) -> Tensor:
        if log_std is not None:
            return torch.cat((outputs, log_std.expand_as(outputs)), dim=-1)
        mean, own_log_std = outputs.chunk(2, dim=-1)
        return torch.cat((mean, own_log_std.clamp(*LOG_STD_RANGE)), dim=-1)

    def parameter_arrays_of(
        self, outputs: FloatArray, log_std: FloatArray | None, mask: FloatArray | None = None
    ) -> FloatArray:
        num_actions = self.num_actions
        if log_std is None:
            np.clip(outputs[:, num_actions:], *LOG_STD_RANGE, out=outputs[:, num_actions:])
            return outputs
        parameters = np.empty((len(outputs), 2 * num_actions), dtype=np.float32)
        parameters[:, :num_actions] = outputs
        parameters[:, num_actions:] = log_std
        return parameters

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        mean, log_std = parameters.chunk(2, dim=-1)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        action = torch.addcmul(mean, log_std.exp(), noise)
        log_prob = torch.rsub(torch.addcmul(log_std, noise, noise, value=0.5).sum(-1), -self._log_normalizer)
        return Sample(action, log_prob)

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        mean, log_std = parameters[:, : self.num_actions], parameters[:, self.num_actions :]
        noise = generator.standard_normal(mean.shape, dtype=np.float32)
        action = np.exp(log_std)
        action *= noise
        action += mean
        noise *= noise
        noise *= np.float32(0.5)
        noise += log_std
        log_prob = np.subtract(np.float32(-self._log_normalizer), noise.sum(-1))
        return ArraySample(action, log_prob)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, dim=-1)
        noise = (action - mean) * torch.exp(-log_std)
        return torch.rsub(torch.addcmul(log_std, noise, noise, value=0.5).sum(-1), -self._log_normalizer)

    def entropy(self, parameters: Tensor) -> Tensor:
        return parameters[:, self.num_actions :].sum(-1) + (self._log_normalizer + 0.5 * self.num_actions)

    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:
        old_mean, old_log_std = old_parameters.chunk(2, dim=-1)
        new_mean, new_log_std = new_parameters.chunk(2, dim=-1)
        log_ratio = new_log_std - old_log_std
        distance = (new_mean - old_mean) * torch.exp(-new_log_std)
        terms = torch.addcmul(torch.exp(-2.0 * log_ratio), distance, distance)
        return torch.add(log_ratio, terms, alpha=0.5).sum(-1) - 0.5 * self.num_actions

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters[:, : self.num_actions].contiguous()


class SquashedGaussian(DiagonalGaussian):
    """Actions tanh(u) in (-1, 1) with u normally distributed (Haarnoja et al. 2018, appendix C).

    The stored action is u, from which everything can be computed without inverting tanh; the environment's adapter
    applies tanh and rescales. Log-probabilities and entropies are densities of tanh(u), in [-1, 1] units.
    """

    def __init__(self, num_actions: int) -> None:
        super().__init__(num_actions)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NUM_QUADRATURE_NODES)
        self._nodes = torch.as_tensor(nodes, dtype=torch.float32)
        self._weights = torch.as_tensor(weights / weights.sum(), dtype=torch.float32)

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        action, log_prob = super().sample(parameters, generator)
        return Sample(action, log_prob - _log_tanh_slope(action).sum(-1))

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        action, log_prob = super().sample_arrays(parameters, generator)
        slope = np.float32(2.0) * (np.float32(_LOG_TWO) - action - np.logaddexp(np.float32(0.0), -2.0 * action))
        return ArraySample(action, log_prob - slope.sum(-1))

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(parameters, action) - _log_tanh_slope(action).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropy `[B]` of tanh(u): the Gaussian's, plus E[log d tanh(u)/du] by Gauss-Hermite quadrature.

        Quadrature is free of noise and differentiable; its error is below 0.01 nats an action up to a deviation of 2.
        """
        mean, log_std = parameters.chunk(2, dim=-1)
        if self._nodes.device != mean.device:  # once, for a CUDA graph takes nothing from the host
            self._nodes, self._weights = self._nodes.to(mean.device), self._weights.to(mean.device)
        points = torch.addcmul(mean.unsqueeze(-1), log_std.exp().unsqueeze(-1), self._nodes)
        return super().entropy(parameters) + (_log_tanh_slope(points) @ self._weights).sum(-1)


class Categorical(ActionDistribution):
    """One of n choices; parameters are logits that the model has normalized (log-probabilities)."""

    action_dtype = torch.int64
    action_shape: tuple[int, ...] = ()

    def __init__(self, num_choices: int) -> None:
        self.num_parameters = self.num_logits = num_choices

    def parameters_of(self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None = None) -> Tensor:
        return log_softmax(outputs if mask is None else _masked(outputs, mask), dim=-1)

    def parameter_arrays_of(
        self, outputs: FloatArray, log_std: FloatArray | None, mask: FloatArray | None = None
    ) -> FloatArray:
        if mask is not None:
            outputs = np.where(is_forbidden(mask), np.float32(FORBIDDEN), outputs)
        outputs -= outputs.max(-1, keepdims=True)
        outputs -= np.log(np.exp(outputs).sum(-1, keepdims=True))
        return outputs

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        """Draw by an exponential race, p_i / e_i: one argmax in place of a cumulative sum (Gumbel-max)."""
        race = torch.empty_like(parameters).exponential_(generator=generator).log_()
        action = torch.argmax(parameters - race, dim=-1)
        return Sample(action, self.log_prob(parameters, action))

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        race = generator.standard_exponential(parameters.shape, dtype=np.float32)
        np.maximum(race, np.finfo(np.float32).tiny, out=race)
        action = np.argmax(parameters - np.log(race, out=race), axis=-1)
        return ArraySample(action, np.take_along_axis(parameters, action[:, None], axis=-1)[:, 0])

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return parameters.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        return -(parameters.exp() * parameters).sum(-1)

    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:
        return (old_parameters.exp() * (old_parameters - new_parameters)).sum(-1)

    def mode(self, parameters: Tensor) -> Tensor:
        return torch.argmax(parameters, dim=-1)


class Choices(ActionDistribution):
    """k independent choices of n each, stored as `[B, k]` float32; parameters are the n log-probabilities of each."""

    action_dtype = torch.float32

    def __init__(self, num_choices: int, count: int) -> None:
        self.num_parameters = self.num_logits = num_choices * count
        self.action_shape = (count,)
        self._single = Categorical(num_choices)
        self._shape = (count, num_choices)

    def parameters_of(self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None = None) -> Tensor:
        each = None if mask is None else self._each(mask)
        return self._single.parameters_of(self._each(outputs), None, each).flatten(-2)

    def parameter_arrays_of(
        self, outputs: FloatArray, log_std: FloatArray | None, mask: FloatArray | None = None
    ) -> FloatArray:
        each = None if mask is None else mask.reshape(-1, *self._shape)
        parameters = self._single.parameter_arrays_of(outputs.reshape(-1, *self._shape), None, each)
        return parameters.reshape(len(outputs), -1)

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        action, log_prob = self._single.sample(self._each(parameters), generator)
        return Sample(action.to(torch.float32), log_prob.sum(-1))

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        action, log_prob = self._single.sample_arrays(parameters.reshape(-1, self._shape[1]), generator)
        shape = (len(parameters), self._shape[0])
        return ArraySample(action.reshape(shape).astype(np.float32), log_prob.reshape(shape).sum(-1))

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return self._single.log_prob(self._each(parameters), action.to(torch.int64)).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        return self._single.entropy(self._each(parameters)).sum(-1)

    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:
        return self._single.kl(self._each(old_parameters), self._each(new_parameters)).sum(-1)

    def mode(self, parameters: Tensor) -> Tensor:
        return self._single.mode(self._each(parameters)).to(torch.float32)

    def _each(self, parameters: Tensor) -> Tensor:
        return torch.unflatten(parameters, -1, self._shape)


class Joint(ActionDistribution):
    """Independent parts whose actions, float32, and parameters lie one behind the other."""

    action_dtype = torch.float32

    def __init__(self, parts: Sequence[ActionDistribution]) -> None:
        self.parts = list(parts)
        self._num_actions = [part.action_shape[0] for part in parts]
        self._num_parameters = [part.num_parameters for part in parts]
        self.num_parameters = sum(self._num_parameters)
        self.action_shape = (sum(self._num_actions),)
        self.num_deviations = sum(part.num_deviations for part in parts)
        starts = itertools.accumulate(self._num_parameters, initial=0)
        each = zip(starts, parts, strict=False)
        self.deviation_positions = [start + position for start, part in each for position in part.deviation_positions]
        self.num_logits = sum(part.num_logits for part in parts)

    def parameters_of(self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None = None) -> Tensor:
        own = [*self._own_of_each(outputs, log_std, mask)]
        return torch.cat([part.parameters_of(*pieces) for part, pieces in zip(self.parts, own, strict=True)], dim=-1)

    def parameter_arrays_of(
        self, outputs: FloatArray, log_std: FloatArray | None, mask: FloatArray | None = None
    ) -> FloatArray:
        own = [*self._own_of_each(outputs, log_std, mask)]
        pieces = [part.parameter_arrays_of(*inputs) for part, inputs in zip(self.parts, own, strict=True)]
        return np.concatenate(pieces, axis=-1)

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        pieces = torch.split(parameters, self._num_parameters, dim=-1)
        samples = [part.sample(piece, generator) for part, piece in zip(self.parts, pieces, strict=True)]
        actions, log_probs = zip(*samples, strict=True)
        return Sample(torch.cat(actions, dim=-1), torch.stack(log_probs).sum(0))

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        pieces = np.split(parameters, np.cumsum(self._num_parameters)[:-1], axis=-1)
        samples = [part.sample_arrays(piece, generator) for part, piece in zip(self.parts, pieces, strict=True)]
        actions, log_probs = zip(*samples, strict=True)
        return ArraySample(np.concatenate(actions, axis=-1), np.sum(log_probs, axis=0))

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        actions = torch.split(action, self._num_actions, dim=-1)
        pieces = torch.split(parameters, self._num_parameters, dim=-1)
        each = zip(self.parts, pieces, actions, strict=True)
        return torch.stack([part.log_prob(piece, own) for part, piece, own in each]).sum(0)

    def entropy(self, parameters: Tensor) -> Tensor:
        pieces = torch.split(parameters, self._num_parameters, dim=-1)
        return torch.stack([part.entropy(piece) for part, piece in zip(self.parts, pieces, strict=True)]).sum(0)

    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:
        pieces = (
            torch.split(parameters, self._num_parameters, dim=-1) for parameters in (old_parameters, new_parameters)
        )
        each = zip(self.parts, *pieces, strict=True)
        return torch.stack([part.kl(old, new) for part, old, new in each]).sum(0)

    def mode(self, parameters: Tensor) -> Tensor:
        pieces = torch.split(parameters, self._num_parameters, dim=-1)
        return torch.cat([part.mode(piece) for part, piece in zip(self.parts, pieces, strict=True)], dim=-1)

    def _own_of_each(self, outputs: Any, log_std: Any, mask: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Each part's own columns of tensors or arrays."""
        output, deviation, logit = 0, 0, 0
        for part in self.parts:
            num_outputs = part.num_parameters - (0 if log_std is None else part.num_deviations)
            yield (
                outputs[..., output : output + num_outputs],
                None if log_std is None else log_std[deviation : deviation + part.num_deviations],
                None if mask is None else mask[..., logit : logit + part.num_logits],
            )
            output, deviation, logit = (
                output + num_outputs,
                deviation + part.num_deviations,
                logit + part.num_logits,
            )


class ActionParts:
    """Which parameters and which numbers of stored actions are continuous dimensions, and which are choices.

    Choices are valued in groups. The value of a group is one number for each combination of its choices, and the value
    of an action is the sum over groups. All choices are one group if it has at most `MOST_COMBINATIONS` combinations,
    so any dependence between them is learned. Otherwise each choice is a group, so the number of values is the sum of
    the numbers of choices and not their product; a dependence between two choices is then not learned. An action
    without choices has one group with one value.

    Attributes:
        columns: places of the continuous dimensions in a stored action.
        num_continuous: how many there are, C.
        num_values: values N of all groups.
        sizes: number of possibilities of each choice.
        max_entropy: largest entropy of all choices together, in nats.
        is_plain: whether an action is either continuous numbers or one stored choice, and nothing else.
    """

    def __init__(self, distribution: ActionDistribution) -> None:
        """Takes a distribution whose continuous parts are squashed."""
        parts = distribution.parts if isinstance(distribution, Joint) else [distribution]
        means: list[int] = []
        log_stds: list[int] = []
        columns: list[int] = []
        choices: list[tuple[slice, int]] = []
        parameter = column = 0
        for part in parts:
            if isinstance(part, DiagonalGaussian):
                means += range(parameter, parameter + part.num_actions)
                log_stds += range(parameter + part.num_actions, parameter + 2 * part.num_actions)
                columns += range(column, column + part.num_actions)
            else:
                count = part.action_shape[0] if part.action_shape else 1
                size = part.num_logits // count
                starts = range(parameter, parameter + part.num_logits, size)
                choices += [(slice(start, start + size), column + idx) for idx, start in enumerate(starts)]
            parameter += part.num_parameters
            column += part.action_shape[0] if part.action_shape else 1
        self._gaussian = torch.tensor(means + log_stds, dtype=torch.int64)
        self.columns = columns
        self._columns = torch.tensor(columns, dtype=torch.int64)
        self.num_continuous = len(columns)
        self.is_plain = len(parts) == 1 and (not choices or isinstance(parts[0], Categorical))
        self.sizes = sizes = [place.stop - place.start for place, _ in choices]
        self.max_entropy = sum(map(math.log, sizes))
        self._groups = [choices] if math.prod(sizes) <= MOST_COMBINATIONS else [[choice] for choice in choices]
        self.num_values = sum(math.prod(place.stop - place.start for place, _ in group) for group in self._groups)

    def to(self, device: torch.device) -> ActionParts:
        """Moves its indices to the device of what it is given; a CUDA graph takes nothing from the host."""
        self._gaussian, self._columns = self._gaussian.to(device), self._columns.to(device)
        return self

    def gaussian_of(self, parameters: Tensor) -> Tensor:
        """Means and log-deviations `[B, 2C]` of the continuous dimensions."""
        return parameters.index_select(1, self._gaussian)

    def continuous_of(self, action: Tensor) -> Tensor:
        """The continuous numbers `[B, C]` of stored actions, squashed."""
        if self.num_continuous == 0:
            return action.new_empty((len(action), 0), dtype=torch.float32)
        return action.index_select(1, self._columns).tanh()

    def log_probs_of(self, parameters: Tensor) -> Tensor:
        """Log-probabilities `[B, N]` of the combinations of each group, one group after the other."""
        groups = []
        for group in self._groups:
            joint = parameters.new_zeros((len(parameters), 1))
            for place, _ in group:
                joint = (joint.unsqueeze(-1) + parameters[:, place].unsqueeze(-2)).flatten(1)
            groups.append(joint)
        return groups[0] if len(groups) == 1 else torch.cat(groups, dim=1)

    def chosen_values(self, values: Tensor, action: Tensor) -> Tensor:
        """The value `[K, B]` of stored actions, from the values `[K, B, N]` of all combinations."""
        total, start = values.new_zeros(values.shape[:2]), 0
        for group in self._groups:
            which, size = torch.zeros(len(action), dtype=torch.int64, device=action.device), 1
            for place, column in group:
                choice = action if action.dim() == 1 else action[:, column]
                num_choices = place.stop - place.start
                which, size = which * num_choices + choice.to(torch.int64), size * num_choices
            index = (start + which).expand(len(values), -1).unsqueeze(-1)
            total, start = total + values.gather(-1, index).squeeze(-1), start + size
        return total


def make_distribution(action: Action, squash: bool) -> ActionDistribution:
    """Choose the distribution that fits the action space."""
    if isinstance(action, DiscreteAction):
        return Categorical(action.n)
    parts = [part for leaf in _leaves_of(action) for part in _parts_of(leaf, squash)]
    return parts[0] if len(parts) == 1 else Joint(parts)


def _leaves_of(action: Action) -> tuple[LeafAction, ...]:
    return action.leaves if isinstance(action, TreeAction) else (action,)


def _parts_of(action: LeafAction, squash: bool) -> list[ActionDistribution]:
    if isinstance(action, BoxAction):
        return [SquashedGaussian(action.size) if squash else DiagonalGaussian(action.size)]
    if isinstance(action, DiscreteAction):
        return [Choices(action.n, 1)]
    return [Choices(num_choices, len(list(group))) for num_choices, group in itertools.groupby(action.num_choices)]


def _masked(outputs: Tensor, mask: Tensor) -> Tensor:
    """Logits of which those that are not allowed are so low that their probability is 0; no gradient reaches them."""
    forbidden = (mask == 0) & (mask != 0).any(-1, keepdim=True)
    return outputs.masked_fill(forbidden, FORBIDDEN)


def is_forbidden(mask: FloatArray) -> npt.NDArray[np.bool_]:
    """Which choices are not allowed, for a mask `[..., n]` that is 0 there; none where it allows nothing."""
    forbidden: npt.NDArray[np.bool_] = (mask == 0) & (mask != 0).any(-1, keepdims=True)
    return forbidden


def _log_tanh_slope(raw: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) in the form that neither overflows nor rounds to log(0) for large |u|."""
    return 2.0 * (_LOG_TWO - raw - torch.nn.functional.softplus(-2.0 * raw))
