"""Connects self-play with the core."""

from __future__ import annotations

SETTINGS = {"self_play": ("asyncrl.contrib.self_play.settings:SelfPlaySettings", "self-play")}
RULES = {"self_play": "asyncrl.contrib.self_play.rules:settings_problems"}
SPEC_RULES = {"self_play": "asyncrl.contrib.self_play.rules:spec_problems"}
OBSERVERS = {"self_play": "asyncrl.contrib.self_play.observer:make_observer"}
OPPONENTS = {
    "pool": ("asyncrl.contrib.self_play.members:find_members", "all members of the run's self-play pool"),
}
FOLDERS = {"self_play": "members of the pool, as checkpoints, and their ratings"}
PLOTS = {"elo": "asyncrl.contrib.self_play.ratings:PLOT"}
METRICS = {
    "self_play/elo": ("Elo rating of the policy, by its games against the pool", "Elo"),
    "self_play/pool_size": ("frozen versions in the pool", None),
    "self_play/pool_elo_NAME": ("Elo ratings of the pool: mean, min, max", None),
    "self_play/win_rate": ("share of the last games against the pool that were won", "wins against the pool"),
}
