"""The first request to stop is noted, the second ends the run at once."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from unittest import mock

import pytest

from asyncrl.runtime.signals import STOPPING, StopAtOnce, StopSignals


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_once_is_a_request_and_twice_an_order(
    number: signal.Signals, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with StopSignals() as stop:
        assert (stop.check(), stop.was_asked, stop.exit_code) == (False, False, 0)
        signal.raise_signal(number)
        assert (stop.check(), stop.was_asked, stop.exit_code) == (True, True, exit_code)
        now += 2.0
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopAtOnce) as raised:
            stop.check()
        assert raised.value.exit_code == stop.exit_code == exit_code


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_to_the_program_and_to_its_group_is_one_request(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    with StopSignals() as stop:
        for _ in range(2):
            signal.raise_signal(number)
        assert stop.check()


@pytest.mark.parametrize("numbers", list(itertools.permutations(STOPPING)), ids=str)
def test_different_signals_sent_together_are_one_request(
    numbers: tuple[signal.Signals, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with StopSignals() as stop:
        for number in numbers:
            signal.raise_signal(number)
            now += 0.3
        assert stop.check()
        assert stop.exit_code == 128 + numbers[0]


@pytest.mark.parametrize("number", STOPPING)
def test_a_terminal_that_closes_later_asks_for_nothing_more(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with StopSignals() as stop:
        signal.raise_signal(number)
        now += 60.0
        signal.raise_signal(signal.SIGHUP)
        assert stop.check()


def test_a_terminal_that_closes_is_one_request_however_often_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with StopSignals(is_silent=True) as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
            now += 60.0
            assert stop.check()
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


def test_the_first_request_is_answered_at_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert "Ctrl-C: stopping after the current update" in capfd.readouterr().err
        now += 0.2
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
