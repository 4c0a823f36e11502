"""Training by REPPO on one dataset of trajectories at a time.

    returns   by TD(lambda) from the critic's values, with the entropy of the policy as a reward       (`_prepare`)
    step      critic towards the returns; policy up the critic's values by the gradient of its actions, or back towards
              the policy before the update where it is too far from that; coefficients of entropy and divergence

Unlike SAC it has no replay: each dataset is made by the policy that it trains. Passes, versions, statistics and
checkpoints are those of `OnPolicyLearner`. The value head of the acting model is not trained, and its values are not
read.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from asyncrl.algorithms.losses import Samples, gae
from asyncrl.buffers.pinning import to_device
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.reppo.critic import ActionValues
from asyncrl.contrib.reppo.settings import ReppoSettings
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner, Update
from asyncrl.learner.optimizer import FlatAdam, ParameterStore, clip_gradient
from asyncrl.learner.trained_network import TrainedNetwork
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.encoders import Inputs, split_tensor

RETURN_SIZE = 4.0
"""Root mean square of normalized returns, for which the initial coefficients are meant."""

_LOG_COEFF_RANGE = (-12.0, 8.0)
_IMAGES_AT_ONCE = 256  # in a pass without gradients
_LONGEST_HORIZON = 1e4  # steps


class Coefficients:
    """The weights of entropy and KL divergence in the policy's loss, which follow their targets.

    Attributes:
        logs: [2], logarithms of both.
    """

    def __init__(self, config: TrainConfig, storage: ParameterStore, device: torch.device) -> None:
        initial = torch.full((2,), math.log(ReppoSettings.of(config).reppo_initial_coeff), device=device)
        self.logs = storage.allocate("coefficients", initial)
        self._gradient = torch.zeros_like(initial)
        self.optimizer = storage.optimizer(["coefficients"], [self.logs], [self._gradient], config)

    def values(self) -> tuple[Tensor, Tensor]:
        """Scalars: the coefficient of the entropy, and that of the divergence."""
        entropy_coeff, kl_coeff = self.logs.exp().unbind()
        return entropy_coeff, kl_coeff

    def adapt(self, entropy_excess: Tensor, kl_excess: Tensor, rate: Tensor, found_inf: Tensor) -> None:
        """Takes one step: too much entropy lowers its coefficient, too much divergence raises the other.

        Args:
            entropy_excess: mean entropy minus its target.
            kl_excess: mean divergence minus its bound.
            rate: learning rate.
            found_inf: 1 skips the step.
        """
        entropy_coeff, kl_coeff = self.values()
        torch.stack((entropy_coeff * entropy_excess, -kl_coeff * kl_excess), out=self._gradient)
        self.optimizer.step(rate, found_inf)
        self.logs.clamp_(*_LOG_COEFF_RANGE)


class ReppoStep:
    """Takes one step of critic, policy and coefficients on a minibatch.

    Attributes:
        config: the settings.
    """

    def __init__(
        self,
        model: ActorCritic,
        gradient: Tensor,
        optimizer: FlatAdam,
        critic: TrainedNetwork,
        values: ActionValues,
        coefficients: Coefficients,
        rate: Tensor,
        generator: torch.Generator,
        config: TrainConfig,
    ) -> None:
        """The model's gradients are views of `gradient: [N]`; `critic` trains `values` at `rate`, a scalar."""
        self._model, self._gradient, self._optimizer = model, gradient, optimizer
        self._critic, self._values, self._coefficients = critic, values, coefficients
        self._rate, self._generator = rate, generator
        self._trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.config = config

    def __call__(self, batch: Samples, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Returns the `STEP_METRICS` [7] of the step, and log-ratios; a step that is not finite is skipped."""
        self._rate.fill_(learning_rate)
        logits = self._values.logits(batch.inputs, batch.action.tanh())
        critic_loss = -(self._values.target(batch.normalized_return) * log_softmax(logits, -1)).sum(-1).mean()
        critic_figures = self._critic.minimize(critic_loss)
        return self._step_policy(batch, *critic_figures.unbind())

    def _step_policy(self, batch: Samples, critic_loss: Tensor, critic_norm: Tensor) -> tuple[Tensor, Tensor]:
        settings = ReppoSettings.of(self.config)
        model, distribution = self._model, self._model.distribution
        parameters, _ = model.forward(*batch.inputs)
        drawn = draw(parameters, self._generator)
        value = self._values.mean(self._values.logits(batch.inputs, drawn.tanh()))
        log_prob = distribution.log_prob(parameters, drawn)
        kl = distribution.kl(batch.action_parameters, parameters)
        entropy_coeff, kl_coeff = self._coefficients.values()
        is_near = kl.detach() < settings.reppo_kl_bound
        parts = torch.stack(
            (
                torch.where(is_near, -value, 0.0).mean(),
                torch.where(is_near, entropy_coeff * log_prob, 0.0).mean(),
                torch.where(is_near, 0.0, kl_coeff * kl).mean(),
            )
        )
        self._gradient.zero_()
        parts.sum().backward(inputs=self._trainable)  # type: ignore[no-untyped-call]
        norm = torch.hypot(clip_gradient(self._gradient, self.config.max_grad_norm), critic_norm)
        policy_loss, entropy_loss, kl_loss = parts.detach().unbind()
        loss, mean_kl = policy_loss + entropy_loss + kl_loss + critic_loss, kl.detach().mean()
        found_inf = torch.isfinite(loss + norm).logical_not().float()
        self._optimizer.step(self._rate, found_inf)
        target_entropy = settings.reppo_target_entropy * distribution.num_actions
        excess = -log_prob.detach().mean() - target_entropy, mean_kl - settings.reppo_kl_bound
        self._coefficients.adapt(*excess, self._rate, found_inf)
        metrics = loss, policy_loss, critic_loss, entropy_loss, kl_loss, mean_kl, norm
        log_ratio = distribution.log_prob(parameters.detach(), batch.action) - batch.log_prob
        return torch.stack(metrics), log_ratio


class ReppoLearner(OnPolicyLearner):
    """Owns, beside what an `OnPolicyLearner` has, the critic and the coefficients."""

    def __init__(
        self, model: ActorCritic, config: TrainConfig, device: torch.device, storage: ParameterStore | None = None
    ) -> None:
        storage = storage or ParameterStore()
        self._values = ActionValues(model.layout, model.distribution.num_actions, config).to(device)
        self._rate = torch.zeros((), device=device)
        optimized = "critic", self._values, None, ("critic_loss",), config, torch.float32, storage, self._rate
        self._critic, self._coefficients = TrainedNetwork(*optimized), Coefficients(config, storage, device)
        super().__init__(model, config, device, storage)

    def _choose_step(self) -> ReppoStep:  # type: ignore[override]
        policy, critic = (self.model, self._gradient, self._optimizer), (self._critic, self._values)
        return ReppoStep(*policy, *critic, self._coefficients, self._rate, self._generator, self._config)

    def set_hyperparameters(self, new_values: Hyperparameters) -> None:
        super().set_hyperparameters(new_values)
        self._critic.max_grad_norm = self._config.max_grad_norm

    @torch.no_grad()
    def _prepare(self, dataset: Dataset) -> Update:
        """Turns the valid rows of a dataset into samples, and updates the statistics with them."""
        statistics, model = self._statistics, self.model
        obs_statistics, valid = statistics.obs_statistics, dataset.valid_rows()
        raw = split_tensor(model.layout, dataset.obs[:-1].flatten(0, 1)).at(valid)
        versions, present = dataset.policy_version.flatten().index_select(0, valid), dataset.versions_in(valid)
        inputs = raw._replace(floats=statistics.normalize(raw.floats.clone(), present, versions))
        action = dataset.action.flatten(0, 1).index_select(0, valid)
        action_parameters = dataset.action_parameters.flatten(0, 1).index_select(0, valid)
        log_prob = dataset.log_prob.flatten().index_select(0, valid)
        if any(version < self.policy_version for version in present):
            action_parameters = self._outputs.dataset(inputs, None, None, in_float32=True).action_parameters
            log_prob = model.distribution.log_prob(action_parameters, action)
        self._update_statistics(raw.floats, self._sizes(dataset).flatten().index_select(0, valid))
        scale = self._return_scale()
        values = self._mean_values(inputs, action)
        raw_returns = self._returns(dataset, obs_statistics).flatten().index_select(0, valid)
        samples = Samples(
            floats=inputs.floats,
            pixels=inputs.pixels,
            action=action,
            action_parameters=action_parameters,
            log_prob=log_prob,
            advantage=torch.zeros_like(log_prob),
            normalized_return=raw_returns / scale,
            normalized_value=values,
        )
        return Update(dataset, samples, valid, valid, values * scale, raw_returns, None, obs_statistics, self._config)

    def _returns(self, dataset: Dataset, obs_statistics: Tensor) -> Tensor:
        """Returns `[T, C]` of the actions, in units of scaled rewards, with the entropy of later actions.

        The value of an observation is that of a new draw of the present policy; its log-probability is part of the
        reward before it.
        """
        config, shape = self._config, dataset.value.shape
        raw = split_tensor(self.model.layout, dataset.obs.flatten(0, 1))
        inputs = raw._replace(floats=self.model.normalize_obs(raw.floats, statistics=obs_statistics))
        parameters = self._outputs.dataset(inputs, None, None, in_float32=True).action_parameters
        drawn, scale = draw(parameters, self._generator), self._return_scale()
        values = (self._mean_values(inputs, drawn) * scale).view(shape)
        log_prob = self.model.distribution.log_prob(parameters, drawn).view(shape)
        entropy_coeff, _ = self._coefficients.values()
        bonus = torch.where(dataset.terminated, 0.0, -config.gamma * entropy_coeff * scale * log_prob[1:])
        ends = dataset.terminated, dataset.truncated, dataset.valid
        return gae(self._rewards(dataset) + bonus, values, *ends, config.gamma, config.gae_lambda).returns

    def _sizes(self, dataset: Dataset) -> Tensor:
        """Returns `[T, C]` of the rewards alone, whose mean square is the unit of normalized returns.

        What follows the last row is worth the mean reward over the horizon of discount and terminations. Neither values
        nor entropy are in them: both are in this unit, which would grow by itself.
        """
        reward, gamma = self._rewards(dataset), self._config.gamma
        rows = dataset.valid_rows()
        mean, ends = (field.flatten().index_select(0, rows).float().mean() for field in (reward, dataset.terminated))
        later = mean / (1.0 - gamma * (1.0 - ends)).clamp(min=1.0 / _LONGEST_HORIZON)
        values = later.expand_as(dataset.value)
        return gae(reward, values, dataset.terminated, dataset.truncated, dataset.valid, gamma, 1.0).returns

    def _mean_values(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Normalized values `[B]` of actions `[B, A]` before tanh: images, which fill much memory, part by part."""
        if inputs.pixels is None:
            return self._values.mean(self._values.logits(inputs, action.tanh()))
        numbers = torch.arange(len(action), device=action.device)
        parts = [(inputs.at(part), action[part].tanh()) for part in torch.split(numbers, _IMAGES_AT_ONCE)]
        return torch.cat([self._values.mean(self._values.logits(*part)) for part in parts])

    def _return_scale(self) -> Tensor:
        """[1] float32: what normalized returns are multiplied by."""
        moments = self._statistics.return_moments
        mean_square = moments.mean.square() + moments.variance
        return (mean_square.sqrt().clamp(min=torch.finfo(torch.float32).tiny) / RETURN_SIZE).float()

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        optimizer = self._coefficients.optimizer
        return {
            **super()._optimizer_tensors(),
            **{f"critic.{name}": tensor for name, tensor in self._critic.tensors().items()},
            "coefficients": self._coefficients.logs,
            "coefficients.exp_avg": optimizer.exp_avgs[0],
            "coefficients.exp_avg_sq": optimizer.exp_avg_sqs[0],
            "coefficients.step": optimizer.steps[0],
        }


def draw(parameters: Tensor, generator: torch.Generator) -> Tensor:
    """Actions `[B, A]` before tanh, of Gaussians with `parameters [B, 2A]`, whose gradient reaches the parameters."""
    mean, log_std = parameters.chunk(2, dim=-1)
    (noise,) = to_device([torch.randn(mean.shape, generator=generator)], mean.device)
    return torch.addcmul(mean, log_std.exp(), noise)
