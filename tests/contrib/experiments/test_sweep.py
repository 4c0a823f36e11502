"""Sweeps: trials, what becomes of those of a dead process, the final test and what is written."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.errors import UsageError
from asyncrl.config.loading import load
from asyncrl.contrib.experiments.core_sets import Ended
from asyncrl.contrib.experiments.objective import Evaluated, Objective
from asyncrl.contrib.experiments.ownership import Owner
from asyncrl.contrib.experiments.runs import PlannedRun
from asyncrl.contrib.experiments.study import Definition, Result, Study, define, read_definition
from asyncrl.contrib.experiments.sweep import RunningTrial, Sweep
from asyncrl.contrib.experiments.sweep_command import main
from asyncrl.contrib.experiments.sweep_results import Candidate, best_settings, report, write_best
from asyncrl.storage.run_folder import RunFolder

optuna = pytest.importorskip("optuna")
pytest.importorskip("cmaes")

FLAGS = ("--env=CartPole-v1", "--serial_mode=True", "--async_rl=False", "--train_for_env_steps=1000")
SPACE: dict[str, Any] = {"space": {"learning_rate": {"low": 0.001, "high": 0.1, "scale": "log"}}}
DEFINITION = Definition(FLAGS, SPACE, Objective("return"), pruner="none")


def space(**values: dict[str, Any]) -> dict[str, Any]:
    return {"space": {**SPACE["space"], **values}}


def run(folder: Path, definition: Definition, **options: Any) -> tuple[Sweep, list[str]]:
    said: list[str] = []
    options = {"num_trials": 6, "num_core_sets": 2, "num_finalists": 2, "num_final_seeds": 2, **options}
    sweep = Sweep(folder, definition, **options)
    assert sweep.run(said.append) == "complete"
    return sweep, said


def trials(folder: Path, definition: Definition = DEFINITION) -> dict[str, tuple[str, float | None]]:
    with Owner(folder / "owners") as owner:
        results = Study(folder, definition, 0, 1, owner).results()
    return {result.run: (result.state, result.value) for result in results}


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_a_sweep_finds_tests_and_writes_the_best_settings(tmp_path, pretends, sampler) -> None:
    definition = dataclasses.replace(DEFINITION, sampler=sampler)
    _, said = run(tmp_path / "study", definition)
    found = trials(tmp_path / "study", definition)
    assert [state for state, _ in found.values()] == ["complete"] * 6
    values = {name: value or 0.0 for name, (_, value) in found.items()}
    assert values["trial_0000"] == pytest.approx(1000 * 0.0025), "the first trial has the preset's learning rate"
    assert len(set(values.values())) == 6
    best = sorted(values, key=lambda name: -values[name])[:2]
    finals = [name for name in pretends if name.startswith("final_")]
    assert sorted(finals) == sorted(f"final_{name}_seed{1_000_000 + n}" for n in (0, 1) for name in (*best, "default"))
    written = load([f"--config={tmp_path / 'study' / 'best.yaml'}"]).config
    assert 1000 * written.learning_rate == pytest.approx(values[best[0]])
    results = (tmp_path / "study" / "results.md").read_text()
    assert results.index("## Final test") < results.index(f"| {best[0]} |") < results.index("| default |")
    assert results.count("evaluation return | training return") == 2, "of the final test and of the trials"
    assert "trial_0000: evaluation return 2.5, training return 100.0" in said
    assert (tmp_path / "study" / "importance.png").exists()

    pretends.clear()
    run(tmp_path / "study", definition)
    assert pretends == [], "a sweep that is complete has nothing to do"
    run(tmp_path / "study", definition, num_trials=7)
    assert pretends[0] == "trial_0006"
    assert any("final test" in text for text in said)


def test_impossible_settings_are_pruned_trials_whoever_refuses_them(tmp_path, pretends) -> None:
    more = space(gamma={"values": [0.9, 7]}, track_project={"values": ["well", "refuses"]})
    definition = dataclasses.replace(DEFINITION, space=more, sampler="random")
    _, said = run(tmp_path, definition, num_trials=12, num_finalists=0)
    states = [state for state, _ in trials(tmp_path, definition).values()]
    assert len(states) == 12 and set(states) == {"complete", "pruned"}
    assert any("settings are not possible: --gamma=7" in text for text in said)
    assert any("settings are not possible: these settings are not possible" in text for text in said)


def test_a_run_that_a_callback_has_pruned_is_a_pruned_trial(tmp_path, pretends) -> None:
    flags = (*FLAGS, "--eval_every_env_steps=500", "--track_project=prunes")
    definition = dataclasses.replace(DEFINITION, flags=flags)
    said: list[str] = []
    sweep = Sweep(tmp_path, definition, num_trials=2, num_core_sets=2, num_finalists=0, num_final_seeds=1)
    assert sweep.run(said.append) == "no complete trial"
    assert [state for state, _ in trials(tmp_path, definition).values()] == ["pruned", "pruned"]
    assert "trial_0000: pruned: of my own" in said


def test_a_run_that_has_reached_the_threshold_is_stopped(tmp_path, pretends) -> None:
    flags = (*FLAGS[:-1], "--train_for_env_steps=100000", "--eval_every_env_steps=100", "--track_project=slow")
    objective = Objective("steps_to_threshold", threshold=0.5)
    definition = dataclasses.replace(DEFINITION, flags=flags, objective=objective)
    run(tmp_path, definition, num_trials=2, num_finalists=0)
    for name, (state, value) in trials(tmp_path, definition).items():
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert (state, summary["status"]) == ("complete", "interrupted")
        assert value is not None and value <= summary["env_steps"] < 10_000


def test_trials_of_a_dead_process_start_again_with_their_settings_and_run(tmp_path) -> None:
    define(tmp_path, DEFINITION)
    with Owner(tmp_path / "owners") as alive:
        others = Study(tmp_path, DEFINITION, 3, 1, alive)
        kept = others.next_trial()
        with Owner(tmp_path / "owners") as dead:
            lost = Study(tmp_path, DEFINITION, 3, 1, dead).next_trial()
        assert kept is not None and lost is not None
        assert others.num_started == 2
        assert others.continue_dead_trials() == [lost.user_attrs["run"]]
        assert others.continue_dead_trials() == [], "once"
        again = others.next_trial()
        assert again is not None and again.number == 2
        assert again.params == lost.params
        for name in ("run", "seed", "flags"):
            assert again.user_attrs[name] == lost.user_attrs[name]
        assert again.user_attrs["owner"] == alive.name
        assert others.num_started == 2, "a continued trial counts once"
        assert others.next_trial() is not None
        assert others.next_trial() is None
        others.tell(lost, 5.0)  # its first process comes back: its result is too late
        others.tell(again, 1.0)
        states = {result.run: (result.state, result.value) for result in others.results()}
        assert states[lost.user_attrs["run"]] == ("complete", 1.0)


def test_a_sweep_that_is_stopped_continues_its_trials(tmp_path, pretends) -> None:
    flags = (*FLAGS[:-1], "--train_for_env_steps=1000", "--eval_every_env_steps=40", "--track_project=slow")
    definition = dataclasses.replace(DEFINITION, flags=flags)

    def stop(runs: Sequence[PlannedRun]) -> None:
        if all(run.folder.metrics.exists() for run in runs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sweep(tmp_path, definition, num_trials=2, num_core_sets=2).run(lambda text: None, stop)
    assert trials(tmp_path, definition) == {"trial_0000": ("running", None), "trial_0001": ("running", None)}
    _, said = run(tmp_path, definition, num_trials=2, num_finalists=0)
    assert sum("it is continued" in text for text in said) == 2
    assert [state for state, _ in trials(tmp_path, definition).values()] == ["complete"] * 2
    assert [(tmp_path / name / "starts").read_text() for name in ("trial_0000", "trial_0001")] == ["xx", "xx"]


def test_a_trial_that_was_killed_while_it_was_started_is_not_lost(tmp_path) -> None:
    define(tmp_path, DEFINITION)
    with Owner(tmp_path / "owners") as owner:
        study = Study(tmp_path, DEFINITION, 1, 1, owner)
        lost = study._study.ask(study._distributions)
        with Owner(tmp_path / "owners"):
            assert study.continue_dead_trials() == [], "the other process may be starting it"
        assert study.continue_dead_trials() == ["trial 0"]
        again = study.next_trial()
        assert again is not None and again.params == lost.params
        assert study.next_trial() is None


@pytest.mark.parametrize("kept", [("run", "seed", "flags"), ("run", "seed")])
def test_a_study_is_readable_after_a_kill_while_a_trial_was_continued(tmp_path, kept) -> None:
    define(tmp_path, DEFINITION)
    with Owner(tmp_path / "owners") as owner:
        study = Study(tmp_path, DEFINITION, 1, 1, owner)
        with Owner(tmp_path / "owners") as dead:
            lost = Study(tmp_path, DEFINITION, 1, 1, dead).next_trial()
        assert lost is not None
        study.continue_dead_trials()
        if "flags" not in kept:  # as an earlier version did
            study._study.tell(study._study.ask(study._distributions), state=optuna.trial.TrialState.FAIL)
            study._study.enqueue_trial(lost.params, user_attrs={name: lost.user_attrs[name] for name in kept})
        again = study._study.ask(study._distributions)  # and is killed before it sets an attribute
        assert [name for name in kept if again.user_attrs[name] != lost.user_attrs[name]] == []
        (result,) = study.results()
        assert (result.run, result.flags) == (lost.user_attrs["run"], tuple(lost.user_attrs["flags"]))
        assert result.state == ("running" if "flags" in kept else "failed")


def test_two_processes_share_a_study(tmp_path, pretends) -> None:
    # Threads stand for processes: each has an owner, core sets and its own study.
    said: list[str] = []
    options = {"num_trials": 4, "num_core_sets": 1, "num_final_seeds": 1, "num_finalists": 1}
    sweeps = [Sweep(tmp_path, DEFINITION, **options) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(sweep.run, said.append) for sweep in sweeps]
        assert "complete" in [future.result() for future in futures]
    found = trials(tmp_path)
    assert len(found) in (4, 5), "both may start the last trial"
    assert all(state == "complete" for state, _ in found.values())
    assert len([name for name in pretends if name.startswith("trial_")]) == len(found)
    assert len([name for name in pretends if name.startswith("final_")]) == 2, "one of them makes the final test"


class Stopped:
    """Core sets and a trial of Optuna that prunes after its second report."""

    def __init__(self) -> None:
        self.stopped: list[str] = []
        self.reported: list[tuple[float, int]] = []
        self.told: list[dict[str, Any]] = []

    def stop(self, name: str) -> None:
        self.stopped.append(name)

    def report(self, value: float, step: int) -> None:
        self.reported.append((value, step))

    def should_prune(self) -> bool:
        return len(self.reported) >= 2

    def tell(self, trial: Any, value: float | None, **more: Any) -> None:
        self.told.append({"value": value, **more})


def test_a_run_that_is_worse_than_others_is_stopped_and_its_trial_is_pruned(tmp_path, monkeypatch, pretends) -> None:
    sweep = Sweep(tmp_path, DEFINITION, num_trials=2)
    fake: Any = Stopped()
    each = RunningTrial(fake, sweep._base)
    evaluations: list[Evaluated] = []
    monkeypatch.setattr("asyncrl.contrib.experiments.sweep.read_evaluations", lambda path: list(evaluations))
    for steps in (100, 210, 300):
        evaluations.append(Evaluated(steps, 1.0, float(steps)))
        sweep._look(each, fake)
    assert fake.reported == [(100.0, 1), (210.0, 2)], "nothing is reported of a run that was asked to stop"
    assert fake.stopped == [sweep._base.name]
    said: list[str] = []
    sweep._end_trial(fake, each, Ended(each.run.name, 130), said.append)
    assert fake.told == [{"value": None, "is_pruned": True, "reason": "after 300 steps"}]


def test_a_run_that_was_stopped_in_its_last_evaluation_has_no_value(tmp_path, monkeypatch, pretends) -> None:
    sweep = Sweep(tmp_path, DEFINITION, num_trials=2)
    total, every = sweep._base.config.train_for_env_steps, sweep._eval_every
    evaluations = [Evaluated(steps, 1.0, float(steps)) for steps in range(every, total + 1, every)]
    said: list[str] = []
    for found in (evaluations[:-1], evaluations):
        fake: Any = Stopped()
        monkeypatch.setattr("asyncrl.contrib.experiments.sweep.read_evaluations", lambda path, found=found: found)
        sweep._end_trial(fake, RunningTrial(fake, sweep._base), Ended(sweep._base.name, 0), said.append)
        is_all = found is evaluations
        assert [each["value"] for each in fake.told] == [float(total) if is_all else None]
    assert f"its last evaluation is one after {total - every:,} steps, not at the end" in said[0]


def test_a_finalist_with_one_lucky_seed_does_not_win(tmp_path, pretends) -> None:
    sweep = Sweep(tmp_path, DEFINITION, num_trials=2, num_final_seeds=3)
    names = ("default", "trial_0000", "trial_0001")
    values = ((1.0, 2.0, 3.0), (900.0,), (4.0, 5.0, 6.0))
    rates = ("0.01", "0.02", "0.03")
    candidates = [
        Candidate(name, (f"--learning_rate={rate}",), found)
        for name, rate, found in zip(names, rates, values, strict=True)
    ]
    finalists = [
        Result(number, each.name, "complete", 1.0, each.flags, None) for number, each in enumerate(candidates[1:])
    ]
    said: list[str] = []
    sweep._announce(candidates, finalists, said.append)
    assert load([f"--config={tmp_path / 'best.yaml'}"]).config.learning_rate == 0.03
    assert said == ["trial_0000: only 1 of 3 seeds ended well in the final test"]
    text = report([], DEFINITION.objective, candidates, {}, {})
    assert text.index("trial_0001") < text.index("default") < text.index("trial_0000")


def test_the_owner_of_a_study_shows_that_it_lives_during_the_final_test(tmp_path, pretends, monkeypatch) -> None:
    sweep = Sweep(tmp_path, DEFINITION, num_trials=1, num_core_sets=1, num_final_seeds=1)
    touched: list[str] = []
    monkeypatch.setattr(Owner, "touch", lambda owner: touched.append(owner.name))
    with Owner(tmp_path / "owners") as owner:
        sweep._test([Result(0, "trial_0000", "complete", 1.0, (), None)], owner, said_to_nobody, said_to_nobody)
        assert owner.name in touched


def said_to_nobody(_: object) -> None:
    pass


def test_a_study_is_joined_with_its_own_definition_only(tmp_path) -> None:
    assert define(tmp_path, DEFINITION)
    assert not define(tmp_path, DEFINITION)
    assert read_definition(tmp_path) == DEFINITION
    other = dataclasses.replace(DEFINITION, sampler="random", flags=(*FLAGS, "--gamma=0.9"))
    with pytest.raises(UsageError, match=r"flags: .*now .*--gamma=0.9; sampler: tpe, now random"):
        define(tmp_path, other)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--objective=return_per_second", "objective"),
        ("--baseline=3", "objective"),
        ("--sampler=cmaes", "sampler: tpe, now cmaes"),
        ("--pruner=median", "pruner: none, now median"),
        ("--search_seed=7", "seed: 0, now 7"),
        ("--space=sac", "space"),
    ],
)
def test_what_defines_a_study_is_not_ignored_when_it_is_continued(tmp_path, pretends, capsys, flag, said) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    define(folder, DEFINITION)
    assert main(["--study=mine", f"--train_dir={tmp_path}", flag]) == 2
    assert said in capsys.readouterr().err
    assert main(["--study=mine", f"--train_dir={tmp_path}", "--pruner=none", "--num_trials=1", "--final_best=0"]) == 0


def test_two_machines_define_one_study_at_the_same_time(tmp_path, monkeypatch) -> None:
    # Containers often have the same process ids.
    link = os.link

    def link_after_another(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        assert define(tmp_path, DEFINITION)
        link(source, target)

    monkeypatch.setattr(os, "link", link_after_another)
    assert not define(tmp_path, DEFINITION)
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


def test_a_sweep_whose_first_trials_all_fail_ends_with_the_reason(tmp_path, pretends) -> None:
    definition = dataclasses.replace(DEFINITION, flags=(*FLAGS, "--track_project=fails"))
    with pytest.raises(UsageError, match="first 4 trials failed, the last one with: something broke"):
        run(tmp_path, definition)


def test_a_sweep_without_a_completed_trial_names_no_file_and_is_no_success(tmp_path, pretends, capsys) -> None:
    flags = (*FLAGS, "--track_project=refuses", "--num_trials=2", f"--train_dir={tmp_path}")
    for final_best in (0, 2):
        assert main(["--study=study", *flags, f"--final_best={final_best}"]) == 1
        printed = capsys.readouterr()
        assert printed.err.splitlines() == ["error: No trial was completed, so the sweep has found no settings."]
        assert "trial_0001" in printed.out and "best.yaml" not in printed.out
    assert not (tmp_path / "study" / "best.yaml").exists()


def test_the_best_settings_need_no_preset(tmp_path) -> None:
    flags = (*FLAGS, "--learning_rate=0.0123", "--eval_every_env_steps=50", "--seed=4")
    values = best_settings(flags)
    assert "seed" not in values and "eval_every_env_steps" not in values
    path = tmp_path / "best.yaml"
    path.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items()))
    with_preset, without = load(flags).config, load([f"--config={path}", "--preset=none"]).config
    kept = {"seed": 0, "eval_every_env_steps": None}
    assert without == with_preset.model_copy(update=kept)


def test_texts_among_the_best_settings_stay_texts(tmp_path) -> None:
    env_kwargs = {"mode": "none", "id": "12e5"}
    result = Result(0, "trial_0000", "complete", 1.0, (), None)
    write_best(tmp_path, (*FLAGS, f"--env_kwargs={json.dumps(env_kwargs)}"), result)
    assert load([f"--config={tmp_path / 'best.yaml'}"]).config.env_kwargs == env_kwargs


def test_settings_that_were_tried_twice_have_the_rank_of_their_better_trial(monkeypatch) -> None:
    values = [("a", 1.0), ("b", 8.0), ("a", 10.0), ("c", 3.0)]
    results = [
        Result(idx, f"trial_{idx}", "complete", value, (name,), None) for idx, (name, value) in enumerate(values)
    ]
    monkeypatch.setattr(Study, "results", lambda study: results)
    study = Study.__new__(Study)
    study.definition = DEFINITION
    assert [(result.flags, result.value) for result in study.best(2)] == [(("a",), 10.0), (("b",), 8.0)]


def test_the_best_settings_are_those_that_were_searched_whatever_preset_the_environment_has(tmp_path) -> None:
    flags = ("--env=CartPole-v1", "--preset=none", "--gae_lambda=0.9")
    path = tmp_path / "best.yaml"
    path.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in best_settings(flags).items()))
    assert load([f"--config={path}"]).config == load(flags).config


def test_a_study_has_the_settings_of_its_file_whatever_becomes_of_the_file(
    tmp_path, pretends, monkeypatch, capsys
) -> None:
    file = tmp_path / "common.yaml"
    text = "env: CartPole-v1\nserial_mode: true\nasync_rl: false\nseed: 7\nalgo: sac\ntrain_for_env_steps: 1000\n"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    options = ("--study=study", "--num_trials=1", "--final_best=0", f"--train_dir={tmp_path}")
    assert main([*options, "--config=common.yaml", "--train_for_env_steps=500"]) == 0
    definition = read_definition(tmp_path / "study")
    assert definition is not None
    assert definition.flags == (
        *("--env=CartPole-v1", "--serial_mode=True", "--async_rl=False"),
        "--train_for_env_steps=500",
    ), "neither what a sweep sets itself nor what the search space or a flag sets"

    monkeypatch.chdir("/")
    assert main([*options, f"--config={file}", "--train_for_env_steps=500"]) == 0, "the same file from elsewhere"
    file.write_text(text + "gamma: 0.9\n")
    assert main([*options, f"--config={file}", "--train_for_env_steps=500"]) == 2
    assert "started with another definition" in capsys.readouterr().err
    file.write_text(text + "gama: 0.9\n")
    assert main([*options, f"--config={file}"]) == 2
    assert f"In the file {file} there is no setting gama" in capsys.readouterr().err
    file.unlink()
    assert main(options) == 0
    assert pretends == ["trial_0000"]


def test_a_setting_that_is_given_is_not_searched(tmp_path, pretends, capsys) -> None:
    options = ("--study=study", "--env=CartPole-v1", "--num_trials=4", "--final_best=0", f"--train_dir={tmp_path}")
    assert main([*options, "--gamma=0.93", "--train_for_env_steps=500"]) == 0
    assert "not searched, because given: gamma\n" in capsys.readouterr().out
    definition = read_definition(tmp_path / "study")
    assert definition is not None
    assert "gamma" not in definition.space["space"] and "learning_rate" in definition.space["space"]
    for trial in range(4):
        assert RunFolder(tmp_path / "study" / f"trial_{trial:04d}").read_config().gamma == 0.93
    assert main([options[0], *options[2:], "--space=ppo"]) == 0, "the same space, of which the given is left out again"
    space = tmp_path / "gamma.yaml"
    space.write_text("space: {gamma: {low: 0.9, high: 0.99}}")
    other = ("--study=other", *options[1:])
    assert main([*other, "--gamma=0.93", f"--space={space}"]) == 2
    assert f"--gamma: nothing is left in {space} to search." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--env=CartPole-v1",), "--study is required"),
        (("--study=new",), "--env is required for a new study"),
        (("--study=new", "--env=CartPole-v1", "--objective=steps_to_threshold"), "give --threshold=NUMBER"),
        (("--study=new", "--env=CartPole-v1", "--seed=1"), "--seed cannot be set here: give --search_seed"),
        (("--study=new", "--env=CartPole-v1", "--space=none.yaml"), "neither a file nor a search space"),
        (("--study=new", "--env=CartPole-v1", "--gama=1"), "There is no flag --gama"),
        (("--study=new", "--env=CartPole-v1", "--gamma=2"), "--gamma=2 is not possible"),
        (
            ("--study=new", "--env=CartPole-v1", "--num_policies=2"),
            "--num_policies=2 is not possible in a sweep, which optimizes the return of one policy: "
            "give --num_policies=1.",
        ),
        (("--study=../new", "--env=CartPole-v1"), "cannot name a run"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(tmp_path, capsys, arguments, said) -> None:
    assert main([*arguments, f"--train_dir={tmp_path}"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and said in errors[0]
    assert not list(tmp_path.iterdir())


def test_a_study_does_not_take_the_folder_of_a_run(tmp_path, capsys) -> None:
    RunFolder.create(str(tmp_path), "cheetah", "resume").close()
    before = sorted(tmp_path.rglob("*"))
    assert main(["--study=cheetah", "--env=CartPole-v1", f"--train_dir={tmp_path}"]) == 2
    assert "--study=cheetah is the name of a run" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
