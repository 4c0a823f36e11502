"""Connects REPPO: the record of the algorithm, its settings, and the rules of its runs."""

from __future__ import annotations

ALGORITHMS = {"reppo": "asyncrl.contrib.reppo.algorithm:REPPO"}
RULES = {"reppo": "asyncrl.contrib.reppo.algorithm:find_problems"}
SETTINGS = {"reppo": ("asyncrl.contrib.reppo.settings:ReppoSettings", "")}
SPEC_RULES = {"reppo": "asyncrl.contrib.reppo.algorithm:find_spec_problems"}
