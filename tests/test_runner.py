"""How a run that has failed ends: learners save, and what waits for ever is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.processes.children import RunFailed
from asyncrl.processes.signals import StopAtOnce
from asyncrl.run import runner


def seconds_to_save(monkeypatch: pytest.MonkeyPatch, needed_s: float, error: Exception | BaseException | None) -> float:
    """How long the runner waits for a learner that needs some seconds to save, while `steer` raises an error."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: clock.now))

    class Processes:
        """The processes of the run; each wait takes a second."""

        @property
        def running(self) -> list[str]:
            return ["learner", "rollout-0"] if clock.now < needed_s else ["rollout-0"]

        def wait(self, timeout_s: float) -> list[Any]:
            clock.now += 1.0
            return []

        def take_reports(self) -> list[Any]:
            return []

    def steer(control: object) -> None:
        if error is not None:
            raise error

    run: Any = runner._ParallelRun.__new__(runner._ParallelRun)
    run._processes, run._learners, run._steer, run._control = Processes(), {"learner": None}, steer, None
    run._let_save()
    return float(clock.now)


LOST = RunFailed("rank 1 has not responded")


@pytest.mark.parametrize(
    ("needed_s", "error", "waited_s"),
    [
        pytest.param(100, None, 100, id="a slow save"),
        pytest.param(1e9, None, runner.SAVE_S, id="no end"),
        pytest.param(2, LOST, 2, id="a lost rank, saved in time"),
        pytest.param(100, LOST, runner.GRACE_S + 1, id="an exchange that may wait for a lost rank"),
    ],
)
def test_learners_have_time_to_save_unless_they_may_wait_for_another_rank(
    monkeypatch: pytest.MonkeyPatch, needed_s: float, error: RunFailed | None, waited_s: float
) -> None:
    assert seconds_to_save(monkeypatch, needed_s, error) == waited_s


def test_a_second_ctrl_c_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StopAtOnce):
        seconds_to_save(monkeypatch, 100, StopAtOnce("Second SIGINT", 130))
