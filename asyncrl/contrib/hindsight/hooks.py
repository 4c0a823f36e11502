"""Connects hindsight experience replay with the core."""

from __future__ import annotations

OTHER_NAMES = {"n_sampled_goal": ("Stable-Baselines3", "her_goals", "the strategy is future")}
REPLAYS = {"hindsight": "asyncrl.contrib.hindsight.kind:choose"}
RULES = {"hindsight": "asyncrl.contrib.hindsight.checks:find_problems"}
SETTINGS = {"hindsight": ("asyncrl.contrib.hindsight.settings:HindsightSettings", "")}
