"""One HTML page about runs: `asyncrl report`."""
