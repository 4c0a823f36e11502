"""Training on one dataset of trajectories at a time: no processes, no shared memory.

    statistics   which version was published with which; normalization, and PopArt       (`LearnerStatistics`)
    samples      GAE or V-trace, and the weights of the decoupled objective              (`OnPolicyLearner._prepare`)
    passes       the minibatches of `asyncrl.algorithms.ppo.update`, each an optimizer step by autograd or what
                 `asyncrl.learner.fast` has; then the metrics

The loss is that of the algorithm (`Algorithm.loss`). `publication` gives the block of weights and statistics that other
roles act with. Each sample's observation is normalized with the statistics that its behaviour policy used; the next
publication has the statistics with this dataset in them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from asyncrl.algorithms import ppo
from asyncrl.algorithms.losses import (
    KL,
    STEP_METRICS,
    Progress,
    Samples,
    Step,
    TakeStep,
    VtraceResult,
    behaviour_weights,
    explained_variance,
    gae,
    vtrace,
    were_taken,
)
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.autograd_step import AutogradStep, ModelOutputs
from asyncrl.learner.dataset import Dataset, places_of
from asyncrl.learner.fast.array_update import ArrayUpdate
from asyncrl.learner.fast.graphed_step import GraphedStep
from asyncrl.learner.fast.native_update import NativeUpdate
from asyncrl.learner.optimizer import LearningRate, ParameterStore, SkippedSteps, scheduled, stddev_limit
from asyncrl.learner.state import LearnerState, Scalar, copies_of
from asyncrl.learner.update_runner import in_graphs, makes_graphs
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.encoders import Inputs, split_tensor
from asyncrl.models.flat import FlatParameters, block_size, read_block, write_block
from asyncrl.models.native_model import NativeModel
from asyncrl.observers.reports import TrainMetrics
from asyncrl.processes.seeding import Stream, derive_seed, rank_seed

MODEL = "model"
"""Name of the trained weights in a `ParameterStore`."""


DATASET_METRICS = (
    "approx_kl",
    "clip_fraction",
    "effective_sample_size",
    "explained_variance",
    "max_ratio_deviation_first_batch",
    "entropy",
    "std",
)
"""Metrics of an update that are computed from all of its steps."""

_MOST_DISTRIBUTIONS = 256  # whose entropy is computed: that of squashed actions takes a quadrature


@dataclass
class Update:
    """A dataset, ready for its passes, and what these leave for its metrics.

    Attributes:
        dataset: raw rows.
        samples: what is trained on; those of the last pass.
        rows: [N] int64, the rows of the dataset that became samples.
        valid: [M] int64, its valid rows.
        raw_values, raw_returns: [M] float32, what the critic said of valid rows before training and should have said,
            in units of scaled rewards.
        log_ratios: [T, C] float32, V-trace's: log-probability before training minus that when the action was chosen;
            None without V-trace.
        obs_statistics: [2F] float32, with which the critic sees the whole dataset.
        config: settings, with those of the loss as they are in this update.
        steps: those of all complete passes.
        learning_rates: one for each step.
    """

    dataset: Dataset
    samples: Samples
    rows: Tensor
    valid: Tensor
    raw_values: Tensor
    raw_returns: Tensor
    log_ratios: Tensor | None
    obs_statistics: Tensor
    config: TrainConfig
    steps: list[Step] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)


class LearnerStatistics:
    """Owns the running moments of observations and returns, and writes them to the model's statistics.

    Attributes:
        obs_moments, return_moments: of all samples so far.
        obs_statistics: [2F] float32, means and standard deviations of observations that the next publication has.
        published: `obs_statistics` of each version that a dataset may have samples of.
    """

    def __init__(self, model: ActorCritic, storage: ParameterStore, config: TrainConfig, device: torch.device) -> None:
        """Starts with the statistics of the model; `storage` allocates the memory of the moments."""
        self._model, self._config = model, config
        self.obs_moments = storage.moments("obs", model.observation_size, device)
        self.return_moments = storage.moments("return", 1, device)
        self.published: dict[int, Tensor] = {}
        self.read_model()

    def read_model(self) -> None:
        """Adopts the model's statistics of observations."""
        self.obs_statistics = self._model.statistics[: 2 * self._model.observation_size].clone()

    def publish(self, policy_version: int) -> None:
        """Keeps the statistics of a version until its samples are too old to be trained on."""
        oldest = policy_version - self._config.max_policy_lag
        self.published = {version: kept for version, kept in self.published.items() if version >= oldest}
        self.published[policy_version] = self.obs_statistics

    def normalize(self, obs: Tensor, present: Sequence[int], versions: Tensor) -> Tensor:
        """Normalizes the numbers of samples, in place, with the statistics that the policy of each sample used.

        So an unchanged policy gives each action the probability that it had, even if the statistics have changed
        since. Returns do not need this: slots hold values in units of rewards, and the critic's head always fits the
        newest statistics of returns.

        Args:
            obs: [N, F] float32, raw.
            present: the policy versions that acted on them.
            versions: [N] int64, the one of each.

        Raises:
            LookupError: a version was never published.
        """
        unknown = [version for version in present if version not in self.published]
        if unknown:
            raise LookupError(
                f"the dataset has samples of the policy versions {unknown}, but those published within max_policy_lag "
                f"are {sorted(self.published)}: publish before collecting, and drop older trajectories"
            )
        groups: dict[int, list[int]] = {}  # versions by the statistics that they share
        for version in present:
            groups.setdefault(id(self.published[version]), []).append(version)
        if len(groups) == 1:
            return self._model.normalize_obs(obs, out=obs, statistics=self.published[present[0]])
        for group in groups.values():
            rows = torch.isin(versions, torch.tensor(group, device=obs.device)).nonzero().squeeze(-1)
            own = obs.index_select(0, rows)
            statistics = self.published[group[0]]
            obs.index_copy_(0, rows, self._model.normalize_obs(own, out=own, statistics=statistics))
        return obs

    def update(self, raw_obs: Tensor, raw_returns: Tensor) -> None:
        """Adds the valid rows of a dataset to the moments: observations `[N, F]`, and returns `[N]`."""
        if self._config.normalize_input:
            self.obs_moments.update(raw_obs)
        if self._config.normalize_returns:
            self.return_moments.update(raw_returns.unsqueeze(-1))

    def write_model(self) -> None:
        """Writes the moments to the model; PopArt rescales the critic's head, so that no prediction changes."""
        if self._config.normalize_input:
            self._model.set_obs_statistics(self.obs_moments.mean, self.obs_moments.std)
            self.read_model()
        if self._config.normalize_returns:
            self._model.renormalize_returns(self.return_moments.mean, self.return_moments.std)

    def adopt_model(self) -> None:
        """Continues from the statistics of the model, which are another learner's."""
        self.read_model()
        return_statistics = self._model.statistics[len(self.obs_statistics) :]
        self.obs_moments.adopt(*self.obs_statistics.chunk(2))
        self.return_moments.adopt(*return_statistics.chunk(2))

    def tensors(self) -> dict[str, Tensor]:
        """The moments in use, by their names in a checkpoint."""
        return {
            "obs_mean": self.obs_moments.mean,
            "obs_variance": self.obs_moments.variance,
            "return_mean": self.return_moments.mean,
            "return_variance": self.return_moments.variance,
        }


class OnPolicyLearner:
    """Owns the model that is trained, its optimizer, and the running statistics of observations and returns.

    Attributes:
        policy_version: optimizer steps so far, skipped ones included, and `versions_left_out`.
        versions_left_out: versions without an optimizer step, see `adopt_weights`.
        skipped_steps: steps that were skipped since this learner was made.
        notice: a message for the user about how updates run; whoever reports it sets it to None.
        model: the model, with the newest statistics.
        device: where it is.
        ranks: the learners that train together.
    """

    def __init__(
        self, model: ActorCritic, config: TrainConfig, device: torch.device, storage: ParameterStore | None = None
    ) -> None:
        """Starts with the weights of the model, on `device`; `storage` allocates their memory."""
        storage = storage or ParameterStore()
        self.ranks = storage.ranks
        self.model = model.to(device)
        self.policy_version = self.skipped_steps = self.versions_left_out = 0
        self.notice: str | None = None
        self._config, self.device = config, device
        self._uses_ratio = config.algorithm.uses_ratio
        # Whether `_present_outputs` are what training computes for each sample. They are not if each sample's numbers
        # are normalized with the statistics of its behaviour policy, if sequences begin with stored states, or if
        # V-trace needs float32 and training does not.
        has_own_statistics = model.normalizes_obs and any(model.layout.normalized)
        is_rounded = config.with_vtrace and config.precision == "bf16"
        self._trains_on_present_outputs = not (has_own_statistics or is_rounded or model.rnn_state_size > 0)
        self._flat = FlatParameters(self.model, hold=lambda initial: storage.allocate(MODEL, initial))
        self._gradient = self._flat.grad
        self._optimizer = storage.optimizer([MODEL], [self._flat.data], [self._gradient], config)
        self._learning_rate = LearningRate(config, self.ranks.num_ranks)
        self._statistics = LearnerStatistics(self.model, storage, config, device)
        self._trained: Update | None = None
        own_seed = derive_seed(rank_seed(config.seed, self.ranks.rank), Stream.LEARNER)
        self._generator = torch.Generator().manual_seed(own_seed)
        self._skipped = SkippedSteps(config.max_skipped_steps)
        self._outputs = ModelOutputs(self.model, config)
        self._storage = storage
        self._step = self._choose_step()
        self._take_step: TakeStep = self._step

    def _choose_step(self) -> AutogradStep | ArrayUpdate | NativeUpdate | GraphedStep:
        """The fastest way to take the steps of this learner with its settings; all compute the same."""
        config, outputs, ranks = self._config, self._outputs, self.ranks
        autograd = AutogradStep(outputs, self._gradient, self._optimizer, ranks, config)
        can_capture = self._storage.is_capturable and config.algorithm.fits_cuda_graph
        can_capture &= outputs.recurrence == 0 or self.model.unrolls_padded
        can_capture &= scheduled(config, 0) is config  # a graph contains the settings of the loss
        if can_capture and makes_graphs(config.compile, self.device, ranks.num_ranks):
            return GraphedStep(autograd, self.device, ranks.num_ranks)
        if ArrayUpdate.fits(self.model, config, self.device):
            kernels = NativeUpdate.kernels_for(config)
            if kernels is not None and NativeModel.fits(self.model):
                step = NativeUpdate(kernels, self.model, self._flat, self._optimizer, ranks, config)
                outputs.evaluate = step.evaluate
                return step
            return ArrayUpdate(self.model, self._flat, self._optimizer, ranks, config)
        return autograd

    def set_hyperparameters(self, new_values: Hyperparameters) -> None:
        """Trains with new values from the next dataset on."""
        before, self._config = self._config, new_values.apply_to(self._config)
        self._learning_rate.follow(self._config)
        if isinstance(self._step, GraphedStep):
            if not in_graphs(before, self._config):
                return
            self._step.runner.close()
        self._take_step = self._step = self._choose_step()

    def adopt_weights(self, block: Tensor) -> None:
        """Continues with the weights and statistics of another learner of the same model; the caller publishes.

        Adam's moments begin at zero. The version rises by more than `max_policy_lag`, so every sample in flight that
        the weights before have acted is too old and is dropped: none meets statistics that it was not acted with.

        Args:
            block: [block_size] float32, a publication of the other learner.
        """
        read_block(self.model, self._flat, block.to(self.device))
        self._statistics.adopt_model()
        for tensor in (self._optimizer.steps[0], self._optimizer.exp_avgs[0], self._optimizer.exp_avg_sqs[0]):
            tensor.zero_()
        left_out = self._config.max_policy_lag + 1
        self.policy_version += left_out
        self.versions_left_out += left_out

    @property
    def block_size(self) -> int:
        """Elements of a publication."""
        return block_size(self.model)

    def publication(self, out: Tensor | None = None) -> Tensor:
        """The current weights and statistics as one block, to be published as `policy_version`.

        Keeps the statistics of this version. The block is `out: [block_size] float32`, or a new CPU tensor.
        """
        self._statistics.publish(self.policy_version)
        return write_block(self.model, self._flat, out)

    def updates(self, dataset: Dataset, env_steps_before: int) -> Iterator[Progress]:
        """Trains `num_epochs` passes over the dataset; skips steps whose loss or gradient is not finite.

        The caller publishes where a pass ends, and may stop there. `take_metrics` returns the metrics of the update.

        Args:
            dataset: columns of raw samples, on any device.
            env_steps_before: environment steps trained on before this dataset; schedules read it.

        Yields:
            The progress of the update, after each minibatch.

        Raises:
            LookupError: a policy version in the dataset was never published.
        """
        if dataset.obs.device != self.device:
            dataset = dataset.to(self.device)
        config, learning_rate, start_pass = scheduled(self._config, env_steps_before), self._learning_rate, None
        if isinstance(self._step, GraphedStep):
            num_rows = dataset.valid.numel() // (self._outputs.recurrence or 1)
            largest = -(-num_rows // config.num_batches_per_epoch)
            start_pass = functools.partial(self._step.start_pass, largest=largest)
        else:
            self._step.config = config
        update = self._prepare(dataset)
        update.config = config
        learning_rate.start_dataset(env_steps_before)

        recompute = functools.partial(self._recompute, update)
        given = update.samples, self._take_step, learning_rate, config, self._generator, self.ranks, recompute
        for progress in ppo.update(*given, start_pass):
            self.policy_version += 1
            update.learning_rates.append(learning_rate.value)
            if learning_rate.is_adaptive:
                learning_rate.after_minibatch(progress.steps[-1].step_metrics[KL])
            if progress.ends_pass:
                if isinstance(self._step, GraphedStep):
                    self.notice = self.notice or self._step.runner.pop_message()
                if learning_rate.is_adaptive:
                    learning_rate.after_epoch([made.step_metrics[KL] for made in progress.steps])
                update.steps += progress.steps
                self._trained = update
            if progress.is_last and config.final_stddev is not None:
                # After the last step, so that the policy that acts next is the one that its samples are compared with.
                share = env_steps_before / config.train_for_env_steps
                self.model.limit_stddev(stddev_limit(config.initial_stddev, config.final_stddev, share))
            yield progress

    def _prepare(self, dataset: Dataset) -> Update:
        """Turns the valid rows of a dataset into samples and updates the statistics with them."""
        config, outputs, statistics = self._config, self._outputs, self._statistics
        recurrence, uses_ratio = outputs.recurrence, self._uses_ratio
        # Drop invalid rows (recurrent policies: after the RNN pass), so that no loss and no statistic reads them.
        valid = dataset.valid_rows()
        rows = torch.arange(dataset.valid.numel(), device=self.device) if recurrence else valid
        raw = split_tensor(self.model.layout, dataset.obs[:-1].flatten(0, 1)).at(rows)
        versions, present = dataset.policy_version.flatten().index_select(0, rows), dataset.versions_in(rows)
        inputs = raw._replace(floats=statistics.normalize(raw.floats.clone(), present, versions))
        action = dataset.action.flatten(0, 1).index_select(0, rows)
        # Values, and the policy before training, where the stored ones are too old.
        obs_statistics = statistics.obs_statistics
        is_old = any(version < self.policy_version for version in present)
        values, parameters, log_ratios = dataset.value, None, None
        if config.with_vtrace or (config.recompute_values and is_old):
            present_parameters, values = self._present_outputs(dataset, obs_statistics)
            if self._trains_on_present_outputs:
                parameters = present_parameters.index_select(0, rows)
        if config.with_vtrace:
            log_ratios = self._log_ratios(dataset, rows, inputs, action, parameters)
        # Advantages, returns, and the statistics with them.
        estimates = self._estimate(dataset, values, log_ratios)
        raw_returns = estimates.returns.flatten().index_select(0, valid)
        self._update_statistics(raw.floats.index_select(0, valid) if recurrence else raw.floats, raw_returns)
        # A ratio in the loss weights the action itself; the plain policy gradient does not.
        weights = None if uses_ratio else estimates.weights
        samples = Samples(
            floats=inputs.floats,
            pixels=inputs.pixels,
            action=action,
            action_parameters=dataset.action_parameters.flatten(0, 1).index_select(0, rows),
            log_prob=dataset.log_prob.flatten().index_select(0, rows),
            **self._estimated_fields(estimates, values, rows),
            weight=None if weights is None else weights.flatten().index_select(0, rows),
        )
        if recurrence:
            samples = samples._replace(begins=dataset.begins[:-1].flatten(), valid=dataset.valid.flatten())
            sequences = self._in_sequences(samples.non_null_fields(), dataset)
            samples = samples._replace(**sequences, rnn_state=dataset.rnn_state.flatten(0, 1))
        if uses_ratio and config.ppo_objective == "decoupled":
            if is_old:
                samples = self._decoupled(samples, parameters)
            else:
                samples = samples._replace(weight=torch.ones_like(samples.log_prob))
        raw_values = values[:-1].flatten().index_select(0, valid)
        return Update(dataset, samples, rows, valid, raw_values, raw_returns, log_ratios, obs_statistics, config)

    def _recompute(self, update: Update) -> Samples:
        """The same samples with values, advantages and returns of the current critic.

        V-trace's ratios remain those of the policy before training. Statistics remain, too: they have this dataset
        already, and the critic is trained on inputs normalized with those of the behaviour policies.
        """
        _, values = self._present_outputs(update.dataset, update.obs_statistics)
        estimates = self._estimate(update.dataset, values, update.log_ratios)
        fields = self._estimated_fields(estimates, values, update.rows)
        if self._outputs.recurrence:
            fields = self._in_sequences(fields, update.dataset)
        update.samples = update.samples._replace(**fields)
        return update.samples

    @torch.no_grad()
    def _present_outputs(self, dataset: Dataset, obs_statistics: Tensor) -> tuple[Tensor, Tensor]:
        """The model on all observations: parameters `[(T+1) * C, P]`, and values `[T+1, C]` in units of rewards.

        V-trace compares with the policy that acted, in float32; the decoupled objective with what training computes.
        Raw observations are normalized with `obs_statistics: [2F] float32`.
        """
        raw = split_tensor(self.model.layout, dataset.obs.flatten(0, 1))
        inputs = raw._replace(floats=self.model.normalize_obs(raw.floats, statistics=obs_statistics))
        state, in_float32 = dataset.rnn_state[0], self._config.with_vtrace
        parameters, value = self._outputs.dataset(inputs, state, dataset.begins, in_float32=in_float32)
        return parameters, self.model.denormalize_value(value).view(dataset.value.shape)

    @torch.no_grad()
    def _log_ratios(
        self, dataset: Dataset, rows: Tensor, inputs: Inputs, action: Tensor, parameters: Tensor | None
    ) -> Tensor:
        """Log-probabilities of actions now minus those when they were chosen `[T, C]`, 0 in other rows.

        Args:
            dataset: the dataset.
            rows: [N] indices of the rows that `inputs` and `action` belong to.
            inputs: normalized observations.
            action: [N, ...].
            parameters: [N, P], of the policy's distributions now, if they are known.
        """
        if parameters is None:
            state, begins = dataset.rnn_state[0], dataset.begins[:-1]
            parameters, _ = self._outputs.dataset(inputs, state, begins, in_float32=True)
        log_prob = self.model.distribution.log_prob(parameters, action)
        log_ratios = torch.zeros_like(dataset.log_prob)
        log_ratios.view(-1)[rows] = log_prob - dataset.log_prob.flatten().index_select(0, rows)
        return log_ratios

    def _estimate(self, dataset: Dataset, values: Tensor, log_ratios: Tensor | None) -> VtraceResult:
        """Advantages and returns by GAE, or by V-trace where there are log-ratios; in units of scaled rewards.

        Args:
            dataset: rewards as the environment gave them, and ends of episodes.
            values: [T+1, C] float32, in units of scaled rewards.
            log_ratios: [T, C] float32, log-probability of each action before training minus that when it was chosen.
        """
        config = self._config
        ends = dataset.terminated, dataset.truncated, dataset.valid
        rest = (self._rewards(dataset), values, *ends, config.gamma, config.gae_lambda)
        if log_ratios is None:
            return VtraceResult(*gae(*rest, idle=dataset.idle), None)
        return vtrace(log_ratios, *rest, max_rho=config.vtrace_rho, max_c=config.vtrace_c, idle=dataset.idle)

    def _rewards(self, dataset: Dataset) -> Tensor:
        """Scaled rewards `[T, C]`."""
        config = self._config
        reward = dataset.reward * config.reward_scale
        return reward if config.reward_clip is None else reward.clamp_(-config.reward_clip, config.reward_clip)

    @torch.no_grad()
    def _decoupled(self, samples: Samples, parameters: Tensor | None) -> Samples:
        """Samples that compare with the policy before training, weighted by its difference to the behaviour policy.

        The policy is evaluated as in training: with inputs normalized by the statistics of each sample's behaviour,
        and from the stored recurrent states. So the first ratio is 1. If no older policy chose any of the actions, the
        stored log-probabilities are those of this policy, and this is not called. `parameters [N, P]` are those of the
        policy's distributions, if they are known.
        """
        rows, outputs = samples, self._outputs
        if outputs.recurrence:
            (parameters, _), rows = outputs.samples(samples)
        elif parameters is None:
            parameters, _ = outputs.dataset(samples.inputs, None, None)
        log_prob = self.model.distribution.log_prob(parameters, rows.action)
        weight = behaviour_weights(log_prob - rows.log_prob, self._config.behaviour_weight_cap)
        fields = {"action_parameters": parameters, "log_prob": log_prob, "weight": weight}
        if outputs.recurrence:
            shape = (outputs.recurrence, -1)
            fields = {name: torch.unflatten(field, 0, shape).transpose(0, 1) for name, field in fields.items()}
        return samples._replace(**fields)

    def _in_sequences(self, fields: dict[str, Tensor], dataset: Dataset) -> dict[str, Tensor]:
        """Cuts fields of all rows of a dataset into sequences `[N, L, ...]`, for a recurrent policy."""
        shape = (-1, self._outputs.recurrence, dataset.valid.shape[1])
        return {name: torch.unflatten(field, 0, shape).transpose(1, 2).flatten(0, 1) for name, field in fields.items()}

    def _estimated_fields(self, estimates: VtraceResult, values: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """The fields of samples that follow from the estimates and values of a dataset, for these rows of it."""
        return {
            "advantage": estimates.advantages.flatten().index_select(0, rows),
            "normalized_return": self.model.normalize_return(estimates.returns.flatten().index_select(0, rows)),
            "normalized_value": self.model.normalize_return(values[:-1].flatten().index_select(0, rows)),
        }

    def _update_statistics(self, raw_obs: Tensor, raw_returns: Tensor) -> None:
        """Adds the dataset to the statistics; the next publication contains them."""
        self._statistics.update(raw_obs, raw_returns)
        self._statistics.write_model()

    def take_metrics(self) -> TrainMetrics | None:
        """Means over the steps of the last update that were taken; None without any.

        The host reads twice, as reading waits for the device: which steps were taken, and the means.

        Raises:
            RunFailed: too many steps in a row were skipped.
        """
        if self._trained is None:
            return None
        update, self._trained = self._trained, None
        is_taken: list[bool] = were_taken(update.steps).tolist()
        # A single rank takes no step on a minibatch without samples. That does not count as a skipped step.
        had_samples = [step.log_ratio.numel() > 0 or self.ranks.num_ranks > 1 for step in update.steps]
        has_diverged = self._skipped.record(list(itertools.compress(is_taken, had_samples)))
        self.skipped_steps = self._skipped.total
        if has_diverged:
            fields = {"obs": update.samples.floats, **update.samples.non_null_fields(), "weights": self._flat.data}
            trained_on = {name: field for name, field in fields.items() if field.is_floating_point()}
            del trained_on["floats"]
            last_step = dict(zip(STEP_METRICS, update.steps[-1].step_metrics.tolist(), strict=True))
            raise self._skipped.diagnosis(last_step, trained_on)
        steps = list(itertools.compress(update.steps, is_taken))
        if not steps:
            return None
        means = torch.stack([step.step_metrics for step in steps]).mean(0)
        num_ratios = sum(step.log_ratio.numel() for step in steps)
        if num_ratios > 0:
            found = self._dataset_metrics(update, steps)
            dataset_means = torch.stack([found[name] for name in DATASET_METRICS])
        else:  # other ranks may have all samples
            dataset_means = means.new_zeros(len(DATASET_METRICS))
        if self.ranks.num_ranks > 1:
            self.ranks.average([dataset_means], num_ratios)
        named = dict(zip((*STEP_METRICS, *DATASET_METRICS), torch.cat((means, dataset_means)).tolist(), strict=True))
        del named["kl"]  # the learning rate follows it; the metric is `approx_kl`
        if not self.model.distribution.stddev_positions:
            del named["std"]
        return TrainMetrics(**named, learning_rate=sum(update.learning_rates) / len(update.learning_rates))

    @torch.no_grad()
    def _dataset_metrics(self, update: Update, steps: list[Step]) -> dict[str, Tensor]:
        """`DATASET_METRICS`, as scalars, from the steps that were taken; at least one has samples."""
        samples, valid, distribution = update.samples, update.valid, self.model.distribution
        log_weight = None if samples.weight is None else samples.weight.flatten().log()
        if log_weight is not None and samples.valid is not None:
            log_weight = log_weight.index_select(0, places_of(samples.valid.flatten(), len(valid)))
        spaced_rows = valid[:: -(-len(valid) // _MOST_DISTRIBUTIONS)]
        spaced = update.dataset.action_parameters.flatten(0, 1).index_select(0, spaced_rows)
        entropy, positions = distribution.entropy(spaced).mean(), distribution.stddev_positions
        return {
            **ppo.ratio_metrics(steps, log_weight, update.config),
            "explained_variance": explained_variance(update.raw_values, update.raw_returns),
            "entropy": entropy,
            "std": spaced[:, list(positions)].exp().mean() if positions else torch.zeros_like(entropy),
        }

    def state_dict(self) -> LearnerState:
        """Copies the complete state of the learner; the copies share no memory with it or with one another."""
        optimizer = copies_of(self._optimizer_tensors()) | {"generator": self._generator.get_state()}
        scalars: dict[str, Scalar] = {
            "policy_version": self.policy_version,
            "versions_left_out": self.versions_left_out,
            "learning_rate": self._learning_rate.unscaled,
            "obs_count": self._statistics.obs_moments.count,
            "return_count": self._statistics.return_moments.count,
        }
        return LearnerState(copies_of(self.model.state_dict()), optimizer, scalars)

    def load_state_dict(self, state: LearnerState) -> None:
        """Continues from `state`; the caller publishes before the next dataset is collected."""
        self.model.load_state_dict(state.model)
        self._statistics.read_model()
        self._statistics.published = {}
        for name, tensor in self._optimizer_tensors().items():
            tensor.copy_(state.optimizer[name])
        self._generator.set_state(state.optimizer["generator"])
        self.policy_version = int(state.scalars["policy_version"])
        self.versions_left_out = int(state.scalars.get("versions_left_out", 0))
        self._learning_rate.resume(float(state.scalars["learning_rate"]))
        self._statistics.obs_moments.count = int(state.scalars["obs_count"])
        self._statistics.return_moments.count = int(state.scalars["return_count"])

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """The tensors in use, by their names in a checkpoint."""
        return {
            "step": self._optimizer.steps[0],
            "exp_avg": self._optimizer.exp_avgs[0],
            "exp_avg_sq": self._optimizer.exp_avg_sqs[0],
            **self._statistics.tensors(),
        }
