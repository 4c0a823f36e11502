"""When the parameter server publishes: after its steps, at times if others step, and before it waits for the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.gradients import GradientPlaces, gradient_specs
from asyncrl.config.schema import TrainConfig
from asyncrl.modes.hogwild import parameter_server
from asyncrl.modes.hogwild.parameter_server import GradientCombiner, ParameterServer
from asyncrl.observers.reports import PhaseTimer


class Server:
    """A parameter server of two workers, and what it has published: versions and environment steps."""

    def __init__(self, combines: bool) -> None:
        self.published: list[tuple[int, int]] = []
        self.env_steps = self.scheduled_steps = 0
        self.looks: list[int] = []  # publications before each look at whether all workers have finished
        self.learner: Any = SimpleNamespace(
            block_size=3, policy_version=0, publication=lambda block: block, follow=lambda version: None
        )
        self.learner.descend = self._descend
        self.places = GradientPlaces(Arena.create(gradient_specs(3, 2)))
        storage: Any = SimpleNamespace(refresh=lambda: None)
        trained: Any = SimpleNamespace(num_steps=0)
        publisher: Any = SimpleNamespace(publish=lambda block, *what: self.published.append(what))
        waker: Any = SimpleNamespace(wait=lambda timeout_s: None)
        clock: Any = self
        control: Any = self
        parts = self.learner, storage, trained, publisher, waker, clock, control, TrainConfig(), PhaseTimer()
        combiner = GradientCombiner(self.learner, self.places, 1, "mean", clock, ()) if combines else None
        self.server = ParameterServer(*parts, combiner)

    def _descend(self, gradient: torch.Tensor, env_steps: int) -> None:
        self.learner.policy_version += 1

    @property
    def have_all_finished(self) -> bool:
        assert self.must_finish, "workers know that they are to finish"
        self.looks.append(len(self.published))
        return True


def test_who_waits_for_the_last_workers_has_told_them_all_steps_of_the_run() -> None:
    own = Server(combines=True)
    own.env_steps = 700
    own.server.flush()
    assert own.looks[0] == 2 and own.published[1] == (0, 700)


@pytest.mark.parametrize("combines", [False, True])
def test_weights_go_out_at_times_only_if_others_may_have_changed_them(
    combines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_server, "_PUBLISH_EVERY_S", 0.0)
    own = Server(combines)
    for _ in range(3):
        own.server.train_once(0.0)
    assert len(own.published) == (1 if combines else 4)
    if combines:
        own.places.write(0, torch.ones(3).numpy(), 1)
        own.server.train_once(0.0)
        assert own.published[1:] == [(1, 0)], "each step is published"
