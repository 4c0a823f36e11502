"""Settings: networks and critics of SAC from papers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.config.sections.section import IS_SET, Section, section
from asyncrl.config.value_types import PositiveFloat

_replay = section("replay", algo=("sac",))


class CriticSettings(Section):
    """Networks and critics of SimBa, SimbaV2 and CrossQ."""

    critic: Literal["mlp", "simba", "simba_v2", "crossq"] = _replay(
        "mlp",
        "SAC: a named set of values for critic_mlp_layers, for the settings from residual_blocks to use_target_critics "
        "and for those of learning that its paper changes, each of which may also be given alone; docs/algorithms.md "
        "has the table",
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

    @property
    def has_blocks(self) -> bool:
        """Whether the networks have other hidden layers than those of a perceptron."""
        return self.residual_blocks or self.hyperspherical_weights or self.batch_renorm
