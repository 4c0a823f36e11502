"""How a run that has failed ends: learners save, and what waits for ever is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.processes.children import RunFailed
from asyncrl.processes.signals import StopAtOnce
from asyncrl.run import runner


class Saving:
    """A process manager whose learner ends after so many waits, each of them a second; also the clock."""

    def __init__(self, num_waits: float) -> None:
        self.num_waits, self.now = num_waits, 0.0

    @property
    def running(self) -> list[str]:
        return ["learner", "rollout-0"] if self.now < self.num_waits else ["rollout-0"]

    def wait(self, timeout_s: float) -> list[Any]:
        self.now += 1.0
        return []

    def take_reports(self) -> list[Any]:
        return []

    def monotonic(self) -> float:
        return self.now


def let_save(monkeypatch: pytest.MonkeyPatch, num_waits: float, steer: Any) -> float:
    saving: Any = Saving(num_waits)
    monkeypatch.setattr(runner, "time", saving)
    setup: Any = SimpleNamespace(control=None)
    runner._let_save(saving, ["learner"], lambda report: None, setup, steer)
    return float(saving.now)


def test_a_learner_that_needs_long_to_save_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert let_save(monkeypatch, 100, lambda control: None) == 100
    assert let_save(monkeypatch, 1e9, lambda control: None) == runner.SAVE_S


def test_a_learner_that_may_wait_for_another_rank_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(control: object) -> None:
        raise RunFailed("rank 1 has not responded")

    assert let_save(monkeypatch, 2, lost) == 2
    assert let_save(monkeypatch, 100, lost) == runner.GRACE_S + 1


def test_a_second_ctrl_c_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(control: object) -> None:
        raise StopAtOnce("Second SIGINT", 130)

    with pytest.raises(StopAtOnce):
        let_save(monkeypatch, 100, stop)
