"""Trajectories in slots that one learner grants."""
