"""What pools cannot be combined with, and what the plan of a run with pools has."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from helpers import rules
from rules import CPU

from asyncrl.analysis.records import Run
from asyncrl.config.errors import Problem
from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.config.warnings import find_warnings


def problems(machine: Machine = CPU, **settings: Any) -> list[Problem]:
    return rules.problems(machine, **{"cluster": "ray", **settings})


def only(found: list[Problem]) -> Problem:
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("settings", "instead"),
    [
        ({"backend": "hogwild", "algo": "a2c"}, "--hogwild_mode=gradients"),
        ({"serial_mode": True}, "--serial_mode=False"),
        ({"num_policies": 2}, "--num_policies=1"),
        ({"inference_mode": "central"}, "--inference_mode=local"),
        ({"num_remote_hosts": 241}, "--num_remote_hosts=240"),
        ({"num_remote_hosts": 140, "num_workers": 110}, "--num_remote_hosts=130"),
        ({"ray_address": "ray://head:10001"}, "--ray_address=HOST:6379"),
        ({"env": lambda: None}, "--env=MODULE:function"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_what_pools_on_other_machines_cannot_do_is_refused(settings: dict[str, Any], instead: str) -> None:
    assert instead in only(problems(**settings)).suggestions


def test_pools_serve_algorithms_with_a_replay() -> None:
    for algo in ("sac", "td3", "dqn"):
        assert problems(algo=algo, num_remote_hosts=2) == []


def test_rows_from_other_machines_have_no_states() -> None:
    found = problems(algo="sac", use_rnn=True, num_remote_hosts=1)
    assert any("--use_rnn=True of --algo=sac" in problem.text for problem in found)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"hogwild_mode": "synced"}, "--hogwild_mode=synced, whose workers share memory"),
        ({"algo": "sac"}, "--hogwild_mode=gradients combines gradients of PPO and A2C (A3C), not of SAC."),
        ({"device": "cuda"}, "--backend=hogwild --device=cuda"),
        ({"num_workers_per_remote_host": 2, "num_gradients_to_combine": 5}, "a pool may be gone, which leaves 4"),
    ],
)
def test_only_gradients_of_the_hogwild_backend_come_from_other_machines(settings: dict[str, Any], text: str) -> None:
    gpu = Machine(cores=16, torch_has_cuda=True, num_cuda_devices=1)
    given = {
        "algo": "a2c",
        "backend": "hogwild",
        "hogwild_mode": "gradients",
        "cluster": "ray",
        "num_workers": "auto",
        "num_remote_hosts": 2,
    }
    assert text in only(problems(gpu, **{**given, **settings})).text
    assert problems(gpu, **given) == problems(gpu, **{**given, "algo": "ppo"}) == []
    beside = {**given, "num_workers": 1, "num_remote_hosts": 1, "num_workers_per_remote_host": 4}
    assert problems(gpu, **beside) == []
    hogwild = resolve(TrainConfig(**beside), gpu).hogwild
    assert hogwild is not None and hogwild.num_gradients_to_combine == 2, "the pool may be gone"


def test_workers_on_other_machines_take_none_of_this_ones_cores() -> None:
    settings = {"cluster": "ray", "num_remote_hosts": 10, "num_workers_per_remote_host": 100, "batch_size": 32_000}
    plan = resolve(TrainConfig(**settings), CPU)
    assert (plan.num_workers, plan.num_local_workers, plan.num_envs) == (1000, 0, 16_000)
    assert (plan.num_processes, plan.num_threads) == (12, plan.learner_threads)
    assert problems(**settings) == []
    warnings = find_warnings(TrainConfig(**settings), plan, settings)
    assert "num_workers" not in [name for warning in warnings for name in warning.settings]


@pytest.mark.parametrize(
    ("feature", "other", "off"),
    [
        ("hindsight", {"algo": "sac", "her_goals": 4}, "--her_goals=0"),
        ("self_play", {"self_play": True}, "--self_play=False"),
    ],
)
def test_other_features_need_workers_of_this_machine(feature: str, other: dict[str, Any], off: str) -> None:
    if importlib.util.find_spec(f"asyncrl.contrib.{feature}") is None:
        pytest.skip("a feature that was deleted")
    problem = only(problems(num_workers=1, **other))
    assert problem.text.startswith("--cluster=ray cannot be used with --")
    assert problem.suggestions == ("--cluster=none", off)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num_remote_hosts=2", "--ray_address=a:1"], "--ray_address, --num_remote_hosts (needs cluster=ray)"),
        (
            ["--cluster=ray", "--backend=hogwild", "--hogwild_mode=gradients", "--remote_slots_in_flight=4"],
            "--remote_slots_in_flight (needs backend=actor_learner)",
        ),
    ],
)
def test_settings_without_effect_are_named(flags: list[str], said: str) -> None:
    loaded = load(["--env=Pendulum-v1", *flags])
    found = find_warnings(loaded.config, resolve(loaded.config, CPU), loaded.given)
    assert f"No effect in this run: {said}." in [warning.text for warning in found]


def test_workers_of_pools_are_counted_in_the_records_of_a_run(tmp_path: Path) -> None:
    pools = {"num_workers": 2, "cluster": "ray", "num_remote_hosts": 2, "num_workers_per_remote_host": 4}
    assert Run("run", tmp_path, pools, ()).num_workers == 10
    assert Run("run", tmp_path, pools, (), recorded_workers=11).num_workers == 11
    assert Run("run", tmp_path, {**pools, "cluster": "none"}, ()).num_workers == 2
