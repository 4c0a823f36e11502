"""A network that an optimizer trains, and one that follows it: memory, steps, and layers for hand-written passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.fast.layers import LayerCopy
from asyncrl.learner.optimizer import ParameterStore, clip_gradient
from asyncrl.models.flat import FlatParameters
from asyncrl.models.stacked_mlp import StackedLayer, StackedMlp
from asyncrl.models.stepped_layer import SteppedLayer


class TrainedNetwork:
    """A module with its gradient and optimizer.

    Attributes:
        name: in a checkpoint and in `storage`.
        step_metrics: names of the metrics of a step, in the order in which `step` returns them.
        last_step_metrics: [F], means of the last steps that were taken. A call of `ReplayLearner.train` may have none
            (`policy_delay`).
        called: what the message of a failure calls the weights.
        flat: all parameters and their gradients.
        weights: the layers for the products; None without passes.
        layers: weights for hand-written passes; empty without passes.
        gradients: where passes write gradients.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        mlp: StackedMlp | None,
        step_metrics: Sequence[str],
        config: TrainConfig,
        dtype: torch.dtype,
        storage: ParameterStore,
        learning_rate: Tensor,
        others: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        """Makes the parameters of the module flat, under `name` in `storage`.

        `mlp` has all layers of a module with hand-written passes, whose matrix products of hidden layers have `dtype`;
        None if autograd trains the module. `learning_rate` is a scalar on the parameters' device, which may change
        between replays of a CUDA graph. `others` are further tensors of the same optimizer and their gradients, which
        are never clipped, by name in `storage`.
        """
        others = others or {}
        self.name, self.step_metrics = name, step_metrics
        self.called = {"critic": "critics' weights", "actor": "policy's weights"}.get(name, "weights")
        self.last_step_metrics = learning_rate.new_zeros(len(step_metrics))
        self.flat = FlatParameters(module, hold=lambda initial: storage.allocate(name, initial))
        self._gradient = self.flat.grad
        self.weights: LayerCopy | None = None
        self._weight_gradients: LayerCopy | None = None
        self.layers: tuple[StackedLayer, ...] = ()
        self.gradients: tuple[StackedLayer, ...] = ()
        if mlp is not None:
            self.weights, self._weight_gradients = (
                LayerCopy(mlp, flat, dtype) for flat in (self.flat.data, self._gradient)
            )
            self.layers, self.gradients = self.weights.layers, self._weight_gradients.layers
        self._trainable = [each for each in module.parameters() if each.requires_grad]
        self._learning_rate = learning_rate
        self.max_grad_norm = config.max_grad_norm
        self._stepped = [layer for layer in module.modules() if isinstance(layer, SteppedLayer)]
        self._weight_decay = config.weight_decay
        kept = {id(each) for layer in self._stepped for each in layer.statistics}
        kept |= {id(each) for each in getattr(module, "undecayed", ())}  # parameters that are not weights
        decayed = [each.data for each in self._trainable if id(each) not in kept]
        self._decayed = decayed if self._weight_decay else []
        self._ranks = storage.ranks
        tensors, gradients = zip((self.flat.data, self._gradient), *others.values(), strict=True)
        self._gradients = list(gradients)
        self._optimizer = storage.optimizer([name, *others], tensors, gradients, config)

    def minimize(self, loss: Tensor, *step_metrics: Tensor) -> Tensor:
        """Takes one step down the gradient of a loss, by autograd; see `step`.

        Returns the loss, the metrics and the norm, `[F + 2]`. No gradient reaches other networks.
        """
        self._gradient.zero_()  # in place: the parameters' gradients are views of it
        loss.backward(inputs=self._trainable)  # type: ignore[no-untyped-call]
        return self.step(torch.stack((loss.detach(), *step_metrics)))

    def step(self, step_metrics: Tensor) -> Tensor:
        """Takes one step down the gradients, or skips it if a metric or the gradients' norm is not finite.

        Returns the metrics and the norm before clipping, `[F + 1]`.

        Args:
            step_metrics: [F], means over the batch that must be finite; means over all ranks afterwards.
        """
        if self._weight_gradients is not None and self._weight_gradients.hidden is not None:
            flat, copied = self._weight_gradients.hidden
            flat.copy_(copied)
        if self._ranks.num_ranks > 1:
            moments = [each for layer in self._stepped for each in layer.batch_moments]
            self._ranks.average([*self._gradients, *moments, step_metrics])
        norm = clip_gradient(self._gradient, self.max_grad_norm)
        step_metrics = torch.cat((step_metrics, norm.unsqueeze(0)))
        is_skipped = torch.isfinite(step_metrics).all().logical_not()
        if self._decayed:  # decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101)
            factor = 1.0 - is_skipped.logical_not() * (self._learning_rate * self._weight_decay)
            torch._foreach_mul_(self._decayed, factor.to(step_metrics.dtype))
        self._optimizer.step(self._learning_rate, is_skipped.float())
        for layer in self._stepped:
            layer.after_step(is_skipped)
        if self.weights is not None:
            self.weights.refresh()
        return step_metrics

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that continue the training; after writing to them call `weights.refresh`."""
        kinds = {
            "value": self._optimizer.parameters,
            "exp_avg": self._optimizer.exp_avgs,
            "exp_avg_sq": self._optimizer.exp_avg_sqs,
            "step": self._optimizer.steps,
        }
        return {f"{name}.{number}": tensor for name, kind in kinds.items() for number, tensor in enumerate(kind)}


class TargetNetwork:
    """A module that follows a trained network of the same shape.

    Attributes:
        name: in a checkpoint and in `storage`.
        tau: share of the difference by which it moves.
        flat: [N], all parameters.
        weights: the layers for the products; None without passes.
        layers: weights for hand-written passes; empty without passes.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        mlp: StackedMlp | None,
        trained: TrainedNetwork,
        config: TrainConfig,
        dtype: torch.dtype,
        storage: ParameterStore,
    ) -> None:
        """As `TrainedNetwork`; the module follows `trained`, and `mlp` is any with the layers of the module."""
        self.name = name
        self._storage = storage
        self._trained = trained
        self.tau = config.tau
        self.flat = FlatParameters(module, with_grad=False, hold=lambda initial: storage.allocate(name, initial)).data
        self.weights = None if mlp is None else LayerCopy(mlp, self.flat, dtype)
        self.layers = () if self.weights is None else self.weights.layers

    def follow(self) -> None:
        """Moves towards the trained network by the share `tau` of the difference."""
        self._storage.polyak_update(self.flat, self._trained.flat.data, self.tau)
        if self.weights is not None:
            self.weights.refresh()
