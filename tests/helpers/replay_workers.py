"""A rollout worker that writes into a replay, and all that it talks to."""

from __future__ import annotations

from typing import Any

import numpy as np
from small_runs import BOX, CountingWaker, ScriptedEnv, planned

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.replay import ReplayLimits, ReplayStripes
from asyncrl.config.algorithms import imported
from asyncrl.config.schema import TrainConfig
from asyncrl.modes.choice import arena_specs
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.failures import FailureLog, Recovery
from asyncrl.rollout.worker import RolloutWorker, Split

ENDLESS = 10**9


class MailedActions:
    """An action source that puts the row's number into the mailbox, at once or when the test says."""

    def __init__(self, stripes: ReplayStripes, at_once: bool) -> None:
        self._stripes, self._at_once = stripes, at_once
        self.asked: list[tuple[int, int]] = []
        self._open: set[int] = set()

    def request(self, split_idx: int, slot: int, row: int) -> None:
        assert slot == split_idx
        self.asked.append((split_idx, row))
        self._open.add(split_idx)
        if self._at_once:
            self.answer(split_idx)

    def is_answered(self, split_idx: int) -> bool:
        return split_idx not in self._open

    def answer(self, split_idx: int) -> None:
        self._open.remove(split_idx)
        row = next(row for split, row in reversed(self.asked) if split == split_idx)
        self.action = np.full((1, 1), 0.1 * row, np.float32)
        self.rnn_state = self._stripes.inputs_at((split_idx, row))[1] + 1.0  # how many observations it has seen
        self._stripes.answer((split_idx, row), slice(0, 1), self, version=3, now=0.0)


class Worker:
    """Worker 0 of 1 with two splits of one environment each, and all that it talks to."""

    def __init__(
        self, steps: list[tuple[float, float, bool, bool] | Exception], at_once: bool = True, **settings: Any
    ) -> None:
        plan = planned(
            algo="sac",
            num_workers=1,
            num_envs_per_worker=2,
            worker_num_splits=2,
            inference_mode="central",
            replay_size=20,
            warmup_env_steps=10,
            **settings,
        )
        assert plan.replay is not None
        kind = plan.replay.kind
        self.arena = Arena.create(arena_specs(BOX, plan, num_weights=8))
        self.stripes, self.limits = imported(kind.stripes)(self.arena), ReplayLimits(self.arena)
        self.actions = MailedActions(self.stripes, at_once)
        self.envs = [ScriptedEnv(steps) for _ in range(2)]
        self.learner, self.control = CountingWaker(), RunControl(self.arena, 1)
        failures = FailureLog(0, TrainConfig(), self.control)
        recovery = Recovery(failures, lambda: ScriptedEnv([(9.0, 9.0, False, False)] * 9), lambda env_idx, steps: steps)
        self._make_sink = imported(kind.sink)
        groups = [EnvGroup([env], [0], split, BOX, "squashed", recovery) for split, env in enumerate(self.envs)]
        self.worker = RolloutWorker(0, [self.split(group, idx) for idx, group in enumerate(groups)], self.control)

    def split(self, group: EnvGroup, split_idx: int = 0) -> Split:
        sink = self._make_sink(split_idx, group, self.stripes, self.limits, self.learner)
        return Split(split_idx, group, sink, self.actions)

    def step(self, num_rows: int = 1) -> None:
        """Each split requests the actions of a row and steps it."""
        for _ in range(num_rows):
            assert self.worker.poll() == 0.0

    def rows(self) -> list[int]:
        return [self.stripes.num_rows[split] for split in range(2)]
