"""The ranks of one run as the tasks of a Spark job: `asyncrl.contrib.spark.job.train`."""
