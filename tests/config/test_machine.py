"""Finding CUDA without importing torch."""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from asyncrl.config import machine


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
    monkeypatch.setattr(machine, "_num_cuda_devices", lambda: 1)
    assert machine.Machine.detect().cuda_is_usable is expected


def test_a_built_for_cuda_torch_without_a_device_is_not_usable() -> None:
    assert not machine.Machine(4, torch_has_cuda=True, num_cuda_devices=0).cuda_is_usable


def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert machine.available_cores() == 2
