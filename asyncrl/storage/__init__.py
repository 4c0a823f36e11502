"""A run on disk: its folder, its checkpoints, where they are found, and the environment that produced them."""
