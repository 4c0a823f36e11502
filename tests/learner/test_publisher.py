"""Weights go out at once, or as late as an experiment asks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.weights import WeightsChannel, weights_specs
from asyncrl.learner.worker import WeightsPublisher
from asyncrl.processes.children import RunFailed


@pytest.mark.parametrize(
    ("forced_lag", "seen"), [(0, [0, 4, 8, 12, 16]), (4, [0, 0, 4, 8, 12]), (8, [0, 0, 0, 4, 8]), (5, [0, 0, 0, 4, 8])]
)
def test_published_weights_are_late_by_the_forced_lag(forced_lag: int, seen: list[int]) -> None:
    channel = WeightsChannel(Arena.create(weights_specs(3)))
    publisher = WeightsPublisher(channel, forced_lag)
    block, out = torch.empty(3), np.empty(3, np.float32)
    for publication, (version, expected) in enumerate(zip(range(0, 20, 4), seen, strict=True), start=1):
        block[:] = 100 + version  # the learner writes every publication into the same memory
        publisher.publish(block, version, 10 * version)
        assert channel.read(out, publication - 1) == (publication, expected, 10 * expected)
        assert out.tolist() == [100.0 + expected] * 3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_never_published(bad: float) -> None:
    channel = WeightsChannel(Arena.create(weights_specs(3)))
    with pytest.raises(RunFailed, match="policy version 7 are not finite"):
        WeightsPublisher(channel, 0).publish(torch.tensor([1.0, bad, 2.0]), 7, 0)
    assert channel.num_publications == 0
