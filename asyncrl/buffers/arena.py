"""One anonymous shared mapping that holds every shared array of a run.

A memfd has no name in `/dev/shm`, so a killed run leaves no file and no other user can open it. The runner creates the
arena; children get its file descriptor with their start-up arguments.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 128  # two cache lines, so words of different writers never share one


@dataclass(frozen=True)
class ArraySpec:
    """Name, dtype and shape of one shared array."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def padded_bytes(self) -> int:
        """Size in the arena."""
        nbytes = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def arena_size(specs: Iterable[ArraySpec]) -> int:
    """Bytes that an arena of these arrays takes."""
    return sum(spec.padded_bytes for spec in specs)


def open_memory(size: int) -> int:
    """A descriptor of so many bytes of shared memory without a name; its pages are not allocated yet."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("asyncrl", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="asyncrl-")
        os.unlink(path)
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Arena:
    """Shared arrays by name. The process that creates it owns it; others have views of the same pages.

    Attributes:
        specs: the arrays, with which another arena of the same layout can be created.
    """

    def __init__(self, fd: int, specs: tuple[ArraySpec, ...]) -> None:
        """Maps an existing file descriptor; `Arena.create` makes a new one."""
        self.specs = specs
        self._mapping = mmap.mmap(fd, arena_size(specs))
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        offset = 0
        for spec in specs:
            self._arrays[spec.name] = np.ndarray(spec.shape, spec.dtype, self._mapping, offset)
            offset += spec.padded_bytes
        self._fd = fd  # last: an arena that cannot be made does not close it

    @classmethod
    def create(cls, specs: Iterable[ArraySpec]) -> Arena:
        """Allocates all pages at once, zeroed.

        Raises:
            ValueError: two arrays have the same name.
            OSError: there is not enough memory.
        """
        specs = tuple(specs)
        if len({spec.name for spec in specs}) != len(specs):
            raise ValueError(f"two arrays share a name: {sorted(spec.name for spec in specs)}")
        size = arena_size(specs)
        fd = open_memory(size)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            return cls(fd, specs)
        except BaseException:
            os.close(fd)
            raise

    def array(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def find_array(self, name: str) -> npt.NDArray[Any] | None:
        """Returns an array, or None if the arena has none of this name."""
        return self._arrays.get(name)

    def words(self, name: str) -> memoryview:
        """Returns a one-dimensional int64 array as a memoryview: each item is read or written in one aligned access."""
        array = self._arrays[name]
        if array.dtype != np.int64 or array.ndim != 1:
            raise ValueError(f"{name} is {array.dtype} with {array.ndim} dimensions, words are int64 with one")
        return memoryview(array)  # type: ignore[arg-type]

    def scoped(self, prefix: str) -> Arena:
        """Returns a view in which the name `x` is the array `prefix + "x"` if there is one, otherwise the array `x`.

        So a class that knows an array by one name can use one of several: with `scoped("policy.1.")`, the array
        "weights.buffers" is "policy.1.weights.buffers". This arena still owns the memory; `close` of the view only
        ends the view.
        """
        return _ScopedArena(self, prefix)

    def pages(self) -> npt.NDArray[np.uint8]:
        """All bytes of the mapping, which lives as long as this array."""
        return np.frombuffer(self._mapping, dtype=np.uint8)

    def fileno(self) -> int:
        """The descriptor of the mapped file."""
        return self._fd

    def close(self) -> None:
        """Closes the descriptor; the pages are freed with the last view of them."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._arrays.clear()

    def free(self) -> None:
        """Closes it and gives its pages back, also those that a forgotten view keeps; no other process may have it."""
        if hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):  # not of a file that cannot have holes
                self._mapping.madvise(mmap.MADV_REMOVE)
        self.close()

    def __del__(self) -> None:
        """An arena that was not closed leaves no descriptor behind; its views keep its pages."""
        if self.__dict__.get("_fd", -1) >= 0:
            os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_arena, (reduction.DupFd(self._fd), self.specs)


class _ScopedArena(Arena):
    def __init__(self, whole: Arena, prefix: str) -> None:
        self._whole = whole
        self._prefix = prefix
        self._arrays = dict(whole._arrays)
        self._arrays.update(
            (name.removeprefix(prefix), array) for name, array in whole._arrays.items() if name.startswith(prefix)
        )

    def pages(self) -> npt.NDArray[np.uint8]:
        return self._whole.pages()

    def fileno(self) -> int:
        return self._whole.fileno()

    def close(self) -> None:
        self._arrays.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _ScopedArena, (self._whole, self._prefix)


def _rebuild_arena(duplicate: Any, specs: tuple[ArraySpec, ...]) -> Arena:
    return Arena(duplicate.detach(), specs)
