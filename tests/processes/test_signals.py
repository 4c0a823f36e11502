"""The first request to stop is noted, the second ends the run at once."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from asyncrl.processes.signals import STOPPING, StopAtOnce, StopSignals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test moves."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_once_is_a_request_and_twice_an_order(number: signal.Signals, exit_code: int, clock: SimpleNamespace) -> None:
    with StopSignals() as stop:
        assert (stop.check(), stop.was_asked, stop.exit_code) == (False, False, 0)
        signal.raise_signal(number)
        assert (stop.check(), stop.was_asked, stop.exit_code) == (True, True, exit_code)
        clock.now += 2.0
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopAtOnce) as raised:
            stop.check()
        assert raised.value.exit_code == stop.exit_code == exit_code


TOGETHER = [[(0.3, number) for number in order] for order in itertools.permutations(STOPPING)]
TWICE = [[(0.0, number)] * 2 for number in STOPPING]  # to the program and to its group
CLOSED_LATER = [[(0.0, number), (60.0, signal.SIGHUP)] for number in STOPPING]
CLOSED_OFTEN = [[(0.0, signal.SIGHUP), *[(60.0, signal.SIGHUP)] * 2]]


@pytest.mark.parametrize("sent", [*TOGETHER, *TWICE, *CLOSED_LATER, *CLOSED_OFTEN], ids=str)
def test_signals_sent_together_and_a_terminal_that_closes_later_are_one_request(
    sent: list[tuple[float, signal.Signals]], clock: SimpleNamespace
) -> None:
    with StopSignals(is_silent=True) as stop:
        for later_s, number in sent:
            clock.now += later_s
            signal.raise_signal(number)
        assert stop.check() and stop.exit_code == 128 + sent[0][1]
        clock.now += 60.0
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopAtOnce):
            stop.check()


def test_nohup_stays_in_force() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.check()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_request_is_answered_at_once(capfd: pytest.CaptureFixture[str], clock: SimpleNamespace) -> None:
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert "Ctrl-C: stopping after the current update" in capfd.readouterr().err
        clock.now += 0.2
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(StopAtOnce, match="Second Ctrl-C: stopped at once"):
            stop.check()
        assert stop.was_answered
    with StopSignals() as stop:
        stop.is_silent = True  # an observer has begun to draw on the terminal, and shows the answer itself
        signal.raise_signal(signal.SIGTERM)
        assert stop.was_asked and not stop.was_answered
        assert stop.answer.startswith("SIGTERM: stopping after the current update")
    assert capfd.readouterr().err == ""


def test_a_request_is_taken_though_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", mock.Mock(side_effect=BrokenPipeError))
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.check()


def test_afterwards_signals_mean_what_they_meant_before() -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    with pytest.raises(ZeroDivisionError), StopSignals():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_a_handler_that_was_not_set_from_python_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    install = signal.signal

    def install_over_c(number: int, handler: object) -> None:
        install(number, handler)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", install_over_c)
        stop = StopSignals()
        stop.__enter__()
    ours = [signal.getsignal(number) for number in STOPPING]
    stop.__exit__(None, None, None)
    assert [signal.getsignal(number) for number in STOPPING] == ours != before
    for number, handler in zip(STOPPING, before, strict=True):
        signal.signal(number, handler)


def test_elsewhere_than_in_the_main_thread_signals_are_left_alone() -> None:
    handlers = []

    def ask() -> None:
        with StopSignals() as stop:
            handlers.append((signal.getsignal(signal.SIGINT), stop.check()))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert handlers == [(signal.getsignal(signal.SIGINT), False)]
