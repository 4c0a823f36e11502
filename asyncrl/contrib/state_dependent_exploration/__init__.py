"""Exploration noise that is a function of the observation (gSDE)."""
