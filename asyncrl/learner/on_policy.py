"""One training iteration of PPO or A2C on one dataset: no processes, no shared memory.

Consumes a `Dataset` of raw observations, produces `TrainMetrics` and, on demand, the block of weights and statistics
that roles act with. Each sample's observation is normalized with the statistics that its own behaviour used; what the
dataset adds to them goes out with the next publication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.losses import (
    advantage_sums,
    approximate_kl,
    behaviour_weights,
    normalize_advantages,
)
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.array_update import ArrayUpdate
from asyncrl.learner.dataset import Dataset, Samples
from asyncrl.learner.estimates import Estimates, estimate
from asyncrl.learner.on_policy_loss import NUM_FIGURES, OnPolicyLoss
from asyncrl.learner.on_policy_metrics import FIGURES, GRAD_NORM, KL, LOSS, Step, train_metrics
from asyncrl.learner.optimizer import LearningRate, SkippedSteps, is_bad
from asyncrl.learner.state import LearnerState, Scalar
from asyncrl.learner.storage import Storage
from asyncrl.learner.update_runner import Figures, UpdateRunner
from asyncrl.models.actor_critic import ActorCritic, ForwardResult
from asyncrl.models.encoders import Inputs, split_tensor
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.monitoring.reports import TrainMetrics
from asyncrl.runtime.seeding import Stream, derive_seed, rank_seed

MODEL = "model"
"""Name of the trained weights in a `Storage`."""


class _Prepared(NamedTuple):
    """A dataset, ready for its passes.

    Attributes:
        samples: what is trained on.
        raw_values: [N] float32 of the valid rows, in units of scaled rewards.
        raw_returns: the same of returns.
        log_ratios: [T, C] float32, V-trace's: of the policy before training to the one that acted; None without it.
        obs_statistics: [2F] float32, with which the critic sees the whole dataset.
    """

    samples: Samples
    raw_values: Tensor
    raw_returns: Tensor
    log_ratios: Tensor | None
    obs_statistics: Tensor


class OnPolicyLearner:
    """Owns the model that is trained, its optimizer, and the running statistics of observations and returns.

    Attributes:
        policy_version: optimizer steps so far, those among them that were left out.
        model: the model, its statistics the newest.
        device: where it is.
        ranks: the learners that train together.
    """

    def __init__(
        self, model: ActorCritic, config: TrainConfig, device: torch.device, storage: Storage | None = None
    ) -> None:
        """Starts with the model as it is, on `device`; its weights live where `storage` says."""
        storage = storage or Storage()
        self.ranks = storage.ranks
        self.model = model.to(device)
        self.policy_version = 0
        self._config = config
        self.device = device
        self._flat = FlatParameters(self.model, hold=lambda initial: storage.hold(MODEL, initial))
        self._gradient = self._flat.require_grad()
        self._optimizer = storage.optimizer([MODEL], [self._flat.data], [self._gradient], config)
        self._learning_rate = LearningRate(config, self.ranks.num_ranks)
        self._obs_moments = storage.moments("obs", model.observation_size, device)
        self._return_moments = storage.moments("return", 1, device)
        self._obs_statistics = self._copy_obs_statistics()
        self._published_obs_statistics: dict[int, Tensor] = {}
        self._most_samples = 0  # of a minibatch
        own_seed = derive_seed(rank_seed(config.seed, self.ranks.rank), Stream.LEARNER)
        self._generator = torch.Generator().manual_seed(own_seed)
        self._skipped = SkippedSteps(config.max_skipped_steps)
        self._recurrence = 0
        if model.rnn_state_size > 0:
            self._recurrence = config.rollout if config.recurrence == "auto" else config.recurrence
        self._loss = OnPolicyLoss(config, model.distribution, self._learning_rate.is_adaptive)
        self._is_bf16 = config.precision == "bf16"
        self._rate = torch.zeros((), device=device)
        # The shapes inside a packed sequence follow from where episodes end.
        is_capturable = storage.is_capturable and self._recurrence == 0
        self._update_runner = UpdateRunner(self._update, config.compile if is_capturable else "off", device)
        self._minibatch_fields: tuple[str, ...] = ()
        self._take_step: Callable[[Samples, float], tuple[Tensor, Tensor]] = self._step_by_autograd
        if not self._update_runner.makes_graphs and ArrayUpdate.fits(model, config, device):
            self._take_step = ArrayUpdate(model, self._flat, self._loss, self._optimizer, self.ranks, config)

    def take_notice(self) -> str | None:
        """What the user should know of how updates are run, once."""
        return self._update_runner.take_notice()

    @property
    def skipped_steps(self) -> int:
        """Steps that were left out since this learner was made."""
        return self._skipped.total

    @property
    def block_size(self) -> int:
        """Elements of a publication."""
        return block_size(self.model)

    def publication(self, out: Tensor | None = None) -> Tensor:
        """Write the current weights and statistics as one block, and remember what went out.

        Args:
            out: [block_size] float32 to write to; a new CPU tensor if not given.

        Returns:
            The block, to be acted with under the name of `policy_version`.
        """
        if out is None:
            out = torch.empty(self.block_size)
        write_block(self.model, self._flat, out)
        oldest = self.policy_version - self._config.max_policy_lag
        self._published_obs_statistics = {
            version: statistics for version, statistics in self._published_obs_statistics.items() if version >= oldest
        }
        self._published_obs_statistics[self.policy_version] = self._obs_statistics
        return out

    def train(
        self,
        dataset: Dataset,
        env_steps_before: int,
        after_epoch: Callable[[bool], bool],
        after_minibatch: Callable[[int, int], None] | None = None,
    ) -> TrainMetrics | None:
        """Train `num_epochs` passes over the dataset; steps whose loss or gradient is not finite are left out.

        Args:
            dataset: columns of raw samples, on any device.
            env_steps_before: environment steps trained on before this dataset; the linear schedule reads it.
            after_epoch: called after every pass, the place to publish, with whether it was the last; returns whether to
                leave out the other passes.
            after_minibatch: called with the number of minibatches that were trained, and that of all passes.

        Returns:
            Means over the steps that were taken, None if there were none.

        Raises:
            RunFailed: too many steps in a row were left out.
            LookupError: a policy version in the dataset was never published.
        """
        dataset = dataset.to(self.device)
        self._most_samples = -(-dataset.num_rows // self._config.num_batches_per_epoch)
        prepared = self._prepare(dataset)
        samples = prepared.samples
        self._learning_rate.start_dataset(env_steps_before)
        steps: list[Step] = []
        learning_rates: list[float] = []
        num_epochs = self._config.num_epochs
        for epoch in range(1, num_epochs + 1):
            if epoch > 1 and self._config.recompute_advantages:
                samples = self._with_present_estimates(dataset, prepared)
            steps_of_epoch = []
            kls = []
            minibatches = self._minibatches(samples)
            for minibatch in minibatches:
                learning_rates.append(self._learning_rate.value)
                step, kl = self._train_minibatch(minibatch)
                steps_of_epoch.append(step)
                kls.append(kl)
                self._learning_rate.after_minibatch(kl)
                if after_minibatch is not None:
                    after_minibatch(len(learning_rates), len(minibatches) * num_epochs)
            self._learning_rate.after_epoch(kls)
            steps_of_epoch = self._steps_taken(steps_of_epoch, samples)
            steps += steps_of_epoch
            is_last = epoch == num_epochs or self._exceeds_target_kl(steps_of_epoch)
            if after_epoch(is_last) or is_last:
                break
        if not steps:
            return None
        weight = samples.weight
        return train_metrics(
            steps,
            learning_rates,
            prepared.raw_values,
            prepared.raw_returns,
            behaviour=dataset.action_parameters.flatten(0, 1)[dataset.valid.flatten()],
            weights=None if weight is None else samples.of_samples(weight),
            clip=self._loss.clip,
            distribution=self.model.distribution,
            ranks=self.ranks,
        )

    def state_dict(self) -> LearnerState:
        """Copy all that continues this learner; the tensors share no memory with it or with one another."""
        model = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
        optimizer = {name: tensor.detach().cpu().clone() for name, tensor in self._optimizer_tensors().items()}
        optimizer["generator"] = self._generator.get_state()
        scalars: dict[str, Scalar] = {
            "policy_version": self.policy_version,
            "learning_rate": self._learning_rate.of_one_rank,
            "obs_count": self._obs_moments.count,
            "return_count": self._return_moments.count,
        }
        return LearnerState(model, optimizer, scalars)

    def load_state_dict(self, state: LearnerState) -> None:
        """Continue from `state`; publish before the next dataset is collected."""
        self.model.load_state_dict(state.model)
        self._obs_statistics = self._copy_obs_statistics()
        self._published_obs_statistics = {}
        for name, tensor in self._optimizer_tensors().items():
            tensor.copy_(state.optimizer[name])
        self._generator.set_state(state.optimizer["generator"])
        self.policy_version = int(state.scalars["policy_version"])
        self._learning_rate.go_on_with(float(state.scalars["learning_rate"]))
        self._obs_moments.count = int(state.scalars["obs_count"])
        self._return_moments.count = int(state.scalars["return_count"])

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """The tensors themselves, by their names in a checkpoint."""
        return {
            "step": self._optimizer.steps[0],
            "exp_avg": self._optimizer.exp_avgs[0],
            "exp_avg_sq": self._optimizer.exp_avg_sqs[0],
            "obs_mean": self._obs_moments.mean,
            "obs_variance": self._obs_moments.variance,
            "return_mean": self._return_moments.mean,
            "return_variance": self._return_moments.variance,
        }

    def _copy_obs_statistics(self) -> Tensor:
        return self.model.statistics[: 2 * self.model.observation_size].clone()

    def _normalize(self, obs: Tensor, versions: Tensor) -> Tensor:
        """Normalize the numbers of samples as the roles did that acted on them, in place.

        So a policy that has not changed gives each action the probability that it had, though statistics have moved
        since. Returns need no such care: the slots hold values in units of rewards, and the critic's head always fits
        the newest statistics of returns.

        Args:
            obs: [N, F] float32, raw.
            versions: [N] int64, the policy version that acted on each.
        """
        present = torch.unique(versions).tolist()
        unknown = [version for version in present if version not in self._published_obs_statistics]
        if unknown:
            raise LookupError(
                f"the dataset has samples of the policy versions {unknown}, but those published within max_policy_lag "
                f"are {sorted(self._published_obs_statistics)}: publish before collecting, and drop older trajectories"
            )
        groups: dict[int, list[int]] = {}  # versions by the statistics that they share
        for version in present:
            groups.setdefault(id(self._published_obs_statistics[version]), []).append(version)
        if len(groups) == 1:
            return self.model.normalize_obs(obs, out=obs, statistics=self._published_obs_statistics[present[0]])
        for group in groups.values():
            rows = torch.isin(versions, torch.tensor(group, device=self.device)).nonzero().squeeze(-1)
            own = obs.index_select(0, rows)
            statistics = self._published_obs_statistics[group[0]]
            obs.index_copy_(0, rows, self.model.normalize_obs(own, out=own, statistics=statistics))
        return obs

    def _prepare(self, dataset: Dataset) -> _Prepared:
        """Turn the valid rows of a dataset into samples; take in its statistics."""
        config = self._config
        # Drop invalid rows (recurrent policies: after the RNN pass), so that nothing they hold can reach a loss or a
        # statistic.
        valid, rows = dataset.valid.flatten().nonzero().squeeze(-1), self._rows_of(dataset)
        raw = split_tensor(self.model.layout, dataset.obs[:-1].flatten(0, 1)).at(rows)
        versions = dataset.policy_version.flatten().index_select(0, rows)
        inputs = raw._replace(floats=self._normalize(raw.floats.clone(), versions))
        action = dataset.action.flatten(0, 1).index_select(0, rows)
        obs_statistics = self._obs_statistics
        is_old = bool((dataset.policy_version < self.policy_version).any())
        values = dataset.value
        if config.with_vtrace or (config.recompute_values and is_old):
            values = self._present_values(dataset, obs_statistics)
        log_ratios = self._log_ratios(dataset, rows, inputs, action) if config.with_vtrace else None
        estimates = estimate(dataset, values, log_ratios, config)
        raw_values = values[:-1].flatten().index_select(0, valid)
        raw_returns = estimates.returns.flatten().index_select(0, valid)
        raw_obs = raw.floats.index_select(0, valid) if self._recurrence else raw.floats
        self._take_in(raw_obs, raw_returns)
        # PPO's ratio weighs the action itself; the plain policy gradient does not.
        weights = estimates.weights if config.algo == "a2c" else None
        samples = Samples(
            floats=inputs.floats,
            pixels=inputs.pixels,
            action=action,
            action_parameters=dataset.action_parameters.flatten(0, 1).index_select(0, rows),
            log_prob=dataset.log_prob.flatten().index_select(0, rows),
            weight=None if weights is None else weights.flatten().index_select(0, rows),
            **self._estimated_fields(estimates, rows),
        )
        if self._recurrence:
            samples = samples._replace(begins=dataset.begins[:-1].flatten(), valid=dataset.valid.flatten())
            sequences = self._in_sequences(dict(samples.present()), dataset)
            samples = samples._replace(**sequences, rnn_state=dataset.rnn_state.flatten(0, 1))
        if config.algo == "ppo" and config.ppo_objective == "decoupled":
            samples = self._decoupled(samples, is_old)
        return _Prepared(samples, raw_values, raw_returns, log_ratios, obs_statistics)

    def _rows_of(self, dataset: Dataset) -> Tensor:
        """Indices of the rows that samples are made of: all for a policy with memory, otherwise the valid ones."""
        if self._recurrence:
            return torch.arange(dataset.num_rows, device=self.device)
        return dataset.valid.flatten().nonzero().squeeze(-1)

    def _in_sequences(self, fields: dict[str, Tensor], dataset: Dataset) -> dict[str, Tensor]:
        """Cuts fields of all rows of a dataset into sequences `[N, L, ...]`, for a policy with memory."""
        shape = (-1, self._recurrence, dataset.valid.shape[1])
        return {name: torch.unflatten(field, 0, shape).transpose(1, 2).flatten(0, 1) for name, field in fields.items()}

    def _estimated_fields(self, estimates: Estimates, rows: Tensor) -> dict[str, Tensor]:
        """The fields of `Samples` that follow from estimates, of some rows of a dataset."""
        return {
            "advantage": estimates.advantages.flatten().index_select(0, rows),
            "normalized_return": self.model.normalize_return(estimates.returns.flatten().index_select(0, rows)),
            "normalized_value": self.model.normalize_return(estimates.values[:-1].flatten().index_select(0, rows)),
        }

    def _with_present_estimates(self, dataset: Dataset, prepared: _Prepared) -> Samples:
        """The same samples with values, advantages and returns of the critic as it is now.

        V-trace's ratios stay those of the policy before training. Statistics stay as they are: observations were taken
        in once, and the critic is trained on inputs with those of the behaviour.
        """
        values = self._present_values(dataset, prepared.obs_statistics)
        estimates = estimate(dataset, values, prepared.log_ratios, self._config)
        fields = self._estimated_fields(estimates, self._rows_of(dataset))
        return prepared.samples._replace(**(self._in_sequences(fields, dataset) if self._recurrence else fields))

    @torch.no_grad()
    def _decoupled(self, samples: Samples, is_old: bool) -> Samples:
        """Samples that compare with the policy before training, each weighted by how much it differs from what acted.

        That policy is evaluated as training evaluates it: on inputs with the statistics of each sample's behaviour, and
        with a memory from the stored states. So the first ratio is 1.

        Args:
            samples: all of a dataset.
            is_old: whether an older policy chose some of the actions; otherwise what was stored is of this one.
        """
        if not is_old:
            return samples._replace(weight=torch.ones_like(samples.log_prob))
        (parameters, _), rows = self._run_rows(samples)
        log_prob = self.model.distribution.log_prob(parameters, rows.action)
        weight = behaviour_weights(log_prob - rows.log_prob, self._config.behaviour_weight_cap)
        fields = {"action_parameters": parameters, "log_prob": log_prob, "weight": weight}
        if self._recurrence:
            shape = (self._recurrence, -1)
            fields = {name: torch.unflatten(field, 0, shape).transpose(0, 1) for name, field in fields.items()}
        return samples._replace(**fields)

    @torch.no_grad()
    def _log_ratios(self, dataset: Dataset, rows: Tensor, inputs: Inputs, action: Tensor) -> Tensor:
        """Log-probabilities of actions now minus those when they were chosen `[T, C]`, 0 elsewhere.

        Args:
            dataset: the dataset.
            rows: [N] indices among the rows of those that `inputs` and `action` are of.
            inputs: normalized observations.
            action: [N, ...].
        """
        parameters, _ = self._run(inputs, dataset.rnn_state[0], dataset.begins[:-1])
        log_prob = self.model.distribution.log_prob(parameters, action)
        log_ratios = torch.zeros_like(dataset.log_prob)
        log_ratios.view(-1)[rows] = log_prob - dataset.log_prob.flatten().index_select(0, rows)
        return log_ratios

    @torch.no_grad()
    def _present_values(self, dataset: Dataset, obs_statistics: Tensor) -> Tensor:
        """What the critic as it is now says of all observations, in units of rewards: `[T+1, C]`.

        Args:
            dataset: raw observations.
            obs_statistics: [2F] float32 to normalize them with.
        """
        raw = split_tensor(self.model.layout, dataset.obs.flatten(0, 1))
        inputs = raw._replace(floats=self.model.normalize_obs(raw.floats, statistics=obs_statistics))
        _, normalized_value = self._run(inputs, dataset.rnn_state[0], dataset.begins)
        return self.model.denormalize_value(normalized_value).view(dataset.value.shape)

    def _run(self, inputs: Inputs, rnn_state: Tensor, begins: Tensor) -> ForwardResult:
        """The networks on rows of observations; with a memory on sequences that begin in these states."""
        return self.model.unroll(inputs, rnn_state, begins) if self._recurrence else self.model(*inputs)

    def _take_in(self, raw_obs: Tensor, raw_returns: Tensor) -> None:
        """Add the dataset to the statistics, which go out with the next publication."""
        if self._config.normalize_input:
            self._obs_moments.update(raw_obs)
            self.model.set_obs_statistics(self._obs_moments.mean, self._obs_moments.std)
            self._obs_statistics = self._copy_obs_statistics()
        if self._config.normalize_returns:
            self._return_moments.update(raw_returns.unsqueeze(-1))
            self.model.renormalize_returns(self._return_moments.mean, self._return_moments.std)

    def _shuffled(self, samples: Samples) -> Samples:
        if not self._config.shuffle_minibatches:
            return samples
        return samples.at(torch.randperm(samples.floats.shape[0], generator=self._generator).to(self.device))

    def _minibatches(self, samples: Samples) -> list[Samples]:
        """As many as the settings say, in every rank; the advantages in them are normalized over those of all ranks.

        Advantages are weighted afterwards: a mean that is subtracted from weighted ones would train on actions whose
        weight is 0.
        """
        num_batches, num_ranks = self._config.num_batches_per_epoch, self.ranks.num_ranks
        if num_ranks == 1:
            num_batches = min(num_batches, samples.floats.shape[0])
        samples = self._shuffled(samples)
        if self._config.normalize_advantage:
            sums = self.ranks.sum(advantage_sums(samples.advantage, num_batches, samples.valid))
            if self._config.normalize_advantage_over == "dataset":
                sums = sums.sum(0).expand_as(sums)
            samples = samples._replace(advantage=normalize_advantages(samples.advantage, sums))
        if samples.weight is not None:
            samples = samples._replace(advantage=samples.weight * samples.advantage, weight=None)
        return list(samples.minibatches(num_batches))

    def _train_minibatch(self, batch: Samples) -> tuple[Step, Tensor | None]:
        """Take one optimizer step; also returns KL(old || policy before the step) where something needs it."""
        step = Step(*self._take_step(batch, self._learning_rate.value))
        self.policy_version += 1
        return step, step.figures[KL] if self._loss.needs_kl else None

    def _step_by_autograd(self, batch: Samples, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Take one step on any model; what `ArrayUpdate` does, and returns, for those that fit."""
        self._rate.fill_(learning_rate)
        num_samples = len(batch.log_prob)
        if self._update_runner.makes_graphs:
            batch = batch.filled_up(self._most_samples)
        self._minibatch_fields, fields = zip(*batch.present(), strict=True)
        figures, log_ratio = self._update_runner([*fields, self._rate])
        assert figures is not None and log_ratio is not None
        return figures, log_ratio if batch.share is None else log_ratio[:num_samples]

    def _update(self, inputs: Sequence[Tensor], trains_actor: bool = True) -> Figures:
        """One step, from the fields of a minibatch that there are and the learning rate.

        Returns:
            `[7]`: what `OnPolicyLoss.figures` says, and the norm of the gradient before clipping; and the log-ratios.
        """
        present = dict(zip(self._minibatch_fields, inputs, strict=False))
        (parameters, values), batch = self._run_batch(Samples(**present))
        self._flat.zero_grad()
        num_samples = batch.log_prob.shape[0]
        if num_samples == 0:
            figures, log_ratio = parameters.new_zeros(NUM_FIGURES), batch.log_prob
        else:
            figures, log_ratio = self._loss.figures(parameters, values, batch)
            figures[0].backward()  # type: ignore[no-untyped-call]
            figures = figures.detach()
        self.ranks.average([self._gradient, figures], num_samples)
        grad_norm = self._step(figures[0], inputs[-1])
        return torch.cat((figures, grad_norm.view(1))), log_ratio.detach()

    def _run_batch(self, batch: Samples) -> tuple[ForwardResult, Samples]:
        """The networks on a minibatch; returns what they say of its samples, and the samples row by row."""
        result, rows = self._run_rows(batch)
        if rows.valid is None:
            return result, rows
        of_samples = rows.valid.nonzero().squeeze(-1)
        samples = rows._replace(rnn_state=None, begins=None, valid=None).at(of_samples)
        return ForwardResult(*(field.index_select(0, of_samples) for field in result)), samples

    def _run_rows(self, batch: Samples) -> tuple[ForwardResult, Samples]:
        """The networks on all rows of a minibatch; also returns these, of sequences those of one step side by side."""
        if self._recurrence:
            assert batch.rnn_state is not None and batch.begins is not None
            fields = batch._replace(rnn_state=None, begins=None).present()
            rows = batch._replace(**{name: field.transpose(0, 1).flatten(0, 1) for name, field in fields})
            return self.model.unroll(rows.inputs, batch.rnn_state, batch.begins.t()), rows
        if not self._is_bf16:
            return self.model(*batch.inputs), batch
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            parameters, values = self.model(*batch.inputs)
        return ForwardResult(parameters.float(), values.float()), batch

    def _step(self, loss: Tensor, learning_rate: float | Tensor) -> Tensor:
        """Take one step down the gradients that are there, if they and `loss` are finite; returns their norm before
        clipping.
        """
        grad_norm: Tensor = torch.linalg.vector_norm(self._gradient)
        if self._config.max_grad_norm > 0.0:
            self._gradient.mul_((self._config.max_grad_norm / (grad_norm + 1e-6)).clamp_(max=1.0))
        self._optimizer.step(learning_rate, is_bad(loss + grad_norm))
        return grad_norm

    def _exceeds_target_kl(self, steps: list[Step]) -> bool:
        """Whether the mean approximate KL divergence of a pass is above `target_kl`; the same answer in all ranks."""
        if self._config.target_kl is None or not steps:
            return False
        log_ratio = torch.cat([step.log_ratio for step in steps])
        kl = approximate_kl(log_ratio) if log_ratio.numel() > 0 else log_ratio.new_zeros(())
        self.ranks.average([kl], log_ratio.numel())
        return not float(kl) <= self._config.target_kl  # NaN ends the passes too

    def _steps_taken(self, steps: list[Step], samples: Samples) -> list[Step]:
        """The steps of an epoch that were taken. One look an epoch, for it waits for the device."""
        figures = torch.stack([step.figures for step in steps])
        were_taken: list[bool] = torch.isfinite(figures[:, LOSS] + figures[:, GRAD_NORM]).tolist()
        self._skipped.note(were_taken)
        if self._skipped.are_too_many:
            of_last = dict(zip(FIGURES, figures[-1].tolist(), strict=True))
            given = {name: values for name, values in samples._asdict().items() if values is not None}
            obs = {"obs": given.pop("floats")}
            trained_on = {name: values for name, values in given.items() if values.is_floating_point()}
            raise self._skipped.diagnosis(of_last, {**obs, **trained_on, "weights": self._flat.data})
        return [step for step, was_taken in zip(steps, were_taken, strict=True) if was_taken]
