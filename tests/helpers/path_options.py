"""Checks options of commands that are paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from asyncrl.config.flags import parse_options


def check_users_folder(model: type[BaseModel], flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that each path of these flags may begin with `~`."""
    monkeypatch.setenv("HOME", "/home/me")
    needed: dict[str, Any] = {"runs": ["run"], "grids": ["grid.yaml"], "words": ["trial", "run"]}
    needed = {name: value for name, value in needed.items() if name in model.model_fields}
    names = {field.alias or name: name for name, field in model.model_fields.items()}
    for given, meant in (("~/new/file", "/home/me/new/file"), ("~nobody-here/file", "~nobody-here/file"), ("a", "a")):
        options, problems = parse_options(model, {**needed, **dict.fromkeys(flags, given)})
        assert problems == []
        assert [getattr(options, names[flag]) for flag in flags] == [Path(meant)] * len(flags)
