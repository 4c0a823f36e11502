"""Policies, value functions and action distributions; parameters as one flat tensor."""
