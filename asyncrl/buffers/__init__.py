"""Memory that processes share, and the small integers they pass each other. NumPy only; no process is started here."""
