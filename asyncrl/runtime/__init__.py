"""Processes of a run, its folder and checkpoints, its ranks, and the environment in which it runs."""
