"""Whatever watches or steers a run in the process that started it."""

import asyncrl.runtime.one_blas_thread  # noqa: F401
