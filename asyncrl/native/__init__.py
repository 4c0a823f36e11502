"""The native core in C, loaded with ctypes: small perceptrons, which act and are trained; words that processes share.

`hatch_build.py` compiles `core.c` and `kernels.c` into `_core.so` where a C compiler is found. Without the library,
NumPy does the same work, and only x86-64 can share words. `core.h` explains the records. Calls of the kernels release
the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from ctypes import POINTER, c_double, c_float, c_int64, c_void_p
from pathlib import Path

LIBRARY = Path(__file__).parent / ("_core.dylib" if sys.platform == "darwin" else "_core.so")


class Layer(ctypes.Structure):
    """A linear layer with its gradient."""

    _fields_ = [
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("weight_gradient", c_void_p),
        ("bias_gradient", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
    ]


class Encoder(ctypes.Structure):
    """A perceptron over some columns of the observations."""

    _fields_ = [
        ("layers", POINTER(Layer)),
        ("columns", c_void_p),
        ("num_layers", c_int64),
        ("first_column", c_int64),
        ("num_inputs", c_int64),
    ]


EVALUATED_AT_ONCE, MOST_LAYERS = 64, 16
ACTIVATIONS = ("tanh", "relu", "elu")
DISTRIBUTIONS = ("gaussian", "categorical")
ALGORITHMS = ("ppo", "a2c")


class Model(ctypes.Structure):
    """Networks and distribution."""

    _fields_ = [
        ("actor", Encoder),
        ("critic", Encoder),
        ("policy_head", Layer),
        ("value_head", Layer),
        ("log_std", c_void_p),
        ("log_std_gradient", c_void_p),
        ("has_critic", c_int64),
        ("activation", c_int64),
        ("distribution", c_int64),
        ("num_actions", c_int64),
        ("mask_column", c_int64),
        ("lowest_log_std", c_float),
        ("highest_log_std", c_float),
        ("forbidden_logit", c_float),
    ]


class Loss(ctypes.Structure):
    """The settings of the loss."""

    _fields_ = [
        ("algorithm", c_int64),
        ("needs_kl", c_int64),
        ("clips_value", c_int64),
        ("clip_low", c_float),
        ("clip_high", c_float),
        ("value_clip", c_float),
        ("value_coeff", c_float),
        ("entropy_coeff", c_float),
        ("kl_coeff", c_float),
    ]


class Batch(ctypes.Structure):
    """A minibatch."""

    _fields_ = [
        ("num_samples", c_int64),
        ("floats_stride", c_int64),
        ("parameters_stride", c_int64),
        ("action_stride", c_int64),
        ("floats", c_void_p),
        ("action", c_void_p),
        ("action_parameters", c_void_p),
        ("log_prob", c_void_p),
        ("advantage", c_void_p),
        ("normalized_return", c_void_p),
        ("normalized_value", c_void_p),
    ]


class Adam(ctypes.Structure):
    """The optimizer's memory and settings."""

    _fields_ = [
        ("parameters", c_void_p),
        ("gradient", c_void_p),
        ("exp_avg", c_void_p),
        ("exp_avg_sq", c_void_p),
        ("step", c_void_p),
        ("num_parameters", c_int64),
        ("beta1", c_double),
        ("beta2", c_double),
        ("epsilon", c_double),
    ]


class Request(ctypes.Structure):
    """Observations that ask for actions, and where the answers go."""

    _fields_ = [
        ("num_rows", c_int64),
        ("row_stride", c_int64),
        ("num_floats", c_int64),
        ("obs", c_void_p),
        ("obs_mean", c_void_p),
        ("obs_std", c_void_p),
        ("obs_clip", c_float),
        ("return_mean", c_void_p),
        ("return_std", c_void_p),
        ("noise", c_void_p),
        ("action", c_void_p),
        ("log_prob", c_void_p),
        ("value", c_void_p),
        ("parameters", c_void_p),
    ]


class _Table(ctypes.Structure):
    """The functions for one instruction set, as C has them."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("scratch_size", ctypes.CFUNCTYPE(c_int64, POINTER(Model), c_int64)),
        ("act", ctypes.CFUNCTYPE(None, POINTER(Model), POINTER(Request), c_void_p)),
        ("evaluate", ctypes.CFUNCTYPE(None, POINTER(Model), POINTER(Batch), *[c_void_p] * 3)),
        ("gradient", ctypes.CFUNCTYPE(None, POINTER(Model), POINTER(Loss), POINTER(Batch), *[c_void_p] * 3)),
        ("apply", ctypes.CFUNCTYPE(c_float, POINTER(Adam), *[c_float] * 3)),
        (
            "step",
            ctypes.CFUNCTYPE(
                *(None, POINTER(Model), POINTER(Loss), POINTER(Batch), POINTER(Adam), c_float, c_float),
                *[c_void_p] * 3,
            ),
        ),
    ]


class Kernels:
    """The functions for one instruction set; `core.h` says what each does. Records are passed by reference."""

    def __init__(self, table: _Table) -> None:
        self.name: str = table.name.decode()
        # Each access to a field of the table makes a new object.
        self.scratch_size, self.act, self.gradient = table.scratch_size, table.act, table.gradient
        self.evaluate, self.apply, self.step = table.evaluate, table.apply, table.step


LoadWord = Callable[[int], int]
StoreWord = Callable[[int, int], None]


@functools.cache
def word_access() -> tuple[LoadWord, StoreWord] | None:
    """Functions that read and write the 64-bit word at an address, between fences; None without the library."""
    if LIBRARY.exists():
        library = ctypes.PyDLL(str(LIBRARY))  # keeps the interpreter's lock: to release it would take longer
        if not hasattr(library, "asyncrl_load_word"):
            raise RuntimeError(f"{LIBRARY} is of an older version: install asyncrl again")
        library.asyncrl_load_word.restype = c_int64
        library.asyncrl_load_word.argtypes = [c_void_p]
        library.asyncrl_store_word.restype = None
        library.asyncrl_store_word.argtypes = [c_void_p, c_int64]
        return library.asyncrl_load_word, library.asyncrl_store_word
    return None


@functools.cache
def kernels(instruction_set: str | None = None) -> Kernels | None:
    """The kernels for this processor; None if the library was not built.

    Args:
        instruction_set: the largest one to use: avx512, avx2 or sse2; None takes the largest of the processor.
    """
    if not LIBRARY.exists():
        return None
    library = ctypes.CDLL(str(LIBRARY))
    library.asyncrl_kernels.restype = POINTER(_Table)
    library.asyncrl_kernels.argtypes = [ctypes.c_char_p]
    return Kernels(library.asyncrl_kernels(instruction_set and instruction_set.encode()).contents)
