"""Settings: SAC."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.config.sections.section import IS_SET, Section, section
from asyncrl.config.value_types import Auto, PositiveFloat

_replay = section("replay", algo=("sac",))


class SacSettings(Section):
    """SAC."""

    ent_coef: PositiveFloat | Auto = _replay("auto", "entropy coefficient; auto adapts it to reach target_entropy")
    target_entropy: Annotated[float, Field(allow_inf_nan=False)] | Auto = _replay(
        "auto",
        "target entropy of ent_coef=auto in nats, of actions in [-1, 1]; auto is target_entropy_per_dim for each "
        "continuous dimension, plus half of the largest possible entropy of choices, of those that a mask allows",
        ent_coef=("auto",),
    )
    target_entropy_per_dim: Annotated[float, Field(allow_inf_nan=False)] = _replay(
        -1.0,
        "with target_entropy=auto: nats for each continuous dimension",
        ent_coef=("auto",),
        target_entropy=("auto",),
    )
    initial_ent_coef: PositiveFloat | Auto = _replay(
        "auto",
        "ent_coef=auto: entropy coefficient at the start; auto is 1, or 0.01 with value_bins, whose range returns of "
        "so much entropy would leave",
        ent_coef=("auto",),
    )
    critic: Literal["mlp", "simba", "simba_v2", "crossq"] = _replay(
        "mlp",
        "SAC: a named set of values for the settings from critic_mlp_layers to use_target_critics and for those of "
        "learning that its paper changes, each of which may also be given alone; docs/algorithms.md has the table",
        fixed="networks",
    )
    num_critics: Annotated[int, Field(ge=2)] = _replay(
        2,
        "SAC: critics. Of more than two, each target is the smaller value of two that are drawn, and the policy is "
        "trained with the mean of all (REDQ, whose paper has 10 critics and 20 updates for each environment step)",
        fixed="networks",
    )
    residual_blocks: bool = _replay(
        False,
        "SAC: hidden layers of actor and critics are residual blocks that begin with layer normalization, all of one "
        "width (SimBa)",
        fixed="networks",
    )
    hyperspherical_weights: bool = _replay(
        False,
        "SAC: weights and features of actor and critics have length 1, with learned scales (SimbaV2)",
        fixed="networks",
    )
    batch_renorm: bool = _replay(
        False,
        "SAC: batch renormalization of the inputs and hidden layers of actor and critics (CrossQ)",
        fixed="networks",
    )
    value_bins: Annotated[int, Field(ge=2)] | None = _replay(
        None,
        "SAC: the critics predict a distribution over returns as this many bins (C51); none means its mean alone",
        fixed="networks",
    )
    value_limit: PositiveFloat = _replay(
        5.0,
        "value_bins: bins are at equal distances from minus to plus this return",
        value_bins=IS_SET,
        fixed="networks",
    )
    use_target_critics: bool = _replay(
        True,
        "SAC: targets are values of target critics; without them they are values of the critics, which take current "
        "and next observations as one batch",
        fixed="networks",
    )
