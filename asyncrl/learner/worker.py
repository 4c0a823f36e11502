"""The learner: it grants slots, makes datasets of full ones, trains, publishes, saves, and says when training is over.

    consumes  ready slots (a ring from each rollout worker)
    produces  granted slots (a ring to each rollout worker), published weights, checkpoints
    waits     for slots: until woken by a rollout worker or for WAIT_S, then looks again
    stops     when the asked number of steps or seconds was trained, or the runner asks

A thread of its own keeps the slots moving while the other one trains, so no split waits for a minibatch to end. Both
work on the ledger under one lock, and whoever holds it is the one producer of the granting rings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.rings import IndexRing
from asyncrl.buffers.wake import Waker
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.batcher import Batcher
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.publisher import WeightsPublisher
from asyncrl.learner.saving import CheckpointSaver
from asyncrl.learner.slot_ledger import Columns, SlotLedger
from asyncrl.monitoring.phases import Phase, PhaseTimer, busy_s
from asyncrl.monitoring.reports import CheckpointReport, LearnerReport, Report
from asyncrl.runtime.checkpoint import Checkpoint

WAIT_S = 0.1


class SlotExchange:
    """Moves slots between the rings and the ledger; safe to call from both of the learner's threads."""

    def __init__(
        self,
        ledger: SlotLedger,
        ready: Sequence[IndexRing],
        granted: Sequence[IndexRing],
        workers: Sequence[Waker],
        splits_per_worker: int,
    ) -> None:
        """Takes the rings from and to each rollout worker, and their wakers, by the worker's index."""
        self._ledger = ledger
        self._ready = ready
        self._granted = granted
        self._workers = workers
        self._splits_per_worker = splits_per_worker
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def poll(self) -> None:
        """Takes in ready slots and grants free ones."""
        with self._changed:
            slots = [slot for ring in self._ready for slot in ring.pop_all()]
            for slot in slots:
                self._ledger.add_ready(slot)
            woken = set()
            for split_idx, slot in self._ledger.grant():
                worker_idx = split_idx // self._splits_per_worker
                self._granted[worker_idx].push(slot)
                woken.add(worker_idx)
            if slots:
                self._changed.notify_all()
        for worker_idx in woken:
            self._workers[worker_idx].wake()

    def serve(self, waker: Waker, control: RunControl) -> None:
        """Polls until the run has ended; the body of the learner's second thread."""
        try:
            while not control.ended:
                self.poll()
                waker.wait(WAIT_S)
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def take_dataset(self, learner_version: int, timeout_s: float) -> list[Columns] | None:
        """Takes the columns of a dataset, waiting for them at most `timeout_s`; None if there are too few."""
        with self._changed:
            self._check_thread()
            columns = self._ledger.take_dataset(learner_version)
            if columns is None and timeout_s > 0.0:
                self._changed.wait(timeout_s)
                self._check_thread()
                columns = self._ledger.take_dataset(learner_version)
            return columns

    def release(self, columns: list[Columns]) -> None:
        """Frees slots that were trained on and grants them anew."""
        with self._changed:
            self._ledger.release(columns)
        self.poll()

    @property
    def num_ready(self) -> int:
        """Slots that wait to be trained on."""
        with self._changed:
            return self._ledger.num_ready

    @property
    def dropped_samples(self) -> int:
        """Samples dropped so far because they were too old."""
        with self._changed:
            return self._ledger.dropped_samples

    def _check_thread(self) -> None:
        if self._failure is not None:
            raise RuntimeError("the thread that exchanges slots failed") from self._failure


@dataclass(frozen=True)
class LearnerOutcome:
    """How far training came, where it was saved (or why it was not), and whether that is as far as it should come."""

    env_steps: int
    checkpoint: str | None
    error: str | None
    is_complete: bool = True


class LearnerWorker:
    """Trains one dataset after the other. Owns the learner, its counters and its checkpoints."""

    def __init__(
        self,
        learner: OnPolicyLearner,
        batcher: Batcher,
        exchange: SlotExchange,
        publisher: WeightsPublisher,
        control: RunControl,
        config: TrainConfig,
        spec: EnvSpec,
        checkpoints: Path,
        resumed: Mapping[str, Any] | None = None,
    ) -> None:
        """Publishes the first weights; slots may be granted from then on.

        Args:
            learner: what trains, already in the state to begin with.
            batcher: makes datasets.
            exchange: gives columns and takes them back.
            publisher: takes weights.
            control: the run's words.
            config: the run's settings.
            spec: what the environment is; checkpoints carry it.
            checkpoints: folder to save into.
            resumed: counters of the checkpoint that the run goes on from.
        """
        counters = resumed or {"env_steps": 0, "num_samples": 0, "elapsed_s": 0.0}
        self._learner = learner
        self._batcher = batcher
        self._exchange = exchange
        self._publisher = publisher
        self._control = control
        self._config = config
        self._spec = spec
        self._block = torch.empty(learner.block_size)
        self._phases = PhaseTimer()
        self._env_steps = self._env_steps_seen = int(counters["env_steps"])
        self._num_samples = int(counters["num_samples"])
        self._report_started = time.monotonic()
        self._started = self._report_started - float(counters["elapsed_s"])
        self._saver = CheckpointSaver(checkpoints, config, self._env_steps)
        self._num_best = control.num_best
        self._publish()

    @property
    def is_over(self) -> bool:
        """Whether training has reached its end or was asked to stop."""
        limit_s = self._config.train_for_seconds
        return (
            self._control.stop_requested
            or self._env_steps >= self._config.train_for_env_steps
            or (limit_s is not None and time.monotonic() - self._started >= limit_s)
        )

    def advance(self, timeout_s: float, send: Callable[[Report], None]) -> CheckpointReport | None:
        """Trains on the next dataset if there is one within `timeout_s`, and saves what is due.

        Returns:
            The report of a newest checkpoint, if one was due.
        """
        report = self.train_once(timeout_s)
        if report is not None:
            send(report)
        self._phases.charge(Phase.OTHER)
        saved = []
        if self._saver.is_due(self._env_steps):
            saved.append(self._saver.save(self._env_steps, self._content))
        if self._saver.is_milestone_due:
            saved.append(self._saver.save_milestone(self._env_steps, self._content))
        for checkpoint_report in saved:
            send(checkpoint_report)
        self.save_best_if_asked(send)
        self._phases.charge(Phase.SAVE)
        return saved[0] if saved and saved[0].kind == "newest" else None

    def save_best_if_asked(self, send: Callable[[Report], None]) -> None:
        """Saves the present policy as the best so far if the runner has asked for it."""
        if self._control.num_best != self._num_best:
            self._num_best = self._control.num_best
            send(self._saver.save_best(self._env_steps, self._content, self._control.best_return))

    def finish(self, send: Callable[[Report], None]) -> LearnerOutcome:
        """Saves, and says what came of the run.

        A run that is to be repeatable to the bit is saved at its resets and at its end only: from anywhere else it
        would go on differently.
        """
        self.save_best_if_asked(send)
        is_complete = not self._control.stop_requested or self._env_steps >= self._config.train_for_env_steps
        if self._config.checkpoint_resets and not is_complete:
            newest = self._saver.newest
            return LearnerOutcome(self._env_steps, None if newest is None else str(newest), None, is_complete)
        saved = self._saver.save(self._env_steps, self._content)
        send(saved)
        return LearnerOutcome(self._env_steps, saved.path if saved.error is None else None, saved.error, is_complete)

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Trains on the next dataset if there is one within `timeout_s`.

        Order matters: weights are published before the slots are freed, so that whoever is granted one of them acts
        with what was learned from it.
        """
        columns = self._exchange.take_dataset(self._learner.policy_version, timeout_s)
        self._phases.charge(Phase.WAIT_SAMPLES)
        if columns is None:
            self._exchange.poll()  # slots that were dropped as too old are free now
            return None
        dataset = self._batcher.collect(columns)
        lag = self._batcher.lag(self._learner.policy_version)
        self._phases.charge(Phase.COPY)
        skip = self._config.debug_skip_training
        num_steps = dataset.num_valid
        self._env_steps_seen = self._env_steps + num_steps
        metrics = None if skip else self._learner.train(dataset, self._env_steps, self._publish)
        self._phases.charge(Phase.TRAIN)
        self._exchange.release(columns)
        self._env_steps = self._env_steps_seen
        self._num_samples += 0 if skip else num_steps * self._config.num_epochs
        self._phases.charge(Phase.OTHER)
        now, phases = time.monotonic(), self._phases.take()
        report = LearnerReport(
            env_steps=self._env_steps,
            num_samples=self._num_samples,
            num_updates=self._learner.policy_version,
            policy_version=self._learner.policy_version,
            wall_s=now - self._report_started,
            busy_s=busy_s(phases),
            train=metrics,
            lag=lag,
            slots_ready=self._exchange.num_ready,
            dropped_samples=self._exchange.dropped_samples,
            phases=phases,
        )
        self._report_started = now
        return report

    def _content(self) -> Checkpoint:
        state = self._learner.state_dict()
        counters = {
            "env_steps": self._env_steps,
            "num_samples": self._num_samples,
            "elapsed_s": time.monotonic() - self._started,
        }
        about = {"config": self._config.model_dump(mode="json"), "spec": self._spec.to_data()}
        return Checkpoint(state.model, state.optimizer, {**state.scalars, **counters, **about})

    def _publish(self) -> None:
        self._phases.charge(Phase.TRAIN)
        block = self._learner.publication(self._block)
        self._publisher.publish(np.asarray(block), self._learner.policy_version, self._env_steps_seen)
        self._phases.charge(Phase.PUBLISH)
