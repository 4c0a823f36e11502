"""Trajectories in slots that belong to their splits: several policies, or one and its opponents."""
