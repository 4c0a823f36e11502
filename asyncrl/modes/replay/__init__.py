"""Learning from a replay in shared memory."""
