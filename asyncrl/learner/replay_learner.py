"""What SAC, TD3 and DQN share: networks with their optimizers, a series of updates, its metrics, and the saved state.

An update is a function of a batch of transitions, which each algorithm has: no processes, no shared memory.
`publication` gives the block of weights and statistics that other roles act with.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.off_policy import SUM_OF_INPUTS, Transitions
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.fast.layers import matmul_dtype
from asyncrl.learner.optimizer import LearningRate, ParameterStore, SkippedSteps
from asyncrl.learner.state import LearnerState, Scalar, copies_of
from asyncrl.learner.trained_network import TargetNetwork, TrainedNetwork
from asyncrl.learner.update_runner import StepMetrics, Update, UpdateRunner, in_graphs, makes_graphs
from asyncrl.models.encoders import split_tensor
from asyncrl.models.flat import block_size, write_block
from asyncrl.models.sac import SacActor
from asyncrl.observers.reports import UpdateMetrics
from asyncrl.processes.seeding import Stream, derive_seed, rank_seed

_SMALL_REWARD = 1e-4


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
        auto_is_float32: whether `--precision=auto` never means bfloat16.
    """

    auto_is_float32 = False
    _update: Update[bool]
    """One update by autograd; returns the metrics of each trained network, and perhaps errors `[B]`."""

    def __init__(self, model: SacActor, config: TrainConfig, device: torch.device, storage: ParameterStore) -> None:
        """Moves the model to `device`. The subclass makes the networks, then calls `_set_up`; it has `_update`."""
        self._storage = storage
        self.ranks = storage.ranks
        self.model = model.to(device)
        self.policy_version = self.skipped_steps = 0
        self.td_errors: Tensor | None = None
        self.notice: str | None = None
        self._knows_rewards = config.normalize_rewards
        self.device = device
        self._config = config
        self._learning_rate = LearningRate(config, self.ranks.num_ranks)
        self._rate = torch.zeros((), dtype=model.statistics.dtype, device=device)
        is_float32 = self.auto_is_float32 and config.precision == "auto"
        reduced = torch.float32 if is_float32 else matmul_dtype(config.precision, device)
        self._is_reduced = reduced != torch.float32
        self._dtype = reduced if self._is_reduced else model.statistics.dtype
        self._obs_moments = storage.moments("obs", model.observation_size, device)
        own_seed = derive_seed(rank_seed(config.seed, self.ranks.rank), Stream.LEARNER)
        self._generator = torch.Generator(device).manual_seed(own_seed)
        self._make_trained = functools.partial(
            TrainedNetwork, config=config, dtype=self._dtype, storage=storage, learning_rate=self._rate
        )
        self._make_target = functools.partial(TargetNetwork, config=config, dtype=self._dtype, storage=storage)
        self._reported: dict[str, float] = {}  # metrics that `step` does not return

    def _set_up(
        self,
        metrics_type: Callable[..., UpdateMetrics],
        trained: Sequence[TrainedNetwork],
        targets: Sequence[TargetNetwork],
        others: Mapping[str, Tensor] | None = None,
        passes: Update[bool] | None = None,
    ) -> None:
        """Takes what updates need.

        Args:
            metrics_type: what `train` returns, made from the means of all metrics and what is reported beside them.
            trained: first the one without whose step an update counts as skipped, last the policy.
            targets: target networks.
            others: further tensors of the state, by their names in a checkpoint.
            passes: `_update` by hand-written passes; None if they do not know the networks.
        """
        self._passes = passes
        self._step = self._choose_update()
        self._metrics_type = metrics_type
        self._trained, self._targets, self._others = trained, targets, others or {}
        self._skipped = [SkippedSteps(self._config.max_skipped_steps) for _ in trained]

    def _choose_update(self) -> Update[bool] | UpdateRunner[bool]:
        """Makes an update from the tensors of a batch: by passes if they know the networks, as a graph if asked to."""
        update, num_ranks = self._passes or self._update, self.ranks.num_ranks
        if self._storage.is_capturable and makes_graphs(self._config.compile, self.device, num_ranks):
            return UpdateRunner(update, self.device, num_ranks)
        return update

    def _move_targets(self) -> None:
        for target in self._targets:
            target.follow()

    def set_hyperparameters(self, new_values: Hyperparameters) -> None:
        """Trains with new values from the next update on; a captured graph contains the old ones."""
        before, self._config = self._config, new_values.apply_to(self._config)
        self._learning_rate.follow(self._config)
        for network in self._trained:
            network.max_grad_norm = self._config.max_grad_norm
        for target in self._targets:
            target.tau = self._config.tau
        if isinstance(self._step, UpdateRunner) and in_graphs(before, self._config):
            self._step.close()
            self._step = self._choose_update()

    @property
    def block_size(self) -> int:
        """Elements of a publication."""
        return block_size(self.model)

    def publication(self, out: Tensor | None = None) -> Tensor:
        """The policy's weights and statistics as one block, to be published as `policy_version`.

        The block is `out: [block_size] float32`, or a new CPU tensor.
        """
        return write_block(self.model, self._trained[-1].flat, out)

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
        step_metrics = []
        if batches[0].obs.device != self.device:
            batches = [batch.to(self.device) for batch in batches]  # all of them first: a transfer waits for updates
        for batch in batches:
            if self._storage.is_shared:
                self._storage.sync()
                self._refresh_copies()
            self.policy_version += 1
            trains_actor = self.policy_version % self._config.policy_delay == 0
            step_metrics.append(self._step(self._inputs_of(batch, trains_actor), trains_actor))
        if isinstance(self._step, UpdateRunner):
            self.notice = self.notice or self._step.pop_message()
        columns, num_parts = list(zip(*step_metrics, strict=True)), len(self._trained)
        errors = [each for column in columns[num_parts:] for each in column if each is not None]
        self.td_errors = torch.stack(errors) if errors else None
        return self._metrics(columns[:num_parts], batches[-1])

    def _check_size_of_rewards(self, largest: float) -> None:
        """Warns once if the first rewards that are not 0 are too small to learn from."""
        self._knows_rewards = largest > 0.0
        if self._knows_rewards and largest < _SMALL_REWARD:
            scale = 10.0 ** -round(math.log10(largest))
            self.notice = (
                f"the first rewards are at most {largest:.2g} and the networks' first values about 0.1, so little is "
                f"learned: give --normalize_rewards=True, or --reward_scale={scale:g}"
            )

    def _inputs_of(self, batch: Transitions, trains_actor: bool) -> Sequence[Tensor]:
        """The tensors that an update reads: the batch, and what is drawn for it."""
        return batch

    def _noise(self, shape: tuple[int, int]) -> Tensor:
        """Standard normal numbers, in the dtype of the networks."""
        own = self.model.statistics
        return torch.randn(shape, generator=self._generator, dtype=own.dtype, device=own.device)

    def _metrics(self, step_metrics_by_network: Sequence[StepMetrics], last_batch: Transitions) -> UpdateMetrics | None:
        """Means over the steps that were taken, in one transfer to the host."""
        flags, steps, last_step_metrics = [], [], [network.last_step_metrics for network in self._trained]
        for last, step_metrics in zip(last_step_metrics, step_metrics_by_network, strict=True):
            made = [each for each in step_metrics if each is not None]
            steps.append(rows := torch.stack(made) if made else last.new_empty((0, len(last))))
            was_taken = torch.isfinite(rows).all(1)
            mean = torch.where(was_taken.unsqueeze(1), rows, 0.0).sum(0) / was_taken.sum()
            last.copy_(torch.where(was_taken.any(), mean, last))
            flags.append(was_taken.to(last))
        if not self._knows_rewards:
            flags.append(last_batch.reward.abs().max().view(1).to(flags[0]))
        numbers = torch.cat((*last_step_metrics, *flags)).tolist()
        if not self._knows_rewards:
            flags.pop()
            self._check_size_of_rewards(numbers.pop())
        names = [metric for network in self._trained for metric in network.step_metrics]
        were_taken = [flag == 1.0 for flag in numbers[len(names) :]]
        has_trained, start = any(were_taken[: len(flags[0])]), 0
        for network, skipped, rows in zip(self._trained, self._skipped, steps, strict=True):
            taken, start = were_taken[start : start + len(rows)], start + len(rows)
            if skipped.record(taken):
                named = last_batch._asdict() | {each.called: each.flat.data for each in self._trained}
                raise skipped.diagnosis(dict(zip(network.step_metrics, rows[-1].tolist(), strict=True)), named)
        self.skipped_steps = sum(skipped.total for skipped in self._skipped)
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
            "learning_rate": self._learning_rate.unscaled,
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
        networks: list[TrainedNetwork | TargetNetwork] = [*self._trained, *self._targets]
        for network in networks:
            if network.weights is not None:
                network.weights.refresh()

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors in use, by their names in a checkpoint."""
        return {
            **{f"{network.name}.{name}": each for network in self._trained for name, each in network.tensors().items()},
            **{target.name: target.flat for target in self._targets},
            **{f"last_{network.name}_figures": network.last_step_metrics for network in self._trained[1:]},
            **self._others,
            "obs_mean": self._obs_moments.mean,
            "obs_variance": self._obs_moments.variance,
        }
