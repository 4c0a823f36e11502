"""Plays whole episodes with a fixed policy: during training and afterwards."""
