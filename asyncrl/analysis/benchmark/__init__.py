"""`python -m asyncrl.benchmark`: measures a list of tasks and reports their figures.

options -> variants -> tasks (in interleaved order) -> one JSON line each -> medians over seeds -> report, plots
"""
