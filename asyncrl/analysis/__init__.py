"""Benchmarks, learning curves, speed-ups and reports, from what runs recorded.

records (metrics.jsonl, config.yaml) -> curves, statistics, speedup -> drawing, tables

`plot_command` is `python -m asyncrl.plot`, `benchmark` is `python -m asyncrl.benchmark`. Only `drawing` knows
matplotlib.
"""
