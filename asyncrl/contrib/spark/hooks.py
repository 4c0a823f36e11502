"""Connects nothing: a user's program calls `asyncrl.contrib.spark.job.train`, whose tasks start training commands."""
