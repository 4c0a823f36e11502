"""Settings: SAC."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from asyncrl.config.sections.section import Section, section
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
        "ent_coef=auto: entropy coefficient at the start; auto is 1, or 0.01 where critics predict returns of a "
        "limited range, which returns of so much entropy would leave",
        ent_coef=("auto",),
    )
    num_critics: Annotated[int, Field(ge=2)] = _replay(
        2,
        "SAC: critics. Of more than two, each target is the smaller value of two that are drawn, and the policy is "
        "trained with the mean of all (REDQ, whose paper has 10 critics and 20 updates for each environment step)",
        fixed="networks",
    )
