"""Environments: made, seeded, probed in a process of their own, and what their spaces mean as arrays."""
