"""The worker that steps environments of tensors and fills the learner's dataset."""

from __future__ import annotations

from asyncrl.on_device.worker import DeviceWorker


def test_what_was_collected_before_other_weights_were_taken_over_is_dropped() -> None:
    worker = DeviceWorker.__new__(DeviceWorker)
    worker._version, worker._max_lag, worker.dropped_samples = 3, 10, 0
    worker._num_columns, worker._num_valid, worker._is_full = 4, 30, True
    assert worker.take_dataset(13, 0.0) == [], "not too old"
    assert worker.take_dataset(14, 0.0) is None
    assert (worker.dropped_samples, worker._num_columns, worker._is_full) == (30, 0, False)
    assert worker.take_dataset(14, 0.0) is None and worker.dropped_samples == 30
