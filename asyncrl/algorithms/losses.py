"""What on-policy losses and their updates take, return and share, and the advantages before them.

Every loss is minimized.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.models.distributions import ActionDistribution
from asyncrl.models.encoders import Inputs

_RELATIVE_EPS = 1e-10  # of the advantages' size, so that the unit of rewards does not matter
_TINY = torch.finfo(torch.float32).tiny

Mean = Callable[[Tensor], Tensor]
"""From numbers of samples `[B]` to their mean, in which some may have the weight 0."""


class Samples(NamedTuple):
    """Rows of a dataset, or sequences of rows for a recurrent policy.

    Each field is `[N, ...]`, valid rows only; or `[N, L, ...]`, sequences of L rows, some of which may be invalid.

    Attributes:
        floats: normalized numbers of the observations.
        action: as the distribution produced it.
        action_parameters: of the distribution that the trained policy is compared with.
        log_prob: of the action under that distribution.
        advantage: normalized over the minibatch or dataset, and weighted, if the settings say so.
        normalized_return: what the critic learns, in units of normalized returns.
        normalized_value: the critic's value before training, in the same units.
        weight: multiplies the advantage after that was normalized; minibatches do not have it.
        pixels: images of the observations.
        rnn_state: [N, S], recurrent states before the sequences.
        begins: rows that begin an episode.
        valid: rows that are samples.
        share: [N] float32 of sum 1, the weight of each row in a mean; without it all are equal.
    """

    floats: Tensor
    action: Tensor
    action_parameters: Tensor
    log_prob: Tensor
    advantage: Tensor
    normalized_return: Tensor
    normalized_value: Tensor
    weight: Tensor | None = None
    pixels: Tensor | None = None
    rnn_state: Tensor | None = None
    begins: Tensor | None = None
    valid: Tensor | None = None
    share: Tensor | None = None

    @property
    def inputs(self) -> Inputs:
        return Inputs(self.floats, self.pixels)

    @property
    def mean(self) -> Mean:
        """The mean over the samples of a minibatch."""
        return torch.mean if self.share is None else functools.partial(torch.dot, self.share)

    def at(self, indices: Tensor) -> Samples:
        """The elements `indices [K]` of the first dimension."""
        return Samples._make(None if field is None else field.index_select(0, indices) for field in self)

    def minibatches(self, num_batches: int) -> list[Samples]:
        """Parts of nearly equal size; some are empty if there are too few samples."""
        missing = (None,) * num_batches
        parts = [missing if field is None else field.tensor_split(num_batches) for field in self]
        return [Samples._make(fields) for fields in zip(*parts, strict=True)]

    def filled_up(self, size: int) -> Samples:
        """The same samples in a minibatch of `size` rows; rows that repeat others have the share 0.

        Of sequences, those that repeat others have no valid row.
        """
        num_samples = len(self.log_prob)
        numbers = torch.arange(size, device=self.log_prob.device)
        is_own = numbers < num_samples
        if num_samples == 0:  # other ranks have all samples
            filled = Samples._make(None if field is None else field.new_zeros(size, *field.shape[1:]) for field in self)
        else:
            filled = self.at(numbers % num_samples)
        if filled.valid is None or filled.begins is None:
            return filled._replace(share=is_own.float() / max(1, num_samples))
        own_rows = is_own.unsqueeze(1)
        return filled._replace(begins=filled.begins & own_rows, valid=filled.valid & own_rows)

    def valid_filled_up(self) -> tuple[Samples, Tensor]:
        """The samples among rows, in a minibatch of as many rows, and the row `[N]` of each.

        As `filled_up`, without a shape or a read of the host that depends on how many are valid.
        """
        assert self.valid is not None
        order, num_samples = (~self.valid).to(torch.uint8).argsort(stable=True), self.valid.sum()
        numbers = torch.arange(len(self.valid), device=self.valid.device)
        rows = order.index_select(0, numbers % num_samples.clamp(min=1))
        share = (numbers < num_samples).float() / num_samples.clamp(min=1)
        return self._replace(rnn_state=None, begins=None, valid=None).at(rows)._replace(share=share), rows

    def non_null_fields(self) -> dict[str, Tensor]:
        return {name: field for name, field in zip(self._fields, self, strict=True) if field is not None}


class LossMetrics(NamedTuple):
    """What a loss returns for a minibatch: scalar tensors, except for the last.

    Attributes:
        loss: the sum that is minimized.
        policy_loss, value_loss, entropy_loss, kl_loss: its parts.
        kl: KL divergence of the policy from the one of `Samples.action_parameters`; 0 if nothing needs it.
        log_ratio: [B], log-probability of each action minus `Samples.log_prob`.
    """

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor
    kl_loss: Tensor
    kl: Tensor
    log_ratio: Tensor


NUM_LOSS_METRICS = len(LossMetrics._fields) - 1
"""The scalars of `LossMetrics`."""

STEP_METRICS = ("loss", "policy_gradient_loss", "value_loss", "entropy_loss", "kl_loss", "kl", "grad_norm")
"""The metrics of an optimizer step: the scalars of `LossMetrics`, and the norm of the gradient before clipping."""

LOSS, KL, GRAD_NORM = (STEP_METRICS.index(name) for name in ("loss", "kl", "grad_norm"))


class Step(NamedTuple):
    """What one optimizer step leaves for the metrics: `metrics [7]`, see `STEP_METRICS`, and `log_ratio [B]`."""

    step_metrics: Tensor
    log_ratio: Tensor


def were_taken(steps: Sequence[Step]) -> Tensor:
    """Whether each step was taken, [steps] bool: those whose loss or gradient is not finite are skipped."""
    step_metrics = torch.stack([step.step_metrics for step in steps])
    return torch.isfinite(step_metrics[:, LOSS] + step_metrics[:, GRAD_NORM])


TakeStep = Callable[[Samples, float], tuple[Tensor, Tensor]]
"""Takes an optimizer step on a minibatch at a learning rate; returns the fields of `Step`."""


class LearningRate(Protocol):
    """The learning rate of the next step (`asyncrl.learner.optimizer`)."""

    value: float


class Progress(NamedTuple):
    """State of an update.

    Attributes:
        num_done: minibatches that were trained.
        num_total: minibatches of all passes.
        ends_pass: whether the last of them ended a pass; the place to publish.
        is_last: whether that pass was the last.
        steps: the steps of this pass so far.
    """

    num_done: int
    num_total: int
    ends_pass: bool
    is_last: bool
    steps: Sequence[Step] = ()


class Ranks(Protocol):
    """The learners that make the same steps (`asyncrl.learner.ranks`)."""

    num_ranks: int

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all ranks, in place, and returns it."""

    def average(self, tensors: Sequence[Tensor], weight: float | Tensor = 1.0) -> None:
        """Replaces float tensors by their means over all ranks; `weight` is that of this rank."""


def needs_kl(config: TrainConfig) -> bool:
    """Whether the KL divergence is computed, for the loss or for the schedule of the learning rate."""
    return config.kl_loss_coeff > 0.0 or config.lr_schedule.startswith("kl_adaptive")


def with_common_losses(
    policy_loss: Tensor,
    log_prob: Tensor,
    parameters: Tensor,
    values: Tensor,
    batch: Samples,
    distribution: ActionDistribution,
    config: TrainConfig,
) -> LossMetrics:
    """Adds the losses of value, entropy and KL divergence to the loss of a policy, by their coefficients.

    Args:
        policy_loss: scalar.
        log_prob: [B], of the actions under the current policy.
        parameters: [B, P], of its distributions.
        values: [B], of its critic, in units of normalized returns.
        batch: the minibatch.
        distribution: what `parameters` are of.
        config: the coefficients.
    """
    value_loss = config.value_loss_coeff * value_error(values, batch, config)
    loss = policy_loss + value_loss
    entropy_loss = kl_loss = kl = torch.zeros((), device=parameters.device)
    if config.entropy_loss_coeff > 0.0:
        entropy_loss = -config.entropy_loss_coeff * batch.mean(distribution.entropy(parameters))
        loss = loss + entropy_loss
    if needs_kl(config):
        kl = batch.mean(distribution.kl(batch.action_parameters, parameters))
    if config.kl_loss_coeff > 0.0:
        kl_loss = config.kl_loss_coeff * kl
        loss = loss + kl_loss
    return LossMetrics(loss, policy_loss, value_loss, entropy_loss, kl_loss, kl, log_prob - batch.log_prob)


def value_error(values: Tensor, batch: Samples, config: TrainConfig) -> Tensor:
    """The mean squared error of values `[B]` in units of normalized returns, clipped if `ppo_clip_value` is set."""
    returns, clip = batch.normalized_return, config.ppo_clip_value
    if clip is None:
        return squared_value_loss(values, returns, batch.mean)
    return clipped_value_loss(values, batch.normalized_value, returns, clip, batch.mean)


def squared_value_loss(values: Tensor, returns: Tensor, mean: Mean = torch.mean) -> Tensor:
    """Mean squared error, without the factor 1/2; both [B] float32 in units of normalized returns."""
    return mean((values - returns).square())


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float, mean: Mean = torch.mean
) -> Tensor:
    """The larger of the squared errors with and without clipping the change since `old_values` to +-clip.

    The form of OpenAI Baselines' PPO2; all tensors [B] float32 in units of normalized returns.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return mean(torch.maximum((values - returns).square(), (clipped - returns).square()))


def advantage_sums(advantages: Tensor, num_parts: int, is_sample: Tensor | None = None) -> Tensor:
    """Count, sum and sum of squares of each part of the advantages, `[num_parts, 3] float64`; ranks add theirs up.

    Args:
        advantages: [N] or [N, L].
        num_parts: minibatches, as `Tensor.tensor_split` makes them along the first dimension.
        is_sample: bool in the shape of the advantages, False for rows to leave out; None leaves out none.
    """
    numbers = advantages.double()
    if is_sample is None:
        counts = torch.ones_like(numbers)
    else:
        counts, numbers = is_sample.double(), numbers.where(is_sample, 0.0)
    terms = torch.stack((counts, numbers, numbers.square())).unsqueeze(-1).flatten(2)
    return torch.cat([each.sum((2, 3)) for each in _equal_parts(terms, num_parts, dim=1)], 1).t().contiguous()


def normalize_advantages(advantages: Tensor, sums: Tensor) -> Tensor:
    """Advantages `[N]` or `[N, L]` with mean 0 and standard deviation 1 in each part; `sums` as of `advantage_sums`."""
    mean, mean_square = (sums[:, 1:] / sums[:, :1].clamp(min=1.0)).unbind(1)
    std = torch.addcmul(mean_square, mean, mean, value=-1.0).clamp_(min=0.0).sqrt_()
    scale = torch.add(std, mean_square.sqrt(), alpha=_RELATIVE_EPS).add_(_TINY)
    parts = _equal_parts(advantages, len(sums))
    units = torch.stack((mean, scale)).to(advantages.dtype).view(2, -1, *(1,) * advantages.dim())
    with_units = zip(parts, torch.split(units, [len(part) for part in parts], 1), strict=True)
    return torch.cat([((part - shift) / unit).flatten(0, 1) for part, (shift, unit) in with_units])


def _equal_parts(tensor: Tensor, num_parts: int, dim: int = 0) -> list[Tensor]:
    """The parts that `Tensor.tensor_split` makes along a dimension: those of each size as one tensor.

    The dimension becomes two, parts and elements.
    """
    size, num_larger = divmod(tensor.shape[dim], num_parts)
    if num_larger == 0:
        return [torch.unflatten(tensor, dim, (num_parts, size))]
    larger, rest = tensor.tensor_split([num_larger * (size + 1)], dim)
    shapes = (num_larger, size + 1), (num_parts - num_larger, size)
    return [torch.unflatten(larger, dim, shapes[0]), torch.unflatten(rest, dim, shapes[1])]


def behaviour_weights(log_ratio: Tensor, cap: float) -> Tensor:
    """Weights of samples in decoupled PPO (Hilton et al. 2021, arXiv:2110.00641): probability ratios, at most `cap`.

    Args:
        log_ratio: [...] float32, log-probability of the policy before training minus that of the behaviour policy.
        cap: bounds the variance of the weights; at least 1, so that samples of the same policy keep the weight 1.
    """
    return log_ratio.exp().clamp(max=cap)


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """Effective share of `[N]` weighted samples: (sum w)^2 / (N sum w^2), between 1/N and 1 (Kish 1965)."""
    log_share: Tensor = 2.0 * log_weights.logsumexp(0) - (2.0 * log_weights).logsumexp(0)
    return (log_share.exp() / len(log_weights)).clamp(max=1.0)


def approximate_kls(log_ratio: Tensor) -> Tensor:
    """(r - 1) - log r: its mean over samples of old is KL(old || current) (Schulman, joschu.net/blog/kl-approx)."""
    return log_ratio.expm1() - log_ratio


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var[returns - values] / Var[returns], both [N]; 0 where the returns do not vary."""
    variance = returns.var(correction=0)
    return torch.where(variance > 0, 1.0 - (returns - values).var(correction=0) / variance, torch.zeros_like(variance))


def continues(valid: Any, terminated: Any, truncated: Any) -> Any:
    """Rows whose episode continues with the next row; bool arrays or tensors of one shape.

    By the rule of rows (`asyncrl.buffers.layout`) the row after a truncation holds the final observation: its value is
    bootstrapped, but no return continues through it.
    """
    return valid & ~(terminated | truncated)


def _differences(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
    idle: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Temporal differences `[T, C]`, 0 in invalid rows, and the weight of the next row's estimate in each row's."""
    next_values = values[1:]
    if idle is not None:
        rewards, next_values, terminated, truncated = _until_next_action(
            rewards, next_values, terminated, truncated, idle
        )
    next_values = next_values.masked_fill(terminated, 0.0)
    deltas = torch.where(valid, rewards + gamma * next_values - values[:-1], 0.0)
    decay = continues(valid, terminated, truncated).to(values.dtype).mul_(gamma * gae_lambda)
    return deltas, decay if idle is None else decay.masked_fill_(idle, 1.0)


def _until_next_action(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, idle: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What follows each action until the agent's next one: the rewards of the rows in which it waits, and the end.

    All are [T, C]. Rows in which an agent waits take no discount: it counts decisions.
    """
    rewards, next_values, terminated, truncated = (
        field.clone() for field in (rewards, next_values, terminated, truncated)
    )
    for row in reversed(range(len(rewards) - 1)):
        waits = idle[row + 1] & ~(terminated[row] | truncated[row])
        rewards[row] += torch.where(waits, rewards[row + 1], 0.0)
        next_values[row] = torch.where(waits, next_values[row + 1], next_values[row])
        terminated[row] |= waits & terminated[row + 1]
        truncated[row] |= waits & truncated[row + 1]
    return rewards, next_values, terminated, truncated


class GaeResult(NamedTuple):
    """Both [T, C] float32; where `valid` is False the advantage is 0 and the return is the value.

    Attributes:
        advantages: estimates of A(s, a).
        returns: advantages + values, the lambda-returns that the critic learns.
    """

    advantages: Tensor
    returns: Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
    idle: Tensor | None = None,
) -> GaeResult:
    """Generalized advantage estimation (Schulman et al. 2016, arXiv:1506.02438) across ends of episodes.

    The value of row t+1 is bootstrapped after row t. It belongs to the next observation of the episode, the final one
    of a truncated episode (a row that is not valid), or the one after the last row. Only termination makes it 0.

    Args:
        rewards: [T, C] float32.
        values: [T+1, C] float32, in units of rewards.
        terminated: [T, C] bool, the episode reached a terminal state.
        truncated: [T, C] bool, the episode was cut off; the next row is its final observation.
        valid: [T, C] bool, False for rows without an action; of these only `values` is read.
        gamma: discount factor.
        gae_lambda: weight of longer returns, 0 (one step) to 1 (Monte Carlo).
        idle: [T, C] bool, rows in which an agent waits for its next action. Their rewards, and an end in them, belong
            to the action before. The result of these rows has no meaning.
    """
    deltas, decay = _differences(rewards, values, terminated, truncated, valid, gamma, gae_lambda, idle)
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    # One operation a row: this loop runs T times for each dataset.
    steps = zip(reversed(deltas.unbind()), reversed(decay.unbind()), reversed(advantages.unbind()), strict=True)
    for delta, weight, advantage in steps:
        following = torch.addcmul(delta, weight, following, out=advantage)
    return GaeResult(advantages, advantages + values[:-1])


class VtraceResult(NamedTuple):
    """All [T, C] float32; where `valid` is False the advantage is 0, the return is the value, the weight is 0.

    Attributes:
        advantages: estimates of A(s, a) under the current policy, without the weight of the action itself.
        returns: targets of the critic, the paper's v_s.
        weights: clipped importance weights of the actions, the paper's rho; None without V-trace.
    """

    advantages: Tensor
    returns: Tensor
    weights: Tensor | None


def vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
    max_rho: float,
    max_c: float,
    idle: Tensor | None = None,
) -> VtraceResult:
    """V-trace (Espeholt et al. 2018, "IMPALA", arXiv:1802.01561): estimates for the current policy from older samples.

    Without lag the weights are 1 and the result is that of `gae`; with `gae_lambda` 1 it is the paper's. No gradient
    flows through the result.

    Args:
        log_ratios: [T, C] float32, log-probability of each action now minus that when it was chosen.
        rewards: [T, C] float32.
        values: [T+1, C] float32, of the current critic, in units of rewards.
        terminated: [T, C] bool.
        truncated: [T, C] bool.
        valid: [T, C] bool.
        gamma: discount factor.
        gae_lambda: weight of longer returns; multiplies c.
        max_rho: bound of the weights of the temporal differences; decides which policy's values are learned.
        max_c: bound of the weights of the trace; decides how fast they are learned.
        idle: as for `gae`.
    """
    ratios = torch.where(valid, log_ratios, 0.0).exp()
    weights = torch.where(valid, ratios.clamp(max=max_rho), 0.0)
    deltas, decay = _differences(rewards, values, terminated, truncated, valid, gamma, gae_lambda, idle)
    trace = decay * (ratios.clamp(max=max_c) if idle is None else ratios.clamp(max=max_c).masked_fill(idle, 1.0))
    corrections = torch.zeros_like(values)
    for row in reversed(range(len(rewards))):
        torch.addcmul(weights[row] * deltas[row], trace[row], corrections[row + 1], out=corrections[row])
    advantages = torch.addcmul(deltas, decay, corrections[1:])
    return VtraceResult(advantages, corrections[:-1] + values[:-1], weights)
