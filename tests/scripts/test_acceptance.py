"""What `scripts/acceptance.py` makes of its cases: their lag, and what a failed run does to the others."""

from __future__ import annotations

import subprocess

import acceptance
import pytest
from acceptance import SUITES, Case

from asyncrl.config.loading import load


def test_a_forced_lag_is_a_whole_number_of_the_datasets_of_its_preset() -> None:
    lags = set()
    for case in SUITES["lag"]:
        config = load([*case.flags]).config
        datasets, rest = divmod(config.debug_forced_lag, config.num_epochs * config.num_batches_per_epoch)
        assert rest == 0, case.name
        assert f"lag {datasets}" in case.name
        lags.add(datasets)
        assert config.max_policy_lag > config.debug_forced_lag, "no sample may be dropped for its age"
        assert config.target_kl is None
    assert lags == {0, 1, 4, 16}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_run_leaves_no_result_and_the_others_are_made(tmp_path, monkeypatch, capsys, jobs) -> None:
    cases = [Case(name, (), 1.0, seeds=(0, 1), needed=0) for name in ("sound", "broken")]

    def run_case(case, seed, train_dir):
        if (case.name, seed) == ("broken", 0):
            raise subprocess.CalledProcessError(3, ["train"])
        return {"case": case.name, "seed": seed, "value": 2.0, "total_s": 0.1}

    monkeypatch.setitem(SUITES, "core", cases)
    monkeypatch.setattr(acceptance, "run_case", run_case)
    results = tmp_path / "results.jsonl"
    monkeypatch.setattr("sys.argv", ["acceptance.py", "core", f"--results={results}", f"--jobs={jobs}"])
    assert acceptance.main() == 1
    assert "broken seed 0: failed: " in capsys.readouterr().out
    assert len(results.read_text().splitlines()) == 3

    cases[1] = Case("broken", (), 1.0, seeds=(1,), needed=0)
    assert acceptance.main() == 0
    assert len(results.read_text().splitlines()) == 3, "a case with a result is not run again"
