"""Each plan has one mode, whose arrays, rules and roles belong to its samples."""

from __future__ import annotations

from typing import Any

import pytest
from layouts import vector_observation

from asyncrl.config.algorithms import imported
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan, resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, EnvSpec
from asyncrl.modes.choice import MODES, arena_bytes, arena_specs, find_problems, mode_of
from asyncrl.modes.hogwild.mode import HOGWILD, HOGWILD_WITH_REPLAY
from asyncrl.modes.mode import Mode
from asyncrl.modes.replay.mode import REPLAY
from asyncrl.modes.roles import Roles
from asyncrl.modes.slot_pools.mode import SLOT_POOLS
from asyncrl.modes.tensors.mode import TENSORS, TENSORS_WITH_REPLAY
from asyncrl.modes.trajectories.mode import TRAJECTORIES

BODY = EnvSpec("Body", vector_observation(3, "float64"), BoxAction((2,), (-1.0,) * 2, (1.0,) * 2, "float32"), 1000)
MACHINE = Machine(cores=2)
ON_DEVICE: dict[str, Any] = {"env_backend": "tensor", "serial_mode": True, "async_rl": False}
CASES: list[tuple[dict[str, Any], Mode]] = [
    ({}, TRAJECTORIES),
    ({"num_policies": 2}, SLOT_POOLS),
    ({"algo": "dqn"}, REPLAY),
    ({"backend": "hogwild"}, HOGWILD),
    ({"backend": "hogwild", "algo": "sac"}, HOGWILD_WITH_REPLAY),
    (ON_DEVICE, TENSORS),
    ({**ON_DEVICE, "algo": "sac"}, TENSORS_WITH_REPLAY),
]


def configured(**settings: Any) -> tuple[TrainConfig, ResourcePlan]:
    config = TrainConfig(env="Body-v0", device="cpu", **settings)
    return config, resolve(config, MACHINE)


def names_of_arrays(**settings: Any) -> set[str]:
    config, plan = configured(**settings)
    shared = mode_of(plan).shared_sizes(BODY, config)
    return {array.name for array in arena_specs(BODY, plan, [8] * plan.num_policies, shared)}


@pytest.mark.parametrize(("settings", "mode"), CASES)
def test_settings_choose_the_mode(settings: dict[str, Any], mode: Mode) -> None:
    _, plan = configured(**settings)
    assert mode_of(plan) is mode
    assert isinstance(imported(mode.roles)(), Roles)


def test_every_mode_is_chosen_by_some_settings() -> None:
    assert {id(mode) for mode in MODES} == {id(mode) for _, mode in CASES}


def test_only_samples_that_processes_share_are_in_shared_memory() -> None:
    slots = {"slots.obs", "granted.0.items"}
    assert slots <= names_of_arrays()
    assert "slots.obs" in names_of_arrays(num_policies=2) and "granted.0.items" not in names_of_arrays(num_policies=2)
    assert "replay.row_limits" in names_of_arrays(algo="sac") and not slots & names_of_arrays(algo="sac")
    for other in ({"backend": "hogwild"}, {"backend": "hogwild", "algo": "sac"}, ON_DEVICE):
        assert not any(
            name.startswith(("slots.", "granted.", "ready.", "replay.")) for name in names_of_arrays(**other)
        )


@pytest.mark.parametrize("mode", [{"backend": "hogwild"}, ON_DEVICE])
def test_a_replay_outside_the_shared_memory_counts_as_needed(mode: dict[str, Any]) -> None:
    def needed(size: int) -> int:
        config, plan = configured(**mode, algo="sac", replay_size=size)
        return arena_bytes(BODY, plan, 8, mode_of(plan).shared_sizes(BODY, config))

    row_bytes = 4 * (BODY.observation.row_size + 2 + 1)  # observation, action, reward
    assert needed(200_000) - needed(100_000) >= 100_000 * row_bytes


def test_rules_of_the_mode_and_of_all_modes_are_checked() -> None:
    def settings_with_problems(**settings: Any) -> set[str]:
        problems = find_problems(*configured(**settings), MACHINE)
        return {name for problem in problems for name in problem.settings}

    assert settings_with_problems() == set()
    assert "rollout" in settings_with_problems(batch_size=100, rollout=64)
    assert "replay_size" in settings_with_problems(algo="sac", replay_size=10, warmup_env_steps=1000)
    small_replay = {"algo": "sac", "replay_size": 10, "warmup_env_steps": 1000}
    assert "replay_size" in settings_with_problems(**small_replay, backend="hogwild")
    assert "replay_size" in settings_with_problems(**small_replay, **ON_DEVICE)
    assert "inference_mode" in settings_with_problems(backend="hogwild", inference_mode="central")
    assert "learning_rate" not in settings_with_problems(backend="hogwild", learning_rate=0.1)


def test_a_run_should_have_trained_when_each_learner_has_its_first_update() -> None:
    _, plan = configured()
    assert mode_of(plan).is_past_warm_up(plan, 1) and not mode_of(plan).is_past_warm_up(plan, 0)
    sizes: dict[str, Any] = {"algo": "sac", "warmup_env_steps": 1000, "updates_per_env_step": 0.5, "num_workers": 2}
    _, plan = configured(**sizes, num_envs_per_worker=1)
    assert [mode_of(plan).is_past_warm_up(plan, steps) for steps in (1003, 1004)] == [False, True]
    _, plan = configured(**sizes, num_envs_per_worker=1, backend="hogwild")
    assert [mode_of(plan).is_past_warm_up(plan, steps) for steps in (1007, 1008)] == [False, True]
