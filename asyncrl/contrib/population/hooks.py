"""Connects population-based training with the core."""

from __future__ import annotations

_CHECKS = "asyncrl.contrib.population.checks"

SETTINGS = {"population": ("asyncrl.contrib.population.settings:PopulationSettings", "")}
RULES = {"population": f"{_CHECKS}:find_problems"}
WARNINGS = {"population": f"{_CHECKS}:find_warnings"}
SPEC_RULES = {"population": f"{_CHECKS}:find_spec_problems"}
MISLEADING = {"population": f"{_CHECKS}:warn_about_shaped_returns"}
OBSERVERS = {"population": "asyncrl.contrib.population.training:population_observer"}
PLOTS = {"population": "asyncrl.contrib.population.history:PLOT"}
