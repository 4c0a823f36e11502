"""Explores the executions of processes that share memory on a processor that reorders loads and stores.

    roles     functions of a `WeakArena`; each is run again and again, up to its next access
    memory    of each place all values that were stored, the newest last, each with what its writer had fenced before
    view      of each process: for each place the oldest value that it may still read

A plain load returns any value that the view allows, so it may be older than what others have stored. A fence makes what
was read or written before it binding for what follows, here and in whoever reads a later store and fences. This is the
model of C11's relaxed accesses with sequentially consistent fences (Kang et al. 2017, "A promising semantics for
relaxed-memory concurrency"), and ARM's `dmb ish` is at least as strong as its fence. Their promises are left out: a
store is not seen before an earlier load of its process. The protocols need no more, because what one process reads and
what it then tells others has a fence between. Each place has one writer, so stores to a place have one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Place = tuple[str, int]
View = tuple[tuple[Place, int], ...]


class _NextAccess(BaseException):
    """Leaves a role at its next access; no `except Exception` stops it."""

    def __init__(self, kind: str, place: Place | None = None, value: Any = None) -> None:
        super().__init__()
        self.access = (kind, place, value)


class _Accesses:
    """Answers the accesses of a role with known results; the first unknown one leaves the role."""

    def __init__(self, results: Sequence[Any]) -> None:
        self._results = iter(results)

    def __call__(self, kind: str, place: Place | None = None, value: Any = None) -> Any:
        for result in self._results:
            return result
        raise _NextAccess(kind, place, value)


class WeakWords:
    """Words as `asyncrl.buffers.words.FencedWords`; without fences, plain loads and stores."""

    def __init__(self, access: _Accesses, name: str, size: int, is_fenced: bool) -> None:
        self._access, self._name, self._size, self._is_fenced = access, name, size, is_fenced

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return int(self._between_fences("load", index))

    def __setitem__(self, index: int, value: int) -> None:
        self._between_fences("store", index, value)

    def __iter__(self) -> Iterator[int]:
        return (self[index] for index in range(self._size))

    def _between_fences(self, kind: str, index: int, value: Any = None) -> Any:
        if self._is_fenced:
            self._access("fence")
        result = self._access(kind, (self._name, range(self._size)[index]), value)
        if self._is_fenced:
            self._access("fence")
        return result


class WeakArray:
    """Data `[..., columns]`, read and written number by number without any order; an index names one row."""

    def __init__(self, access: _Accesses, name: str, shape: tuple[int, ...]) -> None:
        self._access, self._name, self.shape = access, name, shape

    def __getitem__(self, row: int | tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.array([self._access("load", (self._name, place)) for place in self._places(row)])

    def __setitem__(self, row: int | tuple[int, ...], values: Any) -> None:
        places = self._places(row)
        for place, value in zip(places, np.broadcast_to(values, len(places)).tolist(), strict=True):
            self._access("store", (self._name, place), value)

    def _places(self, row: int | tuple[int, ...]) -> range:
        """The numbers of a row, as places."""
        *leading, columns = self.shape
        first = int(np.ravel_multi_index(np.atleast_1d(row), leading)) * columns
        return range(first, first + columns)


class WeakArena:
    """Has the arrays of an `asyncrl.buffers.arena.Arena` that buffers look up, and fields for data of the test."""

    def __init__(self, access: _Accesses, shapes: dict[str, tuple[int, ...]], is_fenced: bool) -> None:
        self._access, self._shapes, self._is_fenced = access, shapes, is_fenced

    def words(self, name: str) -> WeakWords:
        return WeakWords(self._access, name, self._shapes[name][0], self._is_fenced)

    def array(self, name: str) -> WeakArray:
        return WeakArray(self._access, name, self._shapes[name])


class _Process(NamedTuple):
    """Results of its accesses so far, and its views: what it may read, what it has read of, what it has fenced."""

    results: tuple[Any, ...] = ()
    current: View = ()
    acquired: View = ()
    released: View = ()


class _State(NamedTuple):
    memory: tuple[tuple[Place, tuple[tuple[Any, View], ...]], ...]
    fenced: View  # by any process: the order of all fences is one
    processes: tuple[_Process, ...]


def outcomes(
    roles: Sequence[Callable[[WeakArena], Any]], shapes: dict[str, tuple[int, ...]], is_fenced: bool = True
) -> set[tuple[Any, ...]]:
    """What the roles return in all executions: a tuple of their results for each that differs.

    Args:
        roles: each returns something hashable, and makes its objects from the arena anew.
        shapes: the arrays; all places hold 0 at first.
        is_fenced: whether words are read and written between fences.
    """
    known: dict[tuple[int, tuple[Any, ...]], tuple[str, Place | None, Any]] = {}

    def next_access(number: int, results: tuple[Any, ...]) -> tuple[str, Place | None, Any]:
        key = number, results
        if key not in known:
            try:
                known[key] = "return", None, roles[number](WeakArena(_Accesses(results), shapes, is_fenced))
            except _NextAccess as left:
                known[key] = left.access
        return known[key]

    found: set[tuple[Any, ...]] = set()
    first = _State((), (), tuple(_Process() for _ in roles))
    waiting, seen = [first], {first}
    while waiting:
        state = waiting.pop()
        accesses = [next_access(number, process.results) for number, process in enumerate(state.processes)]
        if all(kind == "return" for kind, _, _ in accesses):
            found.add(tuple(value for _, _, value in accesses))
            continue
        for number, access in enumerate(accesses):
            for after in _after(state, number, access):
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
    return found


def _after(state: _State, number: int, access: tuple[str, Place | None, Any]) -> Iterator[_State]:
    """The states after an access of a process: one for each value that a load may return."""
    kind, place, value = access
    memory, process = dict(state.memory), state.processes[number]
    if kind == "return":
        return
    if kind == "fence":
        current = _joined(process.current, process.acquired, state.fenced)
        made = _Process((*process.results, None), current, current, current)
        yield _with(state, number, made, memory, current)
        return
    assert place is not None
    stored = memory.get(place, ((0, ()),))
    if kind == "store":
        newest: View = ((place, len(stored)),)
        memory[place] = (*stored, (value, _joined(process.released, newest)))
        current, acquired = _joined(process.current, newest), _joined(process.acquired, newest)
        yield _with(state, number, _Process((*process.results, None), current, acquired, process.released), memory)
        return
    for at in range(dict(process.current).get(place, 0), len(stored)):
        read, of_writer = stored[at]
        current = _joined(process.current, ((place, at),))
        acquired = _joined(process.acquired, current, of_writer)
        yield _with(state, number, _Process((*process.results, read), current, acquired, process.released), memory)


def _with(
    state: _State, number: int, process: _Process, memory: dict[Place, Any], fenced: View | None = None
) -> _State:
    processes = (*state.processes[:number], process, *state.processes[number + 1 :])
    return _State(tuple(sorted(memory.items())), state.fenced if fenced is None else fenced, processes)


def _joined(*views: View) -> View:
    """For each place the newest of the views."""
    newest: dict[Place, int] = {}
    for view in views:
        for place, at in view:
            newest[place] = max(at, newest.get(place, 0))
    return tuple(sorted(newest.items()))
