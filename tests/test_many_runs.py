"""Signals to the commands that start many runs."""

from __future__ import annotations

import signal
import time

import pytest

from asyncrl.commands.runner import run_many
from asyncrl.processes.signals import STOPPING


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_stops_the_work_and_is_the_exit_code(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(each) for each in STOPPING]
    closed = []

    def work() -> int:
        try:
            signal.raise_signal(number)
            time.sleep(60.0)
            return 0
        finally:
            if number == signal.SIGHUP:
                signal.raise_signal(number)  # a terminal that is closed sends it again
            closed.append("runs")

    assert run_many(work, "Stopped.") == 128 + number
    assert closed == ["runs"]
    assert capfd.readouterr().err.splitlines()[-1] == "Stopped."
    assert [signal.getsignal(each) for each in STOPPING] == before


@pytest.mark.parametrize("second", STOPPING)
def test_only_a_second_request_interrupts_the_end_of_the_runs(
    second: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    closed = []

    def work() -> int:
        nonlocal now
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            now += 0.5
            signal.raise_signal(second)
            closed.append("saved")
            now += 2.0
            signal.raise_signal(second)
            closed.append("SIGHUP ignored")

    assert run_many(work, "Stopped.") == 128 + (signal.SIGTERM if second == signal.SIGHUP else second)
    assert closed == ["saved", "SIGHUP ignored"][: 2 if second == signal.SIGHUP else 1]


def test_under_nohup_the_work_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_many(lambda: signal.raise_signal(signal.SIGHUP) or 0, "Stopped.") == 0
    finally:
        signal.signal(signal.SIGHUP, before)
