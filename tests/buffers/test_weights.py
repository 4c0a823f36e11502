"""Weights are read whole, and under their own version."""

from __future__ import annotations

from multiprocessing.context import BaseContext
from typing import Any

import arena_targets
import numpy as np
import pytest
import torch

from asyncrl.buffers import device_weights
from asyncrl.buffers import weights as weights_module
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.device_weights import DeviceWeights
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.weights import WeightsChannel, weights_specs


def block(number: float, size: int = 4) -> np.ndarray:
    return np.full(size, number, np.float32)


def test_a_reader_gets_the_newest_and_nothing_twice() -> None:
    channel = WeightsChannel(Arena.create(weights_specs(4)))
    out = block(0.0)
    assert channel.read(out, seen=0) is None
    channel.publish(block(1.5), version=0, env_steps=0)
    channel.publish(block(2.5), version=8, env_steps=100)
    channel.publish(block(3.5), version=16, env_steps=200)
    assert channel.read(out, seen=1) == (3, 16, 200)
    assert out.tolist() == [3.5] * 4
    assert channel.read(out, seen=3) is None
    assert channel.num_publications == 3


@pytest.mark.parametrize("publications_meanwhile", [1, 2, 3])
def test_a_copy_that_was_overtaken_is_made_again(monkeypatch: pytest.MonkeyPatch, publications_meanwhile: int) -> None:
    channel = WeightsChannel(Arena.create(weights_specs(4)))
    channel.publish(block(1.0), version=10, env_steps=1)
    pending = [2.0, 3.0, 4.0][:publications_meanwhile]

    def overtaken_copy(out: Any, source: Any) -> None:
        out[:2] = source[:2]
        while pending:
            number = pending.pop(0)
            channel.publish(block(number), version=int(number) * 10, env_steps=int(number))
        out[2:] = source[2:]

    monkeypatch.setattr(weights_module.np, "copyto", overtaken_copy)
    out = block(0.0)
    newest = 1 + publications_meanwhile
    assert channel.read(out, seen=0) == (newest, newest * 10, newest)
    assert out.tolist() == [newest] * 4


def test_buffers_on_a_device_change_together_with_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = torch.zeros(2, 4)
    for name in ("allocate_device_weights", "open_device_weights"):
        monkeypatch.setattr(device_weights, name, lambda *args: DeviceWeights(buffers))
    arena = Arena.create(weights_specs(4))
    learner, reader = WeightsChannel(arena), WeightsChannel(arena)
    learner.allocate_on_device(torch.device("cuda"))
    learner.publish(block(1.0), version=10, env_steps=1)
    assert reader.open_on_device(torch.device("cuda"))
    out, host = torch.zeros(4), block(0.0)
    for number in (2.0, 3.0):
        learner.publish(block(number), version=int(number), env_steps=0, on_device=torch.full((4,), number))
    assert reader.read(out, seen=1) == (3, 3, 0)
    assert reader.read(host, seen=1) == (3, 3, 0)
    assert out.tolist() == host.tolist() == [3.0] * 4
    assert sorted(buffers[:, 0].tolist()) == [2.0, 3.0]
    assert reader.read(out, seen=3) is None


def test_there_is_nothing_on_a_device_where_learner_or_reader_have_none() -> None:
    channel = WeightsChannel(Arena.create(weights_specs(4)))
    channel.allocate_on_device(torch.device("cpu"))
    channel.publish(block(1.0), version=10, env_steps=1)
    assert not channel.open_on_device(torch.device("cpu"))
    assert not channel.open_on_device(torch.device("cuda:0"))


@pytest.mark.usefixtures("leaves_nothing")
def test_no_block_is_torn_while_another_process_publishes_without_pause(context: BaseContext) -> None:
    size = 5_000
    arena, stop = Arena.create(weights_specs(size)), Waker()
    channel, out, seen, last_version = WeightsChannel(arena), block(0.0, size), 0, 0
    writer = context.Process(target=arena_targets.hammer_weights, args=(arena, stop), daemon=True)
    writer.start()
    num_read = 0
    while num_read < 200:
        assert writer.is_alive()
        news = channel.read(out, seen)
        if news is None:
            continue
        seen, version, env_steps = news
        assert (out == version).all()
        assert env_steps == version
        assert version > last_version
        last_version = version
        num_read += 1
    stop.wake()
    writer.join()
    stop.close()
    arena.close()
