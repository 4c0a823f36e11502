"""A run as an object: settings checked, resources planned, roles built and watched, until there is a result."""

import asyncrl.processes.one_blas_thread  # noqa: F401
