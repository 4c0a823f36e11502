"""Words in shared memory by which processes hand data to one another: 64-bit integers, each with one writer at a time.

The protocols of this package need of a word, beside that it is read and written as a whole:

    store   what this process wrote before is visible to whoever reads the new value
    load    what is read after it is at least as new as the value; and what was read before it, was read before

x86-64 keeps the order of stores and that of loads, so there a word is an item of a memoryview. Other processors (ARM)
keep neither: there the native core reads and writes words, with a fence on both sides, in about half a microsecond.
Without the native core only a run in one process is possible there; its words need no order.
`tests/buffers/test_memory_order.py` runs the protocols on a model of such a processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from asyncrl.config.host import keeps_store_order
from asyncrl.native import LoadWord, StoreWord, word_access


class Words(Protocol):
    """A sequence of words."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...

    def __iter__(self) -> Iterator[int]: ...


class FencedWords:
    """Words that the native core reads and writes between fences."""

    def __init__(self, array: npt.NDArray[np.int64], access: tuple[LoadWord, StoreWord]) -> None:
        """Views `array [N]`, whose memory stays where it is."""
        self._array = array  # keeps the memory
        self._load, self._store = access
        first, step = array.__array_interface__["data"][0], array.strides[0] if len(array) else 0
        self._places = [first + step * index for index in range(len(array))]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> int:
        return self._load(self._places[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._store(self._places[index], value)

    def __iter__(self) -> Iterator[int]:
        return map(self._load, self._places)


def words_of(array: npt.NDArray[Any]) -> Words:
    """The items of an array `[N] int64` as words.

    Raises:
        ValueError: the array has another dtype or more dimensions.
    """
    if array.dtype != np.int64 or array.ndim != 1:
        raise ValueError(f"words are int64 with one dimension, got {array.dtype} with {array.ndim}")
    access = None if keeps_store_order() else word_access()
    return memoryview(array) if access is None else FencedWords(array, access)  # type: ignore[arg-type]
