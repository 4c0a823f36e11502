"""Settings: TD3."""

from __future__ import annotations

from asyncrl.config.sections.section import Section, section
from asyncrl.config.value_types import NonNegativeFloat

_replay = section("replay", algo=("td3",))


class Td3Settings(Section):
    """TD3."""

    exploration_stddev: NonNegativeFloat = _replay(
        0.1, "TD3: standard deviation of noise in rollouts, of actions in [-1, 1]"
    )
    exploration_stddev_max: NonNegativeFloat | None = _replay(
        None,
        "TD3: environments have standard deviations evenly spaced from exploration_stddev to this; none is one for all",
    )
    target_policy_noise: NonNegativeFloat = _replay(
        0.2, "TD3: standard deviation of the noise on the target policy's actions in [-1, 1]"
    )
    target_noise_clip: NonNegativeFloat = _replay(0.5, "TD3: largest noise on an action of the target policy")
