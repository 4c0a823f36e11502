"""When a batch of requests is run, by a clock that the test moves."""

from __future__ import annotations

from asyncrl.inference.worker import RequestBatcher


def test_nothing_asked_is_nothing_to_run() -> None:
    assert RequestBatcher(full_batch=2, max_wait_s=1.0).wait_s(now=100.0) is None


def test_a_full_batch_runs_at_once_and_a_smaller_one_when_its_oldest_has_waited() -> None:
    batcher = RequestBatcher(full_batch=3, max_wait_s=1.0)
    batcher.add([4], now=100.0)
    batcher.add([], now=100.25)
    batcher.add([9], now=100.5)
    assert batcher.wait_s(now=100.5) == 0.5
    assert batcher.wait_s(now=101.0) == 0.0
    assert batcher.wait_s(now=107.0) == 0.0
    batcher.add([2, 5], now=100.75)
    assert batcher.wait_s(now=100.75) == 0.0
    assert batcher.take() == [4, 9, 2, 5]


def test_the_wait_starts_anew_with_the_next_request() -> None:
    batcher = RequestBatcher(full_batch=3, max_wait_s=1.0)
    batcher.add([4], now=100.0)
    batcher.take()
    assert batcher.wait_s(now=105.0) is None
    batcher.add([4], now=105.0)
    assert batcher.wait_s(now=105.25) == 0.75


def test_without_patience_every_request_runs_at_once() -> None:
    batcher = RequestBatcher(full_batch=8, max_wait_s=0.0)
    batcher.add([1], now=100.0)
    assert batcher.wait_s(now=100.0) == 0.0
