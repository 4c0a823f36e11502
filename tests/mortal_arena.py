"""An arena whose words can be written only so many times, as if the process that writes them was killed then."""

from __future__ import annotations

import numpy as np

from asyncrl.buffers.arena import Arena


class Death(BaseException):
    """Ends a role in the middle of what it does."""


class Life:
    """Lasts for so many writes of words."""

    def __init__(self, num_writes: float) -> None:
        self.left = num_writes

    def spend(self) -> None:
        if self.left <= 0:
            raise Death
        self.left -= 1


class MortalWords:
    """Words of the arena whose writes take from a life."""

    def __init__(self, words: memoryview, life: Life) -> None:
        self._words = words
        self._life = life

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> int:
        return self._words[index]

    def __setitem__(self, index: int, number: int) -> None:
        self._life.spend()
        self._words[index] = number


class MortalArena:
    """The arena as one role sees it."""

    def __init__(self, arena: Arena, life: Life) -> None:
        self._arena = arena
        self._life = life

    def array(self, name: str) -> np.ndarray:
        return self._arena.array(name)

    def find_array(self, name: str) -> np.ndarray | None:
        return self._arena.find_array(name)

    def words(self, name: str) -> MortalWords:
        return MortalWords(self._arena.words(name), self._life)
