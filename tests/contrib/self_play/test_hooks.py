"""What self-play answers to the core: its mode, its rules, the meaning and the title of its metrics."""

from __future__ import annotations

import re
from typing import Any

from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.self_play import pool
from asyncrl.modes.choice import mode_of
from asyncrl.modes.slot_pools.mode import SLOT_POOLS
from asyncrl.observers import dashboard
from asyncrl.observers.metrics import describe

MACHINE = Machine(cores=2)


def test_opponents_need_slots_that_belong_to_their_splits() -> None:
    plan = resolve(TrainConfig(env="Game-v0", device="cpu", self_play=True, self_play_pool_size=4), MACHINE)
    assert plan.num_opponents == 4 and mode_of(plan) is SLOT_POOLS
    assert resolve(TrainConfig(env="Game-v0", device="cpu", self_play_pool_size=4), MACHINE).num_opponents == 0


def test_neither_returns_of_training_nor_of_evaluations_choose_the_best() -> None:
    evaluated: dict[str, Any] = {"env": "Game-v0", "eval_every_env_steps": 1000}
    assert TrainConfig(**evaluated).best_metric == "eval"
    assert TrainConfig(**evaluated, self_play=True).best_metric == "none"
    assert TrainConfig(**evaluated, self_play=True, save_best_metric="eval").best_metric == "eval"


def test_every_metric_is_described_and_the_dashboard_shows_two() -> None:
    with open(pool.__file__, encoding="utf-8") as file:
        names = set(re.findall(r'"(self_play/[a-z_/{}]+)"', file.read()))
    assert {"self_play/elo", "self_play/pool_elo_{name}", "self_play/win_rate"} <= names
    assert [name for name in names if describe(name.replace("{name}", "NAME")) is None] == []
    assert describe("self_play/pool_elo_min") == "Elo ratings of the pool: mean, min, max"
    shown = {name: title for name, title in dashboard._LEARNING.items() if name.startswith("self_play/")}
    assert shown == {"self_play/elo": "Elo", "self_play/win_rate": "wins against the pool"}
