"""One anonymous shared mapping that holds every shared array of a run.

The memory has no name (`asyncrl.config.host`), so a killed run leaves no file and no other user can open it. The runner
creates the arena; children get its file descriptor with their start-up arguments.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.words import Words, words_of
from asyncrl.config.host import IS_LINUX, open_lock_file, open_memory

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


class Arena:
    """Shared arrays by name. The process that creates it owns it; others have views of the same pages.

    Attributes:
        specs: the arrays, with which another arena of the same layout can be created.
    """

    def __init__(self, fd: int, specs: tuple[ArraySpec, ...], lock_fd: int | None = None) -> None:
        """Maps an existing file descriptor; `Arena.create` makes a new one.

        Args:
            fd: the shared memory, which the arena closes.
            specs: its arrays.
            lock_fd: a file for record locks, which the arena closes, too; None if the memory itself takes them.
        """
        self.specs = specs
        self._mapping = mmap.mmap(fd, arena_size(specs))
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        offset = 0
        for spec in specs:
            self._arrays[spec.name] = np.ndarray(spec.shape, spec.dtype, self._mapping, offset)
            offset += spec.padded_bytes
        self._fds = [fd] if lock_fd is None else [fd, lock_fd]  # last: an arena that cannot be made closes neither

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
        opened = [open_memory(size, allocate=True)]
        try:
            lock_fd = open_lock_file()
            if lock_fd is not None:
                opened.append(lock_fd)
            return cls(opened[0], specs, lock_fd)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise

    def array(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def find_array(self, name: str) -> npt.NDArray[Any] | None:
        """Returns an array, or None if the arena has none of this name."""
        return self._arrays.get(name)

    def words(self, name: str) -> Words:
        """Returns a one-dimensional int64 array as words: each is read or written in one aligned access, in order."""
        return words_of(self._arrays[name])

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

    def lock_fileno(self) -> int:
        """The descriptor of a file that all processes of the arena have, for record locks."""
        return self._fds[-1]

    def close(self) -> None:
        """Closes the descriptors; the pages are freed with the last view of them."""
        while self._fds:
            os.close(self._fds.pop())
        self._arrays.clear()

    def free(self) -> None:
        """Closes it and gives its pages back, also those that a forgotten view keeps; no other process may have it."""
        if IS_LINUX and hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):  # not of a file that cannot have holes
                self._mapping.madvise(mmap.MADV_REMOVE)
        self.close()

    def __del__(self) -> None:
        """An arena that was not closed leaves no descriptor behind; its views keep its pages."""
        for fd in self.__dict__.get("_fds", ()):
            os.close(fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_arena, (list(map(reduction.DupFd, self._fds)), self.specs)


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

    def lock_fileno(self) -> int:
        return self._whole.lock_fileno()

    def close(self) -> None:
        self._arrays.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _ScopedArena, (self._whole, self._prefix)


def _rebuild_arena(duplicates: Sequence[Any], specs: tuple[ArraySpec, ...]) -> Arena:
    fd, *lock_fd = (duplicate.detach() for duplicate in duplicates)
    return Arena(fd, specs, *lock_fd)
