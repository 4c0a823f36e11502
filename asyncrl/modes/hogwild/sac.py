"""SAC's learner in a Hogwild process: an update that is over the bound of staleness is computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.update_runner import StepMetrics
from asyncrl.models.sac import SacActor
from asyncrl.modes.hogwild.staleness import StalenessMeter


class HogwildSacLearner(SacLearner):
    """Steps shared networks. The steps of critics and policy in one update count as one update of the worker.

    With a bound of staleness it holds the lock from the step of the critics to that of the policy, so both are within
    the bound.
    """

    def __init__(
        self,
        actor: SacActor,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        storage: ParameterStore,
        meter: StalenessMeter,
        note_update: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts with the shared networks.

        Args:
            actor: see `SacLearner`, as are `config`, `spec`, `device` and `storage`.
            config: the settings.
            spec: spaces of the environment.
            device: of this learner's copies.
            storage: the shared networks.
            meter: measures the staleness of updates, and may bound it.
            note_update: called after each update, of which several in a row may take long.
        """
        super().__init__(actor, config, spec, device, storage)
        self._meter = meter
        self._note_update = note_update
        self._update_once, self._step = self._step, self._update_within_bound

    def _update_within_bound(self, inputs: Sequence[Tensor], trains_actor: bool) -> StepMetrics:
        step_metrics = self._meter.update(lambda: self._update_once(inputs, trains_actor), self._pull)
        self._note_update()
        return step_metrics

    def _pull(self) -> None:
        self._storage.sync()
        self._refresh_copies()
