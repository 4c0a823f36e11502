"""Settings: several policies."""

from __future__ import annotations

from typing import Any

from asyncrl.config.sections.section import Section, section
from asyncrl.config.value_types import NonNegativeInt, PositiveInt

_policies = section("policies")


class PolicySettings(Section):
    """Several policies."""

    num_policies: PositiveInt = _policies(
        1, "policies that are trained at the same time, each by its own learner", fixed="run"
    )
    policy_mapping: str = _policies(
        "auto",
        "the policy that plays an agent for an episode: always the first (shared); policy i for agent i (independent); "
        "one drawn for each agent and episode, of all (random) or of those with the agent's spaces (by_space, auto); "
        "or MODULE:function of the agent's name, the environment's number and the episode's",
    )
    policies: dict[NonNegativeInt, dict[str, Any]] = _policies(
        {},
        "learning and model settings of single policies that differ from the others', by the policy's number; as flags "
        "--policy.1.learning_rate=0.001",
    )
