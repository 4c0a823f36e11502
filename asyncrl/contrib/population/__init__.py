"""Population-based training: `--with_pbt`, `asyncrl plot population`, and the population's chart in a report."""
