"""Relative entropy pathwise policy optimization (Voelcker et al. 2025, arXiv:2507.11019): `--algo=reppo`."""
