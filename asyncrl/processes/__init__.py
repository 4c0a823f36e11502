"""Processes: how they start, report, stop and end, their random streams, and the ranks that train together."""
