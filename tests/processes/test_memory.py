"""The tightest limit counts, of this control group and of those above it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from control_groups import make_control_groups
from unavoidable import PREFIX

from asyncrl.config import cgroups
from asyncrl.processes.memory import available_bytes

MACHINE = 64_000


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=MACHINE))


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param("0::/\n", {"memory.max": "1000", "memory.current": "400"}, 600, id="version 2"),
        pytest.param(
            "0::/\n",
            {
                "memory.max": "1000",
                "memory.current": "400",
                "memory.stat": "anon 90\nactive_file 50\ninactive_file 250",
            },
            850,
            id="cached files can be taken",
        ),
        pytest.param("0::/\n", {"memory.max": "max", "memory.current": "400"}, MACHINE, id="no limit"),
        pytest.param("0::/\n", {"memory.max": "90000", "memory.current": "400"}, MACHINE, id="machine is tighter"),
        pytest.param("0::/\n", {"memory.max": "1000", "memory.current": "1400"}, 0, id="above the limit"),
        pytest.param(
            "0::/jobs/mine\n",
            {
                "jobs/mine/memory.max": "9000",
                "jobs/mine/memory.current": "100",
                "jobs/memory.max": "5000",
                "jobs/memory.current": "2000",
            },
            3000,
            id="a group above is tighter",
        ),
        pytest.param(
            "4:cpu,cpuacct:/x\n3:memory:/docker/abc\n",
            {"memory/memory.limit_in_bytes": "7000", "memory/memory.usage_in_bytes": "500"},
            6500,
            id="version 1 as seen inside a container",
        ),
        pytest.param(
            "3:memory:/x\n",
            {"memory/x/memory.limit_in_bytes": "9223372036854771712", "memory/x/memory.usage_in_bytes": "500"},
            MACHINE,
            id="version 1 without limit",
        ),
        pytest.param("7:cpu:/x\n", {"cpu/x/memory.max": "10", "cpu/x/memory.current": "1"}, MACHINE, id="not memory"),
        pytest.param(
            "0::/../outside\n",
            {"memory.max": "1000", "memory.current": "1"},
            999,
            id="a group above this namespace",
        ),
    ],
)
def test_free_memory_is_the_least_of_all_that_limit_it(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "MEMBERSHIP", make_control_groups(tmp_path, membership, files))
    assert available_bytes() == expected


def test_without_control_groups_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "absent")
    assert available_bytes() == MACHINE


def test_freed_memory_is_kept_and_its_pages_are_not_touched_anew() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip(f"{PREFIX}no GNU C library")
    code = """
import resource, sys
import numpy as np
from asyncrl.processes.memory import keep_freed_memory
if sys.argv[1] == "keeps":
    keep_freed_memory()
def allocate():
    for _ in range(10):
        np.ones(10_000_000)
allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = {
        how: int(subprocess.run([sys.executable, "-c", code, how], capture_output=True, check=True).stdout)
        for how in ("keeps", "frees")
    }
    assert faults["keeps"] < faults["frees"] / 5, faults
