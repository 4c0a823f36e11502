"""SAC's updates on batches of transitions: no processes, no shared memory.

One update computes targets with the current policy, then trains the critics, moves the target critics, and at every
`policy_delay`-th update trains the policy and the entropy coefficient (Haarnoja et al. 2018, algorithm 1).
`publication` gives the block of weights and statistics that other roles act with.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from asyncrl.algorithms import sac
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.optimizer import LearningRate, ParameterStore, SkippedSteps, clip_gradient
from asyncrl.learner.replay_sampler import Transitions
from asyncrl.learner.state import LearnerState, Scalar, copies_of
from asyncrl.learner.update_runner import Figures, UpdateRunner, makes_graphs
from asyncrl.models.block_network import BatchRenorm, UnitLinear
from asyncrl.models.encoders import Inputs, split_tensor
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.models.mlp_pass import MlpPass
from asyncrl.models.sac import SacActor, TwinCritic
from asyncrl.models.stacked_mlp import StackedLayer, StackedMlp
from asyncrl.monitoring.reports import SacMetrics
from asyncrl.runtime.seeding import Stream, derive_seed, rank_seed


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
        statistics = {id(each) for layer in self._renorms for each in layer.statistics}
        self._decayed = [each.data for each in module.parameters() if self._weight_decay and id(each) not in statistics]
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
        yield
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


_CRITIC_FIGURES = ("critic_loss", "q_mean", "sum of inputs", "grad_norm_critic")
_ACTOR_FIGURES = ("actor_loss", "ent_coef", "ent_coef_loss", "entropy", "grad_norm_actor")

ACTOR, CRITIC, TARGET_CRITIC, LOG_ENT_COEF = "actor", "critic", "target_critic", "log_ent_coef"
"""Names of the trained tensors in a `ParameterStore`."""


class SacLearner:
    """Owns actor, critics and target critics, their optimizers, and the running statistics of observations.

    Attributes:
        policy_version: updates so far.
        skipped_steps: steps of critics and policy that were skipped since this learner was made.
        notice: a message for the user about how updates run; whoever reports it sets it to None.
        model: the actor, with the newest statistics.
        critic: the twin critics.
        device: of all tensors.
        ranks: the learners that train together.
    """

    def __init__(
        self,
        actor: SacActor,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        storage: ParameterStore | None = None,
    ) -> None:
        """Starts with the weights of the actor and new critics, on `device`; `storage` allocates their memory."""
        storage = storage or ParameterStore()
        self._storage = storage
        self.ranks = storage.ranks
        self.model = actor.to(device)
        self.critic = actor.make_critic(spec, config).to(actor.statistics)
        self.target_critic = copy.deepcopy(self.critic) if config.use_target_critics else None
        self._support: Tensor | None = getattr(self.critic, "support", None)
        self.policy_version = self.skipped_steps = 0
        self.notice: str | None = None
        self._config = config
        self.device = device
        self._parts = actor.parts.to(device)
        self._target_entropy: float | None = None  # with masks it depends on the observations
        if config.target_entropy != "auto":
            self._target_entropy = config.target_entropy
        elif not actor.layout.num_mask:
            self._target_entropy = -float(self._parts.num_continuous) + 0.5 * self._parts.max_entropy
        own = actor.statistics.dtype
        reduced = matmul_dtype(config.precision, device)
        self._is_reduced = reduced != torch.float32
        self._dtype = reduced if self._is_reduced else own
        ent_coef = config.initial_ent_coef if config.ent_coef == "auto" else config.ent_coef
        log_ent_coef = torch.full((1,), math.log(ent_coef), dtype=own, device=device)
        self._log_ent_coef = storage.allocate(LOG_ENT_COEF, log_ent_coef)
        self._ent_coef_gradient = torch.zeros_like(self._log_ent_coef)
        adapted = {LOG_ENT_COEF: (self._log_ent_coef, self._ent_coef_gradient)} if config.ent_coef == "auto" else {}
        # Hand-written passes through perceptrons are faster than autograd and compute the same.
        actor_mlp, critic_mlp = None, None
        has_plain_critics = isinstance(self.critic, TwinCritic) and self._support is None
        if actor.has_passes and has_plain_critics and self.target_critic is not None:
            actor_mlp, critic_mlp = _perceptron(actor.mlp), _perceptron(self.critic.mlp)
        has_passes = actor_mlp is not None and critic_mlp is not None
        self._actor = TrainedNetwork(ACTOR, self.model, actor_mlp, config, self._dtype, storage, adapted)
        self._critic = TrainedNetwork(CRITIC, self.critic, critic_mlp, config, self._dtype, storage)
        self._target: Tensor | None = None
        self._target_weights: LayerCopy | None = None
        if self.target_critic is not None:
            self._target = FlatParameters(
                self.target_critic, with_grad=False, hold=lambda initial: storage.allocate(TARGET_CRITIC, initial)
            ).data
            self._target_weights = None if critic_mlp is None else LayerCopy(critic_mlp, self._target, self._dtype)
        self._target_layers = () if self._target_weights is None else self._target_weights.layers
        self._actor_pass, self._critic_pass = MlpPass(config.nonlinearity), MlpPass(config.nonlinearity)
        self._update = self._update_by_passes if has_passes else self._update_by_autograd
        self._learning_rate = LearningRate(config, self.ranks.num_ranks)
        self._obs_moments = storage.moments("obs", actor.observation_size, device)
        own_seed = derive_seed(rank_seed(config.seed, self.ranks.rank), Stream.LEARNER)
        self._generator = torch.Generator(device).manual_seed(own_seed)
        self._skipped_critic = SkippedSteps(config.max_skipped_steps)
        self._skipped_actor = SkippedSteps(config.max_skipped_steps)
        self._last_actor_figures = torch.zeros(len(_ACTOR_FIGURES), dtype=own, device=device)
        self._inputs = torch.empty(0)
        self._rate = torch.zeros((), dtype=own, device=device)
        self._graphs: UpdateRunner | None = None
        if storage.is_capturable and makes_graphs(config.compile, device):
            self._graphs = UpdateRunner(self._update, device)

    def set_hyperparameters(self, new_values: Hyperparameters) -> None:
        """Trains with new values from the next update on; a captured graph contains the old ones."""
        self._config = new_values.apply_to(self._config)
        self._learning_rate.follow(self._config)
        self._actor.max_grad_norm = self._critic.max_grad_norm = self._config.max_grad_norm
        if self._graphs is not None:
            self._graphs = UpdateRunner(self._update, self.device)

    @property
    def block_size(self) -> int:
        """Elements of a publication."""
        return block_size(self.model)

    def publication(self, out: Tensor | None = None) -> Tensor:
        """The actor's weights and statistics as one block, to be published as `policy_version`.

        The block is `out: [block_size] float32`, or a new CPU tensor.
        """
        return write_block(self.model, self._actor.flat, out)

    def follow(self, policy_version: int) -> None:
        """Adopts the current state of networks and statistics that other processes train, too."""
        self.policy_version = policy_version
        self._refresh_copies()
        if self._config.normalize_input:
            self._take_statistics()

    def observe(self, obs: Tensor) -> None:
        """Adds raw rows of observations `[N, row_size]` to the statistics, rows of a replay as often as drawn."""
        if not self._config.normalize_input:
            return
        self._obs_moments.update(split_tensor(self.model.layout, obs.to(self.device)).floats.float())
        self._obs_moments.merge()
        self._take_statistics()

    def _take_statistics(self) -> None:
        self.model.set_obs_statistics(self._obs_moments.mean, self._obs_moments.std)

    @torch.no_grad()
    def train(self, batches: Sequence[Transitions], env_steps_before: int = 0) -> SacMetrics | None:
        """Makes one update for each batch; skips steps whose loss or gradient is not finite.

        Returns means over the steps that were taken; None if none of the critics' was.

        Args:
            batches: at least one, of raw transitions on any device.
            env_steps_before: environment steps collected before; the linear schedule reads it.

        Raises:
            RunFailed: too many steps in a row were skipped.
        """
        self._learning_rate.start_dataset(env_steps_before)
        self._rate.fill_(self._learning_rate.value)
        figures = []
        if batches[0].obs.device != self.device:
            batches = [batch.to(self.device) for batch in batches]  # all of them first: a transfer waits for updates
        for batch in batches:
            if self._storage.is_shared:
                self._storage.sync()
                self._refresh_copies()
            self.policy_version += 1
            trains_actor = self.policy_version % self._config.policy_delay == 0
            noise = self._noise(batch, trains_actor)
            update = self._graphs or self._update
            figures.append(update([*batch, noise], trains_actor))
        if self._graphs is not None:
            self.notice = self.notice or self._graphs.take_notice()
        return self._metrics(figures, batches[-1])

    def state_dict(self) -> LearnerState:
        """Copies the complete state of the learner; the copies share no memory with it or with one another.

        `model` is the actor's state; critics, target critics and optimizer states are in `optimizer`.
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
        """Tensors of the entropy coefficient that are not restored: `ent_coef` decides them, or they were not saved."""
        adapted = {f"actor.{kind}.1" for kind in ("value", "exp_avg", "exp_avg_sq", "step")}
        if self._config.ent_coef != "auto":
            return {"log_ent_coef", *adapted}
        return set() if adapted <= state.optimizer.keys() else adapted

    def _refresh_copies(self) -> None:
        for weights in (self._actor.weights, self._critic.weights, self._target_weights):
            if weights is not None:
                weights.refresh()

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors in use, by their names in a checkpoint."""
        networks = {"actor": self._actor.tensors(), "critic": self._critic.tensors()}
        return {
            **{f"{owner}.{name}": tensor for owner, own in networks.items() for name, tensor in own.items()},
            **({} if self._target is None else {"target_critic": self._target}),
            "log_ent_coef": self._log_ent_coef,
            "last_actor_figures": self._last_actor_figures,
            "obs_mean": self._obs_moments.mean,
            "obs_variance": self._obs_moments.variance,
        }

    def _noise(self, batch: Transitions, trains_actor: bool) -> Tensor:
        """Noise of continuous actions at all observations, without the first ones if the policy is not trained."""
        rows, num_between = batch.between_discount.shape
        shape = ((num_between + (2 if trains_actor else 1)) * rows, self._parts.num_continuous)
        own = self.model.statistics
        return torch.randn(shape, generator=self._generator, dtype=own.dtype, device=own.device)

    def _update_by_autograd(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        """One update of any networks; returns figures of the critics `[C]`, and `[A]` of the policy if trained."""
        batch, noise = Transitions(*inputs[:-1]), inputs[-1]
        size = len(batch.reward)
        ent_coef = self._log_ent_coef.exp()[0]
        obs = self.model.inputs_of(batch.obs)
        # Target: the expected return after the transition, by the smaller of the target critics.
        after = torch.cat((batch.between_obs.transpose(0, 1).flatten(0, 1), batch.next_obs))
        later = self.model.inputs_of(after)
        action, log_prob, log_probs = self._draw(later, noise[-len(after) :])
        last = Inputs(later.floats[-size:], None if later.pixels is None else later.pixels[-size:])
        neg_entropy = log_prob + _expected(log_probs, log_probs)
        reward = self._reward_of(batch, neg_entropy, ent_coef)
        # Critics and target critics.
        with torch.enable_grad(), self._critic.normalizing_by_batch():
            outputs, next_outputs = self._outputs_of_critics(
                obs, self._parts.continuous_of(batch.action), last, action[-size:]
            )
            if self._support is None:
                next_value = sac.soft_value_of_parts(next_outputs, log_probs[-size:], log_prob[-size:], ent_coef)
                values = self._parts.chosen_values(outputs, batch.action)
                target = sac.soft_target(reward, batch.discount, next_value)
                loss = 0.5 * (values - target).square().mean(1).sum()
            else:
                distribution = sac.next_distribution(next_outputs, self._support, log_probs[-size:])
                after_entropy = self._support - (ent_coef * neg_entropy[-size:]).unsqueeze(1)
                returns = sac.soft_target(reward.unsqueeze(1), batch.discount.unsqueeze(1), after_entropy)
                (chosen,) = self._parts.chosen(batch.action)
                bins = outputs[:, torch.arange(size, device=chosen.device), chosen]
                values = bins.detach().exp() @ self._support
                target = sac.project_distribution(distribution, returns, self._support)
                loss = sac.distribution_loss(bins, target)
            self._critic.flat.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        # With bins the loss of an infinite return is finite.
        sum_of_inputs = obs.floats.sum() + later.floats.sum() + 0.0 * reward.sum()
        figures = torch.stack((loss.detach(), values.detach().mean(), sum_of_inputs))
        critic_figures = self._critic.step(self._rate, figures)
        if self._target is not None:
            self._storage.polyak_update(self._target, self._critic.flat.data, self._config.tau)
        if not trains_actor:
            return critic_figures, None
        # Policy and entropy coefficient.
        with torch.enable_grad(), self._actor.normalizing_by_batch():
            action, log_prob, log_probs = self._draw(obs, noise[:size])
            values = self._outputs(self.critic.values, obs, action)
            loss = -sac.soft_value_of_parts(values, log_probs, log_prob, ent_coef).mean()
            self._actor.flat.zero_grad()
            loss.backward(inputs=list(self.model.parameters()))  # type: ignore[no-untyped-call]
        entropy = -(log_prob + _expected(log_probs, log_probs)).detach().mean()
        return critic_figures, self._step_actor(loss.detach(), entropy, ent_coef, obs)

    def _draw(self, inputs: Inputs, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Continuous actions `[B, C]`, their log-probability `[B]`, log-probabilities of choices `[B, N]`."""
        with torch.autocast(self.device.type, self._dtype, enabled=self._is_reduced, cache_enabled=False):
            parameters = self.model(*inputs)
        sample = sac.draw_squashed(self._parts.gaussian_of(parameters), noise)
        return sample.action, sample.log_prob, self._parts.log_probs_of(parameters)

    def _outputs_of_critics(
        self, obs: Inputs, action: Tensor, next_obs: Inputs, next_action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Values `[2, B, N]`, or log-probabilities of bins `[2, B, N, M]`, at both observations.

        The critics' at the first, with gradient, and those of the target critics at the next ones. Without target
        critics the critics take both as one batch, so that both have the same statistics (CrossQ, 1902.05605 v4).
        """
        critic, target, has_bins = self.critic, self.target_critic, self._support is not None
        compute = critic.log_probs if has_bins else critic.values
        if target is not None:
            next_outputs = self._outputs(target.log_probs if has_bins else target.values, next_obs, next_action)
            return self._outputs(compute, obs, action), next_outputs.detach()
        pixels = None
        if obs.pixels is not None and next_obs.pixels is not None:
            pixels = torch.cat((obs.pixels, next_obs.pixels))
        both = Inputs(torch.cat((obs.floats, next_obs.floats)), pixels)
        outputs = self._outputs(compute, both, torch.cat((action.to(next_action), next_action)))
        return outputs[:, : len(action)], outputs[:, len(action) :].detach()

    def _outputs(self, compute: Callable[[Inputs, Tensor], Tensor], inputs: Inputs, action: Tensor) -> Tensor:
        """What a critic's method makes of continuous actions, with all combinations of choices."""
        with torch.autocast(self.device.type, self._dtype, enabled=self._is_reduced, cache_enabled=False):
            return compute(inputs, action)

    def _update_by_passes(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        """The same without autograd, for perceptrons and actions that are either continuous or one choice."""
        batch, noise = Transitions(*inputs[:-1]), inputs[-1]
        size, num_between = batch.between_discount.shape
        ent_coef = self._log_ent_coef.exp()[0]
        # All observations: the first ones, those between in the order of their steps, the next ones.
        shape = ((2 + num_between) * size, self.model.observation_size)
        if self._inputs.shape != shape:
            self._inputs = self.model.statistics.new_empty(shape)
        self._inputs[:size].copy_(batch.obs)
        self._inputs[size:-size].copy_(batch.between_obs.transpose(0, 1).flatten(0, 1))
        self._inputs[-size:].copy_(batch.next_obs)
        obs = self.model.normalize_obs(self._inputs, out=self._inputs).to(self._dtype)
        # The policy at the first observations is needed only for its own update.
        rows = obs if trains_actor else obs[size:]
        parameters = self.model.parameters_of(self._actor_pass.forward(self._actor.layers, rows)[0])
        if self.model.is_gaussian:
            return self._update_continuous(batch, obs, parameters, noise, ent_coef, trains_actor)
        return self._update_discrete(batch, obs, parameters, ent_coef, trains_actor)

    def _update_continuous(
        self, batch: Transitions, obs: Tensor, parameters: Tensor, noise: Tensor, ent_coef: Tensor, trains_actor: bool
    ) -> Figures:
        size, num_obs = batch.reward.shape[0], self.model.observation_size
        sample = sac.draw_squashed(parameters, noise)
        inputs = torch.cat((obs[-size:], sample.action[-size:].to(obs.dtype)), dim=1)
        next_values = self._critic_pass.forward(self._target_layers, inputs).squeeze(-1)
        next_value = sac.soft_value(next_values, sample.log_prob[-size:], ent_coef)
        target = self._target_of(batch, next_value, sample.log_prob, ent_coef)
        inputs = torch.cat((obs[:size], batch.action.tanh().to(obs.dtype)), dim=1)
        values = self._critic_pass.forward(self._critic.layers, inputs).squeeze(-1)
        loss = sac.critic_loss(values, target)
        critic_figures = self._train_critic(loss, loss.gradient.unsqueeze(-1), values)
        if not trains_actor:
            return critic_figures, None
        own = sac.SquashedSample(*(field[:size] for field in sample))
        inputs[:, num_obs:] = own.action
        values = self._critic_pass.forward(self._critic.layers, inputs).squeeze(-1)
        loss = sac.actor_loss(values, own.log_prob, ent_coef)
        columns = slice(num_obs, None)
        by_action = self._critic_pass.backward(self._critic.layers, loss.gradient.unsqueeze(-1), inputs=columns)
        assert by_action is not None
        gradient = sac.actor_gradient(own, by_action.sum(0, dtype=parameters.dtype), ent_coef)
        entropy = -own.log_prob.mean()
        outputs_gradient = self.model.outputs_gradient(parameters[:size], gradient).unsqueeze(0)
        self._actor_pass.backward(self._actor.layers, outputs_gradient, self._actor.gradients)
        return critic_figures, self._step_actor(loss.value, entropy, ent_coef, None)

    def _update_discrete(
        self, batch: Transitions, obs: Tensor, parameters: Tensor, ent_coef: Tensor, trains_actor: bool
    ) -> Figures:
        size, choice = batch.reward.shape[0], batch.action.expand(2, -1).unsqueeze(-1)
        next_values = self._critic_pass.forward(self._target_layers, obs[-size:])
        next_value = sac.soft_value_of_choices(next_values, parameters[-size:], ent_coef)
        target = self._target_of(batch, next_value, -self.model.distribution.entropy(parameters), ent_coef)
        all_values = self._critic_pass.forward(self._critic.layers, obs[:size])
        values = all_values.gather(-1, choice).squeeze(-1)
        loss = sac.critic_loss(values, target)
        gradient = torch.zeros_like(all_values).scatter_(-1, choice, loss.gradient.unsqueeze(-1))
        critic_figures = self._train_critic(loss, gradient, values)
        if not trains_actor:
            return critic_figures, None
        log_probs = parameters[:size]
        loss = sac.choices_actor_loss(log_probs, self._critic_pass.forward(self._critic.layers, obs[:size]), ent_coef)
        entropy = self.model.distribution.entropy(log_probs).mean()
        outputs_gradient = self.model.outputs_gradient(log_probs, loss.gradient).unsqueeze(0)
        self._actor_pass.backward(self._actor.layers, outputs_gradient, self._actor.gradients)
        return critic_figures, self._step_actor(loss.value, entropy, ent_coef, None)

    def _target_of(self, batch: Transitions, next_value: Tensor, log_prob: Tensor, ent_coef: Tensor) -> Tensor:
        """The critics' targets; `log_prob` is of actions at the observations between and the next ones."""
        return sac.soft_target(self._reward_of(batch, log_prob, ent_coef), batch.discount, next_value)

    def _reward_of(self, batch: Transitions, log_prob: Tensor, ent_coef: Tensor) -> Tensor:
        """The rewards `[B]` of the steps, with the entropy terms between them."""
        size, num_between = batch.between_discount.shape
        reward = batch.reward
        if num_between > 0:
            between = log_prob[-(num_between + 1) * size : -size].view(num_between, size).t()
            reward = reward + sac.entropy_bonus(between, batch.between_discount, ent_coef)
        return reward

    def _train_critic(self, loss: sac.Loss, gradient: Tensor, values: Tensor) -> Tensor:
        """Steps the critics down `gradient` of their outputs, and moves the target critics; returns figures."""
        self._critic_pass.backward(self._critic.layers, gradient, self._critic.gradients)
        figures = self._critic.step(self._rate, torch.stack((loss.value, values.mean(), self._inputs.sum())))
        assert self._target is not None
        self._storage.polyak_update(self._target, self._critic.flat.data, self._config.tau)
        if self._target_weights is not None:
            self._target_weights.refresh()
        return figures

    def _step_actor(self, loss: Tensor, entropy: Tensor, ent_coef: Tensor, obs: Inputs | None) -> Tensor:
        """Takes a step of the policy down its gradient, and of the entropy coefficient; returns figures."""
        target: Tensor | float | None = self._target_entropy
        if target is None:
            assert obs is not None
            target = -float(self._parts.num_continuous) + 0.5 * self._max_entropy_of_choices(obs)
        adapting = sac.ent_coef_loss(self._log_ent_coef[0], entropy, target)
        self._ent_coef_gradient.copy_(adapting.gradient)
        return self._actor.step(self._rate, torch.stack((loss, ent_coef, adapting.value, entropy)))

    def _max_entropy_of_choices(self, obs: Inputs) -> Tensor:
        """The largest possible entropy of choices that masks allow, as a mean over observations."""
        allowed = obs.floats[:, self.model.layout.num_features :] != 0
        counts = torch.stack([part.sum(1) for part in torch.split(allowed, self._parts.sizes, dim=1)], 1)
        sizes = torch.tensor(self._parts.sizes, device=counts.device)
        return torch.where(counts > 0, counts, sizes).log().sum(1).mean()  # a mask that forbids all is ignored

    def _metrics(self, figures_of_updates: Sequence[Figures], last_batch: Transitions) -> SacMetrics | None:
        """Means over the steps that were taken, in one transfer to the host."""
        of_critics, of_actor = (
            [figures for figures in part if figures is not None] for part in zip(*figures_of_updates, strict=True)
        )
        critic = torch.stack(of_critics)
        actor = torch.stack(of_actor) if of_actor else critic.new_empty((0, len(_ACTOR_FIGURES)))
        means, flags = [], []
        for rows, otherwise in ((actor, self._last_actor_figures), (critic, torch.zeros_like(critic[0]))):
            was_taken = torch.isfinite(rows).all(1)
            mean = torch.where(was_taken.unsqueeze(1), rows, 0.0).sum(0) / was_taken.sum()
            means.append(torch.where(was_taken.any(), mean, otherwise))
            flags.append(was_taken.to(rows))
        self._last_actor_figures.copy_(means[0])
        figures = torch.cat((*means, *reversed(flags))).tolist()
        were_taken = [flag == 1.0 for flag in figures[len(_ACTOR_FIGURES) + len(_CRITIC_FIGURES) :]]
        for skipped, names, of_part, taken in (
            (self._skipped_critic, _CRITIC_FIGURES, critic, were_taken[: len(critic)]),
            (self._skipped_actor, _ACTOR_FIGURES, actor, were_taken[len(critic) :]),
        ):
            if skipped.note(taken):
                named = last_batch._asdict()
                named |= {"policy's weights": self._actor.flat.data, "critics' weights": self._critic.flat.data}
                raise skipped.diagnosis(dict(zip(names, of_part[-1].tolist(), strict=True)), named)
        self.skipped_steps = self._skipped_critic.total + self._skipped_actor.total
        if not any(were_taken[: len(critic)]):
            return None
        named = dict(zip((*_ACTOR_FIGURES, *_CRITIC_FIGURES), figures, strict=False))  # the rest are flags
        del named["sum of inputs"]
        if self._config.ent_coef != "auto":
            named["ent_coef_loss"] = 0.0
        return SacMetrics(**named, learning_rate=self._learning_rate.value)


def _perceptron(network: nn.Module) -> StackedMlp | None:
    return network if isinstance(network, StackedMlp) else None


def _expected(log_probs: Tensor, values: Tensor) -> Tensor:
    """Sum over groups `[B]` of the expectation of `values: [B, N]`."""
    return (log_probs.exp() * values).sum(-1)
