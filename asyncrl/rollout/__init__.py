"""Rollout workers: they step environments and write what happens into slots."""
