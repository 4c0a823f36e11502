"""Connects state-dependent exploration with the core."""

from __future__ import annotations

_FOLDER = "asyncrl.contrib.state_dependent_exploration"

RULES = {"state_dependent_exploration": f"{_FOLDER}.rules:settings_problems"}
SETTINGS = {"state_dependent_exploration": (f"{_FOLDER}.settings:StateDependentSettings", "")}
SPEC_RULES = {"state_dependent_exploration": f"{_FOLDER}.rules:spec_problems"}
