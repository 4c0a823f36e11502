"""Shared optimizers do what one process would do, and lose no count."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.context import BaseContext

import numpy as np
import psutil
import pytest
import torch
from hogwild.shared import SIZE, gradient_of, shared_arena, step_times, stop_in_the_middle_of_a_step

from asyncrl.buffers.shared_tensors import RUN, SharedTensor
from asyncrl.config.schema import TrainConfig
from asyncrl.modes.hogwild.storage import SharedAdam, make_shared_optimizer

pytestmark = pytest.mark.usefixtures("leaves_nothing")

RATE = 0.05


def steps_in_turn(optimizer: str) -> SharedTensor:
    """What two owners make of ten steps that they take in turn."""
    shared = SharedTensor(shared_arena(2), "model")
    value, gradient = torch.from_numpy(shared.value), torch.zeros(SIZE)
    config = TrainConfig(hogwild_optimizer=optimizer)
    steppers = [make_shared_optimizer([shared], [gradient], config, owner) for owner in (1, 2)]
    for number in range(10):
        gradient.copy_(gradient_of(value, number))
        steppers[number in (3, 8, 9)].step(RATE, torch.zeros(()))
    return shared


def test_owners_that_take_turns_step_adam_as_one_does() -> None:
    shared, config = steps_in_turn("adam"), TrainConfig()
    weights = torch.nn.Parameter(torch.zeros(SIZE))
    betas = (config.adam_beta1, config.adam_beta2)
    reference = torch.optim.Adam([weights], lr=RATE, betas=betas, eps=config.adam_eps)
    for number in range(10):
        weights.grad = gradient_of(weights.detach(), number)
        reference.step()
    np.testing.assert_allclose(shared.value, weights.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(shared.second, reference.state[weights]["exp_avg_sq"].numpy(), rtol=1e-6)
    assert list(shared.steps) == [0, 7, 3]


def test_owners_that_take_turns_step_rmsprop_as_the_paper_says() -> None:
    shared = steps_in_turn("rmsprop")
    value, square = np.zeros(SIZE), np.zeros(SIZE)
    for number in range(10):
        gradient = gradient_of(torch.from_numpy(value), number).numpy()
        square = 0.99 * square + 0.01 * gradient**2
        value = value - RATE * gradient / np.sqrt(square + TrainConfig().adam_eps)
    np.testing.assert_allclose(shared.value, value, rtol=1e-4)


def test_no_count_is_lost_under_contention(context: BaseContext) -> None:
    arena = shared_arena(4)
    processes = [
        context.Process(target=step_times, args=(arena, owner, list(range(2_000)), 1e-6)) for owner in (1, 2, 3, 4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    shared = SharedTensor(arena, "model")
    assert shared.num_steps == 8_000
    assert list(shared.steps) == [0] + [2_000] * 4
    arena.close()


def test_a_process_that_is_stopped_in_the_middle_of_an_update_keeps_nobody_from_the_optimum(
    context: BaseContext,
) -> None:
    arena = shared_arena(3)
    still = context.Process(target=stop_in_the_middle_of_a_step, args=(arena, 1))
    still.start()
    while psutil.Process(still.pid).status() != psutil.STATUS_STOPPED:
        assert still.is_alive()
        time.sleep(0.01)
    others = [context.Process(target=step_times, args=(arena, owner, [0] * 2000, 0.01)) for owner in (2, 3)]
    for process in others:
        process.start()
    for process in others:
        process.join()
        assert process.exitcode == 0
    shared = SharedTensor(arena, "model")
    assert list(shared.steps) == [0, 1, 2000, 2000]
    np.testing.assert_allclose(shared.value, np.linspace(-1.0, 1.0, SIZE), atol=0.02)
    os.kill(still.pid, signal.SIGCONT)
    still.join()
    assert still.exitcode == 0
    np.testing.assert_allclose(shared.value, np.linspace(-1.0, 1.0, SIZE), atol=0.02)
    for process in (still, *others):
        process.close()
    arena.close()


def test_the_bias_correction_follows_the_steps_of_all() -> None:
    arena = shared_arena(1)
    shared, gradient = SharedTensor(arena, "model"), torch.ones(SIZE)
    shared.steps[RUN] = 999  # of others, and of the run before
    adam = make_shared_optimizer([shared], [gradient], TrainConfig(), owner=1)
    assert isinstance(adam, SharedAdam)
    adam.step(RATE, torch.zeros(()))
    # Moments of 0 after 999 steps are believed: 0.1 of the gradient against the root of 0.001 of its square.
    expected = -RATE * 0.1 / (np.sqrt(0.001 / (1 - 0.999**1000)) + TrainConfig().adam_eps)
    np.testing.assert_allclose(shared.value, expected, rtol=1e-4)
    assert float(adam.steps[0]) == 1000
    arena.close()
