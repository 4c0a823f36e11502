"""What `scripts/acceptance.py` makes of its cases: their lag, and what a failed run does to the others."""

from __future__ import annotations

import acceptance
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


def test_a_failed_run_has_no_result_and_the_others_are_made_once(tmp_path, monkeypatch, capsys, pretends) -> None:
    def case(name, *flags, **more):
        return Case(name, ("--env=CartPole-v1", "--train_for_env_steps=1000", *flags), seeds=(0, 1), needed=2, **more)

    sound = [case("Evaluated", threshold=4.0, episodes=4), case("Trained", threshold=101.0, measure="training")]
    broken = case("Broken", "--track_project=fails", threshold=0.0)
    monkeypatch.setattr("sys.argv", ["acceptance.py", "core", f"--train_dir={tmp_path}", "--slots=2"])
    monkeypatch.setitem(SUITES, "core", [*sound, broken])
    assert acceptance.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert "| Evaluated (evaluated) | 4 | 4.00, 4.00 | 2 of 2 (needs 2 of 2) |" in lines
    assert "| Trained (training) | 101 | 100, 101 | 1 of 2 (needs 2 of 2) |" in lines
    assert "| Broken (evaluated) | 0 | - | 0 of 0 (needs 2 of 2) |" in lines
    assert pretends.count("Broken_seed0") == 1, "a failed run is not tried again by itself"

    pretends.clear()
    monkeypatch.setitem(SUITES, "core", sound[:1])
    assert acceptance.main() == 0
    assert pretends == [], "finished runs are not made again"


def test_a_run_that_is_to_be_killed_begins_before_the_launch_that_resumes_it(tmp_path, monkeypatch, pretends) -> None:
    flags = ("--env=CartPole-v1", "--train_for_env_steps=1000")
    cases = [
        Case("Whole", flags, 1.0, seeds=(0,), needed=1),
        Case("Killed", flags, 0.9, seeds=(0,), needed=1, is_killed=True, compared_to="Whole"),
    ]
    killed = []

    def kill_at_half(command, folder) -> None:
        assert pretends == []
        killed.append(folder.name)
        if len(killed) == 1:
            folder.mkdir(parents=True)
            raise RuntimeError("it ended before it was killed")
        folder.rmdir()

    monkeypatch.setattr(acceptance, "kill_at_half", kill_at_half)
    monkeypatch.setattr("sys.argv", ["acceptance.py", "core", f"--train_dir={tmp_path}"])
    monkeypatch.setitem(SUITES, "core", cases)
    assert acceptance.main() == 1
    assert pretends == [], "a run that was not killed is not passed off as one that was"
    assert acceptance.main() == 0
    assert killed == ["Killed_seed0"] * 2
    assert set(pretends) == {"Whole_seed0", "Killed_seed0"}


def test_a_run_of_many_ranks_that_fails_is_not_trained_by_one(tmp_path, monkeypatch, pretends) -> None:
    case = Case("Ranks", ("--env=CartPole-v1",), 0.0, seeds=(0,), num_ranks=2)
    monkeypatch.setattr(acceptance, "train_command", lambda flags, num_ranks: ["false"])
    monkeypatch.setattr("sys.argv", ["acceptance.py", "core", f"--train_dir={tmp_path}"])
    monkeypatch.setitem(SUITES, "core", [case])
    assert acceptance.main() == 1
    assert pretends == []
