"""Setting: goals for hindsight experience replay."""

from __future__ import annotations

from asyncrl.config.sections.section import OFF_POLICY, Section, section
from asyncrl.config.value_types import NonNegativeInt

_replay = section("replay")


class HindsightSettings(Section):
    """Hindsight experience replay."""

    her_goals: NonNegativeInt = _replay(
        0,
        "environments with goals (GoalEnv of Gymnasium-Robotics): other goals that are stored with each step, which "
        "the same episode achieved later; a transition is drawn with its own goal or with one of these, all equally "
        "likely (hindsight experience replay; its paper has 4)",
        algo=OFF_POLICY,
    )
