"""What `scripts/time_to_score.py` makes of results, which of them it uses again, and when its gate fails."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import time_to_score
from gymnasium.utils.env_checker import check_env
from scoring import report, running
from scoring.analysis import (
    GATE_CHANCE,
    GATE_SHARE,
    Time,
    best_ratio,
    chance_of_loss,
    evaluated_time,
    interquartile_interval,
    interquartile_mean,
    outcome,
    regressions,
    target,
    training_time,
)
from scoring.records import Record, SavedPolicy, Snapshot, choose, find_saved
from scoring.running import Job
from scoring.systems import Asyncrl, StableBaselines3, System, known_systems, variant
from scoring.tasks import SUITES, USUAL_SYSTEMS, Task

from asyncrl.analysis.benchmark.watch import TaskFailed

TASK = Task("Hill-v0", 1000, (10, 50), low=-100, high=100)
PLANE = Task("Plane-v0", 500, (1,), low=0, high=10)


def record(
    score: float = 60.0,
    seed: int = 0,
    task: Task = TASK,
    system: str = "asyncrl",
    slowness: float = 1.0,
    **changes: Any,
) -> Record:
    """A run that comes to `score` on a straight line; it starts at the task's `low`."""
    shares = (0.1, 0.25, 0.5, 1.0)
    curve = tuple(
        (2.0 + 100 * slowness * share, round(share * task.env_steps), task.low + share * (score - task.low))
        for share in shares
    )
    marks = ("10 %",), ("25 %", "10 s"), ("50 %",), ("100 %", "end")
    found = Record(
        task=task.env,
        system=system,
        seed=seed,
        conditions={"settings": {}},
        env=task.env,
        versions=f"{system} 1.0",
        startup_s=2.0,
        seconds=curve[-1][0],
        env_steps=task.env_steps,
        curve=curve,
        snapshots=tuple(Snapshot(*point[:2], mark, point[2]) for point, mark in zip(curve, marks, strict=True)),  # type: ignore[arg-type]
        environment={"git_commit": "abc"},
        deterministic_score=score,
    )
    return dataclasses.replace(found, **changes)


def seeds(*scores: float, **common: Any) -> list[Record]:
    return [record(score, seed, **common) for seed, score in enumerate(scores)]


# Statistics


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert interquartile_mean([1, 2, 3, 100, -50, 4, 5, 6]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean([5.0, 1.0, 3.0]) == 3.0  # a quarter of three is none
    assert interquartile_mean([7.0]) == 7.0


def test_the_bootstrap_interval_is_that_of_all_resamples() -> None:
    # Two tasks of two seeds: 16 equally likely resamples of four values, of which the middle two count.
    scores = [[0.0, 0.4], [0.6, 1.0]]
    resamples = [
        sorted(first + second)[1:3]
        for first in itertools.product(scores[0], repeat=2)
        for second in itertools.product(scores[1], repeat=2)
    ]
    means = [sum(middle) / 2 for middle in resamples]
    found = interquartile_interval(scores)
    assert found.mean == 0.5
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])))
    assert interquartile_interval(scores) == found


# Times


def test_a_time_is_the_lower_median_of_the_seeds_if_half_of_them_arrived() -> None:
    records = [record(100, 0), record(100, 1, slowness=2.0), record(20, 2)]
    assert training_time(records, 50) == Time(202.0, 1000, 2, 3)
    assert training_time(seeds(100, 20), 50).seconds == 102.0
    assert training_time(seeds(100, 20, 20), 50) == Time(None, None, 1, 3)


def test_training_returns_and_evaluated_snapshots_are_timed_apart() -> None:
    late = record(100, curve=((5.0, 100, 0.0), (7.0, 200, 90.0)))
    assert training_time([late], 50).seconds == 7.0
    assert evaluated_time([late], 50).seconds == 102.0


def test_the_target_is_near_the_best_peers_score_and_below_it_where_returns_are_negative() -> None:
    task = Task("Valley-v0", 1000, (), low=-1000, high=0)
    by_system = {
        "asyncrl": seeds(-100, task=task),
        "slow": seeds(-200, -180, -220, task=task, system="slow", slowness=4.0),
        "bad": seeds(-900, task=task, system="bad"),
    }
    found = target(task, by_system, ["slow", "bad"])
    assert found is not None
    assert (found.peer, found.peer_score) == ("slow", -200)
    assert found.value == pytest.approx(-240)
    assert found.by_training["asyncrl"].seconds == 102.0
    assert best_ratio(found.by_training, "asyncrl", ["slow", "bad"]) == pytest.approx(402 / 102)
    assert best_ratio(found.by_training, "bad", ["slow"]) is None
    assert target(task, by_system, []) is None


def test_a_longer_run_counts_for_the_target_with_its_snapshot_at_the_last_time_mark() -> None:
    long = record(80, system="peer")
    at_300_s = dataclasses.replace(long.snapshots[2], marks=("300 s",), mean_return=30.0)
    long = dataclasses.replace(long, snapshots=(*long.snapshots[:2], at_300_s, long.snapshots[3]))
    found = target(TASK, {"peer": [long]}, ["peer"])
    assert found is not None and found.peer_score == 30.0


# Snapshots


def saved(*steps_and_times: tuple[int, float]) -> list[SavedPolicy]:
    return [SavedPolicy(Path(f"policy_{steps}"), at, steps) for steps, at in steps_and_times]


def test_each_mark_has_the_first_policy_that_was_saved_at_or_after_it() -> None:
    policies = saved((90, 1004.0), (110, 1009.5), (260, 1012.0), (300, 1020.0), (1010, 1031.0))
    chosen = [(policy.env_steps, marks) for policy, marks in choose(policies, first_step_at=1000.0, env_steps=1000)]
    assert chosen == [(110, ["10 %", "10 s"]), (260, ["25 %"]), (1010, ["50 %", "100 %", "30 s", "end"])]


def test_a_run_that_ended_early_has_no_later_marks() -> None:
    chosen = choose(saved((150, 1005.0)), first_step_at=1000.0, env_steps=1000)
    assert [marks for _, marks in chosen] == [["10 %", "end"]]


def test_saved_policies_are_known_by_the_last_number_of_their_name(tmp_path: Path) -> None:
    for name, at in (("checkpoint_000000007_2048.pth", 50), ("checkpoint_000000003_1024.pth", 20)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    found = find_saved(tmp_path.iterdir())
    assert [(policy.env_steps, policy.saved_at) for policy in found] == [(1024, 20.0), (2048, 50.0)]


# The report


def all_results(**changes: Any) -> report.Results:
    systems: list[System] = [Asyncrl("asyncrl", "ours", (), "abc"), StableBaselines3(False, Path())]
    records = {
        (TASK.env, "asyncrl"): seeds(80, 60, 100),
        (TASK.env, "sb3_default"): seeds(40, 20, system="sb3_default", slowness=3.0),
        (PLANE.env, "asyncrl"): seeds(9, 8, 7, task=PLANE),
    }
    provenance = {
        "date": "2000-01-02",
        "command": ["time_to_score.py"],
        "git_commit": "abc-dirty",
        "python": "3.11",
        "packages": {"torch": "2"},
        "machine": {"cpu": "a processor", "usable_cores": 2, "cores": 4, "memory_bytes": 2**33, "gpus": [],
                    "platform": "Linux"},
    }  # fmt: skip
    found = report.Results((TASK, PLANE), systems, records, 3, 20, 600.0, provenance)
    return dataclasses.replace(found, **changes)


def rows_of(text: str, section: str) -> list[list[str]]:
    lines = text.split(f"## {section}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][2:]


def test_the_report_shows_scores_times_and_what_is_missing() -> None:
    text = report.to_markdown(all_results())
    assert "2000-01-02, commit abc **and changes that are not committed**. a processor, 2 usable cores of 4" in text
    assert rows_of(text, "Final scores") == [
        ["Hill-v0", "1,000", "80 (80, 60, 100)", "30 (40, 20)"],
        ["Plane-v0", "500", "8.00 (9.00, 8.00, 7.00)", "-"],
    ]
    by_training = rows_of(text, "Time to a return, by training return")
    assert by_training[0] == ["Hill-v0", "10", "102.0 s, 1k", "302.0 s, 1k", "3.0 ×"]
    assert by_training[1] == ["Hill-v0", "50", "102.0 s, 1k", "- (0 of 2)", "-"]
    assert "Normalized scores are 0 and 1 at: Hill-v0 -100 and 100." in text
    assert rows_of(text, "Over all tasks")[0][1].startswith("0.900 [0.8")
    assert rows_of(text, "Time to nearly the best peer's score")[0][-1] == "3.0 ×"
    assert rows_of(text, "Scores on the way")[0][2:4] == ["-55", "-"]
    assert "* Hill-v0, Stable-Baselines3, default: 2 of 3 seeds have a result." in text


def test_scores_of_deterministic_actions_are_their_own() -> None:
    records = {(TASK.env, "asyncrl"): [record(80, deterministic_score=90.0), record(60, 1, deterministic_score=None)]}
    text = report.to_markdown(all_results(records=records))
    assert rows_of(text, "Final scores")[0] == ["Hill-v0", "1,000", "70 (80, 60)", "-"]
    assert rows_of(text, "Final scores with deterministic actions")[0] == ["Hill-v0", "1,000", "90 (90)", "-"]
    assert outcome([TASK], "asyncrl", {TASK.env: records[TASK.env, "asyncrl"]})[TASK.env]["deterministic_scores"] == {
        "0": 90
    }


def test_the_report_can_be_made_of_nothing() -> None:
    text = report.to_markdown(all_results(records={}))
    assert "On no task do all systems have results." in text
    assert json.loads(json.dumps(report.to_json(all_results(records={}))))["targets"] == []


def test_curves_are_drawn_over_seconds_and_steps(tmp_path: Path) -> None:
    results = all_results()
    drawn = list(report.draw(TASK, results.of_task(TASK), results.systems, tmp_path))
    assert sorted(path.name for path in drawn) == [
        f"Hill-v0_{metric}_{x}.png" for metric in ("eval", "train") for x in ("env_steps", "wall_time")
    ]
    assert all(path.stat().st_size > 1000 for path in drawn)


# The gate


def stored(*scores: float, task: Task = TASK) -> dict[str, dict[str, Any]]:
    return outcome([task], "asyncrl", {task.env: seeds(*scores, task=task)})


BEFORE = (20.0, 10.0, 30.0, 20.0, 15.0, 25.0)  # a mean of 20 is 0.6 of the way from -100 to 100


def less(by: float, *scores: float) -> tuple[float, ...]:
    return tuple(score - by for score in scores)


CLOSE = tuple(20.0 + 0.1 * idx for idx in range(6))
WIDE = (-80.0, 90.0, 95.0, -70.0, 85.0, 0.0)
FELL = "Hill-v0: with sampled actions the mean score fell to 0.0 (seeds: 0.0, -10.0, 10.0, 0.0, -5.0, 5.0) from 20.0"
TOO_FEW = "the stored outcome has 3 seeds and these results have 6, too few to tell a loss from chance"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        pytest.param(BEFORE, less(20, *BEFORE), FELL, id="more than chance explains"),
        pytest.param(CLOSE, less(11, *CLOSE), None, id="less than the share"),
        pytest.param(CLOSE, less(13, *CLOSE), "the mean score fell", id="more than the share"),
        pytest.param(WIDE, less(15, *WIDE), None, id="seeds explain it"),
        pytest.param([-20] * 6, [-25] * 6, None, id="less than the share of a negative return"),
        pytest.param([-20] * 6, [-29] * 6, "the mean score fell", id="more than the share of a negative return"),
        pytest.param([-150] * 6, [-200] * 6, None, id="stored score below random actions"),
        pytest.param([20, 20, 20], BEFORE, TOO_FEW, id="too few seeds"),
    ],
)
def test_the_gate_fails_where_seeds_fell_by_more_than_chance_explains(
    before: Any, after: Any, said: str | None
) -> None:
    assert (GATE_SHARE, GATE_CHANCE) == (0.9, 0.02)
    found = regressions([TASK], stored(*before), stored(*after))
    assert len(found) == (0 if said is None else 2)  # with sampled and with deterministic actions
    assert said is None or said in found[0]


def test_the_gate_compares_deterministic_actions_where_both_outcomes_have_them() -> None:
    before, after = stored(*BEFORE), stored(*BEFORE)
    after[TASK.env]["deterministic_scores"] = {str(seed): score - 20 for seed, score in enumerate(BEFORE)}
    found = regressions([TASK], before, after)
    assert len(found) == 1 and "with deterministic actions the mean score fell to 0.0" in found[0]
    del before[TASK.env]["deterministic_scores"]
    assert regressions([TASK], before, after) == []


def test_the_chance_of_a_loss_is_that_of_all_ways_to_deal_the_scores() -> None:
    before, after = [5.0, 9.0, 7.0, 8.0], [4.0, 6.0, 5.5]
    dealt = [sum(chosen) for chosen in itertools.combinations([*before, *after], len(after))]
    exact = sum(each <= sum(after) for each in dealt) / len(dealt)
    assert chance_of_loss(before, after) == pytest.approx(exact, abs=0.01)


def test_the_gate_compares_nothing_that_differs_or_lacks() -> None:
    longer = dataclasses.replace(TASK, env_steps=2000)
    assert "store a new outcome" in regressions([TASK], stored(20, task=longer), stored(20))[0]
    assert "these results has no score" in regressions([TASK], stored(20), {})[0]
    assert "the stored outcome has no score" in regressions([TASK], {}, stored(20))[0]


# The session: what runs, what is used again


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """The runs that are made; each comes to a score of 60 at once."""
    made: list[tuple[str, str, int]] = []

    def run(system: System, job: Job, episodes: int) -> Record:
        made.append((job.task.env, system.name, job.seed))
        return record(60, job.seed, job.task, system.name, conditions=running.conditions(system, job, episodes))

    monkeypatch.setattr(time_to_score, "run", run)
    monkeypatch.setattr(time_to_score, "describe", lambda device: {**all_results().provenance, "git_commit": "abc"})
    monkeypatch.setattr(time_to_score.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(report, "draw", lambda *arguments: [])
    return made


def command(monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr("sys.argv", ["time_to_score.py", "--suite=quick", *flags])
    return time_to_score.main()


def test_systems_alternate_and_a_run_with_a_result_is_not_made_again(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags = (f"--work_dir={tmp_path}", "--tasks=CartPole-v1,Hopper-v5", "--systems=asyncrl,asyncrl_sync")
    assert command(monkeypatch, *flags, "--seeds=1") == 0
    first_seed = [
        (env, name, 0) for env in ("CartPole-v1", "Hopper-v5") for name in ("asyncrl", "asyncrl_sync")
    ]  # fmt: skip
    assert runs == first_seed
    assert command(monkeypatch, *flags, "--seeds=2") == 0
    assert runs[4:] == [
        (env, name, 1) for env in ("CartPole-v1", "Hopper-v5") for name in ("asyncrl_sync", "asyncrl")
    ]  # fmt: skip
    assert "2 seeds" in (tmp_path / "report.md").read_text()


def test_a_result_under_other_conditions_is_not_used(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags = (f"--work_dir={tmp_path}", "--tasks=CartPole-v1", "--seeds=1")
    for more in ((), ("--episodes=5",), ("--limit_s=60",), ("--variant", "small=--batch_size=64")):
        assert command(monkeypatch, *flags, *more) == 0
    assert [name for _, name, _ in runs] == ["asyncrl", "asyncrl", "asyncrl", "small"]
    assert command(monkeypatch, *flags, "--variant", "small=--batch_size=32") == 0
    assert len(runs) == 5
    monkeypatch.setattr(time_to_score, "describe", lambda device: {**all_results().provenance, "git_commit": "def"})
    assert command(monkeypatch, *flags, "--table") == 0, "a report is of the newest commit that has results"
    assert len(runs) == 5
    assert command(monkeypatch, *flags) == 0
    assert len(runs) == 6


def test_a_stopped_session_goes_on_where_it_was(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags = (f"--work_dir={tmp_path}", "--tasks=CartPole-v1")
    quick_run = time_to_score.run

    def stopped(system: System, job: Job, episodes: int) -> Record:
        if job.seed == 1:
            raise KeyboardInterrupt
        return quick_run(system, job, episodes)

    with monkeypatch.context() as patched:
        patched.setattr(time_to_score, "run", stopped)
        assert command(monkeypatch, *flags) == 130
    assert runs == [("CartPole-v1", "asyncrl", 0)]
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"task": "CartPole-v1", "sys')  # killed while it wrote
    assert command(monkeypatch, *flags) == 0
    assert [seed for _, _, seed in runs] == [0, 1, 2, 3, 4, 5]
    assert command(monkeypatch, *flags) == 0
    assert len(runs) == 6


def test_a_run_that_fails_leaves_no_result_and_the_others_go_on(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_run = time_to_score.run

    def failing(system: System, job: Job, episodes: int) -> Record:
        if job.seed == 0:
            raise TaskFailed("exit code 3")
        return quick_run(system, job, episodes)

    monkeypatch.setattr(time_to_score, "run", failing)
    assert command(monkeypatch, f"--work_dir={tmp_path}", "--tasks=CartPole-v1") == 1
    assert len(runs) == 5
    assert "CartPole-v1 asyncrl seed 0: failed: exit code 3" in capsys.readouterr().out


def test_an_outcome_is_stored_compared_with_and_missed(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, flags = tmp_path / "outcome.json", (f"--work_dir={tmp_path / 'runs'}", "--tasks=CartPole-v1")
    assert command(monkeypatch, *flags, f"--outcome={kept}") == 0
    assert json.loads(kept.read_text())["tasks"]["CartPole-v1"]["median"] == 60
    assert command(monkeypatch, *flags, f"--compare_to={kept}") == 0
    better = json.loads(kept.read_text())
    better["tasks"]["CartPole-v1"]["scores"] = {str(seed): 500 for seed in range(6)}
    kept.write_text(json.dumps(better))
    capsys.readouterr()
    assert command(monkeypatch, *flags, f"--compare_to={kept}", f"--outcome={kept}") == 1
    assert "CartPole-v1: with sampled actions the mean score fell to 60.0" in capsys.readouterr().out
    assert json.loads(kept.read_text()) == better, "a worse outcome does not replace the stored one"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tasks=CartPole-v2",), "unknown: CartPole-v2"),
        (("--variant", "small"), "is not a variant"),
        (("--variant", "asyncrl=--gamma=0.9"), "two systems have one name"),
        (("--compare_to=nowhere.json",), "there is no stored outcome nowhere.json"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(
    flags: tuple[str, ...], said: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.raises(SystemExit):
        command(monkeypatch, f"--work_dir={tmp_path}", *flags)
    assert said in capsys.readouterr().err
    assert runs == []


def test_a_variant_is_read_as_a_shell_would() -> None:
    system = variant("two.nets=--actor_critic_share_weights=False '--encoder_mlp_layers=[64, 64]'", "abc")
    assert system.name == "two.nets"
    assert system.settings(TASK) == {
        "flags": ["--actor_critic_share_weights=False", "--encoder_mlp_layers=[64, 64]"],
        "commit": "abc",
    }


def test_each_task_has_settings_for_each_system_and_thresholds_in_order() -> None:
    for task in (*SUITES["quick"], *SUITES["full"]):
        assert task.low < task.high and list(task.thresholds) == sorted(task.thresholds)
        assert StableBaselines3(True, Path()).settings(task)


# A real run


@pytest.mark.usefixtures("leaves_nothing")
def test_a_run_of_asyncrl_is_trained_saved_and_evaluated(tmp_path: Path) -> None:
    task = dataclasses.replace(SUITES["quick"][0], env_steps=8192)
    system = Asyncrl("serial", "serial", ("--serial_mode=True", "--num_envs_per_worker=16"), "abc")
    job = Job(task, seed=3, folder=tmp_path / "runs" / "CartPole_1.5", limit_s=60.0, num_cores=2)
    found = running.run(system, job, episodes=2)
    assert found.env_steps >= 8192
    assert [mark for snapshot in found.snapshots for mark in snapshot.marks if "%" in mark] == [
        "10 %", "25 %", "50 %", "100 %",
    ]  # fmt: skip
    assert found.snapshots[-1].marks[-1] == "end"
    assert all(1 <= snapshot.mean_return <= 500 for snapshot in found.snapshots)
    times = [snapshot.seconds for snapshot in found.snapshots]
    assert found.startup_s < times[0] and times == sorted(times) and times[-1] == found.seconds
    assert found.curve and found.curve[-1][0] <= found.seconds + 5.0
    assert Record.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_run_that_cannot_be_trained_says_where_its_output_is(tmp_path: Path) -> None:
    system = Asyncrl("wrong", "wrong", ("--no_such_flag=1",), "abc")
    job = Job(SUITES["quick"][0], seed=0, folder=tmp_path / "run", limit_s=60.0, num_cores=2)
    with pytest.raises(TaskFailed, match=r"exit code 2: .*no_such_flag.* \(output: .*run.training.log\)"):
        running.run(system, job, episodes=2)
    assert "no_such_flag" in (tmp_path / "run.training.log").read_text()


# Suites


def test_every_suite_compares_systems_that_exist_on_tasks_of_different_names(tmp_path: Path) -> None:
    known = known_systems(tmp_path, "abc")
    assert set(SUITES) == set(USUAL_SYSTEMS)
    for suite, tasks in SUITES.items():
        assert len({task.env for task in tasks}) == len(tasks)
        for system in (known[name] for name in USUAL_SYSTEMS[suite]):
            assert any(system.env_of(task) is not None for task in tasks), (suite, system.name)
    assert known["sb3_zoo"].env_of(SUITES["untouched"][0]) is None, "the zoo has no settings for it"


def test_the_small_environments_keep_to_gymnasiums_interface() -> None:
    for name in ("Catch-v0", "Target-v0"):
        check_env(gymnasium.make(f"toy_environments:{name}").unwrapped, skip_render_check=True)
