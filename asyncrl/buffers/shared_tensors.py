"""What Hogwild workers share: trained tensors with the optimizer's state, running moments, units of returns, counts.

All workers write tensors and optimizer state without a lock (Recht et al. 2011, "Hogwild!"): an element may miss an
update that came at the same moment. Counts must not miss any, so each worker writes separate words and moments, and the
total is their sum. Owner number 0 is the run itself, for the contents of a checkpoint; worker w is owner w + 1.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.weights import WeightsChannel

RUN = 0
_POLL_S = 1e-4
_MAX_POLLS = 1000
_SAVED_STEPS = "env_steps_of_worker_{}"

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
    specs.append(ArraySpec("shared.has_finished", "int64", (num_workers,)))
    specs.append(ArraySpec("shared.used_steps", "int64", (num_workers,)))
    specs.append(ArraySpec("return_units.values", "float32", (2,)))
    specs.append(ArraySpec("return_units.written", "int64", (1,)))
    return specs


class SharedTensor:
    """One trained tensor.

    Attributes:
        value: [N] float32.
        first, second: [N] float32, the optimizer's moments.
        steps: [owners], optimizer steps that each owner has taken.
    """

    def __init__(self, arena: Arena, name: str) -> None:
        self.value: FloatArray = arena.array(f"shared.{name}.value")
        self.first: FloatArray = arena.array(f"shared.{name}.first")
        self.second: FloatArray = arena.array(f"shared.{name}.second")
        self.steps = arena.words(f"shared.{name}.steps")

    @property
    def num_steps(self) -> int:
        """Steps of all owners."""
        return int(sum(self.steps))


class SharedMoments:
    """Count, mean and variance of the vectors that each owner has seen, in entries with one writer each.

    An entry has two places that alternate: place `written % 2` is complete, also if an owner is killed while it writes
    the other.

    Attributes:
        size: elements of a vector.
    """

    def __init__(self, arena: Arena, name: str) -> None:
        self._values: DoubleArray = arena.array(f"moments.{name}.values")
        self._written = arena.words(f"moments.{name}.written")
        self.size = (int(self._values.shape[2]) - 1) // 2

    def write(self, owner: int, count: int, mean: DoubleArray, variance: DoubleArray) -> None:
        """Replaces the entry of an owner (that owner)."""
        self.write_entry(owner, np.concatenate([[count], mean, variance]))

    def write_entry(self, owner: int, entry: DoubleArray) -> None:
        """Replaces the entry of an owner by `[1 + 2 * size]`: count, means, variances (that owner)."""
        written = self._written[owner] + 1
        self._values[owner, written % 2] = entry
        self._written[owner] = written

    def entry(self, owner: int) -> DoubleArray:
        """Returns a copy of an owner's newest entry, as `write_entry` takes it."""
        written = None
        while written != self._written[owner]:
            written = self._written[owner]
            entry: DoubleArray = self._values[owner, written % 2].copy()
        return entry

    def new_entries(self) -> DoubleArray:
        """Returns empty entries of all owners, `[owners, 1 + 2 * size]`: count, means, variances."""
        return np.zeros_like(self._values[:, 0])

    def read_all(self, entries: DoubleArray) -> None:
        """Copies the entries of all owners into `entries`, except those that were written meanwhile."""
        before = list(self._written)
        values = self._values.copy()
        for owner, (then, now) in enumerate(zip(before, list(self._written), strict=True)):
            if then == now:
                entries[owner] = values[owner, then % 2]


class ReturnUnits:
    """Mean and standard deviation of returns, in whose units the shared critic predicts. Only the parameter server
    writes them.

    They change together with the critic's head, so a reader copies both and checks that `written` did not change.
    """

    def __init__(self, arena: Arena) -> None:
        self.values: FloatArray = arena.array("return_units.values")
        self._written = arena.words("return_units.written")

    @property
    def written(self) -> int:
        """Odd while they change."""
        written: int = self._written[0]
        return written

    def read(self) -> tuple[int, float, float]:
        """Returns the number of these units, their mean and their standard deviation.

        Waits while they change, at most 0.1 s: the parameter server may have died meanwhile.
        """
        for _ in range(_MAX_POLLS):
            number, (mean, std) = self.written, self.values.tolist()
            if number % 2 == 0 and self.written == number:
                break
            time.sleep(_POLL_S)
        return number, mean, std

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """In its context head and units change (parameter server)."""
        self._written[0] += 1
        yield
        self._written[0] += 1


def saved_worker_steps(state: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the environment steps of each worker in a checkpoint's state; empty for the other backend."""
    names = itertools.takewhile(state.__contains__, map(_SAVED_STEPS.format, itertools.count()))
    return tuple(int(state[name]) for name in names)


class GlobalClock:
    """Environment steps of all workers together, which the end of the run follows, and schedules with the time.

    Attributes:
        num_workers: processes that train.
    """

    def __init__(
        self,
        arena: Arena,
        control: RunControl,
        num_workers: int,
        first_env_steps: int,
        most_env_steps: int,
        first_worker_steps: Sequence[int] = (),
    ) -> None:
        """Counts on from the steps of a checkpoint.

        Args:
            arena: the run's.
            control: counts the steps of each worker.
            num_workers: processes that train.
            first_env_steps: steps of the checkpoint.
            most_env_steps: steps at which the run ends.
            first_worker_steps: steps of each worker of the checkpoint.
        """
        self._has_finished = arena.words("shared.has_finished")
        self._used_steps = arena.words("shared.used_steps")
        self._channel = WeightsChannel(arena)
        self._control = control
        self.num_workers = num_workers
        self._first = first_env_steps
        self._first_of_workers = first_worker_steps
        self._most = most_env_steps

    @property
    def env_steps(self) -> int:
        """Steps of the run; on another machine those with the newest weights, if its own are fewer."""
        return max(self._first + self._control.total_steps, self._channel.newest.env_steps)

    @property
    def scheduled_steps(self) -> int:
        """Steps that schedules follow: the run's steps, or its share of the time limit in steps if that is larger."""
        return max(self.env_steps, self._control.steps_by_time)

    @property
    def saved(self) -> dict[str, int]:
        """What `saved_worker_steps` reads; workers of a previous start that the run has no more keep their steps."""
        collected = [self._control.collected_steps(worker) for worker in range(self.num_workers)]
        steps = itertools.zip_longest(self._first_of_workers, collected, fillvalue=0)
        return {_SAVED_STEPS.format(worker): before + now for worker, (before, now) in enumerate(steps)}

    @property
    def is_over(self) -> bool:
        """Whether all steps were made, or the run ends for another reason."""
        control = self._control
        return control.stop_requested or control.must_finish or self.env_steps >= self._most

    def use_steps(self, worker_idx: int) -> int:
        """Notes that all steps of a worker were trained on or are counted as dropped (that worker).

        Returns the steps since the last call.
        """
        collected = self._control.collected_steps(worker_idx)
        num_unused = collected - int(self._used_steps[worker_idx])
        self._used_steps[worker_idx] = collected
        return num_unused

    def finish(self, worker_idx: int) -> None:
        """Notes that a worker has no unfinished rollout or update any more (that worker)."""
        self._has_finished[worker_idx] = 1

    @property
    def have_all_finished(self) -> bool:
        return all(self._has_finished)
