"""Training on one dataset of trajectories at a time: no processes, no shared memory.

    prepare    dataset -> samples: normalized inputs, values, advantages, returns, and what the loss compares with
    passes     over all samples, in minibatches of random order; each is one optimizer step
    metrics    means over the steps that were taken

The loss is that of the algorithm (`Algorithm.loss`). `publication` gives the block of weights and statistics that other
roles act with. Each sample's observation is normalized with the statistics that its behaviour policy used; the next
publication has the statistics with this dataset in them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.losses import (
    NUM_LOSS_METRICS,
    Samples,
    VtraceResult,
    advantage_sums,
    approximate_kls,
    behaviour_weights,
    gae,
    normalize_advantages,
    vtrace,
)
from asyncrl.buffers.pinning import to_device
from asyncrl.config.algorithms import imported
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.array_update import ArrayUpdate
from asyncrl.learner.dataset import Dataset, places_of
from asyncrl.learner.graphed_step import GraphedStep
from asyncrl.learner.optimizer import LearningRate, ParameterStore, SkippedSteps, clip_gradient, scheduled, stddev_limit
from asyncrl.learner.state import LearnerState, Scalar, copies_of
from asyncrl.learner.update_metrics import (
    DATASET_FIGURES,
    FIGURES,
    KL,
    RawEstimates,
    Step,
    dataset_figures,
    were_taken,
)
from asyncrl.learner.update_runner import in_graphs, makes_graphs
from asyncrl.models.actor_critic import ActorCritic, ForwardResult
from asyncrl.models.encoders import Inputs, split_tensor
from asyncrl.models.flat import FlatParameters, block_size, read_block, write_block
from asyncrl.monitoring.reports import TrainMetrics
from asyncrl.runtime.seeding import Stream, derive_seed, rank_seed

_IMAGES_AT_ONCE = 256  # in a pass without gradients

MODEL = "model"
"""Name of the trained weights in a `ParameterStore`."""


class Progress(NamedTuple):
    """State of an update.

    Attributes:
        num_done: minibatches that were trained.
        num_total: minibatches of all passes.
        ends_pass: whether the last of them ended a pass; the place to publish.
        is_last: whether that pass was the last.
    """

    num_done: int
    num_total: int
    ends_pass: bool
    is_last: bool


class _Prepared(NamedTuple):
    """A dataset, ready for its passes.

    Attributes:
        samples: what is trained on.
        estimates: values and returns of the valid rows.
        log_ratios: [T, C] float32, V-trace's: log-probability before training minus that when the action was chosen;
            None without V-trace.
        rows: [N] int64, the rows of the dataset that became samples.
        obs_statistics: [2F] float32, with which the critic sees the whole dataset.
    """

    samples: Samples
    estimates: RawEstimates
    log_ratios: Tensor | None
    rows: Tensor
    obs_statistics: Tensor


class _Trained(NamedTuple):
    """What the passes over a dataset leave for its metrics; `samples` are those of the last pass."""

    dataset: Dataset
    prepared: _Prepared
    samples: Samples
    steps: list[Step]
    learning_rates: list[float]


class OnPolicyLearner:
    """Owns the model that is trained, its optimizer, and the running statistics of observations and returns.

    Attributes:
        policy_version: optimizer steps so far, skipped ones included, and `versions_left_out`.
        versions_left_out: versions without an optimizer step, see `take_over`.
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
        self._config, self._algorithm = config, config.algorithm
        self._loss_config = config
        self.device = device
        self._flat = FlatParameters(self.model, hold=lambda initial: storage.allocate(MODEL, initial))
        self._gradient = self._flat.require_grad()
        self._optimizer = storage.optimizer([MODEL], [self._flat.data], [self._gradient], config)
        self._learning_rate = LearningRate(config, self.ranks.num_ranks)
        self._obs_moments = storage.moments("obs", model.observation_size, device)
        self._return_moments = storage.moments("return", 1, device)
        self._obs_statistics = self._copy_obs_statistics()
        self._published_obs_statistics: dict[int, Tensor] = {}
        self._trained: _Trained | None = None
        own_seed = derive_seed(rank_seed(config.seed, self.ranks.rank), Stream.LEARNER)
        self._generator = torch.Generator().manual_seed(own_seed)
        self._skipped = SkippedSteps(config.max_skipped_steps)
        self._recurrence = 0
        if model.rnn_state_size > 0:
            self._recurrence = config.rollout if config.recurrence == "auto" else config.recurrence
        self._rate = torch.zeros((), device=device)
        self._graphed_step: GraphedStep | None = None
        self._array_update: ArrayUpdate | None = None
        self._take_step: Callable[[Samples, float], tuple[Tensor, Tensor]] = self._step_by_autograd
        can_capture = self._algorithm.fits_cuda_graph and storage.is_capturable
        can_capture &= self._recurrence == 0 or model.unrolls_padded
        self._has_schedules = scheduled(config, 0) is not config
        can_capture &= not self._has_schedules  # a graph contains the settings of the loss
        self._has_graphs = can_capture and makes_graphs(config.compile, device, self.ranks.num_ranks)
        self._prepare_steps()

    def _prepare_steps(self) -> None:
        """Chooses what takes an optimizer step with the present settings; a captured graph contains their values."""
        config, model, device = self._config, self.model, self.device
        self._loss, self._loss_config = imported(self._algorithm.loss), config
        if self._has_graphs:
            self._take_step = self._graphed_step = GraphedStep(self._step_by_autograd, device, self.ranks.num_ranks)
        elif ArrayUpdate.fits(model, config, device):
            self._array_update = ArrayUpdate(model, self._flat, self._optimizer, self.ranks, config)
            self._take_step = self._array_update

    def set_hyperparameters(self, new_values: Hyperparameters) -> None:
        """Trains with new values from the next dataset on."""
        before, self._config = self._config, new_values.apply_to(self._config)
        self._learning_rate.follow(self._config)
        if self._graphed_step is not None:
            if not in_graphs(before, self._config):
                return
            self._graphed_step.runner.close()
        self._prepare_steps()

    def take_over(self, block: Tensor) -> None:
        """Continues with the weights and statistics of another learner of the same model; the caller publishes.

        Adam's moments begin at zero. The version rises by more than `max_policy_lag`, so every sample in flight that
        the weights before have acted is too old and is dropped: none meets statistics that it was not acted with.

        Args:
            block: [block_size] float32, a publication of the other learner.
        """
        read_block(self.model, self._flat, block.to(self.device))
        self._obs_statistics = self._copy_obs_statistics()
        of_returns = self.model.statistics[len(self._obs_statistics) :]
        for moments, statistics in ((self._obs_moments, self._obs_statistics), (self._return_moments, of_returns)):
            moments.adopt(*statistics.chunk(2))
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
        oldest = self.policy_version - self._config.max_policy_lag
        self._published_obs_statistics = {
            version: statistics for version, statistics in self._published_obs_statistics.items() if version >= oldest
        }
        self._published_obs_statistics[self.policy_version] = self._obs_statistics
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
        config, learning_rate = self._config, self._learning_rate
        if dataset.obs.device != self.device:
            dataset = dataset.to(self.device)
        if self._has_schedules:
            self._loss_config = scheduled(config, env_steps_before)
            if self._array_update is not None:
                self._array_update.config = self._loss_config
        prepared = self._prepare(dataset)
        samples = prepared.samples
        learning_rate.start_dataset(env_steps_before)
        all_steps: list[Step] = []
        learning_rates: list[float] = []
        for epoch in range(1, config.num_epochs + 1):
            if epoch > 1 and config.recompute_advantages:
                samples = self._with_present_estimates(dataset, prepared)
            minibatches = self._minibatches(samples)
            if self._graphed_step is not None:
                num_rows = dataset.valid.numel() // (self._recurrence or 1)
                self._graphed_step.start_pass(minibatches, largest=-(-num_rows // config.num_batches_per_epoch))
            num_total = len(minibatches) * config.num_epochs
            steps: list[Step] = []
            for minibatch in minibatches:
                if steps:
                    yield Progress(len(learning_rates), num_total, ends_pass=False, is_last=False)
                learning_rates.append(learning_rate.value)
                steps.append(Step(*self._take_step(minibatch, learning_rate.value)))
                self.policy_version += 1
                if learning_rate.is_adaptive:
                    learning_rate.after_minibatch(steps[-1].figures[KL])
            if self._graphed_step is not None:
                self.notice = self.notice or self._graphed_step.runner.take_notice()
            if learning_rate.is_adaptive:
                learning_rate.after_epoch([step.figures[KL] for step in steps])
            all_steps += steps
            self._trained = _Trained(dataset, prepared, samples, all_steps, learning_rates)
            is_last = epoch == config.num_epochs or self._exceeds_target_kl(steps)
            if is_last and config.final_stddev is not None:
                # After the last step, so that the policy that acts next is the one that its samples are compared with.
                progress = env_steps_before / config.train_for_env_steps
                self.model.limit_stddev(stddev_limit(config.initial_stddev, config.final_stddev, progress))
            yield Progress(len(learning_rates), num_total, ends_pass=True, is_last=is_last)
            if is_last:
                break

    def _exceeds_target_kl(self, steps: list[Step]) -> bool:
        """Whether the mean KL divergence of a pass's minibatches is above `target_kl`; the same answer in all ranks."""
        target_kl = self._config.target_kl
        if target_kl is None:
            return False
        with_samples = [step for step in steps if step.log_ratio.numel() > 0]  # other ranks may have all samples
        kl, num_samples = torch.zeros((), device=self.device), 0
        if with_samples:
            log_ratio = torch.cat([step.log_ratio for step in with_samples])
            sizes = [len(step.log_ratio) for step in with_samples]
            kls = torch.stack([part.mean() for part in torch.split(approximate_kls(log_ratio), sizes)])
            taken = were_taken(with_samples)
            kl, num_samples = kls.where(taken, 0.0).sum() / taken.sum().clamp(min=1), len(log_ratio)
        if self.ranks.num_ranks > 1:
            self.ranks.average([kl], num_samples)
        return not float(kl) <= target_kl  # NaN ends the passes too

    def take_metrics(self) -> TrainMetrics | None:
        """Means over the steps of the last update that were taken; None without any.

        The host reads twice, as reading waits for the device: which steps were taken, and the means.

        Raises:
            RunFailed: too many steps in a row were skipped.
        """
        if self._trained is None:
            return None
        (dataset, prepared, samples, all_steps, learning_rates), self._trained = self._trained, None
        is_taken: list[bool] = were_taken(all_steps).tolist()
        has_diverged = self._skipped.note(is_taken)
        self.skipped_steps = self._skipped.total
        if has_diverged:
            fields = {"obs": samples.floats, **samples.non_null_fields(), "weights": self._flat.data}
            trained_on = {name: field for name, field in fields.items() if field.is_floating_point()}
            del trained_on["floats"]
            of_last = dict(zip(FIGURES, all_steps[-1].figures.tolist(), strict=True))
            raise self._skipped.diagnosis(of_last, trained_on)
        steps = list(itertools.compress(all_steps, is_taken))
        if not steps:
            return None
        means = torch.stack([step.figures for step in steps]).mean(0)
        distribution = self.model.distribution
        num_ratios = sum(step.log_ratio.numel() for step in steps)
        own = means.new_zeros(len(DATASET_FIGURES))
        if num_ratios > 0:  # other ranks may have all samples
            log_weight = None if samples.weight is None else _log_weight(samples.weight, prepared)
            own = dataset_figures(dataset, prepared.estimates, steps, log_weight, distribution, self._loss_config)
        if self.ranks.num_ranks > 1:
            self.ranks.average([own], num_ratios)
        named = dict(zip((*FIGURES, *DATASET_FIGURES), torch.cat((means, own)).tolist(), strict=True))
        del named["kl"]  # the learning rate follows it; the metric is `approx_kl`
        if not distribution.deviation_positions:
            del named["std"]
        return TrainMetrics(**named, learning_rate=sum(learning_rates) / len(learning_rates))

    def state_dict(self) -> LearnerState:
        """Copies the complete state of the learner; the copies share no memory with it or with one another."""
        optimizer = copies_of(self._optimizer_tensors()) | {"generator": self._generator.get_state()}
        scalars: dict[str, Scalar] = {
            "policy_version": self.policy_version,
            "versions_left_out": self.versions_left_out,
            "learning_rate": self._learning_rate.of_one_rank,
            "obs_count": self._obs_moments.count,
            "return_count": self._return_moments.count,
        }
        return LearnerState(copies_of(self.model.state_dict()), optimizer, scalars)

    def load_state_dict(self, state: LearnerState) -> None:
        """Continues from `state`; the caller publishes before the next dataset is collected."""
        self.model.load_state_dict(state.model)
        self._obs_statistics = self._copy_obs_statistics()
        self._published_obs_statistics = {}
        for name, tensor in self._optimizer_tensors().items():
            tensor.copy_(state.optimizer[name])
        self._generator.set_state(state.optimizer["generator"])
        self.policy_version = int(state.scalars["policy_version"])
        self.versions_left_out = int(state.scalars.get("versions_left_out", 0))
        self._learning_rate.resume(float(state.scalars["learning_rate"]))
        self._obs_moments.count = int(state.scalars["obs_count"])
        self._return_moments.count = int(state.scalars["return_count"])

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """The tensors in use, by their names in a checkpoint."""
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

    def _normalize(self, obs: Tensor, present: Sequence[int], versions: Tensor) -> Tensor:
        """Normalizes the numbers of samples, in place, with the statistics that the policy of each sample used.

        So an unchanged policy gives each action the probability that it had, even if the statistics have changed
        since. Returns do not need this: slots hold values in units of rewards, and the critic's head always fits the
        newest statistics of returns.

        Args:
            obs: [N, F] float32, raw.
            present: the policy versions that acted on them.
            versions: [N] int64, the one of each.
        """
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
        """Turns the valid rows of a dataset into samples and updates the statistics with them."""
        config = self._config
        # Drop invalid rows (recurrent policies: after the RNN pass), so that no loss and no statistic reads them.
        valid = dataset.valid_rows()
        rows = torch.arange(dataset.valid.numel(), device=self.device) if self._recurrence else valid
        raw = split_tensor(self.model.layout, dataset.obs[:-1].flatten(0, 1)).at(rows)
        versions, present = dataset.policy_version.flatten().index_select(0, rows), dataset.versions_in(rows)
        inputs = raw._replace(floats=self._normalize(raw.floats.clone(), present, versions))
        action = dataset.action.flatten(0, 1).index_select(0, rows)
        obs_statistics = self._obs_statistics
        is_old = any(version < self.policy_version for version in present)
        values, parameters = dataset.value, None
        if config.with_vtrace or (config.recompute_values and is_old):
            present_parameters, values = self._present_outputs(dataset, obs_statistics)
            if self._has_same_inputs:
                parameters = present_parameters.index_select(0, rows)
        log_ratios = self._log_ratios(dataset, rows, inputs, action, parameters) if config.with_vtrace else None
        estimates = self._estimate(dataset, values, log_ratios)
        raw_returns = estimates.returns.flatten().index_select(0, valid)
        self._take_in(raw.floats.index_select(0, valid) if self._recurrence else raw.floats, raw_returns)
        # A ratio in the loss weights the action itself; the plain policy gradient does not.
        weights = None if self._algorithm.uses_ratio else estimates.weights
        samples = Samples(
            floats=inputs.floats,
            pixels=inputs.pixels,
            action=action,
            action_parameters=dataset.action_parameters.flatten(0, 1).index_select(0, rows),
            log_prob=dataset.log_prob.flatten().index_select(0, rows),
            **self._fields_of(estimates, values, rows),
            weight=None if weights is None else weights.flatten().index_select(0, rows),
        )
        if self._recurrence:
            samples = samples._replace(begins=dataset.begins[:-1].flatten(), valid=dataset.valid.flatten())
            sequences = self._in_sequences(samples.non_null_fields(), dataset)
            samples = samples._replace(**sequences, rnn_state=dataset.rnn_state.flatten(0, 1))
        if self._algorithm.uses_ratio and config.ppo_objective == "decoupled":
            samples = (
                self._decoupled(samples, parameters)
                if is_old
                else samples._replace(weight=torch.ones_like(samples.log_prob))
            )
        raw_values = values[:-1].flatten().index_select(0, valid)
        estimated = RawEstimates(valid, raw_values, raw_returns)
        return _Prepared(samples, estimated, log_ratios, rows, obs_statistics)

    def _estimate(self, dataset: Dataset, values: Tensor, log_ratios: Tensor | None) -> VtraceResult:
        """Advantages and returns by GAE, or by V-trace where there are log-ratios; in units of scaled rewards.

        Args:
            dataset: rewards as the environment gave them, and ends of episodes.
            values: [T+1, C] float32, in units of scaled rewards.
            log_ratios: [T, C] float32, log-probability of each action before training minus that when it was chosen.
        """
        config = self._config
        reward = dataset.reward * config.reward_scale
        if config.reward_clip is not None:
            reward.clamp_(-config.reward_clip, config.reward_clip)
        rest = (reward, values, dataset.terminated, dataset.truncated, dataset.valid, config.gamma, config.gae_lambda)
        if log_ratios is None:
            return VtraceResult(*gae(*rest, idle=dataset.idle), None)
        return vtrace(log_ratios, *rest, max_rho=config.vtrace_rho, max_c=config.vtrace_c, idle=dataset.idle)

    def _fields_of(self, estimates: VtraceResult, values: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """The fields of samples that follow from the estimates and values of a dataset, for these rows of it."""
        return {
            "advantage": estimates.advantages.flatten().index_select(0, rows),
            "normalized_return": self.model.normalize_return(estimates.returns.flatten().index_select(0, rows)),
            "normalized_value": self.model.normalize_return(values[:-1].flatten().index_select(0, rows)),
        }

    def _in_sequences(self, fields: dict[str, Tensor], dataset: Dataset) -> dict[str, Tensor]:
        """Cuts fields of all rows of a dataset into sequences `[N, L, ...]`, for a recurrent policy."""
        shape = (-1, self._recurrence, dataset.valid.shape[1])
        return {name: torch.unflatten(field, 0, shape).transpose(1, 2).flatten(0, 1) for name, field in fields.items()}

    def _with_present_estimates(self, dataset: Dataset, prepared: _Prepared) -> Samples:
        """The same samples with values, advantages and returns of the current critic.

        V-trace's ratios remain those of the policy before training. Statistics remain, too: they have this dataset
        already, and the critic is trained on inputs normalized with those of the behaviour policies.
        """
        _, values = self._present_outputs(dataset, prepared.obs_statistics)
        fields = self._fields_of(self._estimate(dataset, values, prepared.log_ratios), values, prepared.rows)
        return prepared.samples._replace(**(self._in_sequences(fields, dataset) if self._recurrence else fields))

    @torch.no_grad()
    def _decoupled(self, samples: Samples, parameters: Tensor | None) -> Samples:
        """Samples that compare with the policy before training, weighted by its difference to the behaviour policy.

        The policy is evaluated as in training: with inputs normalized by the statistics of each sample's behaviour,
        and from the stored recurrent states. So the first ratio is 1. If no older policy chose any of the actions, the
        stored log-probabilities are those of this policy, and this is not called.

        Args:
            samples: all samples of a dataset.
            parameters: [N, P], of the policy's distributions, if they are known.
        """
        rows = samples
        if self._recurrence:
            (parameters, _), rows = self._run_rows(samples)
        elif parameters is None:
            parameters, _ = self._run_whole(samples.inputs, None, None)
        log_prob = self.model.distribution.log_prob(parameters, rows.action)
        weight = behaviour_weights(log_prob - rows.log_prob, self._config.behaviour_weight_cap)
        fields = {"action_parameters": parameters, "log_prob": log_prob, "weight": weight}
        if self._recurrence:
            shape = (self._recurrence, -1)
            fields = {name: torch.unflatten(field, 0, shape).transpose(0, 1) for name, field in fields.items()}
        return samples._replace(**fields)

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
            parameters, _ = self._run_whole(inputs, dataset.rnn_state[0], dataset.begins[:-1], in_float32=True)
        log_prob = self.model.distribution.log_prob(parameters, action)
        log_ratios = torch.zeros_like(dataset.log_prob)
        log_ratios.view(-1)[rows] = log_prob - dataset.log_prob.flatten().index_select(0, rows)
        return log_ratios

    @torch.no_grad()
    def _present_outputs(self, dataset: Dataset, obs_statistics: Tensor) -> tuple[Tensor, Tensor]:
        """The model on all observations: parameters `[(T+1) * C, P]`, and values `[T+1, C]` in units of rewards.

        Args:
            dataset: raw observations.
            obs_statistics: [2F] float32 to normalize them with.
        """
        raw = split_tensor(self.model.layout, dataset.obs.flatten(0, 1))
        inputs = raw._replace(floats=self.model.normalize_obs(raw.floats, statistics=obs_statistics))
        # V-trace compares with the policy that acted, in float32; the decoupled objective with what training computes.
        in_float32 = self._config.with_vtrace
        parameters, normalized_value = self._run_whole(inputs, dataset.rnn_state[0], dataset.begins, in_float32)
        return parameters, self.model.denormalize_value(normalized_value).view(dataset.value.shape)

    @property
    def _has_same_inputs(self) -> bool:
        """Whether a pass over all observations gives what training computes for each sample.

        That is not so if each sample's numbers are normalized with the statistics of its behaviour policy, if sequences
        begin with stored states, or if V-trace needs float32 and training does not.
        """
        is_rounded = self._config.with_vtrace and self._config.precision == "bf16"
        model = self.model
        has_numbers = model.normalizes_obs and any(model.layout.normalized)
        return not has_numbers and not self._recurrence and not is_rounded

    def _run_whole(
        self, inputs: Inputs, rnn_state: Tensor | None, begins: Tensor | None, in_float32: bool = False
    ) -> ForwardResult:
        """As `_run`, of a whole dataset and without gradients: images, which fill much memory, part by part."""
        run = self._forward if in_float32 else self._run
        if inputs.pixels is None or self._recurrence:
            return run(inputs, rnn_state, begins)
        parts = zip(
            torch.split(inputs.floats, _IMAGES_AT_ONCE), torch.split(inputs.pixels, _IMAGES_AT_ONCE), strict=True
        )
        results = [run(Inputs(*part), None, None) for part in parts]
        return ForwardResult(*(torch.cat(fields) for fields in zip(*results, strict=True)))

    def _run(
        self, inputs: Inputs, rnn_state: Tensor | None, begins: Tensor | None, num_pieces: int = 0
    ) -> ForwardResult:
        """The model's outputs for rows of observations, in the precision of the run, as float32.

        A recurrent model begins with these states.
        """
        if self._config.precision != "bf16":
            return self._forward(inputs, rnn_state, begins, num_pieces)
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            parameters, values = self._forward(inputs, rnn_state, begins, num_pieces)
        return ForwardResult(parameters.float(), values.float())

    def _forward(
        self, inputs: Inputs, rnn_state: Tensor | None, begins: Tensor | None, num_pieces: int = 0
    ) -> ForwardResult:
        if not self._recurrence:
            return self.model.forward(*inputs)
        assert rnn_state is not None and begins is not None
        if num_pieces > 0:
            return self.model.unroll(inputs, rnn_state, begins, num_pieces)
        return self.model.unroll(inputs, rnn_state, begins)

    def _take_in(self, raw_obs: Tensor, raw_returns: Tensor) -> None:
        """Adds the dataset to the statistics; the next publication contains them."""
        if self._config.normalize_input:
            self._obs_moments.update(raw_obs)
            self.model.set_obs_statistics(self._obs_moments.mean, self._obs_moments.std)
            self._obs_statistics = self._copy_obs_statistics()
        if self._config.normalize_returns:
            self._return_moments.update(raw_returns.unsqueeze(-1))
            self.model.renormalize_returns(self._return_moments.mean, self._return_moments.std)

    def _minibatches(self, samples: Samples) -> list[Samples]:
        """`num_batches_per_epoch` minibatches, in every rank; advantages are normalized over those of all ranks.

        Advantages are weighted after they were normalized: a mean subtracted from weighted ones would train on actions
        whose weight is 0.
        """
        config, num_batches = self._config, self._config.num_batches_per_epoch
        if self.ranks.num_ranks == 1:
            num_batches = min(num_batches, samples.floats.shape[0])
        if config.shuffle_minibatches:
            order = torch.randperm(len(samples.floats), generator=self._generator)
            samples = samples.at(order if self.device.type == "cpu" else to_device([order], self.device)[0])
        if config.normalize_advantage:
            sums = advantage_sums(samples.advantage, num_batches, samples.valid)
            if self.ranks.num_ranks > 1:
                sums = self.ranks.sum(sums)
            if config.normalize_advantage_over == "dataset":
                sums = sums.sum(0).expand_as(sums)
            samples = samples._replace(advantage=normalize_advantages(samples.advantage, sums))
        if samples.weight is not None:
            samples = samples._replace(advantage=samples.weight * samples.advantage, weight=None)
        return samples.minibatches(num_batches)

    def _step_by_autograd(
        self, batch: Samples, learning_rate: float | Tensor, num_pieces: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Takes one step on any model; returns `FIGURES` [7] (the norm is that before clipping) and log-ratios.

        With `num_pieces`, see `ActorCritic.unroll`, shapes do not depend on which rows of sequences are valid.
        """
        (parameters, values), rows = self._run_rows(batch, num_pieces)
        if (is_sample := rows.valid) is not None:
            if num_pieces > 0:
                rows, of_samples = rows.valid_filled_up()
            else:
                of_samples = is_sample.nonzero().squeeze(-1)
                rows = rows._replace(rnn_state=None, begins=None, valid=None).at(of_samples)
            parameters, values = parameters.index_select(0, of_samples), values.index_select(0, of_samples)
        self._gradient.zero_()  # in place: dropping gradients would take them out of the flat tensor
        num_samples = rows.log_prob.shape[0]
        if num_samples == 0:
            figures, log_ratio = parameters.new_zeros(NUM_LOSS_METRICS), rows.log_prob
        else:
            *metrics, log_ratio = self._loss(parameters, values, rows, self.model.distribution, self._loss_config)
            metrics[0].backward()
            figures = torch.stack(metrics).detach()
        if self.ranks.num_ranks > 1:
            weight = num_samples if rows.share is None else (rows.share > 0.0).sum()
            self.ranks.average([self._gradient, figures], weight)
        grad_norm = self._step(figures[0], self._rate.fill_(learning_rate))
        return torch.cat((figures, grad_norm.view(1))), log_ratio.detach()

    def _run_rows(self, batch: Samples, num_pieces: int = 0) -> tuple[ForwardResult, Samples]:
        """The model's outputs for a minibatch, and the minibatch row by row, sequences transposed to steps first."""
        rows, begins = batch, batch.begins
        if begins is not None:
            fields = batch._replace(rnn_state=None, begins=None).non_null_fields()
            rows = batch._replace(**{name: field.transpose(0, 1).flatten(0, 1) for name, field in fields.items()})
            begins = begins.t()
        return self._run(rows.inputs, batch.rnn_state, begins, num_pieces), rows

    def _step(self, loss: Tensor, learning_rate: float | Tensor) -> Tensor:
        """Takes one step down the gradient, unless it or `loss` is not finite; returns its norm before clipping."""
        grad_norm = clip_gradient(self._gradient, self._config.max_grad_norm)
        self._optimizer.step(learning_rate, torch.isfinite(loss + grad_norm).logical_not().float())
        return grad_norm


def _log_weight(weight: Tensor, prepared: _Prepared) -> Tensor:
    """Logarithms of the weights of the samples alone, [N]."""
    log_weight = weight.flatten().log()
    if prepared.samples.valid is None:
        return log_weight
    is_sample = prepared.samples.valid.flatten()
    return log_weight.index_select(0, places_of(is_sample, len(prepared.estimates.valid)))
