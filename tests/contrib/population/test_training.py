"""Turns of a population: when they are taken, what is written and asked, and what a resumed run knows of them."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from small_runs import CHOICE

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import FROM_FILE, TAKEOVER_FILE, PoliciesControl, PolicyChange, RunControl, control_specs
from asyncrl.buffers.layout import policy_prefix
from asyncrl.buffers.weights import WeightsChannel, weights_specs
from asyncrl.config.errors import UsageError
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.population import training
from asyncrl.contrib.population.training import PopulationTraining
from asyncrl.observers.observer import Observer, Run, StartPoint
from asyncrl.observers.status import Record

PBT = {"with_pbt": True, "pbt_start_mutation": 500, "pbt_period_env_steps": 100, "pbt_mutation_rate": 0.5}


class Messages(Observer):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, run: Run, text: str) -> None:
        self.texts.append(text)


class Population:
    """A run of three policies without roles, with population-based training."""

    def __init__(
        self,
        folder: Path,
        turns: Sequence[int] | None = None,
        own: Sequence[dict[str, float]] = (),
        reward_shaping: Mapping[str, float] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        """Starts at step 0, or resumes from checkpoints with these last turns and hyperparameters."""
        given = {"env": "CartPole-v1", "train_dir": str(folder), "experiment": "run", "num_policies": 3, **PBT}
        config = TrainConfig(**{**given, **settings})
        self.training, self.messages = PopulationTraining(config), Messages()
        self.run = run = Run([self.training, self.messages])
        run.config, run.plan, run.folder = config, resolve(config, Machine(cores=2)), folder / config.experiment
        run.spec = dataclasses.replace(CHOICE, reward_shaping=tuple(reward_shaping.items()))
        (run.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        count = config.num_policies
        specs = [*control_specs(), *weights_specs(2)]
        self.arena = Arena.create(spec for idx in range(count) for spec in _under(policy_prefix(idx), specs))
        self.controls = [RunControl(self.arena.scoped(policy_prefix(idx)), 0) for idx in range(count)]
        run.weights = [WeightsChannel(self.arena.scoped(policy_prefix(idx))) for idx in range(count)]
        for idx, channel in enumerate(run.weights):
            channel.publish(np.full(2, idx, np.float32), 1, 0)
        if count > 1:
            run.policy_configs = [config.for_policy(idx).model_copy(update=values) for idx, values in
                                       enumerate(own or [{}] * count)]  # fmt: skip
        elif own:
            run.config = config.model_copy(update=own[0])
        if turns is not None:
            starts = tuple(run.folder / str(turn) for turn in turns)
            run.start = StartPoint(starts[0], checkpoints=starts if count > 1 else ())
        run.notify(Observer.on_start)
        if run.failure is not None:
            raise run.failure

    def record(
        self, steps: Sequence[int], objectives: Sequence[float | None], name: str = "rollout/ep_rew_mean"
    ) -> None:
        """A record of each policy's steps and objective."""
        scalars: dict[str, float] = {}
        for idx, (env_steps, objective) in enumerate(zip(steps, objectives, strict=True)):
            prefix = f"policy_{idx}/" if len(steps) > 1 else ""
            scalars[f"{prefix}time/total_env_steps"] = env_steps
            if objective is not None:
                scalars[f"{prefix}{name}"] = objective
        self.run.notify(Observer.on_record, Record(sum(steps), scalars))
        assert self.run.failure is None, self.run.failure.details if self.run.failure else ""

    def changes(self) -> list[PolicyChange | None]:
        """What each learner is asked now."""
        self.run.carry_out_requests(_Control(self.controls))
        return [control.take_change() for control in self.controls]

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run.folder / "pbt.jsonl").read_text().splitlines()]


class _Control(PoliciesControl):
    def __init__(self, controls: Sequence[RunControl]) -> None:
        self.controls = controls

    def send_training_info(self, content: bytes) -> None:
        self.controls[0].send_training_info(content)

    @property
    def num_training_infos(self) -> int:  # type: ignore[override]
        return self.controls[0].num_training_infos


def _under(prefix: str, specs: Any) -> list[Any]:
    return [dataclasses.replace(spec, name=prefix + spec.name) for spec in specs]


@pytest.fixture(autouse=True)
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's folder is named by the last turn in it; -1 has none."""
    turns = lambda path: {} if path.name == "-1" else {"population_turn": int(path.name)}  # noqa: E731
    monkeypatch.setattr(training, "load_state", turns)


def test_the_first_policy_begins_with_the_settings_and_others_mutate_what_they_were_not_given(tmp_path: Path) -> None:
    started = Population(tmp_path, pbt_mutation_rate=1.0, policies={2: {"learning_rate": 0.1}})
    first, second, third = started.lines
    assert [line["action"] for line in started.lines] == ["started"] * 3
    assert first["after"] == first["before"]
    assert all(second["after"][name] != value for name, value in second["before"].items() if value)
    assert third["after"]["learning_rate"] == 0.1 and third["after"]["ppo_clip_ratio"] != 0.2
    asked = started.changes()
    assert [change.new_values.changes() for change in asked if change] == [line["after"] for line in started.lines]
    assert [change.turn for change in asked if change] == [0, 0, 0]
    assert started.run.config_of(2).ppo_clip_ratio == third["after"]["ppo_clip_ratio"]


def test_the_reward_shaping_of_the_environment_is_changed_and_taken_over_and_known_after_a_resume(
    tmp_path: Path,
) -> None:
    shaping = {"bonus": 2.0, "cost": -0.5, "unused": 0.0}
    found = Population(tmp_path, reward_shaping=shaping, pbt_mutation_rate=1.0)

    def told() -> list[dict[str, float]]:
        found.changes()
        return list(found.controls[0].read_training_info()[1].reward_shaping)

    first, second, _ = found.lines
    assert first["after"]["reward_shaping.bonus"] == 2.0 and "reward_shaping.unused" not in first["after"]
    assert second["after"]["reward_shaping.cost"] < 0.0 and second["after"]["reward_shaping.cost"] != -0.5
    assert [each["unused"] for each in told()] == [0.0] * 3
    assert [each["bonus"] for each in told()] == [line["after"]["reward_shaping.bonus"] for line in found.lines]

    found.record((520, 200, 510), (9.0, 5.0, 1.0), "episode_extra_stats/true_objective")
    replaced = found.lines[-1]
    assert (replaced["policy"], replaced["source"]) == (2, "policy_0")
    factor = replaced["after"]["reward_shaping.bonus"] / 2.0
    assert 1.1 <= max(factor, 1.0 / factor) <= 1.5, "that of the first policy, mutated"
    assert told()[2]["bonus"] == replaced["after"]["reward_shaping.bonus"]
    assert not found.messages.texts

    before = told()
    found = Population(tmp_path, reward_shaping=shaping, turns=[1, 0, 1])
    assert told() == before
    found.record((800, 800, 800), (9.0, 5.0, 1.0))
    assert "a return that the reward shaping changes" in found.messages.texts[0]


def test_each_policy_has_its_turn_after_its_own_steps(tmp_path: Path) -> None:
    found = Population(tmp_path)
    found.changes()
    found.record((499, 200, 100), (9.0, 5.0, 1.0))
    assert len(found.lines) == 3, "nobody has reached the start"
    found.record((520, 200, 510), (9.0, 5.0, 1.0))
    kept, replaced = found.lines[3:]
    assert (kept["policy"], kept["action"], kept["policy_env_steps"]) == (0, "kept", 520)
    assert (replaced["policy"], replaced["action"], replaced["source"]) == (2, "replaced", "policy_0")
    assert replaced["objectives"] == {"policy_0": 9.0, "policy_1": 5.0, "policy_2": 1.0}
    first, second, third = found.changes()
    assert first is not None and (first.source, first.turn) == (None, 1)
    assert second is None
    assert third is not None and (third.source, third.turn) == (0, 1)
    assert third.new_values == Hyperparameters(**replaced["after"])
    found.record((619, 300, 609), (9.0, 5.0, 1.0))
    assert len(found.lines) == 5
    found.record((620, 500, 609), (9.0, 5.0, 1.0))
    assert [(line["policy"], line["turn"], line["action"]) for line in found.lines[5:]] == [
        (0, 2, "kept"), (1, 1, "mutated"),
    ]  # fmt: skip


def test_a_turn_waits_until_all_objectives_are_known(tmp_path: Path) -> None:
    found = Population(tmp_path)
    found.record((600, 600, 600), (9.0, None, 1.0))
    found.record((650, 650, 650), (9.0, float("nan"), 1.0))
    assert len(found.lines) == 3
    found.record((660, 660, 660), (9.0, 5.0, 1.0))
    assert len(found.lines) == 6


def test_the_objective_is_one_of_the_environments_own_numbers(tmp_path: Path) -> None:
    found = Population(tmp_path, pbt_target_objective="goals")
    found.record((600,) * 3, (9.0, 5.0, 1.0))
    found.record((600,) * 3, (9.0, 5.0, 1.0))
    assert len(found.lines) == 3
    assert len(found.messages.texts) == 1 and "--pbt_target_objective" in found.messages.texts[0]
    found.record((600,) * 3, (1.0, 5.0, 9.0), name="episode_extra_stats/goals")
    assert [line["action"] for line in found.lines[3:]] == ["replaced", "mutated", "kept"]


def test_a_resumed_run_takes_the_same_turns_again_that_no_checkpoint_holds(tmp_path: Path) -> None:
    found = Population(tmp_path)
    steps: list[tuple[tuple[int, ...], tuple[float, ...]]] = [
        ((600, 600, 600), (9.0, 5.0, 1.0)), ((700, 700, 700), (9.0, 5.0, 6.0)), ((800, 800, 800), (2.0, 5.0, 6.0)),
    ]  # fmt: skip
    for each in steps:
        found.record(*each)
    whole = found.lines
    with open(found.run.folder / "pbt.jsonl", "a") as file:
        file.write('{"broken')  # it was killed while it wrote
    # The learners of policies 0 and 1 have carried out two turns, that of policy 2 three.
    own = [_last(whole, 0, 2), _last(whole, 1, 2), _last(whole, 2, 3)]
    resumed = Population(tmp_path, turns=(2, 2, 3), own=own)
    assert resumed.lines == [line for line in whole if (line["policy"], line["turn"]) not in ((0, 3), (1, 3))]
    assert resumed.changes() == [None, None, None]
    resumed.record(*steps[-1])
    assert sorted(map(str, resumed.lines)) == sorted(map(str, whole))


def _last(lines: list[dict[str, Any]], policy_idx: int, turn: int) -> dict[str, float]:
    return next(line["after"] for line in lines if (line["policy"], line["turn"]) == (policy_idx, turn))


def test_a_run_that_was_killed_before_a_checkpoint_begins_in_the_same_way(tmp_path: Path) -> None:
    found = Population(tmp_path)
    begun = found.lines
    again = Population(tmp_path, turns=(0, -1, -1), own=[begun[0]["after"], {}, {}])
    lines = again.lines
    assert lines == begun
    first, *others = again.changes()
    assert first is None and all(change is not None and change.turn == 0 for change in others)
    assert Population(tmp_path, seed=1).lines != lines


def test_turns_that_were_not_sent_are_forgotten_at_a_restart_and_other_requests_are_not(tmp_path: Path) -> None:
    found = Population(tmp_path)  # its first values are turns
    found.run.withdraw_turns()
    found.run.set_hyperparameters(Hyperparameters(gamma=0.5), policy_idx=1)
    found.run.withdraw_turns()
    assert found.changes() == [None, PolicyChange(Hyperparameters(gamma=0.5)), None]
    assert (found.run.config_of(0).gamma, found.run.config_of(1).gamma) == (0.99, 0.5)


def test_a_history_that_cannot_be_written_ends_it_and_not_the_run(tmp_path: Path) -> None:
    found = Population(tmp_path)
    found.changes()
    (found.run.folder / "pbt.jsonl").unlink()
    (found.run.folder / "pbt.jsonl").mkdir()
    found.record((600,) * 3, (9.0, 5.0, 1.0))
    assert found.changes() == [None, None, None]
    assert len(found.messages.texts) == 1 and "training continues" in found.messages.texts[0]


def member(folder: Path, name: str, **settings: Any) -> Population:
    """A run with one policy that is a member of the population in `folder / "shared"`."""
    shared = {"num_policies": 1, "experiment": name, "pbt_shared_dir": str(folder / "shared"), **settings}
    return Population(folder, **shared)


def test_runs_in_a_shared_folder_take_over_one_anothers_weights(tmp_path: Path) -> None:
    good, bad = member(tmp_path, "good", learning_rate=0.01), member(tmp_path, "bad", learning_rate=0.1)
    assert good.run.config.learning_rate == 0.01, "every run begins with its own settings"
    good.run.weights[0].publish(np.array([3.0, 4.0], np.float32), 2, 0)
    good.record((100,), (9.0,))  # it publishes before it has turns
    bad.changes()
    bad.record((600,), (1.0,))
    (_, line) = bad.lines
    assert (line["action"], line["source"]) == ("replaced", "good")
    assert line["objectives"] == {"bad": 1.0, "good": 9.0}
    (change,) = bad.changes()
    assert change is not None and (change.source, change.turn) == (FROM_FILE, 1)
    assert np.load(bad.run.folder / "checkpoints" / TAKEOVER_FILE).tolist() == [3.0, 4.0]
    good.record((600,), (9.0,))
    assert good.lines[-1]["action"] == "kept"


def test_a_resumed_member_returns_to_its_own_settings_and_not_to_what_they_became(tmp_path: Path) -> None:
    rare = {"pbt_mutation_rate": 1.0, "learning_rate": 0.1}
    found = member(tmp_path, "own", **rare)
    resumed = member(tmp_path, "own", turns=(0,), own=[{"learning_rate": 0.5}], **rare)
    assert resumed.run.config.learning_rate == 0.5
    assert resumed.lines == found.lines
    draw, values = random.Random(0), {**found.lines[0]["after"], "learning_rate": 0.5}
    rates = {resumed.training._rules.mutate(values, draw)["learning_rate"] for _ in range(1000)}
    assert 0.1 in rates


def test_members_that_are_stale_broken_or_of_another_network_do_not_count(tmp_path: Path) -> None:
    names = ("old", "other", "own")
    old, other, own = (member(tmp_path, name, **({"env": "Acrobot-v1"} if name == "other" else {})) for name in names)
    for each in (old, other):
        each.record((100,), (9.0,))
    stale = tmp_path / "shared" / "old.npz"
    os.utime(stale, (stale.stat().st_atime, stale.stat().st_mtime - 3600.0))
    (tmp_path / "shared" / "broken.npz").write_bytes(b"PK")
    own.record((600,), (1.0,))
    assert own.lines[-1]["objectives"] == {"own": 1.0}
    assert own.lines[-1]["action"] == "kept"
    (text,) = own.messages.texts
    assert "other does not count" in text


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({"nonlinearity": "relu"}, False),
        ({"normalize_input": False}, False),
        ({"normalize_returns": False}, False),
        ({"action_unit": "raw"}, False),
        ({"squash_actions": True}, False),
        ({"encoder": "own"}, False),
        ({"env_kwargs": {"sutton_barto_reward": True}}, False),
        ({"gamma": 0.9, "seed": 7, "num_epochs": 2}, True),
        ({"rnn_size": 8, "tau": 0.1}, True),  # not read
    ],
)
def test_members_whose_weights_mean_something_else_do_not_count(
    settings: dict[str, Any], counts: bool, tmp_path: Path
) -> None:
    other, own = member(tmp_path, "other", **settings), member(tmp_path, "own")
    other.record((100,), (9.0,))
    own.record((600,), (1.0,))
    assert own.lines[-1]["objectives"] == ({"own": 1.0, "other": 9.0} if counts else {"own": 1.0})
    assert ["other does not count" in text for text in own.messages.texts] == [True] * (not counts)


def test_a_file_without_its_final_name_is_no_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, own = member(tmp_path, "writing"), member(tmp_path, "own")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda source, target: None)
        writing.record((100,), (9.0,))
    own.record((600,), (1.0,))
    assert len(list((tmp_path / "shared").iterdir())) == 2
    assert own.lines[-1]["objectives"] == {"own": 1.0}


def test_two_runs_with_one_name_cannot_be_members_of_one_population(tmp_path: Path) -> None:
    member(tmp_path, "run").record((100,), (9.0,))
    with pytest.raises(UsageError, match="has a member 'run' already"):
        member(tmp_path, "run", train_dir=str(tmp_path / "elsewhere"))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="file cannot be used: File exists"):
        member(tmp_path, "another", pbt_shared_dir=str(file))


def test_unreachable_shared_folder_skips_one_turn(tmp_path: Path) -> None:
    own = member(tmp_path, "own")
    (tmp_path / "shared").rmdir()
    own.record((600,), (1.0,))
    assert len(own.lines) == 1 and "cannot be used" in own.messages.texts[0]
    (tmp_path / "shared").mkdir()
    own.record((610,), (1.0,))
    assert own.lines[-1]["turn"] == 1
