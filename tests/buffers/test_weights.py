"""Weights are read whole, and under their own version."""

from __future__ import annotations

from multiprocessing.context import BaseContext
from typing import Any

import child_targets
import numpy as np
import pytest

from asyncrl.buffers import weights as weights_module
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.wake import Waker
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


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("leaves_nothing")
def test_no_block_is_torn_while_another_process_publishes_without_pause(context: BaseContext) -> None:
    size = 5_000
    arena, stop = Arena.create(weights_specs(size)), Waker()
    channel, out, seen, last_version = WeightsChannel(arena), block(0.0, size), 0, 0
    writer = context.Process(target=child_targets.hammer_weights, args=(arena, stop), daemon=True)
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
