"""Settings: state-dependent exploration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from asyncrl.config.sections.section import OWN_MODELS, Section, section

_model = section("model")
_MODELS = "asyncrl.contrib.state_dependent_exploration.models"


class StateDependentSettings(Section):
    """State-dependent exploration."""

    use_sde: bool = _model(
        False,
        "continuous actions: the exploration noise is a function of the observation (gSDE)",
        algo=OWN_MODELS,
        fixed="networks",
    )
    sde_sample_freq: Annotated[int, Field(ge=-1)] = _model(
        -1, "steps between new noise of gSDE; -1 is for an episode", use_sde=(True,)
    )

    @property
    def model_classes(self) -> Mapping[str, str]:
        """Models whose `log_std` belongs to matrices of noise."""
        if not self.use_sde:
            return super().model_classes
        return {
            "ActorCritic": f"{_MODELS}:StateDependentActorCritic",
            "SacActor": f"{_MODELS}:StateDependentSacActor",
        }
