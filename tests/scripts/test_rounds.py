"""Measurements in rounds: what is compared with what, and which of them are made again."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from rounds import Row, carry_out

from asyncrl.analysis.benchmark.watch import TaskFailed

SPEEDS = {"base": (100.0, 10.0), "quick": (200.0, 40.0), "own": (50.0, 5.0)}
"""Steps a second in each round: ratios within a round are 1, 2 and 4, 0.5."""


def carry_out_all(folder: Path, calls: list[tuple[str, int]], failing: str = "", **conditions: int) -> bool:
    def row(system: str) -> Row:
        def measure(round_idx: int) -> float:
            calls.append((system, round_idx))
            if system == failing:
                raise TaskFailed("as asked")
            return SPEEDS[system][round_idx]

        return Row("walking", system, measure)

    options = argparse.Namespace(work_dir=folder, rounds=2, warm_up_s=1.0, measure_s=2.0, table=False)
    return carry_out("speeds", "About.", [row(name) for name in SPEEDS], options, ["own"], **conditions)


def line_of(folder: Path, system: str) -> list[str]:
    lines = (folder / "speeds.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| walking | {system} |")]
    return [cell.strip() for cell in line.split("|")[3:-1]]


def test_ratios_are_taken_within_a_round_and_the_order_turns(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    assert carry_out_all(tmp_path, calls)
    assert calls == [("base", 0), ("quick", 0), ("own", 0), ("own", 1), ("quick", 1), ("base", 1)]
    assert line_of(tmp_path, "base") == ["55 [10, 100]", "1.00", "0.50"]
    assert line_of(tmp_path, "quick") == ["120 [40, 200]", "3.00 [2.00, 4.00]", "0.19 [0.12, 0.25]"]


def test_what_was_measured_under_the_same_conditions_is_not_measured_again(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    assert carry_out_all(tmp_path, calls, num_workers=2)
    assert carry_out_all(tmp_path, calls, num_workers=2)
    assert len(calls) == 6
    assert carry_out_all(tmp_path, calls, num_workers=3)
    assert len(calls) == 12


def test_a_measurement_that_fails_leaves_no_result_and_the_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, int]] = []
    assert not carry_out_all(tmp_path, calls, failing="quick")
    assert len(calls) == 6
    assert "round 0 walking, quick: failed: as asked" in capsys.readouterr().out
    assert line_of(tmp_path, "own") == ["28 [5, 50]", "0.50", "1.00"]
    assert "quick" not in (tmp_path / "speeds.md").read_text()
    assert carry_out_all(tmp_path, calls)
    assert calls[6:] == [("quick", 0), ("quick", 1)]
