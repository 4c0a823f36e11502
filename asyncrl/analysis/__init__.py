"""Learning curves, speed-ups and benchmarks, from the records of runs.

records (metrics.jsonl, config.yaml) -> curves -> figures -> drawing      `asyncrl plot`
records, statistics -> benchmark.results -> drawing, tables               `python -m asyncrl.benchmark` (`benchmark`)

Only `drawing` imports matplotlib, and only `benchmark.results` imports pandas.
"""
