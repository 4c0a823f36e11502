"""Connects the networks and critics of SimBa, SimbaV2 and CrossQ with SAC."""

from __future__ import annotations

CRITICS = {"critics": "asyncrl.contrib.critics.kind:choose"}
NEEDS = {
    "tau": {"use_target_critics": (True,)},
    "critic_layer_norm": {
        "residual_blocks": (False,),
        "hyperspherical_weights": (False,),
        "batch_renorm": (False,),
    },
}
RULES = {"critics": "asyncrl.contrib.critics.checks:find_problems"}
SETTINGS = {"critics": ("asyncrl.contrib.critics.settings:CriticSettings", "")}
VALUE_SETS = {"critic": "asyncrl.contrib.critics.papers:values_of"}
WARNINGS = {"critics": "asyncrl.contrib.critics.checks:find_warnings"}
