"""A policy as one file that runs without asyncrl: `asyncrl export`, and the formats of `Policy.export`."""
