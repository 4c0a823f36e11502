"""What `time_to_score.py` measures, how it runs it, and what it makes of the results."""
