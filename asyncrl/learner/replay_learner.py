"""What SAC, TD3 and DQN share: networks with their optimizers, a series of updates, its metrics, and the saved state.

An update is a function of a batch of transitions, which each algorithm has: no processes, no shared memory.
`publication` gives the block of weights and statistics that other roles act with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import LearningRate, ParameterStore, SkippedSteps, clip_gradient
from asyncrl.learner.replay_sampler import Transitions
from asyncrl.learner.state import LearnerState, Scalar, copies_of
from asyncrl.learner.update_runner import Figures, Update, UpdateRunner, in_graphs, makes_graphs
from asyncrl.models.block_network import BatchRenorm, UnitLinear
from asyncrl.models.encoders import split_tensor
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.models.sac import SacActor
from asyncrl.models.stacked_mlp import StackedLayer, StackedMlp
from asyncrl.monitoring.reports import UpdateMetrics
from asyncrl.runtime.seeding import Stream, derive_seed, rank_seed

SUM_OF_INPUTS = "sum of inputs"
"""A figure that is checked, because a rectifier may hide NaN, and is not a metric."""
CRITIC_FIGURES = ("critic_loss", "q_mean", SUM_OF_INPUTS, "grad_norm_critic")
"""Names of the figures of a step of SAC's or TD3's critics."""


def matmul_dtype(precision: Literal["auto", "float32", "bf16"], device: torch.device) -> torch.dtype:
    """The dtype of matrix products: auto is bfloat16 where the hardware has instructions for it; others are slower."""
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float32
    # AVX512-BF16 and AMX. A version of PyTorch that cannot check for one of them does not use it.
    checks = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    has_instructions = device.type == "cpu" and any(check() for check in checks if check is not None)
    return torch.bfloat16 if has_instructions else torch.float32


class LayerCopy:
    """Layers of a flat tensor `[N]` for matrix products.

    Attributes:
        layers: views of the tensor; hidden layers of a copy if the products have another dtype.
        hidden: the parts of tensor and copy that have the hidden layers; None without a copy.
    """

    def __init__(self, mlp: StackedMlp, flat: Tensor, dtype: torch.dtype) -> None:
        size = mlp.num_hidden_parameters
        copied = flat if flat.dtype == dtype else flat.to(dtype)
        self.layers = (*mlp.layers_in(copied)[:-1], mlp.layers_in(flat)[-1])
        self.hidden = None if copied is flat else (flat[:size], copied[:size])

    def refresh(self) -> None:
        """Updates the copy from the flat tensor."""
        if self.hidden is not None:
            flat, copied = self.hidden
            copied.copy_(flat)


class TrainedNetwork:
    """A module with its gradient and optimizer.

    Attributes:
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
        config: TrainConfig,
        dtype: torch.dtype,
        storage: ParameterStore,
        others: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        """Makes the parameters of the module flat, under `name` in `storage`.

        `mlp` has all layers of a module with hand-written passes, whose matrix products of hidden layers have `dtype`;
        None if autograd trains the module. `others` are further tensors of the same optimizer and their gradients,
        which are never clipped, by name in `storage`.
        """
        others = others or {}
        self.flat = FlatParameters(module, hold=lambda initial: storage.allocate(name, initial))
        self._gradient = self.flat.require_grad()
        self.weights: LayerCopy | None = None
        self._weight_gradients: LayerCopy | None = None
        self.layers: tuple[StackedLayer, ...] = ()
        self.gradients: tuple[StackedLayer, ...] = ()
        if mlp is not None:
            self.weights, self._weight_gradients = (
                LayerCopy(mlp, flat, dtype) for flat in (self.flat.data, self._gradient)
            )
            self.layers, self.gradients = self.weights.layers, self._weight_gradients.layers
        self.max_grad_norm = config.max_grad_norm
        self._unit_layers = [layer for layer in module.modules() if isinstance(layer, UnitLinear)]
        self._renorms = [layer for layer in module.modules() if isinstance(layer, BatchRenorm)]
        self._weight_decay = config.weight_decay
        kept = {id(each) for layer in self._renorms for each in layer.statistics}
        kept.add(id(getattr(module, "log_std", None)))  # deviations of noise matrices are no weights
        decayed = (each for each in module.parameters() if each.requires_grad and id(each) not in kept)
        self._decayed = [each.data for each in decayed] if self._weight_decay else []
        self._ranks = storage.ranks
        tensors, gradients = zip((self.flat.data, self._gradient), *others.values(), strict=True)
        self._gradients = list(gradients)
        self._optimizer = storage.optimizer([name, *others], tensors, gradients, config)

    def step(self, learning_rate: float | Tensor, figures: Tensor) -> Tensor:
        """Takes one step down the gradients, or skips it if a figure or the gradients' norm is not finite.

        Returns the figures and the norm before clipping, [K + 1].

        Args:
            learning_rate: a scalar tensor on the parameters' device may change between replays of a CUDA graph.
            figures: [K], means over the batch that must be finite; means over all ranks afterwards.
        """
        if self._weight_gradients is not None and self._weight_gradients.hidden is not None:
            flat, copied = self._weight_gradients.hidden
            flat.copy_(copied)
        if self._ranks.num_ranks > 1:
            moments = [each for layer in self._renorms for each in layer.batch_moments]
            self._ranks.average([*self._gradients, *moments, figures])
        norm = clip_gradient(self._gradient, self.max_grad_norm)
        figures = torch.cat((figures, norm.unsqueeze(0)))
        is_skipped = torch.isfinite(figures).all().logical_not()
        if self._decayed:  # decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101)
            factor = 1.0 - is_skipped.logical_not() * (learning_rate * self._weight_decay)
            torch._foreach_mul_(self._decayed, factor.to(figures.dtype))
        self._optimizer.step(learning_rate, is_skipped.float())
        for unit_layer in self._unit_layers:
            unit_layer.project()
        for renorm in self._renorms:
            renorm.update_statistics(is_skipped)
        if self.weights is not None:
            self.weights.refresh()
        return figures

    @contextlib.contextmanager
    def normalizing_by_batch(self) -> Iterator[None]:
        """Inside, batch renormalization takes the batch's statistics; the next `step` moves the running ones."""
        for layer in self._renorms:
            layer.uses_batch = True
        try:
            yield
        finally:  # a failed capture of a graph is survived
            for layer in self._renorms:
                layer.uses_batch = False

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
        flat: [N], all parameters.
        weights: the layers for the products; None without passes.
        layers: weights for hand-written passes; empty without passes.
    """

    def __init__(
        self, name: str, module: nn.Module, mlp: StackedMlp | None, dtype: torch.dtype, storage: ParameterStore
    ) -> None:
        """As `TrainedNetwork`; `mlp` is any with the layers of the module."""
        self._storage = storage
        self.flat = FlatParameters(module, with_grad=False, hold=lambda initial: storage.allocate(name, initial)).data
        self.weights = None if mlp is None else LayerCopy(mlp, self.flat, dtype)
        self.layers = () if self.weights is None else self.weights.layers

    def follow(self, trained: TrainedNetwork, share: float) -> None:
        """Moves towards the trained network by a share of the difference."""
        self._storage.polyak_update(self.flat, trained.flat.data, share)
        if self.weights is not None:
            self.weights.refresh()


def perceptron_of(network: nn.Module) -> StackedMlp | None:
    """The network, if hand-written passes know it."""
    return network if isinstance(network, StackedMlp) else None


@dataclass
class TrainedPart:
    """A network that updates step.

    Attributes:
        network: with gradient and optimizer.
        figures: names of the figures of a step, in the order in which `TrainedNetwork.step` returns them.
        weights: what the message of a failure calls its weights.
    """

    network: TrainedNetwork
    figures: tuple[str, ...]
    weights: str


class ReplayLearner:
    """Owns the networks, their optimizers, and the running statistics of observations.

    Attributes:
        policy_version: updates so far.
        td_errors: [batches, B], absolute errors of the last call of `train`, which prioritized replay needs; None if
            the update does not return them.
        skipped_steps: optimizer steps that were skipped since this learner was made.
        notice: a message for the user about how updates run; whoever reports it sets it to None.
        model: the policy, with the newest statistics.
        device: of all tensors.
        ranks: the learners that train together.
    """

    def __init__(self, model: SacActor, config: TrainConfig, device: torch.device, storage: ParameterStore) -> None:
        """Moves the model to `device`. The subclass makes the networks, then calls `_set_up`."""
        self._storage = storage
        self.ranks = storage.ranks
        self.model = model.to(device)
        self.policy_version = self.skipped_steps = 0
        self.td_errors: Tensor | None = None
        self.notice: str | None = None
        self.device = device
        self._config = config
        self._learning_rate = LearningRate(config, self.ranks.num_ranks)
        self._rate = torch.zeros((), dtype=model.statistics.dtype, device=device)
        reduced = matmul_dtype(config.precision, device)
        self._is_reduced = reduced != torch.float32
        self._dtype = reduced if self._is_reduced else model.statistics.dtype
        self._obs_moments = storage.moments("obs", model.observation_size, device)
        own_seed = derive_seed(rank_seed(config.seed, self.ranks.rank), Stream.LEARNER)
        self._generator = torch.Generator(device).manual_seed(own_seed)
        self._graphs: UpdateRunner[bool] | None = None
        self._reported: dict[str, float] = {}  # metrics that are no figures of steps

    def _set_up(
        self,
        update: Update[bool],
        metrics_type: Callable[..., UpdateMetrics],
        acting: TrainedNetwork,
        trained: Mapping[str, TrainedPart],
        targets: Mapping[str, TargetNetwork],
        others: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Takes what updates need; names are those in a checkpoint.

        Args:
            update: returns the figures of each part, in the order of `trained`, and perhaps errors `[B]`.
            metrics_type: what `train` returns, made from the means of all figures and what is reported beside them.
            acting: the network of the policy.
            trained: first the one without whose step an update counts as skipped.
            targets: target networks.
            others: further tensors of the state.
        """
        self._update = update
        self._metrics_type = metrics_type
        self._acting = acting
        self._trained = dict(trained)
        self._targets = dict(targets)
        self._others = dict(others or {})
        self._skipped = {name: SkippedSteps(self._config.max_skipped_steps) for name in trained}
        # A call may leave a part without a step (policy_delay): its figures are then those of its last steps.
        self._last_figures = {
            name: torch.zeros(len(part.figures), dtype=self._rate.dtype, device=self.device)
            for name, part in trained.items()
        }
        if self._storage.is_capturable and makes_graphs(self._config.compile, self.device, self.ranks.num_ranks):
            self._graphs = UpdateRunner(update, self.device, self.ranks.num_ranks)

    def set_hyperparameters(self, new_values: Hyperparameters) -> None:
        """Trains with new values from the next update on; a captured graph contains the old ones."""
        before, self._config = self._config, new_values.apply_to(self._config)
        self._learning_rate.follow(self._config)
        for part in self._trained.values():
            part.network.max_grad_norm = self._config.max_grad_norm
        if self._graphs is not None and in_graphs(before, self._config):
            self._graphs.close()
            self._graphs = UpdateRunner(self._update, self.device, self.ranks.num_ranks)

    @property
    def block_size(self) -> int:
        """Elements of a publication."""
        return block_size(self.model)

    def publication(self, out: Tensor | None = None) -> Tensor:
        """The policy's weights and statistics as one block, to be published as `policy_version`.

        The block is `out: [block_size] float32`, or a new CPU tensor.
        """
        return write_block(self.model, self._acting.flat, out)

    def follow(self, policy_version: int) -> None:
        """Adopts the current state of networks and statistics that other processes train, too."""
        self.policy_version = policy_version
        self._refresh_copies()
        if self._config.normalize_input:
            self._take_statistics()

    def observe(self, obs: Tensor) -> None:
        """Adds raw rows of observations `[..., row_size]` to the statistics, rows of a replay as often as drawn."""
        if not self._config.normalize_input:
            return
        self._obs_moments.update(split_tensor(self.model.layout, obs.to(self.device).flatten(0, -2)).floats.float())
        self._obs_moments.merge()
        self._take_statistics()

    def in_reduced_precision(self) -> torch.autocast:
        """A context in which autograd's matrix products have the dtype of `precision`."""
        return torch.autocast(self.device.type, self._dtype, enabled=self._is_reduced, cache_enabled=False)

    def _take_statistics(self) -> None:
        self.model.set_obs_statistics(self._obs_moments.mean, self._obs_moments.std)

    def set_exploration(self, env_steps: int) -> None:
        """Sets what follows from the environment steps so far and is published with the weights; here nothing."""

    @torch.no_grad()
    def train(self, batches: Sequence[Transitions], env_steps_before: int = 0) -> UpdateMetrics | None:
        """Makes one update for each batch; skips steps whose loss or gradient is not finite.

        Returns means over the steps that were taken; None if none of the first part's was.

        Args:
            batches: at least one, of raw transitions on any device.
            env_steps_before: environment steps collected before; the schedules read it.

        Raises:
            RunFailed: too many steps in a row were skipped.
        """
        self._learning_rate.start_dataset(env_steps_before)
        self._rate.fill_(self._learning_rate.value)
        self._reported["learning_rate"] = self._learning_rate.value
        figures = []
        if batches[0].obs.device != self.device:
            batches = [batch.to(self.device) for batch in batches]  # all of them first: a transfer waits for updates
        for batch in batches:
            if self._storage.is_shared:
                self._storage.sync()
                self._refresh_copies()
            self.policy_version += 1
            trains_actor = self.policy_version % self._config.policy_delay == 0
            update = self._graphs or self._update
            figures.append(update(self._inputs_of(batch, trains_actor), trains_actor))
        if self._graphs is not None:
            self.notice = self.notice or self._graphs.take_notice()
        columns, num_parts = list(zip(*figures, strict=True)), len(self._trained)
        errors = [each for column in columns[num_parts:] for each in column if each is not None]
        self.td_errors = torch.stack(errors) if errors else None
        return self._metrics(columns[:num_parts], batches[-1])

    def _inputs_of(self, batch: Transitions, trains_actor: bool) -> Sequence[Tensor]:
        """The tensors that an update reads: the batch, and what is drawn for it."""
        return batch

    def _metrics(self, figures_of_parts: Sequence[Figures], last_batch: Transitions) -> UpdateMetrics | None:
        """Means over the steps that were taken, in one transfer to the host."""
        flags, steps = [], {}
        for (name, part), figures in zip(self._trained.items(), figures_of_parts, strict=True):
            last = self._last_figures[name]
            made = [each for each in figures if each is not None]
            steps[name] = rows = torch.stack(made) if made else last.new_empty((0, len(part.figures)))
            was_taken = torch.isfinite(rows).all(1)
            mean = torch.where(was_taken.unsqueeze(1), rows, 0.0).sum(0) / was_taken.sum()
            last.copy_(torch.where(was_taken.any(), mean, last))
            flags.append(was_taken.to(last))
        numbers = torch.cat((*self._last_figures.values(), *flags)).tolist()
        names = [figure for part in self._trained.values() for figure in part.figures]
        were_taken = [flag == 1.0 for flag in numbers[len(names) :]]
        has_trained, start = any(were_taken[: len(flags[0])]), 0
        for (name, part), flag in zip(self._trained.items(), flags, strict=True):
            taken, start = were_taken[start : start + len(flag)], start + len(flag)
            if self._skipped[name].note(taken):
                named = last_batch._asdict()
                named |= {each.weights: each.network.flat.data for each in self._trained.values()}
                last_figures = dict(zip(part.figures, steps[name][-1].tolist(), strict=True))
                raise self._skipped[name].diagnosis(last_figures, named)
        self.skipped_steps = sum(skipped.total for skipped in self._skipped.values())
        if not has_trained:
            return None
        means = dict(zip(names, numbers, strict=False))  # the rest are flags
        del means[SUM_OF_INPUTS]
        return self._metrics_type(**means, **self._reported)

    def state_dict(self) -> LearnerState:
        """Copies the complete state of the learner; the copies share no memory with it or with one another.

        `model` is the policy's state; the state of all networks and optimizers is in `optimizer`.
        """
        optimizer = copies_of(self._tensors()) | {"generator": self._generator.get_state()}
        scalars: dict[str, Scalar] = {
            "policy_version": self.policy_version,
            "learning_rate": self._learning_rate.of_one_rank,
            "obs_count": self._obs_moments.count,
        }
        return LearnerState(copies_of(self.model.state_dict()), optimizer, scalars)

    @torch.no_grad()
    def load_state_dict(self, state: LearnerState) -> None:
        """Continues from `state`; the caller publishes before more is collected."""
        self.model.load_state_dict(state.model)
        left_out = self._settings_of_its_own(state)
        for name, tensor in self._tensors().items():
            if name not in left_out:
                tensor.copy_(state.optimizer[name])
        generator = state.optimizer["generator"]
        if generator.shape == self._generator.get_state().shape:  # of the same kind of device
            self._generator.set_state(generator)
        self._refresh_copies()
        self.policy_version = int(state.scalars["policy_version"])
        self._learning_rate.resume(float(state.scalars["learning_rate"]))
        self._obs_moments.count = int(state.scalars["obs_count"])

    def _settings_of_its_own(self, state: LearnerState) -> set[str]:
        """Tensors that are not restored."""
        return set()

    def _refresh_copies(self) -> None:
        networks: list[TrainedNetwork | TargetNetwork] = [
            *(part.network for part in self._trained.values()),
            *self._targets.values(),
        ]
        for network in networks:
            if network.weights is not None:
                network.weights.refresh()

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors in use, by their names in a checkpoint."""
        _, *later = self._trained
        networks = {name: part.network.tensors() for name, part in self._trained.items()}
        return {
            **{f"{owner}.{name}": tensor for owner, own in networks.items() for name, tensor in own.items()},
            **{name: target.flat for name, target in self._targets.items()},
            **{f"last_{name}_figures": self._last_figures[name] for name in later},
            **self._others,
            "obs_mean": self._obs_moments.mean,
            "obs_variance": self._obs_moments.variance,
        }
