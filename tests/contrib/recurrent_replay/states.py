"""Replays with recurrent states."""

from __future__ import annotations

from typing import Any

from replays import SPEC, TaggedWriter

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.replay import replay_specs, rows_per_stripe
from asyncrl.contrib.recurrent_replay.stripes import RecurrentStripes, state_specs
from asyncrl.envs.spec import EnvSpec


def new_states(
    num_splits: int, num_envs: int, num_rows: int, spec: EnvSpec = SPEC, state_size: int = 2
) -> RecurrentStripes:
    """An empty replay with that many readable rows in each stripe."""
    layout = (num_splits, num_envs, num_rows * num_splits * num_envs)
    rows = (num_splits, rows_per_stripe(*layout), num_envs)
    return RecurrentStripes(Arena.create([*replay_specs(spec, *layout), *state_specs(state_size, spec, rows)]))


class StateWriter(TaggedWriter):
    """Writes recurrent states [episode, step], too."""

    _stripes: RecurrentStripes

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._write_states()

    def _write_row(self) -> None:
        super()._write_row()
        self._write_states()

    def _write_states(self) -> None:
        for env in range(self._stripes.num_envs):
            self._stripes.state_at(self._split, self._row)[env] = self._obs(env)[2:]
