"""The README's table and pictures come from stored results of runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_figures
import pytest
from scoring.records import Record, Snapshot

README = f"# A title\n\n{make_figures.BEGIN}\nan old table\n{make_figures.END}\n\nmore\n"


def record(system: str, seed: int, score: float, commit: str = "c0ffee0123") -> Record:
    """A run of 20 seconds whose return rises to `score`."""
    curve = tuple((float(second), 1000.0 * second, score * second / 20) for second in range(1, 21))
    snapshots = (Snapshot(20.0, 20_000, ("end",), score),)
    environment = {"git_commit": commit, "machine": {"cpu": "a processor"}}
    return Record("Hopper-v5", system, seed, {}, "Hopper-v5", "1.0", 1.0, 21.0, 20_000, curve, snapshots, environment)


RECORDS = [record("asyncrl", seed, score) for seed, score in enumerate((900.0, 1100.0, 400.0))]
RECORDS += [record("sb3_zoo", 0, 123.4)]


def test_the_table_has_the_median_and_the_worst_seed_of_each_system() -> None:
    document = make_figures.with_block(README, make_figures.table(make_figures.stored_results(RECORDS)))
    assert "| Hopper-v5 | asyncrl | 900, 400 | 21 | 1,000 |" in document
    assert "| Hopper-v5 | Stable-Baselines3 2.9.2, rl-zoo | 123, 123 | 21 | 1,000 |" in document
    assert "1 to 3 seeds" in document and "a processor" in document and "commit c0ffee01" in document
    assert document.startswith("# A title\n") and document.endswith("\n\nmore\n") and "an old table" not in document


def test_the_readme_names_returns_and_ratios_of_speed() -> None:
    text = make_figures.sentences(make_figures.stored_results([*RECORDS, record("sample_factory", 0, 500.0)]))
    assert "after at most 21 seconds" in text and "Hopper-v5 900 (500, 123)" in text
    assert "  1.0 to 1.0 times Sample Factory's and 1.0 to 1.0 times Stable-Baselines3's" in text


@pytest.mark.parametrize(
    ("path", "block"), [(make_figures.README, make_figures.sentences), (make_figures.RESULTS, make_figures.table)]
)
def test_the_documents_say_what_the_stored_results_say(path: Path, block: Callable[[Any], str]) -> None:
    document = path.read_text()
    assert document == make_figures.with_block(document, block(json.loads(make_figures.STORED.read_text())))


def test_runs_of_two_commits_are_not_stored_as_one_result() -> None:
    with pytest.raises(SystemExit, match="one commit, these are of \\['c0ffee0123', 'decaf'\\]"):
        make_figures.stored_results([*RECORDS, record("asyncrl", 3, 1.0, "decaf")])


def test_pictures_have_a_panel_for_each_task_and_a_line_for_each_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(make_figures, "save", lambda figure, path: figures.append(figure))
    stored = make_figures.stored_results(RECORDS)
    make_figures.draw_returns(stored, tmp_path / "returns.svg")
    make_figures.draw_speeds(stored, tmp_path / "speeds.svg")
    (panel,) = figures[0].axes[:1]
    assert panel.get_title() == "Hopper-v5"
    assert len(panel.lines) == 3 + 1 + 1 + 1, "each seed and the mean of each system"
    assert [text.get_text() for text in figures[1].axes[0].texts] == ["1,000", "0", "1,000"]
