"""Marks of tests that cannot run on every machine. With `--only-unavoidable-skips` no other skip passes."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec

import pytest
import torch

from asyncrl import native

PREFIX = "unavoidable: "

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason=f"{PREFIX}no CUDA device")
needs_envpool = pytest.mark.skipif(
    find_spec("envpool") is None,
    reason="EnvPool is not installed" if sys.version_info >= (3, 11) else f"{PREFIX}no EnvPool for this Python",
)
_CAN_HAVE_NATIVE_CORE = shutil.which("cc") is not None and "ASYNCRL_NO_NATIVE" not in os.environ
needs_native_core = pytest.mark.skipif(
    native.kernels() is None and not _CAN_HAVE_NATIVE_CORE, reason=f"{PREFIX}no C compiler for the native core"
)
