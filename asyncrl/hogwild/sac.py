"""SAC's learner in a Hogwild process: an update that is over the bound of staleness is computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.hogwild.staleness import StalenessMeter
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.update_runner import Figures
from asyncrl.models.sac import SacActor


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
        self._update_once, self._update = self._update, self._update_within_bound

    def _update_within_bound(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        figures = self._meter.update(lambda: self._update_once(inputs, trains_actor), self._pull)
        self._note_update()
        return figures

    def _pull(self) -> None:
        self._storage.sync()
        self._refresh_copies()


class ServerSac(SacLearner):
    """SAC's learner of the parameter server, which steps along combined gradients in `gradients` mode.

    Workers compute the gradients of critics and policy at the same copy of the networks. In the other modes, and in a
    single process, the policy's gradient is at the critics after their step.
    """

    def __init__(self, actor: SacActor, config: TrainConfig, spec: EnvSpec, storage: ParameterStore) -> None:
        """Starts with the shared networks; gradients are float32 whatever the precision of the workers."""
        own = config.model_copy(update={"precision": "float32"})
        super().__init__(actor, own, spec, torch.device("cpu"), storage)

    @torch.no_grad()
    def descend(self, gradient: Tensor, env_steps: int) -> None:
        """Clips the parts of a gradient `[N]` of workers and takes the steps of one update.

        Args:
            gradient: of the policy, the entropy coefficient and the critics, as `SacSendingStorage` sends them.
            env_steps: environment steps of all workers; the linear schedule reads it.
        """
        self._learning_rate.start_dataset(env_steps)
        self._rate.fill_(self._learning_rate.value)
        parts = (self._actor.flat.require_grad(), self._ent_coef_gradient, self._critic.flat.require_grad())
        for part, values in zip(parts, torch.split(gradient, [len(part) for part in parts]), strict=True):
            part.copy_(values)
        self.policy_version += 1
        no_figures = torch.zeros(1)
        self._critic.step(self._rate, no_figures)
        assert self._target is not None
        self._target.follow(self._critic, self._config.tau)
        if self.policy_version % self._config.policy_delay == 0:
            self._actor.step(self._rate, no_figures)
