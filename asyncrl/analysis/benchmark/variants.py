"""The variants that a benchmark compares, and the tasks that measure them, in their order.

A round is one seed: pure simulation first, then every variant. Every second round has the reverse order of variants, so
that a machine that becomes slower during the benchmark slows all variants alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Mode = Literal["sync", "async", "sampling", "hogwild"]
TaskKind = Literal["simulation", "throughput", "learning"]
Unit = Literal["workers", "ranks"]
"""Quantity over which a speed-up is measured."""

SAMPLING_FLAG = "--debug_skip_training=True"


class Layout(NamedTuple):
    """Processes that step environments, and environments in each."""

    num_workers: int
    num_envs_per_worker: int

    def __str__(self) -> str:
        return f"{self.num_workers} x {self.num_envs_per_worker}"


@dataclass(frozen=True)
class Variant:
    """One way to train in the environment.

    Attributes:
        mode: collection in turn with training (sync), during training (async), without training (sampling); or the
            Hogwild backend.
        inference_mode: where the policy runs.
        layout: rollout workers and environments of each rank, as planned.
        num_ranks: learners that train together, each with its own workers; torchrun starts several.
        learner_threads: threads of each learner; None for the number in the plan.
    """

    mode: Mode
    inference_mode: str
    layout: Layout
    num_ranks: int = 1
    learner_threads: int | None = None

    @property
    def name(self) -> str:
        """Name in tables, plots and folders."""
        ranks = f" {self.num_ranks} ranks" if self.num_ranks > 1 else ""
        return f"{self.mode} {self.inference_mode} {self.layout}{ranks}"

    @property
    def flags(self) -> tuple[str, ...]:
        return (
            *mode_flags(self.mode),
            f"--inference_mode={self.inference_mode}",
            f"--num_workers={self.layout.num_workers}",
            f"--num_envs_per_worker={self.layout.num_envs_per_worker}",
            *(() if self.learner_threads is None else (f"--learner_threads={self.learner_threads}",)),
        )

    @property
    def simulated(self) -> Layout:
        """Processes and environments of all ranks together."""
        return Layout(self.num_ranks * self.layout.num_workers, self.layout.num_envs_per_worker)

    def count(self, unit: Unit) -> int:
        """Returns the number of workers of each rank, or of ranks."""
        return self.layout.num_workers if unit == "workers" else self.num_ranks

    def without(self, unit: Unit) -> tuple[str, str, int, int]:
        """Returns what is equal in variants that differ only in the count of this unit."""
        other = self.num_ranks if unit == "workers" else self.layout.num_workers
        return self.mode, self.inference_mode, self.layout.num_envs_per_worker, other


@dataclass(frozen=True)
class Task:
    """One measurement: pure simulation of a layout, or a run of a variant.

    Attributes:
        name: name of the layout or variant.
        seed: seed of the run or, for pure simulation, of the round.
        flags: flags of the training run; none for pure simulation.
        conditions: everything else that the result depends on.
        num_ranks: ranks of the run.
    """

    kind: TaskKind
    name: str
    seed: int
    flags: tuple[str, ...]
    conditions: tuple[str, ...]
    num_ranks: int = 1

    @property
    def folder_name(self) -> str:
        return f"{self.kind}_{self.name.replace(' ', '_')}_seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name} seed {self.seed}"


@dataclass(frozen=True)
class Protocol:
    """Flags of each kind of run, None if it is not measured; conditions of the simulation and of all tasks."""

    simulation: tuple[str, ...]
    throughput: tuple[str, ...] | None
    learning: tuple[str, ...] | None
    conditions: tuple[str, ...]


def mode_flags(mode: Mode) -> tuple[str, ...]:
    if mode == "hogwild":
        return ("--backend=hogwild",)
    return (f"--async_rl={mode != 'sync'}", *((SAMPLING_FLAG,) if mode == "sampling" else ()))


def layouts_of(variants: Sequence[Variant]) -> list[Layout]:
    """Returns the layouts whose pure simulation the variants are compared with."""
    return list(dict.fromkeys(variant.simulated for variant in variants))


def ordered_tasks(variants: Sequence[Variant], seeds: Sequence[int], protocol: Protocol) -> list[Task]:
    """Returns all tasks in their order: rounds of throughput, then rounds of learning."""
    learning = [variant for variant in variants if variant.mode != "sampling"]
    runs: tuple[tuple[TaskKind, Sequence[Variant], tuple[str, ...] | None], ...] = (
        ("throughput", variants, protocol.throughput),
        ("learning", learning, protocol.learning),
    )
    tasks: list[Task] = []
    for kind, measured, common in runs:
        if common is None:
            continue
        for round_idx, seed in enumerate(seeds):
            if kind == "throughput":
                conditions = (*protocol.simulation, *protocol.conditions)
                tasks += [Task("simulation", str(layout), seed, (), conditions) for layout in layouts_of(measured)]
            for variant in measured if round_idx % 2 == 0 else reversed(measured):
                flags = (*variant.flags, *common)
                tasks.append(Task(kind, variant.name, seed, flags, protocol.conditions, variant.num_ranks))
    return tasks
