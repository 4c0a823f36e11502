"""Marks of tests that cannot run on every machine. With `--only-unavoidable-skips` no other skip passes."""

from __future__ import annotations

import importlib.util
import shutil
import sys

import pytest
import torch

PREFIX = "unavoidable: "

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason=f"{PREFIX}no CUDA device")
needs_envpool = pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{PREFIX}no EnvPool for this Python")
needs_jax = pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{PREFIX}no JAX for this Python")
needs_spark = pytest.mark.skipif(
    shutil.which("java") is None or importlib.util.find_spec("pyspark") is None,
    reason=f"{PREFIX}no Java, or no PySpark (300 MB)",
)
