"""The global settings of PyTorch and NumPy with which asyncrl computes, whatever a user's module has set.

An environment's module may choose another default dtype or device, switch gradients off, or let NumPy raise. Networks
are float32 on their device all the same. The environment's code keeps the settings that it has chosen.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import numpy as np

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_NUMPY_ERRORS = np.geterr() | {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
_UNCHANGED = contextlib.nullcontext()


def own_settings() -> contextlib.AbstractContextManager[None]:
    """A context with the settings of a new process. It does nothing if nobody has changed one."""
    import torch  # modules that need no torch import this one

    is_unchanged = (
        torch.get_default_dtype() is torch.float32
        and torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not torch.is_anomaly_enabled()
        and not torch._C._get_deterministic_algorithms()
        and torch._C._len_torch_function_stack() == 0  # a default device is a mode on this stack
        and not torch._C._is_any_autocast_enabled()
        and np.geterr() == _NUMPY_ERRORS
    )
    return _UNCHANGED if is_unchanged else _changed()


def with_own_settings(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorator: the function runs in `own_settings`."""

    @functools.wraps(function)
    def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with own_settings():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def _changed() -> Iterator[None]:
    import torch

    dtype = torch.get_default_dtype()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        if is_deterministic:  # where an operation has no deterministic form, the other one must do
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=only_warns)
            torch.use_deterministic_algorithms(True, warn_only=True)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        for device_type in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(np.errstate(**_NUMPY_ERRORS))
        yield
