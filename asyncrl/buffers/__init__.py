"""Shared memory, and the integers that processes exchange. NumPy only; no process is started here."""
