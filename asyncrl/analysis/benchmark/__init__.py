"""`python -m asyncrl.benchmark`: measures a list of tasks and reports their figures.

options -> variants -> tasks (in interleaved order) -> one JSON line each -> medians over seeds -> report, plots
session runs all of it; simulation, watch and results measure one task; report.md.jinja is the text of the report
"""
