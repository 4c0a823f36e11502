"""Action distributions as functions of one parameter tensor `[B, P]`, which is what a slot stores of them.

Parameters of a Gaussian are means and log standard deviations (P = 2A), of a categorical distribution normalized logits
(P = n), and of a joint distribution those of its independent parts, concatenated. The functions have no state, so the
behaviour policy and the current policy are compared by their parameters alone.
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

from asyncrl.envs.spec import Action, BoxAction, DiscreteAction

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
LOG_TWO = math.log(2.0)
_NUM_QUADRATURE_NODES = 12

LOG_STD_RANGE = (-5.0, 5.0)
MOST_COMBINATIONS = 128
"""Up to this number of combinations of several choices, each combination has a separate value in SAC."""

FORBIDDEN = -1e9
"""Logit of a forbidden choice: finite, so 0 times it is 0."""


FloatArray = npt.NDArray[np.float32]


class Sample(NamedTuple):
    """Actions and their log-probabilities `[B]` under the distribution that produced them."""

    action: Tensor
    log_prob: Tensor


class ArraySample(NamedTuple):
    """A `Sample` of NumPy arrays, for roles that act on a CPU."""

    action: npt.NDArray[Any]
    log_prob: FloatArray


class ActionDistribution(ABC):
    """A family of distributions over actions. Methods whose names contain `array` compute the same in NumPy.

    Attributes:
        num_parameters: P, elements of one distribution's parameters.
        num_actions: numbers A of one stored action.
        stddev_positions: positions of log standard deviations among the parameters.
        num_logits: number of logits among the parameters.
    """

    num_parameters: int
    num_actions: int
    num_logits = 0
    stddev_positions: Sequence[int] = ()

    @property
    def num_stddevs(self) -> int:
        return len(self.stddev_positions)

    @abstractmethod
    def parameters_of(self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None = None) -> Tensor:
        """Converts outputs of a network to parameters `[B, P]`.

        Args:
            outputs: [B, P]; with `log_std`, without the outputs of log standard deviations.
            log_std: [num_stddevs], log standard deviations that do not depend on the observation.
            mask: [B, num_logits], 0 for forbidden choices. A mask that forbids every choice forbids none.
        """

    @abstractmethod
    def parameter_arrays_of(
        self, outputs: FloatArray, log_std: FloatArray | None, mask: FloatArray | None = None
    ) -> FloatArray:
        """As `parameters_of`; `outputs` may be overwritten."""

    @abstractmethod
    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        """Draws one action for each row of `parameters: [B, P]`; no gradient flows through the draw."""

    @abstractmethod
    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        """As `sample`."""

    def choose(self, parameters: Tensor, generator: torch.Generator | None, deterministic: bool) -> Sample:
        """Draws one action for each row of `parameters: [B, P]`, or takes the mode."""
        if not deterministic:
            return self.sample(parameters, generator)
        action = self.mode(parameters)
        return Sample(action, self.log_prob(parameters, action))

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
        """The deterministic actions, as they are stored."""


class DiagonalGaussian(ActionDistribution):
    """Independent normal distributions; parameters are A means, then A log standard deviations."""

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions
        self.num_parameters = 2 * num_actions
        self.stddev_positions = range(num_actions, 2 * num_actions)
        self._log_normalizer = num_actions * HALF_LOG_TWO_PI

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

    The stored action is u, so tanh is never inverted; the environment's adapter applies tanh and rescales.
    Log-probabilities and entropies are densities of tanh(u), in [-1, 1] units.
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
        slope = np.float32(2.0) * (np.float32(LOG_TWO) - action - np.logaddexp(np.float32(0.0), -2.0 * action))
        return ArraySample(action, log_prob - slope.sum(-1))

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(parameters, action) - _log_tanh_slope(action).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropy `[B]` of tanh(u): the Gaussian's, plus E[log d tanh(u)/du] by Gauss-Hermite quadrature.

        Quadrature has no noise and is differentiable; its error is below 0.01 nats an action up to a standard deviation
        of 2.
        """
        mean, log_std = parameters.chunk(2, dim=-1)
        if self._nodes.device != mean.device:  # once: a CUDA graph cannot copy from the host
            self._nodes, self._weights = self._nodes.to(mean.device), self._weights.to(mean.device)
        points = torch.addcmul(mean.unsqueeze(-1), log_std.exp().unsqueeze(-1), self._nodes)
        return super().entropy(parameters) + (_log_tanh_slope(points) @ self._weights).sum(-1)


class Deterministic(ActionDistribution):
    """One certain action; its A numbers, as they are stored, are the parameters."""

    def __init__(self, num_actions: int) -> None:
        self.num_actions = self.num_parameters = num_actions

    def parameters_of(self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None = None) -> Tensor:
        return outputs

    def parameter_arrays_of(
        self, outputs: FloatArray, log_std: FloatArray | None, mask: FloatArray | None = None
    ) -> FloatArray:
        return outputs

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        return Sample(parameters, self.entropy(parameters))

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        return ArraySample(parameters, np.zeros(len(parameters), np.float32))

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """0 for the certain action, -inf for others: probabilities, not densities."""
        return torch.where((parameters == action).all(-1), 0.0, -torch.inf)

    def entropy(self, parameters: Tensor) -> Tensor:
        return parameters.new_zeros(len(parameters))

    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:
        return -self.log_prob(new_parameters, old_parameters)

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters


class Categorical(ActionDistribution):
    """One of n choices; parameters are normalized logits (log-probabilities)."""

    num_actions = 1

    def __init__(self, num_choices: int) -> None:
        self.num_parameters = self.num_logits = num_choices

    def parameters_of(self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None = None) -> Tensor:
        if mask is not None:  # no gradient reaches forbidden choices
            outputs = outputs.masked_fill(is_forbidden(mask), FORBIDDEN)
        return log_softmax(outputs, dim=-1)

    def parameter_arrays_of(
        self, outputs: FloatArray, log_std: FloatArray | None, mask: FloatArray | None = None
    ) -> FloatArray:
        if mask is not None:
            outputs = np.where(is_forbidden(mask), np.float32(FORBIDDEN), outputs)
        outputs -= outputs.max(-1, keepdims=True)
        outputs -= np.log(np.exp(outputs).sum(-1, keepdims=True))
        return outputs

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        """Draws by an exponential race, p_i / e_i: one argmax instead of a cumulative sum (Gumbel-max)."""
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

    def __init__(self, num_choices: int, count: int) -> None:
        self.num_parameters = self.num_logits = num_choices * count
        self.num_actions = count
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
    """Independent parts; their actions, as float32, and their parameters are concatenated."""

    def __init__(self, parts: Sequence[ActionDistribution]) -> None:
        self.parts = list(parts)
        self._num_actions = [part.num_actions for part in parts]
        self._num_parameters = [part.num_parameters for part in parts]
        self.num_parameters = sum(self._num_parameters)
        self.num_actions = sum(self._num_actions)
        self.num_logits = sum(part.num_logits for part in parts)
        starts = itertools.accumulate(self._num_parameters, initial=0)
        each = zip(starts, parts, strict=False)
        self.stddev_positions = [start + position for start, part in each for position in part.stddev_positions]

    def parameters_of(self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None = None) -> Tensor:
        return torch.cat([part.parameters_of(*own) for part, own in self._inputs_of(outputs, log_std, mask)], dim=-1)

    def parameter_arrays_of(
        self, outputs: FloatArray, log_std: FloatArray | None, mask: FloatArray | None = None
    ) -> FloatArray:
        inputs = self._inputs_of(outputs, log_std, mask)
        return np.concatenate([part.parameter_arrays_of(*own) for part, own in inputs], axis=-1)

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        samples = [part.sample(own, generator) for part, own in self._part_parameters(parameters)]
        actions, log_probs = zip(*samples, strict=True)
        return Sample(torch.cat(actions, dim=-1), torch.stack(log_probs).sum(0))

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        pieces = np.split(parameters, np.cumsum(self._num_parameters)[:-1], axis=-1)
        samples = [part.sample_arrays(own, generator) for part, own in zip(self.parts, pieces, strict=True)]
        actions, log_probs = zip(*samples, strict=True)
        return ArraySample(np.concatenate(actions, axis=-1), np.sum(log_probs, axis=0))

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        actions = torch.split(action, self._num_actions, dim=-1)
        each = zip(self._part_parameters(parameters), actions, strict=True)
        return torch.stack([part.log_prob(own, own_action) for (part, own), own_action in each]).sum(0)

    def entropy(self, parameters: Tensor) -> Tensor:
        return torch.stack([part.entropy(own) for part, own in self._part_parameters(parameters)]).sum(0)

    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:
        news = torch.split(new_parameters, self._num_parameters, dim=-1)
        each = zip(self._part_parameters(old_parameters), news, strict=True)
        return torch.stack([part.kl(old, new) for (part, old), new in each]).sum(0)

    def mode(self, parameters: Tensor) -> Tensor:
        return torch.cat([part.mode(own) for part, own in self._part_parameters(parameters)], dim=-1)

    def _part_parameters(self, parameters: Tensor) -> Iterator[tuple[ActionDistribution, Tensor]]:
        return zip(self.parts, torch.split(parameters, self._num_parameters, dim=-1), strict=True)

    def _inputs_of(self, outputs: Any, log_std: Any, mask: Any) -> Iterator[tuple[ActionDistribution, Any]]:
        """Each part with its columns of tensors or arrays."""
        output = stddev = logit = 0
        for part in self.parts:
            next_output = output + part.num_parameters - (0 if log_std is None else part.num_stddevs)
            next_stddev, next_logit = stddev + part.num_stddevs, logit + part.num_logits
            own_log_std = None if log_std is None else log_std[..., stddev:next_stddev]
            own_mask = None if mask is None else mask[..., logit:next_logit]
            yield part, (outputs[..., output:next_output], own_log_std, own_mask)
            output, stddev, logit = next_output, next_stddev, next_logit


class ActionParts:
    """Positions of continuous dimensions and of choices, in parameters and in stored actions; for SAC.

    Critics value choices in groups. A group has one value for each combination of its choices, and the value of an
    action is the sum over groups. All choices are one group if it has at most `MOST_COMBINATIONS` combinations, so any
    dependence between them is learned. Otherwise each choice is a group, so the number of values is the sum of the
    numbers of choices and not their product; a dependence between two choices is then not learned. An action without
    choices has one group with one value.

    Args:
        distribution: its continuous parts are squashed.

    Attributes:
        columns: positions of the continuous dimensions in a stored action.
        means, log_stds: positions of their means and log standard deviations in parameters.
        num_continuous: number of continuous dimensions C.
        num_groups: number of groups.
        num_values: values N of all groups.
        sizes: number of possibilities of each choice.
        max_entropy: largest entropy of all choices together, in nats.
        is_plain: whether an action is either continuous or a single stored choice.
    """

    def __init__(self, distribution: ActionDistribution) -> None:
        parts = distribution.parts if isinstance(distribution, Joint) else [distribution]
        means: list[int] = []
        log_stds: list[int] = []
        columns: list[int] = []
        choices: list[tuple[slice, int]] = []
        parameter = column = 0
        for part in parts:
            if part.num_logits == 0:
                means += range(parameter, parameter + part.num_actions)
                log_stds += [parameter + position for position in part.stddev_positions]
                columns += range(column, column + part.num_actions)
            else:
                size = part.num_logits // part.num_actions
                starts = range(parameter, parameter + part.num_logits, size)
                choices += [(slice(start, start + size), column + idx) for idx, start in enumerate(starts)]
            parameter += part.num_parameters
            column += part.num_actions
        self.means, self.log_stds = means, log_stds
        self._gaussian = torch.tensor(means + log_stds, dtype=torch.int64)
        self.columns = columns
        self._columns = torch.tensor(columns, dtype=torch.int64)
        self.num_continuous = len(columns)
        self.is_plain = len(parts) == 1 and (not choices or isinstance(parts[0], Categorical))
        self.sizes = sizes = [place.stop - place.start for place, _ in choices]
        self._num_choices = torch.tensor(sizes)
        self.max_entropy = sum(map(math.log, sizes))
        self._groups = [choices] if math.prod(sizes) <= MOST_COMBINATIONS else [[choice] for choice in choices]
        self.num_groups = len(self._groups)
        self.num_values = sum(math.prod(place.stop - place.start for place, _ in group) for group in self._groups)

    def to(self, device: torch.device) -> ActionParts:
        """Moves the indices to the device of the parameters; a CUDA graph cannot copy from the host."""
        self._gaussian, self._columns = self._gaussian.to(device), self._columns.to(device)
        self._num_choices = self._num_choices.to(device)
        return self

    def gaussian_of(self, parameters: Tensor) -> Tensor:
        """Means and log standard deviations `[B, 2C]` of the continuous dimensions."""
        return parameters.index_select(1, self._gaussian)

    def continuous_of(self, action: Tensor) -> Tensor:
        """The continuous dimensions `[B, C]` of stored actions, squashed."""
        if self.num_continuous == 0:
            return action.new_empty((len(action), 0), dtype=torch.float32)
        return action.index_select(1, self._columns).tanh()

    def max_entropy_of(self, mask: Tensor) -> Tensor:
        """The largest possible entropy `[B]` of choices that `mask: [B, sum of sizes]` allows."""
        counts = torch.stack([part.sum(1) for part in torch.split(mask != 0, self.sizes, dim=1)], 1)
        counts = torch.where(counts > 0, counts, self._num_choices)  # a mask that forbids all is ignored
        return counts.log().sum(1)

    def with_continuous(self, action: Tensor, numbers: Tensor) -> Tensor:
        """Stored actions `[B, A]` whose continuous dimensions are `numbers: [B, C]`."""
        return action.index_copy(1, self._columns, numbers)

    def log_probs_of(self, parameters: Tensor) -> Tensor:
        """Log-probabilities `[B, N]` of the combinations of each group, groups concatenated."""
        groups = []
        for group in self._groups:
            joint = parameters.new_zeros((len(parameters), 1))
            for place, _ in group:
                joint = (joint.unsqueeze(-1) + parameters[:, place].unsqueeze(-2)).flatten(1)
            groups.append(joint)
        return groups[0] if len(groups) == 1 else torch.cat(groups, dim=1)

    def chosen_values(self, values: Tensor, action: Tensor) -> Tensor:
        """The value `[K, B]` of stored actions, from the values `[K, B, N]` of all combinations."""
        total = values.new_zeros(values.shape[:2])
        for which in self.chosen(action):
            index = which.expand(len(values), -1).unsqueeze(-1)
            total = total + values.gather(-1, index).squeeze(-1)
        return total

    def chosen(self, action: Tensor) -> list[Tensor]:
        """For each group the number `[B]` of the combination in stored actions, of all N."""
        chosen, start = [], 0
        for group in self._groups:
            which, size = torch.zeros(len(action), dtype=torch.int64, device=action.device), 1
            for place, column in group:
                choice = action if action.dim() == 1 else action[:, column]
                num_choices = place.stop - place.start
                which, size = which * num_choices + choice.to(torch.int64), size * num_choices
            chosen.append(start + which)
            start += size
        return chosen


def make_distribution(action: Action, squash: bool) -> ActionDistribution:
    """The distribution for an action space; `squash` applies to its continuous dimensions."""
    if isinstance(action, DiscreteAction):
        return Categorical(action.n)
    parts: list[ActionDistribution] = []
    for leaf in action.leaves:
        if isinstance(leaf, BoxAction):
            parts.append(SquashedGaussian(leaf.size) if squash else DiagonalGaussian(leaf.size))
        else:  # neighbouring choices of one size are drawn together
            parts += [
                Choices(num_choices, len(list(same))) for num_choices, same in itertools.groupby(leaf.num_choices)
            ]
    return parts[0] if len(parts) == 1 else Joint(parts)


def is_forbidden(mask: Any) -> Any:
    """The forbidden choices `[..., n]` bool, for a tensor or array that is 0 there; none if it forbids every choice."""
    return (mask == 0) & (mask != 0).any(-1)[..., None]


def _log_tanh_slope(raw: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) in a form that does not overflow or round to log(0) for large |u|."""
    return 2.0 * (LOG_TWO - raw - torch.nn.functional.softplus(-2.0 * raw))
