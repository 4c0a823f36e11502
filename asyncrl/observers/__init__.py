"""Observers watch or steer a run in the process that started it: reports, monitor, records, progress, callbacks."""
