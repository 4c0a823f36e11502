"""Inference workers: they run the policy on batches of requests from many splits."""
