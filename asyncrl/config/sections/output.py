"""Settings: what a run shows and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from asyncrl.config.hooks import hooks
from asyncrl.config.sections.section import IS_SET, Section, section
from asyncrl.config.value_types import CallbackNames

Progress = Literal["auto", "dashboard", "live", "lines"]

_TRACKERS = ("wandb", *hooks("TRACKERS"))
if TYPE_CHECKING:
    TrackerName = str
else:
    TrackerName = Literal[_TRACKERS]

_output = section("watching")


class OutputSettings(Section):
    """What a run shows and writes."""

    with_tensorboard: bool = _output(True, "write TensorBoard event files")
    episodes_csv: bool = _output(
        False, "write every training episode to episodes/*.monitor.csv, in the format of Stable-Baselines3's Monitor"
    )
    profile: bool = _output(False, "show where each role's time goes: a table at the end and profile/* in the records")
    quiet: bool = _output(False, "print no progress")
    progress: Progress = _output(
        "auto",
        "how progress is shown: dashboard (the key d changes to one line and back, ? explains the metrics), live (one "
        "line, drawn again), lines (one after the other); auto is the dashboard on a terminal, and lines elsewhere and "
        "in serial mode",
    )
    track: list[TrackerName] = _output(
        [],
        "pass settings, records and the best checkpoint on to these experiment trackers, too: "
        f"{', '.join(_TRACKERS)}; each needs its package",
    )
    track_project: str = _output(
        "asyncrl", "project (of mlflow: experiment) in which trackers file the run", track=IS_SET
    )
    callbacks: CallbackNames = _output(
        [], "observers of the run: names that packages have registered (entry points asyncrl.callbacks), or MODULE:Name"
    )
