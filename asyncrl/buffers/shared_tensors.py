"""Tensors that several learners train at once: their values, the optimizer's state, and counts with one writer each.

Values and state are written by all workers, without a lock (Recht et al. 2011, "Hogwild!"): an element may miss an
update that came at the same moment. Counts may not, so each worker has words and moments of its own, and the count of
all is their sum. Owner number 0 is the run itself, for what a checkpoint held; worker w is number w + 1.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec

RUN = 0
_LOOK_EVERY_S = 1e-4
_MOST_LOOKS = 1000

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]


def shared_tensor_specs(sizes: Mapping[str, int], moments: Mapping[str, int], num_workers: int) -> list[ArraySpec]:
    """Arrays of shared tensors.

    Args:
        sizes: elements of each tensor, by name.
        moments: elements of the vectors that running moments are kept of, by name.
        num_workers: processes that train.
    """
    specs: list[ArraySpec] = []
    for name, size in sizes.items():
        specs.extend(ArraySpec(f"shared.{name}.{part}", "float32", (size,)) for part in ("value", "first", "second"))
        specs.append(ArraySpec(f"shared.{name}.steps", "int64", (num_workers + 1,)))
    for name, size in moments.items():
        specs.append(ArraySpec(f"moments.{name}.values", "float64", (num_workers + 1, 2, 1 + 2 * size)))
        specs.append(ArraySpec(f"moments.{name}.written", "int64", (num_workers + 1,)))
    specs.append(ArraySpec("shared.resting", "int64", (num_workers,)))
    specs.append(ArraySpec("shared.settled", "int64", (num_workers,)))
    specs.append(ArraySpec("return_units.values", "float32", (2,)))
    specs.append(ArraySpec("return_units.written", "int64", (1,)))
    return specs


class SharedTensor:
    """One trained tensor.

    Attributes:
        value: [N] float32.
        first, second: [N] float32, the optimizer's moments.
        steps: how many steps each owner has made of it.
    """

    def __init__(self, arena: Arena, name: str) -> None:
        """Views the arrays that `shared_tensor_specs` described."""
        self.value: FloatArray = arena.array(f"shared.{name}.value")
        self.first: FloatArray = arena.array(f"shared.{name}.first")
        self.second: FloatArray = arena.array(f"shared.{name}.second")
        self.steps = arena.words(f"shared.{name}.steps")

    @property
    def num_steps(self) -> int:
        """Steps that all owners have made."""
        return int(sum(self.steps))


class SharedMoments:
    """Count, mean and variance of what each owner has seen, in entries with one writer each.

    An entry has two places that take turns: the one with number `written % 2` is whole, so an owner that is killed
    while it writes the other leaves nothing half-written behind.
    """

    def __init__(self, arena: Arena, name: str) -> None:
        """Views the arrays that `shared_tensor_specs` described."""
        self._values: DoubleArray = arena.array(f"moments.{name}.values")
        self._written = arena.words(f"moments.{name}.written")

    @property
    def size(self) -> int:
        """Elements of the vectors."""
        return (int(self._values.shape[2]) - 1) // 2

    def write(self, owner: int, count: int, mean: DoubleArray, variance: DoubleArray) -> None:
        """Replaces an owner's entry (that owner)."""
        size, written = self.size, self._written[owner] + 1
        entry = self._values[owner, written % 2]
        entry[0] = count
        entry[1 : 1 + size] = mean
        entry[1 + size :] = variance
        self._written[owner] = written

    def read(self, owner: int) -> DoubleArray | None:
        """Copies an owner's entry: count, means, variances; None if it was written meanwhile."""
        written = self._written[owner]
        entry = self._values[owner, written % 2].copy()
        return entry if self._written[owner] == written else None

    def new_entries(self) -> DoubleArray:
        """Room for the entries of all owners, `[owners, 1 + 2 * size]`, as if nobody had seen anything."""
        return np.zeros_like(self._values[:, 0])

    def read_all(self, entries: DoubleArray) -> None:
        """Copies the entries of all owners; of those that were written meanwhile `entries` keeps what it has."""
        before = self._written.tolist()
        values = self._values.copy()
        for owner, (then, now) in enumerate(zip(before, self._written.tolist(), strict=True)):
            if then == now:
                entries[owner] = values[owner, then % 2]


class ReturnUnits:
    """Mean and deviation of returns in whose units the shared critic predicts; written by the keeper alone.

    The critic's head and these change together, so a reader copies both between two looks at `written`.
    """

    def __init__(self, arena: Arena) -> None:
        """Views the arrays that `shared_tensor_specs` described."""
        self.values: FloatArray = arena.array("return_units.values")
        self._written = arena.words("return_units.written")

    @property
    def written(self) -> int:
        """Odd while they change."""
        written: int = self._written[0]
        return written

    def read(self) -> tuple[int, float, float]:
        """A number of these units, their mean and their deviation.

        Waits while they change, at most 0.1 s: the keeper may have died meanwhile.
        """
        for _ in range(_MOST_LOOKS):
            number, (mean, std) = self.written, self.values.tolist()
            if number % 2 == 0 and self.written == number:
                break
            time.sleep(_LOOK_EVERY_S)
        return number, mean, std

    def begin(self) -> None:
        """Says that head and units are about to change (keeper)."""
        self._written[0] += 1

    def end(self) -> None:
        """Says that they have changed (keeper)."""
        self._written[0] += 1
