"""Advantages and returns of a dataset, and the policy that the trained one is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algorithms.losses import Samples, VtraceResult, behaviour_weights, gae, vtrace
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.autograd_step import ModelOutputs
from asyncrl.learner.dataset import Dataset
from asyncrl.models.encoders import Inputs, split_tensor


def estimate(dataset: Dataset, values: Tensor, log_ratios: Tensor | None, config: TrainConfig) -> VtraceResult:
    """Advantages and returns by GAE, or by V-trace where there are log-ratios; in units of scaled rewards.

    Args:
        dataset: rewards as the environment gave them, and ends of episodes.
        values: [T+1, C] float32, in units of scaled rewards.
        log_ratios: [T, C] float32, log-probability of each action before training minus that when it was chosen.
        config: discount, lambda, scale of rewards, and bounds of V-trace's weights.
    """
    reward = dataset.reward * config.reward_scale
    if config.reward_clip is not None:
        reward.clamp_(-config.reward_clip, config.reward_clip)
    rest = (reward, values, dataset.terminated, dataset.truncated, dataset.valid, config.gamma, config.gae_lambda)
    if log_ratios is None:
        return VtraceResult(*gae(*rest, idle=dataset.idle), None)
    return vtrace(log_ratios, *rest, max_rho=config.vtrace_rho, max_c=config.vtrace_c, idle=dataset.idle)


@torch.no_grad()
def log_ratios_of(
    dataset: Dataset, rows: Tensor, inputs: Inputs, action: Tensor, parameters: Tensor | None, outputs: ModelOutputs
) -> Tensor:
    """Log-probabilities of actions now minus those when they were chosen `[T, C]`, 0 in other rows.

    Args:
        dataset: the dataset.
        rows: [N] indices of the rows that `inputs` and `action` belong to.
        inputs: normalized observations.
        action: [N, ...].
        parameters: [N, P], of the policy's distributions now, if they are known.
        outputs: runs the model.
    """
    if parameters is None:
        parameters, _ = outputs.dataset(inputs, dataset.rnn_state[0], dataset.begins[:-1], in_float32=True)
    log_prob = outputs.model.distribution.log_prob(parameters, action)
    log_ratios = torch.zeros_like(dataset.log_prob)
    log_ratios.view(-1)[rows] = log_prob - dataset.log_prob.flatten().index_select(0, rows)
    return log_ratios


@torch.no_grad()
def present_outputs(
    dataset: Dataset, obs_statistics: Tensor, outputs: ModelOutputs, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """The model on all observations: parameters `[(T+1) * C, P]`, and values `[T+1, C]` in units of rewards.

    Args:
        dataset: raw observations.
        obs_statistics: [2F] float32 to normalize them with.
        outputs: runs the model.
        config: V-trace compares with the policy that acted, in float32; the decoupled objective with what training
            computes.
    """
    model = outputs.model
    raw = split_tensor(model.layout, dataset.obs.flatten(0, 1))
    inputs = raw._replace(floats=model.normalize_obs(raw.floats, statistics=obs_statistics))
    parameters, value = outputs.dataset(inputs, dataset.rnn_state[0], dataset.begins, in_float32=config.with_vtrace)
    return parameters, model.denormalize_value(value).view(dataset.value.shape)


def are_training_outputs(outputs: ModelOutputs, config: TrainConfig) -> bool:
    """Whether `present_outputs` are what training computes for each sample.

    That is not so if each sample's numbers are normalized with the statistics of its behaviour policy, if sequences
    begin with stored states, or if V-trace needs float32 and training does not.
    """
    model = outputs.model
    is_rounded = config.with_vtrace and config.precision == "bf16"
    has_numbers = model.normalizes_obs and any(model.layout.normalized)
    return not has_numbers and not outputs.recurrence and not is_rounded


@torch.no_grad()
def decoupled(samples: Samples, parameters: Tensor | None, outputs: ModelOutputs, config: TrainConfig) -> Samples:
    """Samples that compare with the policy before training, weighted by its difference to the behaviour policy.

    The policy is evaluated as in training: with inputs normalized by the statistics of each sample's behaviour,
    and from the stored recurrent states. So the first ratio is 1. If no older policy chose any of the actions, the
    stored log-probabilities are those of this policy, and this is not called.

    Args:
        samples: all samples of a dataset.
        parameters: [N, P], of the policy's distributions, if they are known.
        outputs: runs the model.
        config: the cap of the weights.
    """
    rows, recurrence = samples, outputs.recurrence
    if recurrence:
        (parameters, _), rows = outputs.samples(samples)
    elif parameters is None:
        parameters, _ = outputs.dataset(samples.inputs, None, None)
    log_prob = outputs.model.distribution.log_prob(parameters, rows.action)
    weight = behaviour_weights(log_prob - rows.log_prob, config.behaviour_weight_cap)
    fields = {"action_parameters": parameters, "log_prob": log_prob, "weight": weight}
    if recurrence:
        fields = {name: torch.unflatten(field, 0, (recurrence, -1)).transpose(0, 1) for name, field in fields.items()}
    return samples._replace(**fields)


def in_sequences(fields: dict[str, Tensor], recurrence: int, num_columns: int) -> dict[str, Tensor]:
    """Cuts fields of all rows of a dataset into sequences `[N, L, ...]`, for a recurrent policy."""
    shape = (-1, recurrence, num_columns)
    return {name: torch.unflatten(field, 0, shape).transpose(1, 2).flatten(0, 1) for name, field in fields.items()}
