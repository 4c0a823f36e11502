"""Other ways than autograd to take the same steps: passes in NumPy, hand-written passes, CUDA graphs.

The learners choose one. Nothing here changes what is trained on, in which order, or when an update ends.
"""
