"""Observers watch or steer a run in the process that started it: records, progress, callbacks of users."""

import asyncrl.runtime.one_blas_thread  # noqa: F401
