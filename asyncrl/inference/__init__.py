"""Inference workers, which run the policy on batches of requests from many splits."""
