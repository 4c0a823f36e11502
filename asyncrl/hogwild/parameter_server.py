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
from asyncrl.hogwild.actor_critic import ServerActorCritic
from asyncrl.hogwild.sac import ServerSac
from asyncrl.hogwild.storage import SharedStorage
from asyncrl.learner.state import LearnerState
from asyncrl.learner.worker import WeightsPublisher
from asyncrl.monitoring.reports import LearnerReport, Phase, PhaseTimer, busy_s

_PUBLISH_EVERY_S = 0.2
_SETTLE_S = 2.0
_POLL_S = 0.01
_REPORT_EVERY_S = 0.25


class ParameterServer:
    """Publishes and saves the shared parameters, which the workers step; in `gradients` mode it steps them itself."""

    def __init__(
        self,
        learner: ServerActorCritic | ServerSac,
        storage: SharedStorage,
        trained: SharedTensor,
        publisher: WeightsPublisher,
        waker: Waker,
        clock: GlobalClock,
        control: RunControl,
        config: TrainConfig,
        phases: PhaseTimer,
        places: GradientPlaces | None = None,
        num_gradients_to_combine: int = 0,
        workers: Sequence[Waker] = (),
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
            places: gradients of the workers, in `gradients` mode only.
            num_gradients_to_combine: gradients of one step.
            workers: woken after each step.
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
        self._places = places
        self._num_gradients = num_gradients_to_combine
        self._workers = workers
        # In serial mode nothing may depend on the time, and no worker is active while this runs.
        self._publish_every_s = 0.0 if config.serial_mode else _PUBLISH_EVERY_S
        self._settle_s = 0.0 if config.serial_mode else _SETTLE_S
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
        taken = None if self._places is None else self._places.take(self._num_gradients)
        if self._places is not None and taken is not None:
            self._descend(self._places.values[taken])
            self._refresh()
            self._phases.charge(Phase.TRAIN)
            self._publish()
            self._places.free(taken)
            for worker in self._workers:
                worker.wake()
        else:
            self._waker.wait(min(timeout_s, self._publish_every_s))
            self._phases.charge(Phase.WAIT_SAMPLES)
            is_due = time.monotonic() - self._published_at >= self._publish_every_s
            if is_due and self._places is None:  # otherwise nobody but this process changes the weights
                self._refresh()
                self._publish()
        return self.take_report() if time.monotonic() - self._reported_at >= _REPORT_EVERY_S else None

    def settle(self) -> None:
        """Waits at most two seconds until all workers have finished, and publishes the result."""
        self._control.must_finish = True
        self._publish()  # workers on other machines count the steps of the run that come with weights
        deadline = time.monotonic() + self._settle_s
        while not self._clock.have_all_finished and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if self._places is not None:
            # Steps along all gradients that are left; the last step may combine fewer than the others. Workers that
            # have not finished may send more meanwhile.
            num_left = len(self._places.ready_places())
            while num_left > 0 and (taken := self._places.take(min(self._num_gradients, num_left))):
                self._descend(self._places.values[taken])
                self._places.free(taken)
                num_left -= len(taken)
        self._refresh()
        self._publish()

    def take_report(self) -> LearnerReport:
        """Returns the figures since the last report; losses are in the reports of the workers."""
        self._refresh()  # updates at the same moment as the steps
        now, phases = time.monotonic(), self._phases.take()
        report = LearnerReport(
            env_steps=self.env_steps,
            num_samples=0,
            num_updates=self._num_updates,
            wall_s=now - self._reported_at,
            busy_s=busy_s(phases),
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

    def _descend(self, gradients: npt.NDArray[np.float32]) -> None:
        self._learner.descend(combine(gradients, self._config.combine_gradients), self.env_steps)

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
