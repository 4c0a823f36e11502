"""The learner: it trains, saves, and says when training is over.

consumes  what its trainer consumes: slots of trajectories, or rows of the replay
produces  published weights, checkpoints
waits     where its trainer waits
stops     when the asked number of steps or seconds was trained, or the runner asks
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from asyncrl.buffers.control import RunControl
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.ranks import Agreement, Ranks
from asyncrl.learner.saving import CheckpointSaver
from asyncrl.learner.state import LearnerState
from asyncrl.learner.stopping import StopCondition
from asyncrl.monitoring.phases import Phase, PhaseTimer
from asyncrl.monitoring.reports import CheckpointReport, LearnerReport, Report
from asyncrl.runtime.checkpoint import Checkpoint, KeptReplay


class Trainer(Protocol):
    """Trains from one kind of samples, and publishes weights."""

    @property
    def env_steps(self) -> int:
        """Environment steps that were trained on."""

    @property
    def own_env_steps(self) -> int:
        """Environment steps that this process has collected since it was started."""

    @property
    def has_more_to_learn(self) -> bool:
        """Whether the steps that the run is to have are not all trained on yet."""

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Trains on what is there next, waiting for it at most `timeout_s`; a report if there is something to tell."""

    def settle(self) -> None:
        """Lets others end what they have in hand, in bounded time, before the last report and checkpoint."""

    def take_report(self) -> LearnerReport | None:
        """What was not reported yet."""

    def state(self) -> LearnerState:
        """All that continues the training, but for samples and what other processes have in hand."""

    def replay(self) -> KeptReplay | None:
        """The samples that a checkpoint is to keep; None for trajectories, which are used once."""


@dataclass(frozen=True)
class LearnerOutcome:
    """How a run ended.

    Attributes:
        env_steps: environment steps that were trained on.
        checkpoint: where it was saved.
        error: why it was not saved.
        is_complete: whether training came as far as it should.
        elapsed_s: seconds that the run took.
    """

    env_steps: int
    checkpoint: str | None
    error: str | None
    is_complete: bool = True
    elapsed_s: float = dataclasses.field(default=0.0, compare=False)


class LearnerWorker:
    """Turns a trainer until the run is over. Owns its checkpoints."""

    def __init__(
        self,
        trainer: Trainer,
        control: RunControl,
        config: TrainConfig,
        spec: EnvSpec,
        checkpoints: Path,
        phases: PhaseTimer,
        stopping: StopCondition,
        agreement: Agreement | None = None,
        saves: bool = True,
    ) -> None:
        """Takes a trainer that has published its first weights.

        Args:
            trainer: what trains; it charges its time to the same `phases`.
            control: the run's words.
            config: the run's settings.
            spec: what the environment is; checkpoints carry it.
            checkpoints: folder to save into.
            phases: the learner's time goes here.
            stopping: says when the run ends before its steps are trained, and keeps its time.
            agreement: what all ranks go by; the trainer takes turns in it.
            saves: whether checkpoints are written here.
        """
        self._agreement = agreement or Agreement(Ranks())
        self._saves = saves
        self._trainer = trainer
        self._control = control
        self._config = config
        self._spec = spec
        self._phases = phases
        self._stopping = stopping
        self._saver = CheckpointSaver(checkpoints, config, trainer.env_steps)
        self._num_best = control.num_best
        self._num_saves = 0  # that were met; one may have been asked for before

    @property
    def is_over(self) -> bool:
        """Whether training has reached its end or was asked to stop."""
        return self._stopping.is_met or self._agreement.is_over or not self._trainer.has_more_to_learn

    def advance(self, timeout_s: float, send: Callable[[Report], None]) -> CheckpointReport | None:
        """Trains on what is there within `timeout_s`, and saves what is due.

        Returns:
            The report of a newest checkpoint, if one was due.
        """
        report = self._trainer.train_once(timeout_s)
        if report is not None:
            send(report)
        self._phases.charge(Phase.OTHER)
        env_steps, saved = self._trainer.env_steps, []
        is_asked, self._num_saves = self._control.num_saves != self._num_saves, self._control.num_saves
        if self._agreement.should_save(is_asked or self._saver.is_due(env_steps)) and self._saves:
            saved.append(self._saver.save(env_steps, self._content_with_replay))
        if self._saver.is_milestone_due:
            saved.append(self._saver.save_milestone(env_steps, self._content))
        for checkpoint_report in saved:
            send(checkpoint_report)
        self.save_best_if_asked(send)
        self._phases.charge(Phase.SAVE)
        return saved[0] if saved and saved[0].kind == "newest" else None

    def save_best_if_asked(self, send: Callable[[Report], None]) -> None:
        """Saves the present policy as the best so far if the runner has asked for it."""
        if self._control.num_best != self._num_best:
            self._num_best = self._control.num_best
            send(self._saver.save_best(self._trainer.env_steps, self._content, self._control.best_return))

    def finish(self, send: Callable[[Report], None]) -> LearnerOutcome:
        """Saves, and says what came of the run.

        A run that is to be repeatable to the bit is saved at its resets and at its end only: from anywhere else it
        would go on differently.
        """
        elapsed_s = self._stopping.elapsed_s
        self._trainer.settle()
        is_interrupted = self._control.stop_requested and self._trainer.has_more_to_learn
        self._agreement.end(is_interrupted, self._trainer.own_env_steps)
        report = self._trainer.take_report()
        if report is not None:
            send(report)
        self.save_best_if_asked(send)
        env_steps = self._trainer.env_steps
        is_complete = not self._agreement.was_interrupted
        if self._config.checkpoint_resets and not is_complete:
            newest = self._saver.newest
            return LearnerOutcome(env_steps, None if newest is None else str(newest), None, is_complete, elapsed_s)
        if not self._saves:
            return LearnerOutcome(env_steps, None, None, is_complete, elapsed_s)
        saved = self._saver.save(env_steps, self._content_with_replay)
        send(saved)
        path = saved.path if saved.error is None else None
        return LearnerOutcome(env_steps, path, saved.error, is_complete, elapsed_s)

    def _content(self) -> Checkpoint:
        state = self._trainer.state()
        about = {
            "env_steps": self._trainer.env_steps,
            "elapsed_s": self._stopping.elapsed_s,
            "config": self._config.model_dump(mode="json"),
            "spec": self._spec.to_data(),
            "hyperparameters": self._agreement.hyperparameters.changes(),
        }
        return Checkpoint(state.model, state.optimizer, {**state.scalars, **about})

    def _content_with_replay(self) -> Checkpoint:
        return dataclasses.replace(self._content(), replay=self._trainer.replay())
