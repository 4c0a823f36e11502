"""Environments: creation, seeds, a probe in a separate process, and their spaces as arrays."""
