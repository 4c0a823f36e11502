"""Experiment trackers beside Weights & Biases: MLflow, Trackio, Comet. A library is imported when a run starts."""
