"""What tells others that something is there is stored after it: a process may be killed, or read, between any two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from replays import new_replay
from small_runs import fill, planned, small_arena

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import PolicyChange, RunControl
from asyncrl.buffers.messages import IndexRing, RequestTable
from asyncrl.buffers.replay import ReplayStripes
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.hyperparameters import NO_CHANGES

TRAINED = 1


class RecordedArray:
    """An array that notes when it is written."""

    def __init__(self, array: Any, name: str, log: list[str]) -> None:
        self._array = array
        self._name = name
        self._log = log
        self.shape = getattr(array, "shape", ())

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Any) -> Any:
        return self._array[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._log.append(self._name)
        self._array[key] = value


class RecordedArena:
    """An arena whose arrays note in one list when they are written."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.log: list[str] = []

    def array(self, name: str) -> RecordedArray:
        return RecordedArray(self._arena.array(name), name, self.log)

    def find_array(self, name: str) -> None:
        return None

    def words(self, name: str) -> RecordedArray:
        return RecordedArray(self._arena.words(name), name, self.log)


def test_steps_of_a_replay_are_counted_after_the_cursor_covers_their_row() -> None:
    arena: Any = RecordedArena(new_replay(1, 2, 5)[0])
    ReplayStripes(arena).publish(0, 2)
    assert arena.log == ["replay.rows", "replay.env_steps"]


@pytest.mark.parametrize(
    ("act", "last"),
    [
        pytest.param(lambda arena: IndexRing(arena, "ready.0").push(5), "ready.0.tail", id="ring"),
        pytest.param(lambda arena: WeightsChannel(arena).publish(np.ones(8), 3, 0), "weights.count", id="weights"),
        pytest.param(lambda arena: RequestTable(arena).ask(0, 1, 1), "splits.request_seq", id="request"),
        pytest.param(lambda arena: TrajectorySlots(arena).grant(0, 1), "slots.state", id="grant"),
        pytest.param(lambda arena: TrajectorySlots(arena).free(TRAINED), "slots.state", id="free"),
        pytest.param(lambda arena: RunControl(arena, 0).send_training_info(b"info"), "control", id="training info"),
        pytest.param(
            lambda arena: RunControl(arena, 0).send_change(PolicyChange(NO_CHANGES)), "control", id="hyperparameters"
        ),
        pytest.param(lambda arena: RunControl(arena, 0).ask_for_best(1.0), "control", id="best"),
    ],
)
def test_the_word_that_others_look_at_is_stored_last_and_once(act: Callable[[Any], None], last: str) -> None:
    real, slots = small_arena(planned(batch_size=2, num_workers=1, num_envs_per_worker=1))
    slots.grant(TRAINED, 0)
    fill(slots, TRAINED)
    slots.finish(TRAINED, 0)
    slots.take(TRAINED)
    arena = RecordedArena(real)
    act(arena)
    assert len(arena.log) > 1
    assert arena.log[-1] == last
    assert arena.log.count(last) == 1
