"""How large a model's tensors will be: the arena is laid out and checked before any process starts.

Networks of perceptrons alone, which most are, are counted without torch. Others are built without memory, which needs
torch.
"""

from __future__ import annotations

from asyncrl.buffers.layout import SharedSizes
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import DiscreteAction, EnvSpec, num_deviations


def num_statistics(spec: EnvSpec, config: TrainConfig) -> int:
    """Elements of the statistics that travel with the weights: two for each observed number, and two for returns."""
    return 2 * spec.observation_size + (0 if config.is_off_policy else 2)


def num_model_parameters(spec: EnvSpec, config: TrainConfig) -> int:
    """N, parameters of the model that acts (`asyncrl.models.making.make_acting_model`)."""
    if not config.is_off_policy and not _is_one_perceptron(spec, config):
        return _count_parameters(spec, config)
    widths = [spec.observation_size, *config.encoder_mlp_layers]
    num_encoder = sum((num_in + 1) * num_out for num_in, num_out in zip(widths[:-1], widths[1:], strict=True))
    if config.is_off_policy:
        return num_encoder + (widths[-1] + 1) * spec.action.num_parameters
    num_encoders = 1 if config.actor_critic_share_weights else 2
    num_free = 0 if config.adaptive_stddev else num_deviations(spec.action)
    num_outputs = spec.action.num_parameters - num_free + 1
    return num_encoders * num_encoder + (widths[-1] + 1) * num_outputs + num_free


def _is_one_perceptron(spec: EnvSpec, config: TrainConfig) -> bool:
    is_default = config.encoder == config.model == "default" and not config.use_rnn
    return (
        is_default and len({part.path[:1] for part in spec.observation.parts}) == 1 and not spec.observation.has_images
    )


def _count_parameters(spec: EnvSpec, config: TrainConfig) -> int:
    import torch

    from asyncrl.models.making import make_actor_critic

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make_actor_critic(spec, config).parameters())


def trained_sizes(spec: EnvSpec, config: TrainConfig) -> dict[str, int]:
    """Elements of each tensor that a learner trains, by its name in `asyncrl.learner.storage`."""
    if not config.is_off_policy:
        return {"model": num_model_parameters(spec, config)}
    is_discrete = isinstance(spec.action, DiscreteAction)
    num_inputs = spec.observation_size + num_deviations(spec.action)
    num_outputs = spec.action.num_parameters if is_discrete else 1
    widths = [num_inputs, *config.encoder_mlp_layers, num_outputs]
    num_critic = sum((num_in + 1) * num_out for num_in, num_out in zip(widths[:-1], widths[1:], strict=True))
    if config.critic_layer_norm:
        num_critic += 2 * sum(config.encoder_mlp_layers)
    return {
        "actor": num_model_parameters(spec, config),
        "critic": 2 * num_critic,
        "target_critic": 2 * num_critic,
        "log_ent_coef": 1,
    }


def shared_sizes(spec: EnvSpec, config: TrainConfig) -> SharedSizes:
    """What Hogwild workers have in common: trained tensors, and vectors of running moments."""
    moments = {"obs": spec.observation_size}
    if not config.is_off_policy:
        moments["return"] = 1
    return SharedSizes(trained_sizes(spec, config), moments)


def weights_block_size(spec: EnvSpec, config: TrainConfig) -> int:
    """Elements of one published block, as `asyncrl.models.flat.block_size` counts them."""
    return num_model_parameters(spec, config) + num_statistics(spec, config)
