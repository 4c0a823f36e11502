"""The keeper of shared parameters: it watches, publishes for evaluation, and is what checkpoints are saved from.

consumes  shared parameters, counts and statistics; gradients where it combines them
produces  published weights, reports; units of returns; steps of the parameters where it combines gradients
waits     for gradients or for nothing in particular: until woken or for the timeout

It stands where the learner's trainer stands in the other backend (`asyncrl.learner.worker.LearnerLoop`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.messages import Waker
from asyncrl.config.schema import TrainConfig
from asyncrl.hogwild.actor_critic import KeptActorCritic
from asyncrl.hogwild.clock import GlobalClock
from asyncrl.hogwild.gradients import combine
from asyncrl.learner.state import LearnerState
from asyncrl.learner.worker import WeightsPublisher
from asyncrl.monitoring.phases import Phase, PhaseTimer, busy_s
from asyncrl.monitoring.reports import LearnerReport

_PUBLISH_EVERY_S = 0.2
_SETTLE_S = 2.0
_LOOK_EVERY_S = 0.01
_REPORT_EVERY_S = 0.25


class KeptLearner(Protocol):
    """The keeper's view of what is trained."""

    @property
    def block_size(self) -> int:
        """Elements of a publication."""

    def publication(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Writes weights and statistics as one block."""

    def state_dict(self) -> LearnerState:
        """Copies all that continues the training."""


class HogwildKeeper:
    """Keeps parameters that others train."""

    def __init__(
        self,
        learner: KeptLearner,
        refresh: Callable[[], int],
        publisher: WeightsPublisher,
        waker: Waker,
        clock: GlobalClock,
        config: TrainConfig,
        phases: PhaseTimer,
    ) -> None:
        """Publishes the first weights.

        Args:
            learner: a view of what is trained.
            refresh: brings the view to what the workers have done, and returns how many updates that is.
            publisher: takes weights.
            waker: wakes this process.
            clock: environment steps of all workers.
            config: the run's settings.
            phases: its time goes here.
        """
        self._learner = learner
        self._refresh = refresh
        self._publisher = publisher
        self._waker = waker
        self._clock = clock
        self._config = config
        self._phases = phases
        # In one process nothing may follow the clock, and nobody is at work while the keeper is.
        self._publish_every_s = 0.0 if config.serial_mode else _PUBLISH_EVERY_S
        self._settle_s = 0.0 if config.serial_mode else _SETTLE_S
        self._block = torch.empty(learner.block_size)
        self._num_updates = refresh()
        self._reported_at = self._published_at = time.monotonic()
        self._publish()

    @property
    def env_steps(self) -> int:
        """Environment steps of all workers."""
        return self._clock.env_steps

    @property
    def own_env_steps(self) -> int:
        """Environment steps of the run: nobody else has some."""
        return self._clock.env_steps

    @property
    def has_more_to_learn(self) -> bool:
        """Whether steps are left to make."""
        return self.env_steps < self._config.train_for_env_steps

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Looks after the parameters once."""
        self._waker.wait(min(timeout_s, self._publish_every_s))
        self._phases.charge(Phase.WAIT_SAMPLES)
        now = time.monotonic()
        if now - self._published_at >= self._publish_every_s:
            self._published_at = now
            self._num_updates = self._refresh()
            self._publish()
        return self.take_report() if now - self._reported_at >= _REPORT_EVERY_S else None

    def settle(self) -> None:
        """Waits until no worker has anything in hand, at most two seconds, and publishes what has become of it."""
        deadline = time.monotonic() + self._settle_s
        while not self._clock.do_all_rest and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        self._take_last_steps()
        self._num_updates = self._refresh()
        self._publish()

    def take_report(self) -> LearnerReport | None:
        """What was done since the last report; losses come in the workers' own."""
        self._num_updates = self._refresh()  # of the same moment as the steps
        now, phases = time.monotonic(), self._phases.take()
        report = LearnerReport(
            env_steps=self.env_steps,
            num_samples=0,
            num_updates=self._num_updates,
            policy_version=self._num_updates,
            wall_s=now - self._reported_at,
            busy_s=busy_s(phases),
            train=None,
            phases=phases,
        )
        self._reported_at = now
        return report

    def state(self) -> LearnerState:
        """All that continues the training. While workers go on, elements may be of neighbouring updates."""
        self._num_updates = self._refresh()
        state = self._learner.state_dict()
        return LearnerState(state.model, state.optimizer, {**state.scalars, **self._clock.saved, "num_samples": 0})

    def replay(self) -> None:
        """Nothing: each worker's replay is its own."""

    def _take_last_steps(self) -> None:
        """Takes the steps that are left when no worker has anything in hand; here workers have taken all of them."""

    def _publish(self) -> None:
        block = self._learner.publication(self._block)
        self._publisher.publish(block, self._num_updates, self.env_steps)
        self._phases.charge(Phase.PUBLISH)


class GradientCombiner(HogwildKeeper):
    """Keeps parameters that it steps itself, along gradients that the workers computed."""

    def __init__(
        self,
        learner: KeptActorCritic,
        refresh: Callable[[], int],
        publisher: WeightsPublisher,
        waker: Waker,
        clock: GlobalClock,
        config: TrainConfig,
        phases: PhaseTimer,
        places: GradientPlaces,
        count: int,
        workers: Sequence[Waker],
    ) -> None:
        """As its base; `count` gradients from `places` make one step, after which `workers` are woken."""
        self._actor_critic = learner
        self._places = places
        self._count = count
        self._workers = workers
        super().__init__(learner, refresh, publisher, waker, clock, config, phases)

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Takes one step if there are gradients for it, waiting for them at most `timeout_s`."""
        taken = self._places.take(self._count)
        if taken is None:
            return super().train_once(timeout_s)
        self._descend_along(taken)
        self._num_updates = self._refresh()
        self._phases.charge(Phase.TRAIN)
        self._publish()
        self._places.free(taken)
        for worker in self._workers:
            worker.wake()
        return self.take_report() if time.monotonic() - self._reported_at >= _REPORT_EVERY_S else None

    def _take_last_steps(self) -> None:
        """Steps along all gradients that are there; the last of these steps may be along fewer than the others."""
        num_left = self._places.num_ready  # workers that do not rest may hand over more meanwhile
        while num_left > 0 and (taken := self._places.take(min(self._count, num_left))):
            self._descend_along(taken)
            self._places.free(taken)
            num_left -= len(taken)

    def _descend_along(self, taken: Sequence[int]) -> None:
        gradient = combine(self._places.values[taken], self._config.combine_gradients)
        self._actor_critic.set_schedule(self.env_steps)
        self._actor_critic.descend_along(gradient)
