"""The smallest arenas, spaces and fakes that the roles can be tested with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from layouts import vector_observation

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan, resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec
from asyncrl.learner.replay_loop import ReplayLoop
from asyncrl.modes.choice import arena_specs
from asyncrl.modes.replay.roles import ReplayRoles
from asyncrl.rollout.env_group import HostEnvGroup
from asyncrl.rollout.failures import FailureLog, Recovery
from asyncrl.rollout.sinks import SlotSink
from asyncrl.rollout.worker import ActionSource, Split
from asyncrl.run.setup import RunSetup

BOX = EnvSpec("Box", vector_observation(2, "float64"), BoxAction((1,), (-0.5,), (0.5,), "float32"), None)
CHOICE = EnvSpec("Choice", vector_observation(2, "float64"), DiscreteAction(3, 0), None)


def planned(**settings: Any) -> ResourcePlan:
    """A plan for four cores without an accelerator, with rollouts of two steps."""
    return resolve(TrainConfig(**{"rollout": 2, "num_batches_per_epoch": 1, **settings}), Machine(cores=4))


def small_arena(
    plan: ResourcePlan, spec: EnvSpec = BOX, num_weights: int | Sequence[int] = 8
) -> tuple[Arena, TrajectorySlots]:
    """An arena for that plan, all slots free."""
    if plan.num_policies > 1 and isinstance(num_weights, int):
        num_weights = [num_weights] * plan.num_policies
    arena = Arena.create(arena_specs(spec, plan, num_weights))
    slots = TrajectorySlots(arena)
    slots.reset()
    return arena, slots


def new_control(has_finished_episode: bool = False) -> RunControl:
    """The words of a run with one worker."""
    control = RunControl(small_arena(planned(num_workers=1))[0], 1)
    control.has_finished_episode = has_finished_episode
    return control


def new_recovery(make: Callable[[], Any]) -> Recovery:
    """Makes environments of worker 0 again when they fail, as after the run's first episode; seeds are the steps."""
    log = FailureLog(0, TrainConfig(), new_control(has_finished_episode=True))
    return Recovery(log, make, lambda env_idx, steps: steps)


def fill(slots: TrajectorySlots, slot: int, version: int = 0, value: float = 0.0) -> None:
    """Writes every row of a slot, as a worker and a policy of `version` do."""
    for field in (slots.obs, slots.value, slots.action, slots.action_parameters, slots.log_prob, slots.reward):
        field[slot] = value
    slots.terminated[slot] = slots.truncated[slot] = False
    slots.valid[slot] = True
    slots.policy_version[slot] = version
    slots.chosen_at[slot] = 0.0


class SlotFiller:
    """Split 0 with these environments, which fills slots one after the other."""

    def __init__(self, group: HostEnvGroup, slots: TrajectorySlots, actions: ActionSource) -> None:
        self._next: int | None = None
        self.split = Split(0, group, SlotSink(0, group, slots, self), actions)

    def next_slot(self, split_idx: int) -> int | None:
        return self._next

    def complete(self, slot: int) -> None: ...

    def begin(self, slot: int) -> None:
        """Starts to fill a slot that this split may fill."""
        self._next = slot
        assert self.split.begin()

    def finish(self) -> int:
        """Fills the slot; returns the steps made."""
        num_steps = 0
        while self.split.place is not None:
            num_steps += self.split.advance()
        return num_steps

    def fill(self, slot: int) -> int:
        self.begin(slot)
        return self.finish()


class ScriptedEnv(gymnasium.Env[Any, Any]):
    """Plays a list of steps, each (observation, reward, terminated, truncated); resets give the numbers -1, -2, ...

    An observation is one number, repeated; `wrong`, once it is set, takes its place in resets. A step may be an
    exception, which is raised.
    """

    def __init__(
        self,
        steps: Iterable[tuple[float, float, bool, bool] | BaseException],
        dtype: str = "float64",
        size: int = 2,
        infos: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.steps = list(steps)
        self.obs = np.zeros(size, dtype)
        self._infos = list(infos)
        self.taken: list[Any] = []
        self.seeds: list[int | None] = []
        self.is_closed = False
        self.wrong: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.obs[:] = -len(self.seeds)
        return self.obs if self.wrong is None else self.wrong, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(np.array(action))
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        self.obs[:] = step[0]
        return self.obs, step[1], step[2], step[3], self._infos.pop(0) if self._infos else {}

    def close(self) -> None:
        self.is_closed = True


class FakeActions:
    """An action source whose answers the test gives."""

    def __init__(self, slots: TrajectorySlots, at_once: bool = True) -> None:
        self._slots = slots
        self._at_once = at_once
        self.asked: list[tuple[int, int, int]] = []
        self._open: set[int] = set()

    def request(self, split_idx: int, slot: int, row: int) -> None:
        assert split_idx not in self._open
        self.asked.append((split_idx, slot, row))
        self._open.add(split_idx)
        if self._at_once:
            self.answer(split_idx)

    def is_answered(self, split_idx: int) -> bool:
        return split_idx not in self._open

    def answer(self, split_idx: int) -> None:
        self._open.remove(split_idx)
        _, slot, row = next(asked for asked in reversed(self.asked) if asked[0] == split_idx)
        self._slots.value[slot, row] = 0.0
        if row < self._slots.rollout:
            self._slots.action[slot, row] = 10 * slot + row
            self._slots.log_prob[slot, row] = 0.0


class Remembering(FakeActions):
    """Actions of a policy whose state is the number of observations that it has seen before, if nobody resets it."""

    def answer(self, split_idx: int) -> None:
        super().answer(split_idx)
        _, slot, row = self.asked[-1]
        if row < self._slots.rollout:
            self._slots.rnn_state[slot, row + 1] = self._slots.rnn_state[slot, row] + 1.0


class CountingWaker:
    """Counts wake-ups."""

    def __init__(self) -> None:
        self.count = 0

    def wake(self) -> None:
        self.count += 1


def replay_loop(spec: EnvSpec, folder: Path, **settings: Any) -> ReplayLoop:
    """The loop of a new run."""
    sizes: dict[str, Any] = {"num_workers": 1, "num_envs_per_worker": 2, "encoder_mlp_layers": [8]}
    config = TrainConfig(serial_mode=True, device="cpu", replay_size=100, batch_size=8, **sizes, **settings)
    setup = RunSetup.create(config, resolve(config, Machine(cores=4)), spec, folder)
    waker: Any = CountingWaker()
    loop = ReplayRoles().learner(setup, waker, [])[0]._loop
    assert isinstance(loop, ReplayLoop)
    return loop
