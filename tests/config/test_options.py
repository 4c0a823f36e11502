"""Flags of a command as fields of a model: its flags, its values, and what is said of a text that it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from path_options import check_users_folder
from pydantic import BaseModel, PositiveInt

from asyncrl.analysis.benchmark import options as benchmark
from asyncrl.commands import enjoy, evaluate, plot
from asyncrl.config.flags import nearest, option, option_flags, parse_options
from asyncrl.config.value_types import GivenPath


class Own(BaseModel):
    command: str
    prints_json: bool = option(False, "as JSON", flag="json")
    count: PositiveInt | None = option(3, "how many")
    names: tuple[Literal["a", "b"], ...] = option((), "which", "names, separated by commas")
    out: GivenPath | None = option(None, "where to")


def test_fields_with_a_description_are_flags_and_truth_values_are_switches() -> None:
    flags = {flag.name: (flag.description, flag.is_bool) for flag in option_flags(Own)}
    assert flags == {
        "json": ("as JSON", True),
        "count": ("how many", False),
        "names": ("which", False),
        "out": ("where to", False),
    }
    assert [flag.name for flag in option_flags(Own, ("out", "json"))] == ["json", "out"]


def test_texts_become_values_by_the_names_of_their_flags() -> None:
    own, problems = parse_options(Own, {"command": "draw", "json": "True", "count": "7", "out": "a/b"})
    assert own == Own(command="draw", json=True, count=7, out=Path("a/b"))  # type: ignore[call-arg]
    assert problems == []


def test_each_text_that_is_refused_is_one_sentence_with_what_was_expected() -> None:
    own, problems = parse_options(Own, {"command": "draw", "json": "maybe", "count": "0", "names": ["c"]})
    assert own is None
    assert problems == [
        "--json=maybe is not possible: expected True or False.",
        "--count=0 is not possible: expected a whole number greater than 0.",
        "--names=c is not possible: expected names, separated by commas.",
    ]


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        (evaluate.Options, ("episodes_csv", "video")),
        (enjoy.Options, ("video",)),
        (plot.Options, ("out",)),
        (benchmark.BenchmarkOptions, ("output", "json", "config")),
    ],
)
def test_a_path_may_begin_with_the_users_folder(
    model: type[BaseModel], flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_users_folder(model, flags, monkeypatch)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lerning_rate", "learning_rate"),
        ("workers", "num_workers"),
        ("bacth_size", "batch_size"),
        ("Gamma", "gamma"),
        ("num_steps", None),  # num_epochs is something else
        ("size", None),
        ("lr_decay", None),
    ],
)
def test_only_a_near_name_is_offered(name: str, found: str | None) -> None:
    known = ("learning_rate", "num_workers", "batch_size", "gamma", "num_epochs", "lr_schedule", "lr_warmup")
    assert nearest(name, known) == found
