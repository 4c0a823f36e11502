"""Start, stop and watch processes; the folder of a run and its checkpoints; memory."""
