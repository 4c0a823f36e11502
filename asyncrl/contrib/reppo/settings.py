"""Settings: REPPO."""

from __future__ import annotations

from asyncrl.config.sections.section import Section, section
from asyncrl.config.value_types import PositiveFloat

_learning = section("learning", algo=("reppo",))


class ReppoSettings(Section):
    """What only REPPO has."""

    reppo_kl_bound: PositiveFloat = _learning(
        0.1,
        "largest KL divergence of the policy from the one before the update; where a sample exceeds it, the policy is "
        "pulled back and not improved",
    )
    reppo_target_entropy: float = _learning(
        -0.5, "entropy that the policy keeps, in nats for each dimension of the action"
    )
    reppo_initial_coeff: PositiveFloat = _learning(
        0.03, "coefficients of entropy and KL divergence at the start; both adapt"
    )
