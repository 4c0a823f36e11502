"""Settings: the networks."""

from __future__ import annotations

from typing import Literal

from asyncrl.config.sections.section import ON_TRAJECTORIES, OWN_MODELS, Section, section
from asyncrl.config.value_types import AutoPositiveInt, ImageChannels, PositiveFloat, PositiveInt

_model = section("model")


class ModelSettings(Section):
    """The networks."""

    encoder: str = _model("default", "name of a registered encoder", fixed="run")
    core: str = _model("default", "with use_rnn: name of a registered recurrent core", use_rnn=(True,), fixed="run")
    model: str = _model("default", "name of a registered model of actor and critic", algo=OWN_MODELS, fixed="run")
    critic_only_keys: list[str] = _model(
        [],
        "keys of Dict observations that only the critic sees (outer/inner for nested ones): the actor, exported files "
        "and load_policy do without them",
        fixed="networks",
    )
    image_keys: list[str] = _model(
        [],
        "keys of observed arrays that are images (outer/inner for nested ones; the name that validate shows). Of the "
        "others those are images that are uint8 and 8 x 8 or larger",
        fixed="run",
    )
    image_channels: ImageChannels = _model(
        "auto",
        "position of the channels in observed arrays of three or four axes: before height and width (first) or after "
        "them (last). auto takes two neighbouring axes of equal size as height and width, otherwise the smaller of the "
        "first and the last axis as channels",
    )
    encoder_conv_architecture: Literal["auto", "nature", "impala"] = _model(
        "auto",
        "convolutions over images; auto is nature for images of at least 36 x 36 pixels, otherwise impala",
        fixed="networks",
    )
    normalize_images: bool = _model(
        False,
        "subtract from each image its own mean, and divide it by its own standard deviation, before the convolutions",
        fixed="run",
    )
    encoder_conv_mlp_layers: list[PositiveInt] = _model(
        [512], "widths of the hidden layers after the convolutions", fixed="networks"
    )
    use_rnn: bool = _model(False, "make the policy recurrent: a recurrent core follows the encoder", fixed="networks")
    rnn_type: Literal["gru", "lstm"] = _model("gru", "kind of recurrent core", use_rnn=(True,), fixed="networks")
    rnn_size: PositiveInt = _model(128, "size of the recurrent state, in each layer", use_rnn=(True,), fixed="networks")
    rnn_num_layers: PositiveInt = _model(1, "layers of the recurrent core", use_rnn=(True,), fixed="networks")
    recurrence: AutoPositiveInt = _model(
        "auto", "steps of backpropagation; auto is rollout, or 16 with a replay", use_rnn=(True,)
    )
    encoder_mlp_layers: list[PositiveInt] = _model([64, 64], "widths of the hidden layers", fixed="networks")
    nonlinearity: Literal["tanh", "relu", "elu"] = _model("tanh", "activation function", fixed="run")
    actor_critic_share_weights: bool = _model(
        False, "one network with two heads for actor and critic", algo=ON_TRAJECTORIES, fixed="networks"
    )
    policy_initialization: Literal["orthogonal", "torch_default"] = _model("orthogonal", "initial weights")
    adaptive_stddev: bool = _model(
        False,
        "continuous actions: the standard deviation depends on the observation",
        algo=ON_TRAJECTORIES,
        fixed="networks",
    )
    initial_stddev: PositiveFloat = _model(
        0.6, "continuous actions: standard deviation at the start, in the unit of action_unit", algo=OWN_MODELS
    )
    action_unit: Literal["bounds", "raw"] = _model(
        "bounds",
        "continuous actions: the policy's -1 and 1 are the environment's bounds in each dimension where both bounds "
        "are finite (bounds), or the environment gets the policy's numbers unchanged (raw)",
        algo=ON_TRAJECTORIES,
        squash_actions=(False,),
        fixed="run",
    )
    squash_actions: bool = _model(
        False,
        "continuous actions: squash with tanh to the bounds, which must be finite",
        algo=ON_TRAJECTORIES,
        fixed="run",
    )
