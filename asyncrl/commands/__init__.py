"""Command lines: flags in, sentences and exit codes out. Nothing else of the package prints or ends a process."""

import asyncrl.processes.one_blas_thread  # noqa: F401
