"""The settings of a run by subject. Each class is a part of `asyncrl.config.schema.TrainConfig`."""
