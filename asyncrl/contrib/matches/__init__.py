"""Matches: `--opponents` of `evaluate` and `enjoy` lets others play against a trained policy."""
