"""The learner's process: it trains, saves checkpoints, and decides when training is over.

consumes  the samples of its loop: slots of trajectories, or rows of the replay
produces  published weights, checkpoints
waits     where its loop waits
stops     after the requested steps or seconds, or when the runner asks
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.ranks import RankConsensus, Ranks
from asyncrl.learner.state import LearnerState
from asyncrl.observers.reports import CheckpointReport, LearnerReport, Phase, PhaseTimer, Report
from asyncrl.processes.children import RunFailed
from asyncrl.processes.own_settings import own_settings, with_own_settings
from asyncrl.storage import checkpoint
from asyncrl.storage.checkpoint import Checkpoint, SavedReplay

MOST_FAILED = 3
"""The run ends after this many checkpoints in a row that cannot be written: it could never be resumed."""

log = logging.getLogger(__name__)


class LearnerLoop(Protocol):
    """Trains on one kind of samples, and publishes weights."""

    @property
    def env_steps(self) -> int:
        """Environment steps of the run that were trained on."""

    @property
    def own_env_steps(self) -> int:
        """Environment steps that this rank has collected since it was started."""

    @property
    def has_more_to_learn(self) -> bool:
        """Whether steps of the run are left to train on."""

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Trains on the next samples, waiting for them at most `timeout_s`; returns a report if one is due."""

    def flush(self) -> None:
        """Before the last report and checkpoint: publishes the last weights and lets other processes end their work."""

    def take_report(self) -> LearnerReport | None:
        """Work that was not reported yet."""

    def state(self) -> LearnerState:
        """The state that continues the training, without samples."""

    def replay(self) -> SavedReplay | None:
        """The samples that a checkpoint stores; None for trajectories, which are used once."""


@dataclass(frozen=True)
class LearnerContext:
    """What the loop and the worker of one learner share; both charge their time to the same `phases`."""

    config: TrainConfig
    control: RunControl
    stopping: StopCondition
    phases: PhaseTimer = field(default_factory=PhaseTimer)
    agreement: RankConsensus = field(default_factory=lambda: RankConsensus(Ranks()))


@dataclass(frozen=True)
class LearnerOutcome:
    """How a run ended.

    Attributes:
        env_steps: environment steps that were trained on.
        checkpoint: path of the last checkpoint; None if there is none.
        error: why it could not be saved.
        is_complete: False if training was interrupted.
        elapsed_s: seconds that the run took.
        of_policies: the outcome of each, of several policies.
    """

    env_steps: int
    checkpoint: str | None
    error: str | None
    is_complete: bool = True
    elapsed_s: float = field(default=0.0, compare=False)
    of_policies: tuple[LearnerOutcome, ...] = ()


def joint_outcome(outcomes: Sequence[LearnerOutcome]) -> LearnerOutcome:
    """The outcome of a run whose policies ended so; the checkpoint is that of the first."""
    if len(outcomes) == 1:
        return outcomes[0]
    return dataclasses.replace(
        outcomes[0],
        of_policies=tuple(outcomes),
        env_steps=max(each.env_steps for each in outcomes),
        error=next((each.error for each in outcomes if each.error is not None), None),
        is_complete=all(each.is_complete for each in outcomes),
        elapsed_s=max(each.elapsed_s for each in outcomes),
    )


class LearnerWorker:
    """Runs a loop until training is over. Owns its checkpoints."""

    def __init__(
        self,
        loop: LearnerLoop,
        context: LearnerContext,
        spec: EnvSpec,
        checkpoints: Path,
        saves: bool = True,
        policy_idx: int = 0,
    ) -> None:
        """Takes a loop that has published its first weights."""
        self._agreement = context.agreement
        self._num_ranks = self._agreement.ranks.num_ranks
        self._saves = saves
        self._loop = loop
        self._control = context.control
        self._config = context.config
        self._spec = spec
        self._phases = context.phases
        self._stopping = context.stopping
        self._saver = CheckpointSaver(checkpoints, context.config, loop.env_steps, policy_idx)
        self._num_best = self._num_saves = 0  # requests that were carried out; there may be some from the start

    @property
    def is_over(self) -> bool:
        """Whether training has reached its end or was asked to stop."""
        return self._stopping.is_met or self._agreement.is_over or not self._loop.has_more_to_learn

    def advance(self, timeout_s: float, send: Callable[[Report], None]) -> CheckpointReport | None:
        """Trains once within `timeout_s`, and saves the checkpoints that are due; returns the report of the newest."""
        with own_settings():
            self._stopping.record_time()
            report = self._loop.train_once(timeout_s)
            if report is not None:
                send(report)
            self._phases.charge(Phase.OTHER)
            env_steps, newest = self._loop.env_steps, None
            num_saves = self._control.num_saves
            is_due = num_saves != self._num_saves or self._saver.is_due(env_steps)
            self._num_saves = num_saves
            if self._num_ranks > 1:
                is_due = self._agreement.should_save(is_due)
            if is_due and self._saves:
                newest = self._saver.save(env_steps, self._content_with_replay)
                send(newest)
            if self._config.save_milestones_s is not None and self._saver.is_milestone_due:
                send(self._saver.save_milestone(env_steps, self._content))
            if self._control.num_best != self._num_best:
                self.save_best_if_asked(send)
            self._phases.charge(Phase.SAVE)
        return newest

    @with_own_settings
    def save_best_if_asked(self, send: Callable[[Report], None]) -> None:
        """Saves the current policy as the best so far if the runner has asked for it."""
        if self._control.num_best != self._num_best:
            self._num_best = self._control.num_best
            send(self._saver.save_best(self._loop.env_steps, self._content, self._control.best_return))

    @with_own_settings
    def finish(self, send: Callable[[Report], None]) -> LearnerOutcome:
        """Saves the last checkpoint and returns how the run ended.

        With `checkpoint_resets` only resets and a complete run are saved: resumed from anywhere else, the run would
        not repeat to the bit.
        """
        elapsed_s = self._stopping.elapsed_s
        self._loop.flush()
        is_interrupted = self._control.stop_requested and self._loop.has_more_to_learn
        self._agreement.end(is_interrupted, self._loop.own_env_steps)
        report = self._loop.take_report()
        if report is not None:
            send(report)
        self.save_best_if_asked(send)
        env_steps, path, error = self._loop.env_steps, None, None
        is_complete = not self._agreement.was_interrupted
        if self._config.checkpoint_resets and not is_complete:
            newest = checkpoint.latest(self._saver.folder)
            path = None if newest is None else str(newest)
        elif self._saves:
            saved = self._saver.save(env_steps, self._content_with_replay)
            send(saved)
            path, error = (saved.path, None) if saved.error is None else (None, saved.error)
        return LearnerOutcome(env_steps, path, error, is_complete, elapsed_s)

    def _content(self) -> Checkpoint:
        state = self._loop.state()
        about = {
            "env_steps": self._loop.env_steps,
            "elapsed_s": self._stopping.elapsed_s,
            "config": self._config.model_dump(mode="json"),
            "spec": self._spec.to_data(),
            "hyperparameters": self._agreement.hyperparameters.changes(),
        }
        return Checkpoint(state.model, state.optimizer, {**state.scalars, **about})

    def _content_with_replay(self) -> Checkpoint:
        return dataclasses.replace(self._content(), replay=self._loop.replay())


class CheckpointSaver:
    """Saves the newest checkpoints, milestones and the best. Owns the run's folder of checkpoints."""

    def __init__(self, folder: Path, config: TrainConfig, env_steps: int, policy_idx: int = 0) -> None:
        """Intervals begin now, at `env_steps` trained before; `policy_idx` is for reports."""
        self.folder = folder
        self._policy_idx = policy_idx
        self._keep = config.keep_checkpoints
        self._every_s = math.inf if config.checkpoint_resets else config.save_every_s
        self._every_steps = config.save_every_env_steps
        self._milestones_s = config.save_milestones_s or math.inf
        self._saved_at = self._milestone_at = time.monotonic()
        self._saved_steps = env_steps
        self._num_failed = 0

    def is_due(self, env_steps: int) -> bool:
        """Whether the newest state should be saved, by time or by steps."""
        if time.monotonic() - self._saved_at >= self._every_s:
            return True
        every = self._every_steps
        return every is not None and env_steps // every > self._saved_steps // every

    @property
    def is_milestone_due(self) -> bool:
        return time.monotonic() - self._milestone_at >= self._milestones_s

    def save(self, env_steps: int, content: Callable[[], Checkpoint]) -> CheckpointReport:
        """Saves the newest state; an error in writing is reported, not raised.

        Raises:
            RunFailed: `MOST_FAILED` checkpoints in a row could not be written.
        """
        self._saved_at, self._saved_steps = time.monotonic(), env_steps
        return self._write("newest", self.folder, env_steps, content, self._keep)

    def save_milestone(self, env_steps: int, content: Callable[[], Checkpoint]) -> CheckpointReport:
        """Saves a checkpoint that is never deleted. The next one is due at the next multiple of the interval."""
        now = time.monotonic()
        self._milestone_at = now - (now - self._milestone_at) % self._milestones_s
        return self._write("milestone", self.folder / checkpoint.MILESTONES, env_steps, content, None)

    def save_best(self, env_steps: int, content: Callable[[], Checkpoint], mean_return: float) -> CheckpointReport:
        """Saves the best policy so far and deletes the one before."""
        best = self.folder / checkpoint.BEST
        report = self._write("best", best, env_steps, lambda: checkpoint.as_best(content(), mean_return), 1)
        return dataclasses.replace(report, mean_return=mean_return)

    def _write(
        self, kind: str, folder: Path, env_steps: int, content: Callable[[], Checkpoint], keep: int | None
    ) -> CheckpointReport:
        try:
            made = content()
            for name, tensor in (*made.model.items(), *made.optimizer.items()):
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise checkpoint.CheckpointError(
                        f"{name} is not finite, so no run could resume from this checkpoint"
                    )
            path = checkpoint.save(folder, made, env_steps, keep)
        except (checkpoint.CheckpointError, MemoryError) as error:
            reason = str(error) or "there is not enough memory to make it"
            log.error("%s", reason)
            self._num_failed += 1
            if self._num_failed == MOST_FAILED:
                raise RunFailed(
                    f"{MOST_FAILED} checkpoints in a row could not be saved, the last: {reason}", is_final=True
                ) from error
            return CheckpointReport(str(folder), env_steps, reason, kind, policy_idx=self._policy_idx)
        self._num_failed = 0
        return CheckpointReport(str(path), env_steps, None, kind, policy_idx=self._policy_idx)


class StopCondition:
    """Whether the run was asked to stop, or has used up its time, which counts from the construction."""

    def __init__(
        self, control: RunControl, limit_s: float | None, elapsed_s: float = 0.0, most_env_steps: int = 0
    ) -> None:
        """Starts the clock.

        Args:
            control: the run's words.
            limit_s: seconds that the run may take; None for no limit.
            elapsed_s: seconds that it took before.
            most_env_steps: environment steps that the run may take; `record_time` multiplies them by the share of time.
        """
        self._control = control
        self._limit_s = limit_s
        self._most_env_steps = most_env_steps
        self._started_at = time.monotonic() - elapsed_s
        self.record_time()

    def record_time(self) -> None:
        """Notes how far the limit of time has brought the schedules."""
        if self._limit_s is not None:
            share = min(1.0, (time.monotonic() - self._started_at) / self._limit_s)
            self._control.steps_by_time = int(share * self._most_env_steps)

    @property
    def elapsed_s(self) -> float:
        """Seconds that the run has taken."""
        return time.monotonic() - self._started_at

    @property
    def is_met(self) -> bool:
        """Whether the run ends after the pass that is being trained."""
        if self._control.stop_requested:
            return True
        return self._limit_s is not None and time.monotonic() - self._started_at >= self._limit_s


class WeightsPublisher:
    """Writes blocks of weights into the channel: the newest that is at least `forced_lag` versions old."""

    def __init__(self, channel: WeightsChannel, forced_lag: int) -> None:
        """With `forced_lag` 0 every block is published at once."""
        self._channel = channel
        self._forced_lag = forced_lag
        self._held: deque[tuple[Tensor, int, int]] = deque()

    def publish(self, block: Tensor, version: int, env_steps: int) -> None:
        """Publishes a block, or with a forced lag an older one.

        Args:
            block: [N] float32, weights and statistics, on the learner's device.
            version: its policy version.
            env_steps: environment steps that it was trained on.

        Raises:
            RunFailed: a number in the block is not finite.
        """
        on_host = block.cpu()  # the only transfer: the host waits for it
        if not torch.isfinite(on_host).all():
            raise RunFailed(f"weights or statistics of policy version {version} are not finite", is_final=True)
        if self._forced_lag > 0:
            self._held.append((block.clone(), version, env_steps))
            while len(self._held) > 1 and self._held[1][1] <= version - self._forced_lag:
                self._held.popleft()
            block, version, env_steps = self._held[0]
            on_host = block.cpu()
        self._channel.publish(on_host.numpy(), version, env_steps, on_device=block)
