"""Self-play as an observer: keeps the pool of each start of a run, and publishes its ratings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.self_play.mapping import MatchRecord
from asyncrl.contrib.self_play.members import POOL
from asyncrl.contrib.self_play.settings import SelfPlaySettings
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.reports import LearnerReport, Report, RolloutReport

if TYPE_CHECKING:  # they need torch
    from asyncrl.contrib.self_play.pool import SelfPlayPool
    from asyncrl.run.setup import RunSetup


def make_observer(config: TrainConfig) -> SelfPlay | None:
    """The observer of a run; None without self-play."""
    return SelfPlay() if SelfPlaySettings.of(config).self_play else None


class SelfPlay(Observer):
    """Adds members to the pool after reports of the learner, and rates the games that workers report."""

    _pool: SelfPlayPool

    def on_setup(self, run: Run, setup: RunSetup) -> None:
        from asyncrl.contrib.self_play.pool import SelfPlayPool

        self._pool = SelfPlayPool(setup, run.folder / POOL, run.say)

    def on_report(self, run: Run, report: Report) -> None:
        if isinstance(report, RolloutReport):
            self._pool.rate(note for note in report.notes if isinstance(note, MatchRecord))
        elif isinstance(report, LearnerReport):
            self._pool.add_if_due(run.env_steps)

    def on_metrics(self, run: Run, metrics: dict[str, float | None]) -> None:
        metrics |= self._pool.record()
