"""How policies act: in NumPy, in PyTorch and on a GPU, in a rollout worker, in an inference worker or for a user."""
