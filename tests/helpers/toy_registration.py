"""Registers an algorithm when it is imported."""

from __future__ import annotations

from toy_algorithms import REINFORCE

import asyncrl

asyncrl.register_algorithm(REINFORCE)
