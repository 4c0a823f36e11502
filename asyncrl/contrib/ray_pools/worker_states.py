"""What a run keeps of the Hogwild workers of a pool, so that the workers of another pool can continue it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.shared_tensors import DoubleArray, SharedMoments


@dataclass(frozen=True)
class WorkerState:
    """What the run keeps of a worker that trains, besides its gradients or steps and its count of environment steps.

    Attributes:
        worker_idx: number of the worker.
        used_steps: its environment steps that were trained on or counted as dropped.
        has_finished: whether it has no unfinished rollout or update any more.
        moments: its entry of each `SharedMoments`, by name.
    """

    worker_idx: int
    used_steps: int
    has_finished: bool
    moments: Mapping[str, DoubleArray]


class WorkerStates:
    """The states of all workers of an arena."""

    def __init__(self, arena: Arena) -> None:
        self._has_finished = arena.words("shared.has_finished")
        self._used_steps = arena.words("shared.used_steps")
        parts = [spec.name.split(".") for spec in arena.specs if spec.name.startswith("moments.")]
        self._moments = {name: SharedMoments(arena, name) for _, name, part in parts if part == "values"}

    def read(self, worker_idx: int, with_moments: bool = True) -> WorkerState:
        """Returns a copy of the state of a worker; without its statistics if they are not wanted."""
        return WorkerState(
            worker_idx,
            int(self._used_steps[worker_idx]),
            bool(self._has_finished[worker_idx]),
            self.moments_of(worker_idx) if with_moments else {},
        )

    def moments_of(self, worker_idx: int) -> dict[str, DoubleArray]:
        """Returns copies of a worker's entries of all `SharedMoments`, by name."""
        return {name: moments.entry(worker_idx + 1) for name, moments in self._moments.items()}

    def write(self, state: WorkerState) -> None:
        """Replaces the state of a worker (the process that stands for it)."""
        for name, entry in state.moments.items():
            self._moments[name].write_entry(state.worker_idx + 1, entry)
        self._used_steps[state.worker_idx] = state.used_steps
        self._has_finished[state.worker_idx] = state.has_finished
