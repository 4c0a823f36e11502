"""Gradients of workers become one step, each is used once, and who has two under way waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import CountingWaker

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.gradients import GradientPlaces, gradient_specs
from asyncrl.config.schema import TrainConfig
from asyncrl.modes.hogwild.parameter_server import combine
from asyncrl.modes.hogwild.storage import SendingStorage, SharedStorage


def places(num_workers: int = 2) -> GradientPlaces:
    return GradientPlaces(Arena.create(gradient_specs(3, num_workers)))


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_gradients_of_parts_combine_to_that_of_the_whole_batch(how: str) -> None:
    torch.manual_seed(0)
    model, data, targets = torch.nn.Linear(4, 1), torch.randn(12, 4), torch.randn(12, 1)

    def gradient(rows: slice, reduction: str) -> np.ndarray:
        model.zero_grad()
        torch.nn.functional.mse_loss(model(data[rows]), targets[rows], reduction=reduction).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).numpy()

    parts = np.stack([gradient(slice(start, start + 3), how) for start in range(0, 12, 3)])
    torch.testing.assert_close(combine(parts, how), torch.from_numpy(gradient(slice(0, 12), how)))


def test_a_worker_has_two_places_and_each_gradient_is_taken_once() -> None:
    own = places()
    for number in (1, 2):
        place = own.free_place(0)
        assert place is not None
        own.write(place, np.full(3, float(number), np.float32), number)
    assert own.free_place(0) is None
    assert own.free_place(1) == 2
    assert own.take(3) is None
    taken = own.take(2)
    assert taken is not None
    assert own.values[taken][:, 0].tolist() == [1.0, 2.0]
    assert own.take(1) is None
    assert own.free_place(0) is None  # they are being combined
    own.free(taken)
    assert own.free_place(0) == 0


def test_the_oldest_gradients_come_first() -> None:
    own = places()
    for place, number in ((0, 8), (1, 7), (2, 1)):
        own.write(place, np.full(3, float(number), np.float32), number)
    taken = own.take(2)
    assert taken is not None
    assert own.values[taken][:, 0].tolist() == [1.0, 7.0]


def test_who_follows_a_dead_worker_counts_on_and_finds_its_half_written_gradient_gone() -> None:
    own = places()
    assert own.last_number(0) == 0
    for number in (7, 8):
        place = own.free_place(0)
        assert place is not None
        own.write(place, np.full(3, float(number), np.float32), number)
    taken = own.take(2)
    assert taken is not None
    own.free(taken)
    own.values[0] = 99.0  # it dies before it says that this one is whole
    storage = SendingStorage(SharedStorage(Arena.create(gradient_specs(3, 1)), 1), own, 0, CountingWaker())
    gradient = torch.ones(3)
    optimizer = storage.optimizer(["model"], [torch.zeros(3)], [gradient], TrainConfig())
    other = own.free_place(1)
    assert other is not None
    own.write(other, np.full(3, 5.0, np.float32), 8)
    optimizer.step(0.1, torch.zeros(()))
    taken = own.take(1)
    assert taken is not None
    assert own.values[taken][:, 0].tolist() == [5.0], "its turn comes after those who have handed over fewer"
    taken = own.take(1)
    assert taken is not None
    assert own.values[taken][:, 0].tolist() == [1.0]
