"""The parts of `time_to_score.py`: tasks, systems, runs, statistics, report."""
