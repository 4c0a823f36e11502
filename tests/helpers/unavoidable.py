"""Marks of tests that cannot run on every machine. With `--only-unavoidable-skips` no other skip passes."""

from __future__ import annotations

import shutil
import sys

import pytest
import torch

from asyncrl import native

PREFIX = "unavoidable: "

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason=f"{PREFIX}no CUDA device")
needs_envpool = pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{PREFIX}no EnvPool for this Python")
needs_native_core = pytest.mark.skipif(
    native.kernels() is None and shutil.which("cc") is None, reason=f"{PREFIX}no C compiler, so there is no native core"
)
