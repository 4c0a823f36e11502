"""Connects Minari's datasets with the core."""

from __future__ import annotations

PLAYERS = {"minari": "asyncrl.contrib.minari.option:OPTION"}
