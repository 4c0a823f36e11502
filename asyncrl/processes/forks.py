"""Knows whether this process is a fork of one that had loaded PyTorch, whose threads a fork does not have.

OpenMP would wait for them for ever, as soon as PyTorch uses more than one thread.
"""

from __future__ import annotations

import os
import sys

_has_lost_threads = False


def has_lost_threads() -> bool:
    """Whether PyTorch can use one thread only in this process."""
    return _has_lost_threads


def use_one_thread_in_a_fork() -> None:
    """Limits PyTorch to one thread where it can use no others."""
    if _has_lost_threads:
        import torch

        torch.set_num_threads(1)


def _record_fork() -> None:
    global _has_lost_threads
    _has_lost_threads = _has_lost_threads or "torch" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_record_fork)
