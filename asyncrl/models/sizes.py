"""Sizes of a model's tensors: the arena is allocated before any process starts.

Networks of perceptrons are counted without torch. Others are built on the meta device, which imports torch.
"""

from __future__ import annotations

from asyncrl.buffers.layout import SharedSizes
from asyncrl.config.critic_kinds import PLAIN, critic_kind
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec, ObservationPart, image_size

_SMALLEST_FOR_NATURE = 36


def conv_architecture(part: ObservationPart, config: TrainConfig) -> str:
    """The convolutions over an image: `nature` or `impala`."""
    if config.encoder_conv_architecture != "auto":
        return config.encoder_conv_architecture
    return "nature" if min(image_size(part.shape, part.channels)) >= _SMALLEST_FOR_NATURE else "impala"


def num_statistics(spec: EnvSpec, config: TrainConfig) -> int:
    """Elements of the published statistics: two for each number of an observation, and two for returns."""
    return 2 * spec.observation_size + (0 if config.is_off_policy else 2)


def num_model_parameters(spec: EnvSpec, config: TrainConfig) -> int:
    """Parameters N of the model that acts (`asyncrl.models.factory.make_acting_model`)."""
    if not _is_one_perceptron(spec, config):
        return _count_parameters(spec, config)[0]
    widths = [spec.observation.num_features, *config.encoder_mlp_layers]
    num_encoder = sum((num_in + 1) * num_out for num_in, num_out in zip(widths[:-1], widths[1:], strict=True))
    if config.is_off_policy:
        return num_encoder + (widths[-1] + 1) * spec.action.num_parameters
    num_encoders = 1 if config.actor_critic_share_weights else 2
    num_free = 0 if config.adaptive_stddev else spec.action.num_stddevs
    num_outputs = spec.action.num_parameters - num_free + 1
    return num_encoders * num_encoder + (widths[-1] + 1) * num_outputs + num_free


def _is_one_perceptron(spec: EnvSpec, config: TrainConfig) -> bool:
    """Whether the networks are one perceptron over all numbers, and heads."""
    observation = spec.observation
    if config.algorithm.make_model is not None or critic_kind(config) != PLAIN or config.critic_only_keys:
        return False
    if config.encoder != "default" or config.model != "default" or config.model_classes:
        return False
    if config.use_rnn or observation.has_images:
        return False
    return not config.is_off_policy or observation.num_mask == 0  # with a mask, SAC has an encoder and a head


def _count_parameters(spec: EnvSpec, config: TrainConfig) -> tuple[int, int]:
    """Parameters of the model that acts, and of SAC's critics."""
    import torch

    from asyncrl.models.factory import make_acting_model
    from asyncrl.models.sac import SacActor
    from asyncrl.processes.own_settings import own_settings

    with own_settings(), torch.device("meta"):
        model = make_acting_model(spec, config)
        critics = model.make_critic(spec, config).parameters() if isinstance(model, SacActor) else ()
        return sum(each.numel() for each in model.parameters()), sum(each.numel() for each in critics)


def trained_sizes(spec: EnvSpec, config: TrainConfig) -> dict[str, int]:
    """Elements of each tensor that a learner trains, by its name in `asyncrl.learner.optimizer`."""
    if not config.is_off_policy:
        return {"model": num_model_parameters(spec, config)}
    num_actor, num_critics = _count_parameters(spec, config)
    return {"actor": num_actor, "critic": num_critics, "target_critic": num_critics, "log_ent_coef": 1}


def shared_sizes(spec: EnvSpec, config: TrainConfig) -> SharedSizes:
    """Sizes of the tensors that Hogwild workers share: trained tensors, and vectors of running moments."""
    moments = {"obs": spec.observation_size}
    if not config.is_off_policy:
        moments["return"] = 1
    return SharedSizes(trained_sizes(spec, config), moments)


def weights_block_size(spec: EnvSpec, config: TrainConfig) -> int:
    """Elements of one published block, as `asyncrl.models.flat.block_size` counts them."""
    return num_model_parameters(spec, config) + num_statistics(spec, config)
