"""Clusters that cannot be used, each in one sentence."""

from __future__ import annotations

import importlib.util
import subprocess
import time
from typing import Any, cast

import pytest
from contrib.ray_pools import ray_cluster

from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools import connection, pool
from asyncrl.contrib.ray_pools.connection import RayConnection, find_problem
from asyncrl.processes.children import RunFailed

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


def problem(address: str) -> str | None:
    return find_problem(TrainConfig(cluster="ray", ray_address=address))


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert problem("auto") == '--cluster=ray needs the package ray, which is not installed: pip install -e ".[ray]"'


@needs_ray
def test_an_address_at_which_nobody_answers_is_refused_at_once(free_port: int) -> None:
    assert "nobody can be reached there" in str(problem(f"127.0.0.1:{free_port}"))
    assert problem("head") == "--ray_address=head is not auto or HOST:PORT."


@needs_ray
def test_an_address_of_ray_client_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    expected = "RAY_ADDRESS=ray://head:10001: the learner's machine must be a node of the cluster, not a client."
    assert problem("auto") == expected


@needs_ray
def test_what_ray_says_is_passed_on_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Traceback ...\n  File ...\nConnectionError: Could not find any running Ray instance."

    def look(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", said)

    monkeypatch.setattr(subprocess, "run", look)
    expected = "no Ray cluster can be reached there (Could not find any running Ray instance)."
    assert problem("auto") == f"--ray_address=auto: {expected}"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cluster_that_asks_for_a_token_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LOOK_S", 200.0)
    with ray_cluster.started(0, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64) as cluster:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        assert "asks for a token: export RAY_AUTH_MODE=token" in str(problem(cluster.address))
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", "b" * 64)
        assert "asks for a token" in str(problem(cluster.address))
        monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
        assert problem(cluster.address) is None


@needs_ray
def test_a_cluster_that_has_ended_is_the_end_of_the_run(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(cluster="ray", ray_address=f"127.0.0.1:{free_port}")
    with pytest.raises(RunFailed, match="nobody can be reached there") as failed:
        RayConnection(config, None)  # type: ignore[arg-type]
    assert failed.value.is_final
    # Behind a port that another program has, Ray tries for minutes and cannot be interrupted.
    monkeypatch.setattr(connection, "_LOOK_S", 0.01)
    monkeypatch.setattr(connection, "_refusal", lambda address: None)
    monkeypatch.setattr("ray.init", lambda *_, **__: time.sleep(1.0))
    with pytest.raises(RunFailed, match="no answer for") as failed:
        RayConnection(config, None)  # type: ignore[arg-type]
    assert failed.value.is_final


def test_a_pool_refuses_a_machine_whose_processes_cannot_share_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "shares_words", lambda: False)
    with pytest.raises(RunFailed, match="a pool needs the native core on the processor of") as refused:
        pool.Pool(cast(Any, None))
    assert refused.value.is_final
