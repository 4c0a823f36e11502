"""What `python -m asyncrl.plot` draws: figures of runs, from what their folders recorded.

options -> runs (metrics.jsonl, config.yaml) -> curves -> trial | comparison | speedup -> drawing, JSON

Only `drawing` knows matplotlib; what it draws are numbers that `--json` prints as well.
"""
