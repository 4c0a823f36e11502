"""What a learner changes at each step: parameters and their memory, Adam, its learning rate, running moments.

`ParameterStore` allocates private memory; `asyncrl.modes.hogwild.storage` has one whose memory other processes share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.ranks import Ranks
from asyncrl.processes.children import RunFailed


class FlatAdam:
    """Adam for a few flat tensors; a call takes half the time of the class in `torch.optim`.

    Attributes:
        parameters: the tensors, each `[N]`.
        exp_avgs, exp_avg_sqs: Adam's moments of each.
        steps: float32 scalars, the number of steps of each.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        config: TrainConfig,
        moments: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    ) -> None:
        """Reads `gradients` at each step; `moments` are `exp_avgs` and `exp_avg_sqs`, new zeros if not given."""
        self.parameters = list(parameters)
        if moments is None:
            moments = [torch.zeros_like(p) for p in parameters], [torch.zeros_like(p) for p in parameters]
        self.exp_avgs, self.exp_avg_sqs = (list(tensors) for tensors in moments)
        self.steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]
        self._gradients = list(gradients)
        self._config = config

    def step(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        """Takes one step (Kingma and Ba 2015, arXiv:1412.6980).

        Args:
            learning_rate: its size.
            found_inf: float32 scalar on the parameters' device, for which the host does not wait; 1 skips the step,
                which is not counted.
        """
        torch._foreach_add_(self.steps, 1.0)
        torch._fused_adam_(
            self.parameters,
            self._gradients,
            self.exp_avgs,
            self.exp_avg_sqs,
            [],
            self.steps,
            found_inf=found_inf,
            amsgrad=False,
            beta1=self._config.adam_beta1,
            beta2=self._config.adam_beta2,
            lr=learning_rate,
            weight_decay=0.0,
            eps=self._config.adam_eps,
            maximize=False,
        )
        torch._foreach_sub_(self.steps, [found_inf] * len(self.steps))


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
        """Sets the rate of a dataset by the linear schedule, which is 0 at `train_for_env_steps`."""
        if self._config.lr_schedule == "linear_decay":
            remaining = max(0.0, 1.0 - env_steps_before / self._config.train_for_env_steps)
            self.value = self._config.learning_rate * self._scale * remaining

    def follow(self, config: TrainConfig) -> None:
        """Adopts a changed `learning_rate`; schedules continue from it."""
        if config.learning_rate != self._config.learning_rate:
            self.value = config.learning_rate * self._scale
        self._config = config

    def resume(self, unscaled: float) -> None:
        """Restores the rate from `unscaled` of a checkpoint; the number of ranks may have changed since."""
        self.value = unscaled * self._scale

    @property
    def unscaled(self) -> float:
        """The rate without the factor of `scale_lr` for the number of ranks."""
        return self.value / self._scale

    def after_minibatch(self, kl: Tensor) -> None:
        """Adapts the rate to the KL divergence of one minibatch."""
        if self._config.lr_schedule == "kl_adaptive_minibatch":
            self._adapt(kl)

    def after_epoch(self, kls: list[Tensor]) -> None:
        """Adapts the rate to the mean KL divergence of an epoch's minibatches."""
        if self._config.lr_schedule == "kl_adaptive_epoch":
            self._adapt(torch.stack(kls).nanmean())  # minibatches without samples have none

    def _adapt(self, kl: Tensor) -> None:
        divergence, target = float(kl), self._config.lr_schedule_kl_threshold
        if divergence > _TOLERANCE * target:
            self.value = max(self.value / _FACTOR, self._config.lr_adaptive_min)
        elif divergence < target / _TOLERANCE:
            self.value = min(self.value * _FACTOR, self._config.lr_adaptive_max)


def stddev_limit(initial: float, final: float, progress: float) -> float:
    """Upper limit of the standard deviation of continuous actions; none in the first half of a run.

    In the second half it falls from `initial` to `final`, by equal factors in equal times.

    Args:
        initial: limit at half of the run.
        final: limit at its end.
        progress: share of the run that is done, 0 to 1.
    """
    done = 2.0 * min(progress, 1.0) - 1.0
    return math.inf if done < 0.0 else initial * (final / initial) ** done


def scheduled(config: TrainConfig, env_steps_before: int) -> TrainConfig:
    """The settings of the loss of a dataset, before which a run has trained on so many environment steps.

    Values for which there is a final one change linearly, and reach it at `train_for_env_steps`.
    """
    finals = {"ppo_clip_ratio": config.final_ppo_clip_ratio, "entropy_loss_coeff": config.final_entropy_loss_coeff}
    done = min(env_steps_before / config.train_for_env_steps, 1.0)
    changes = {
        name: (1.0 - done) * getattr(config, name) + done * final for name, final in finals.items() if final is not None
    }
    return config.model_copy(update=changes) if changes else config


def clip_gradient(gradient: Tensor, max_norm: float) -> Tensor:
    """Scales a gradient `[N]` down to `max_norm` (0: never), in place; returns its norm before."""
    norm: Tensor = torch.linalg.vector_norm(gradient)
    if max_norm > 0.0:
        gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm


class SkippedSteps:
    """Counts skipped steps; `total` is their number."""

    def __init__(self, most_in_a_row: int) -> None:
        """Training has diverged after `most_in_a_row` skipped steps without one that was taken between them."""
        self.total = 0
        self._most_in_a_row = most_in_a_row
        self._in_a_row = 0

    def record(self, were_taken: Sequence[bool]) -> bool:
        """Adds steps in their order, True for those that were taken; returns whether training has diverged."""
        for was_taken in were_taken:
            self._in_a_row = 0 if was_taken else self._in_a_row + 1
            self.total += not was_taken
        return self._in_a_row >= self._most_in_a_row

    def diagnosis(self, step_metrics: Mapping[str, float], samples: Mapping[str, Tensor]) -> RunFailed:
        """The error that ends the run, from losses and norms of the last step, its inputs and the weights."""
        listed = ", ".join(f"{name} {value:.4g}" for name, value in step_metrics.items())
        return RunFailed(
            f"training has diverged: {self._in_a_row} optimizer steps in a row were skipped because loss or gradient "
            "were not finite. Lower --learning_rate, or check the ranges of the training data below; the "
            "newest checkpoint is not affected",
            "\n".join([f"the last of these steps: {listed}", *(_describe(*item) for item in samples.items())]),
            is_final=True,
        )


def _describe(name: str, values: Tensor) -> str:
    values = values.detach().float().flatten()
    finite = values[torch.isfinite(values)]
    span = f"{finite.min():.4g} to {finite.max():.4g}" if len(finite) > 0 else "none is finite"
    lost = len(values) - len(finite)
    return f"{name}: {span}" + (f", and {lost} of {len(values)} are not finite" if lost else "")


_RESOLUTION = torch.finfo(torch.float32).eps
_ROUNDING = torch.finfo(torch.float64).eps
_FLOOR = 1e-5  # added to variances above it, and the variance that divides constant elements


def varies(mean: Tensor, variance: Tensor) -> Tensor:
    """[D] bool, whether each element varies by more than rounding.

    It is constant if it varies by less than float32 numbers of its mean's size can show, or by less than the rounding
    of float64 numbers of size 1.
    """
    return variance.sqrt() > (mean.abs() * _RESOLUTION).clamp(min=_ROUNDING)


def variance_of(divisor: Tensor) -> Tensor:
    """[D] float64 variance of the elements with these `RunningMoments.std`; about 0 for constant ones."""
    square = divisor.double().square()
    variance = square.where(square < _FLOOR * (1.0 - 1e-6), (square - _FLOOR).clamp(min=0.0))
    return variance.where(divisor != 1.0, 0.0)


class RunningMoments:
    """Mean and variance of each element of the vectors of all ranks (Chan et al. 1979).

    Attributes:
        mean: [D] float64.
        variance: [D] float64, biased.
    """

    def __init__(self, size: int, device: torch.device, ranks: Ranks | None = None) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.variance = torch.ones(size, dtype=torch.float64, device=device)
        self._count = torch.zeros((), dtype=torch.float64, device=device)
        self._ranks = ranks or Ranks()

    @property
    def count(self) -> int:
        """Number of vectors. To read it, the host waits for the device."""
        return int(self._count)

    @count.setter
    def count(self, count: int) -> None:
        self._count.fill_(count)

    @property
    def std(self) -> Tensor:
        """[D] float64 standard deviation of each element, by which it is divided.

        Elements with a variance above 1e-5, and constant ones, have 1e-5 added to it: without it Humanoid and Ant ended
        lower (CHANGELOG.md). Smaller elements are divided by their own standard deviation, so their unit does not
        matter.
        """
        variance, has_changes, is_small = self.variance, varies(self.mean, self.variance), self.variance < _FLOOR
        divisor = variance.sqrt().where(has_changes & is_small, (variance + _FLOOR).sqrt())
        return divisor.where(has_changes | is_small, 1.0)  # 1 for the rounding of large numbers

    def update(self, batch: Tensor) -> None:
        """Adds the vectors `[N, D] float32` of all ranks; a batch that has NaN or infinity is ignored.

        Batches of zeros before the first other batch are ignored, too: where rewards are rare, returns are 0 until
        the first reward, which the standard deviation of these zeros would scale to hundreds. No branch depends on
        values on the device, because the host would wait for them.
        """
        count, shift = torch.zeros_like(self._count), torch.zeros_like(self.mean)
        spread = shift
        if len(batch) > 0:
            # Around the running mean, so that a large offset does not cost float32 sums their precision.
            center = torch.where(self._count > 0.0, self.mean.to(batch.dtype), batch[0])
            centered = batch - center
            offset = centered.mean(0)
            spread = centered.sub_(offset).square_().mean(0).double()
            shift = (center.double() + offset.double()) - self.mean
            counts = torch.isfinite(shift + spread).all() & ((self._count > 0.0) | (batch != 0.0).any())
            count = counts.double() * len(batch)
            shift, spread = shift.where(counts, 0.0), spread.where(counts, 0.0)
        if self._ranks.num_ranks > 1:
            count, shift, spread = self._merge_ranks(count, shift, spread)
        self._count += count
        weight = count / self._count.clamp(min=1.0)  # 1 for the first vectors, 0 without new ones
        self.mean.addcmul_(shift, weight)
        self.variance.lerp_(spread, weight).addcmul_(shift.square(), weight * (1.0 - weight))

    def adopt(self, mean: Tensor, std: Tensor) -> None:
        """Replaces the moments by those of other vectors, `[D]` each; they count as much as the vectors before."""
        self.mean.copy_(mean)
        self.variance.copy_(variance_of(std))

    def merge(self) -> None:
        """Adopts the moments of other processes, where they are shared."""

    def _merge_ranks(self, count: Tensor, shift: Tensor, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Merges the moments of all ranks, in float64 and around the common mean."""
        sums = self._ranks.sum(torch.cat((shift * count, count.view(1))))
        total = sums[-1]
        mean = sums[:-1] / total.clamp(min=1.0)
        merged = self._ranks.sum(count * (spread + (shift - mean).square())) / total.clamp(min=1.0)
        return total, mean, merged


class ParameterStore:
    """Private memory of one learner. Subclasses place values and optimizer state elsewhere.

    Attributes:
        is_shared: whether other processes change the values, too, at any time.
        is_capturable: whether a CUDA graph can contain a step.
        ranks: learners with equal values, each in its own memory, that make the same steps.
    """

    is_shared = False
    is_capturable = True
    ranks = Ranks()

    def __init__(self, ranks: Ranks | None = None) -> None:
        if ranks is not None:
            self.ranks = ranks

    def allocate(self, name: str, initial: Tensor) -> Tensor:
        """The memory for a trained tensor `[N]` of this name; with private memory `initial` itself."""
        return initial

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        """The optimizer of the tensors of these names; `parameters` come from `allocate`."""
        return FlatAdam(parameters, gradients, config)

    def sync(self) -> None:
        """Updates copies of shared tensors to their current values."""

    def polyak_update(self, tensor: Tensor, towards: Tensor, share: float) -> None:
        """Moves an allocated tensor towards another one by a share of their difference."""
        tensor.lerp_(towards, share)

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        """Running moments of vectors `[size]`."""
        return RunningMoments(size, device, self.ranks)
