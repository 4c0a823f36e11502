"""Trained policies that come with asyncrl: `zoo:Humanoid-v5` stands for the folder of a run."""
