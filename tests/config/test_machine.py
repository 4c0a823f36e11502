"""Finding CUDA without importing torch, and the cores that there are for this process."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from control_groups import make_control_groups

from asyncrl.config import cgroups, machine


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cuda: Optional[str] = '12.8'", True),
        ("cuda = '12.8'", True),
        ("cuda: Optional[str] = None", False),
        ("", False),
    ],
)
def test_torchs_version_file_says_whether_it_was_built_for_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: bool
) -> None:
    (tmp_path / "version.py").write_text(f"__all__ = ['cuda']\n{line}\nhip = None\n")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(machine, "_num_cuda_devices", lambda needed: 1)
    assert machine.Machine.detect().cuda_is_usable is expected


def fake_driver(name: str) -> SimpleNamespace:
    """A driver for CUDA 12.8 that shows two devices."""

    def answer(number: int) -> Callable[[Any], int]:
        def write(place: Any) -> int:
            place._obj.value = number
            return 0

        return write

    return SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=answer(2), cuDriverGetVersion=answer(12_080))


@pytest.mark.parametrize(("needed", "count"), [(11, 2), (12, 2), (13, 0)])
def test_a_driver_that_is_older_than_torchs_cuda_shows_no_device(
    monkeypatch: pytest.MonkeyPatch, needed: int, count: int
) -> None:
    monkeypatch.setattr(machine.ctypes, "CDLL", fake_driver)
    assert machine._num_cuda_devices(needed) == count


@pytest.mark.parametrize(("quota", "expected"), [(None, 2), (8, 2), (1, 1)])
def test_the_cores_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, quota: int | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    monkeypatch.setattr(cgroups, "cpu_quota", lambda: quota)
    assert machine.available_cores() == expected


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param("0::/\n", {"cpu.max": "400000 100000"}, 4, id="version 2"),
        pytest.param("0::/\n", {"cpu.max": "max 100000"}, None, id="no limit"),
        pytest.param("0::/\n", {}, None, id="nothing said"),
        pytest.param("0::/\n", {"cpu.max": "150000 100000"}, 2, id="all of a part is used"),
        pytest.param("0::/\n", {"cpu.max": "20000 100000"}, 1, id="less than one"),
        pytest.param(
            "0::/jobs/mine\n", {"jobs/mine/cpu.max": "800000 100000", "jobs/cpu.max": "300000 100000"}, 3, id="above"
        ),
        pytest.param(
            "4:cpu,cpuacct:/x\n3:memory:/y\n",
            {"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "50000"},
            5,
            id="version 1",
        ),
        pytest.param(
            "4:cpu,cpuacct:/\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
            id="version 1 without limit",
        ),
    ],
)
def test_a_container_may_have_a_share_of_the_cores(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "MEMBERSHIP", make_control_groups(tmp_path, membership, files))
    assert cgroups.cpu_quota() == expected
