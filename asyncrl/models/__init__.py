"""Policies and value functions, their action distributions, and their parameters as one flat block."""
