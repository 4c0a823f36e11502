"""Connects Ray pools with the core."""

from __future__ import annotations

RULES = {"ray_pools": "asyncrl.contrib.ray_pools.rules:settings_problems"}
SETTINGS = {
    "cluster": ("asyncrl.contrib.ray_pools.settings:ClusterSettings", "rollout workers on other machines"),
}
SPEC_RULES = {"ray_pools": "asyncrl.contrib.ray_pools.rules:spec_problems"}
VALIDATION = {"ray_pools": "asyncrl.contrib.ray_pools.validation:NetworkOptions"}
WORKERS = {"ray_pools": "asyncrl.contrib.ray_pools.settings:saved_remote_workers"}
