"""Shared tensors in an arena, and what other processes do to them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import torch

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.shared_tensors import SharedMoments, SharedTensor, shared_tensor_specs
from asyncrl.config.schema import TrainConfig
from asyncrl.modes.hogwild.staleness import PushLock, StalenessMeter
from asyncrl.modes.hogwild.storage import MergedMoments, SharedAdam, make_shared_optimizer

SIZE = 6


def shared_arena(num_workers: int, size: int = SIZE) -> Arena:
    """An arena with one tensor and one set of moments."""
    return Arena.create(shared_tensor_specs({"model": size}, {"obs": 2}, num_workers))


def gradient_of(value: torch.Tensor, number: int) -> torch.Tensor:
    """A gradient that depends on where one is, and on the step."""
    return value - torch.linspace(-1.0, 1.0, len(value)) * (1 + number % 3)


def step_times(arena: Arena, owner: int, numbers: list[int], learning_rate: float) -> None:
    """Body of a process that takes one step for each of the numbers."""
    torch.set_num_threads(1)
    shared = SharedTensor(arena, "model")
    gradient = torch.zeros(len(shared.value))
    stepper = make_shared_optimizer([shared], [gradient], TrainConfig(), owner)
    value = torch.from_numpy(shared.value)
    for number in numbers:
        gradient.copy_(gradient_of(value, number))
        stepper.step(learning_rate, torch.zeros(()))


def stop_in_the_middle_of_a_step(arena: Arena, owner: int) -> None:
    """Body of a process that takes one step, and stands still when it has counted it and moved half of the tensor."""

    class StoppingAdam(SharedAdam):
        def _update(self, learning_rate: float | torch.Tensor, found_inf: torch.Tensor) -> None:
            before = self.parameters[0].clone()
            super()._update(learning_rate, found_inf)
            half = len(before) // 2
            after = self.parameters[0][half:].clone()
            self.parameters[0][half:] = before[half:]
            os.kill(os.getpid(), signal.SIGSTOP)
            self.parameters[0][half:] += after - before[half:]

    shared = SharedTensor(arena, "model")
    gradient = gradient_of(torch.from_numpy(shared.value), 0)
    StoppingAdam([shared], [gradient], TrainConfig(), owner).step(0.01, torch.zeros(()))


def observe_times(arena: Arena, owner: int, num_batches: int) -> None:
    """Body of a process that takes batches into the common moments as fast as it can."""
    moments = MergedMoments(SharedMoments(arena, "obs"), owner)
    for number in range(num_batches):
        moments.update(batch_of(owner, number))


def batch_of(owner: int, number: int) -> torch.Tensor:
    """The batch that an owner takes in at that turn."""
    generator = torch.Generator().manual_seed(1000 * owner + number)
    return torch.randn(5, 2, generator=generator) * owner + number % 7


def push_marks(arena: Arena, owner: int, num_pushes: int, bound: int | None, path: Path, barrier: Barrier) -> None:
    """Body of a process that counts its pushes in the element of the shared tensor that belongs to it, once all can.

    So a copy of the tensor tells which updates it has, and `path` gets for each push how many updates others had made
    since the pull, read from the tensor itself; then the same as the meter has counted; then the number of pushes that
    were computed again.
    """
    shared, random_pause = SharedTensor(arena, "model"), random.Random(owner)
    lock = None if bound is None else PushLock(arena, lambda: None)
    meter = StalenessMeter(shared, owner, bound, lock)
    copy, marks = np.zeros_like(shared.value), []

    class MarkingAdam(SharedAdam):
        def _update(self, learning_rate: float | torch.Tensor, found_inf: torch.Tensor) -> None:
            missed = shared.value - copy
            missed[owner - 1] = 0.0
            marks.append(int(missed.sum()))
            time.sleep(random_pause.random() * 0.0005)  # others see a push that is half made, unless they wait
            shared.value[owner - 1] += 1.0

    adam = MarkingAdam([shared], [torch.zeros(len(shared.value))], TrainConfig(), owner, meter)

    def pull() -> None:
        with meter.pulling():
            copy[:] = shared.value

    def compute() -> None:
        time.sleep(random_pause.random() * (0.02 if owner == 1 else 0.002))
        adam.step(0.0, torch.zeros(()))

    barrier.wait(100.0)
    for _ in range(num_pushes):
        pull()
        meter.update(compute, pull)
    found = meter.take()
    measured = [staleness for staleness, count in sorted(found.counts.items()) for _ in range(count)]
    path.write_text(json.dumps([marks, measured, found.num_recomputed]))


def die_in_a_push(arena: Arena, owner: int) -> None:
    """Body of a process that is killed after it has counted a push and before it has made it."""

    class DyingAdam(SharedAdam):
        def _update(self, learning_rate: float | torch.Tensor, found_inf: torch.Tensor) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    shared = SharedTensor(arena, "model")
    meter = StalenessMeter(shared, owner, 0, PushLock(arena, lambda: None))
    adam = DyingAdam([shared], [torch.zeros(len(shared.value))], TrainConfig(), owner, meter)
    meter.update(lambda: adam.step(0.0, torch.zeros(())), lambda: None)


def wait_for_lock(arena: Arena) -> None:
    """Body of a process that counts how often it looks for the lock."""
    turns = SharedTensor(arena, "model").steps

    def count() -> None:
        turns[1] += 1

    lock = PushLock(arena, count)
    lock.acquire()
    turns[2] = 1
    lock.release()
