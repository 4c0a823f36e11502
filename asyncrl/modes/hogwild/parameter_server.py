"""The parameter server of the Hogwild backend: it publishes the shared parameters, and checkpoints are saved from it.

consumes  shared parameters, counts and statistics; gradients of workers in `gradients` mode
produces  published weights, reports; units of returns; steps of the parameters in `gradients` mode
waits     for gradients, or until the next publication: until woken or for the timeout

`LearnerWorker` runs it in place of a loop of the actor/learner backend.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.shared_tensors import GlobalClock, SharedTensor
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.state import LearnerState
from asyncrl.learner.worker import WeightsPublisher
from asyncrl.modes.hogwild.actor_critic import ServerActorCritic
from asyncrl.modes.hogwild.storage import SharedStorage
from asyncrl.observers.reports import LearnerReport, Phase, PhaseTimer

_PUBLISH_EVERY_S = 0.2
_SETTLE_S = 2.0
_POLL_S = 0.01
_REPORT_EVERY_S = 0.1


class GradientCombiner:
    """Steps along combined gradients of workers, in `gradients` mode."""

    def __init__(
        self,
        learner: ServerActorCritic,
        places: GradientPlaces,
        num_gradients: int,
        how: str,
        clock: GlobalClock,
        workers: Sequence[Waker],
    ) -> None:
        """Combines `num_gradients` of `places` in each step, `how` as `combine` does, and wakes `workers` after it."""
        self._learner = learner
        self._places = places
        self._num_gradients = num_gradients
        self._how = how
        self._clock = clock
        self._workers = workers

    def step(self) -> list[int] | None:
        """Steps, and returns the places of the gradients, which `free` frees; None if there are not enough."""
        return self._step(self._num_gradients)

    def step_along_rest(self) -> None:
        """Steps along all gradients that are left; the last step may combine fewer than the others.

        Workers that have not finished may send more meanwhile.
        """
        num_left = len(self._places.ready_places())
        while num_left > 0 and (taken := self._step(min(self._num_gradients, num_left))):
            self.free(taken)
            num_left -= len(taken)

    def free(self, taken: Sequence[int]) -> None:
        """Lets the workers write the places again."""
        self._places.free(taken)
        for worker in self._workers:
            worker.wake()

    def _step(self, count: int) -> list[int] | None:
        taken = self._places.take(count)
        if taken is not None:
            self._learner.descend(combine(self._places.values[taken], self._how), self._clock.scheduled_steps)
        return taken


class ParameterServer:
    """Publishes and saves the shared parameters, which the workers step; in `gradients` mode it steps them itself."""

    def __init__(
        self,
        learner: ServerActorCritic | SacLearner,
        storage: SharedStorage,
        trained: SharedTensor,
        publisher: WeightsPublisher,
        waker: Waker,
        clock: GlobalClock,
        control: RunControl,
        config: TrainConfig,
        phases: PhaseTimer,
        combiner: GradientCombiner | None = None,
    ) -> None:
        """Publishes the first weights.

        Args:
            learner: a view of the shared parameters.
            storage: of the learner.
            trained: the tensor whose steps count as updates.
            publisher: takes weights.
            waker: wakes this process.
            clock: environment steps of all workers.
            control: tells the workers when to finish.
            config: the run's settings.
            phases: its time is charged here.
            combiner: steps `learner`, in `gradients` mode only.
        """
        self._learner = learner
        self._storage = storage
        self._trained = trained
        self._publisher = publisher
        self._waker = waker
        self._clock = clock
        self._control = control
        self._config = config
        self._phases = phases
        self._combiner = combiner
        # In serial mode nothing may depend on the time, and no worker is active while this runs.
        self._publish_every_s = 0.0 if config.serial_mode else _PUBLISH_EVERY_S
        self._flush_s = 0.0 if config.serial_mode else _SETTLE_S
        self._block = torch.empty(learner.block_size)
        self._num_updates = 0
        self._reported_at = self._published_at = time.monotonic()
        self._refresh()
        self._publish()

    @property
    def env_steps(self) -> int:
        return self._clock.env_steps

    @property
    def own_env_steps(self) -> int:
        return self._clock.env_steps

    @property
    def has_more_to_learn(self) -> bool:
        return self.env_steps < self._config.train_for_env_steps

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Steps along gradients if there are enough; otherwise waits at most `timeout_s` and publishes if it is due."""
        taken = None if self._combiner is None else self._combiner.step()
        if self._combiner is not None and taken is not None:
            self._refresh()
            self._phases.charge(Phase.TRAIN)
            self._publish()
            self._combiner.free(taken)
        else:
            self._waker.wait(min(timeout_s, self._publish_every_s))
            self._phases.charge(Phase.WAIT_SAMPLES)
            is_due = time.monotonic() - self._published_at >= self._publish_every_s
            if is_due and self._combiner is None:  # otherwise nobody but this process changes the weights
                self._refresh()
                self._publish()
        return self.take_report() if time.monotonic() - self._reported_at >= _REPORT_EVERY_S else None

    def flush(self) -> None:
        """Waits at most two seconds until all workers have finished, and publishes the result."""
        self._control.must_finish = True
        self._publish()  # workers on other machines count the steps of the run that come with weights
        deadline = time.monotonic() + self._flush_s
        while not self._clock.have_all_finished and time.monotonic() < deadline:
            self._step_along_rest()  # which workers send until they have trained on their last rollouts
            self._waker.wait(_POLL_S)
        self._step_along_rest()
        self._refresh()
        self._publish()

    def _step_along_rest(self) -> None:
        if self._combiner is not None:
            self._combiner.step_along_rest()

    def take_report(self) -> LearnerReport:
        """Returns the metrics since the last report; losses are in the reports of the workers."""
        self._refresh()  # updates at the same moment as the steps
        now, phases = time.monotonic(), self._phases.take()
        report = LearnerReport(
            env_steps=self.env_steps,
            num_samples=0,
            num_updates=self._num_updates,
            wall_s=now - self._reported_at,
            train=None,
            phases=phases,
        )
        self._reported_at = now
        return report

    def state(self) -> LearnerState:
        """Returns all state of the training. While workers train, elements may come from consecutive updates."""
        self._refresh()
        state = self._learner.state_dict()
        return LearnerState(state.model, state.optimizer, {**state.scalars, **self._clock.saved, "num_samples": 0})

    def replay(self) -> None:
        """There is no common replay."""

    def _refresh(self) -> None:
        """Brings the learner up to date with what the workers have done."""
        self._storage.refresh()
        self._learner.follow(self._trained.num_steps)
        self._num_updates = self._learner.policy_version

    def _publish(self) -> None:
        self._published_at = time.monotonic()
        block = self._learner.publication(self._block)
        self._publisher.publish(block, self._num_updates, self.env_steps)
        self._phases.charge(Phase.PUBLISH)


def combine(gradients: npt.NDArray[np.float32], how: str) -> Tensor:
    """Returns the mean or the sum of gradients `[K, N]`, as `[N]` float32, added in float64."""
    total = gradients.sum(0, dtype=np.float64)
    if how == "mean":
        total /= len(gradients)
    return torch.from_numpy(total.astype(np.float32))
