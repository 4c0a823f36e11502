"""What observers ask, on its way to the roles: words of the arena that have one writer each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

import pytest
from layouts import vector_observation

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import PoliciesControl, PolicyChange, RunControl, control_specs
from asyncrl.config.errors import UsageError
from asyncrl.config.hyperparameters import Hyperparameters, saved_hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.observers.callbacks import EnvironmentCurriculum
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.reports import EpisodeRecord
from asyncrl.observers.status import Record
from asyncrl.observers.writers import RecordWriter

RUN_CONFIG = TrainConfig(env="CartPole-v1", learning_rate=0.1)


class Listens(Observer):
    """Keeps what is said and counts the episodes."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.num_episodes = 0

    def on_message(self, run: Run, text: str) -> None:
        self.said.append(text)

    def on_episode(self, run: Run, episode: EpisodeRecord) -> None:
        self.num_episodes += 1


@pytest.fixture
def control() -> RunControl:
    return RunControl(Arena.create(control_specs()), num_workers=0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run([])
    run.config, run.folder = RUN_CONFIG, tmp_path
    return run


def test_later_values_wait_until_the_learner_has_taken_the_earlier(run: Run, control: RunControl) -> None:
    run.set_hyperparameters(Hyperparameters(gamma=0.5))
    run.carry_out_requests(control)
    run.set_hyperparameters(Hyperparameters(gamma=0.6, learning_rate=0.2))
    run.set_hyperparameters(Hyperparameters(learning_rate=0.3))
    run.carry_out_requests(control)
    assert control.take_change() == PolicyChange(Hyperparameters(gamma=0.5))
    assert control.take_change() is None
    run.carry_out_requests(control)
    assert control.take_change() == PolicyChange(Hyperparameters(gamma=0.6, learning_rate=0.3))
    run.carry_out_requests(control)
    assert control.has_taken_change
    assert (run.config.gamma, run.config.learning_rate) == (0.6, 0.3)


def test_a_policy_takes_over_another_one_with_the_same_model_only(run: Run) -> None:
    run.spec = EnvSpec("A-v0", vector_observation(2), DiscreteAction(2, 0), None)
    with pytest.raises(UsageError, match="Policy 0 cannot take over policy 1: the run has one policy"):
        run.adopt_weights(0, 1)
    run.policy_configs = [
        RUN_CONFIG.model_copy(update=own)
        for own in ({}, {"gamma": 0.5, "learning_rate": 0.01}, {"encoder_mlp_layers": [8]}, {"normalize_input": False})
    ]
    run.adopt_weights(0, 1)
    for other in (2, 3):
        with pytest.raises(UsageError, match=f"Policy 0 cannot take over policy {other}: they have different models"):
            run.adopt_weights(0, other)
    with pytest.raises(UsageError, match="the run's policies are 0 to 3"):
        run.adopt_weights(0, 4)


def test_requests_are_counted_for_the_role_that_meets_them(run: Run, control: RunControl) -> None:
    for ask in (run.save, run.evaluate, run.evaluate):
        ask()
    run.save_best(7.0)
    assert (control.num_saves, control.num_evaluations, control.num_best) == (0, 0, 0)
    run.carry_out_requests(control)
    assert (control.num_saves, control.num_evaluations, control.num_best, control.best_return) == (1, 2, 1, 7.0)


def test_learners_of_several_policies_meet_the_requests(run: Run) -> None:
    arena = Arena.create(
        dataclasses.replace(spec, name=prefix + spec.name) for prefix in ("", "a.", "b.") for spec in control_specs()
    )
    policies = [RunControl(arena.scoped(prefix), num_workers=0) for prefix in ("a.", "b.")]
    control = PoliciesControl(arena, 0, policies)
    run.save()
    run.save_best(7.0)
    run.evaluate()
    run.carry_out_requests(control)
    assert [policy.num_saves for policy in policies] == [1, 1]
    assert [policy.num_best for policy in policies] == [1, 0] and policies[0].best_return == 7.0
    assert control.num_evaluations == 1


def test_a_best_checkpoint_has_one_writer(run: Run) -> None:
    run.config = run.config.model_copy(update={"eval_every_env_steps": 1000})
    with pytest.raises(UsageError, match="give --save_best_metric=none to choose it yourself"):
        run.save_best(7.0)
    run.config = run.config.model_copy(update={"save_best_metric": "none"})
    run.save_best(7.0)


@pytest.mark.parametrize("takes_info", [True, False])
def test_a_curriculum_says_if_the_environment_does_not_take_its_stages(run: Run, takes_info: bool) -> None:
    run.add(listening := Listens())
    run.spec = EnvSpec("A-v0", vector_observation(2), DiscreteAction(2, 0), None, takes_training_info=takes_info)
    EnvironmentCurriculum([{"stage": 0}], []).on_start(run)
    expected = "warning: A-v0 has no method set_training_info, so the curriculum changes nothing."
    assert listening.said == ([] if takes_info else [expected])


def test_the_newest_dict_is_what_environments_get_and_a_run_that_starts_again_sends_it_again(
    run: Run, control: RunControl
) -> None:
    run.carry_out_requests(control)
    assert control.num_training_infos == 0
    for stage in range(3):
        run.set_training_info({"stage": stage, "name": "x" * stage})
        run.carry_out_requests(control)
        run.carry_out_requests(control)
        assert control.read_training_info() == (stage + 1, ({"stage": stage, "name": "x" * stage}, stage + 1, ()))
    again = RunControl(Arena.create(control_specs()), num_workers=0)
    run.carry_out_requests(again)
    assert again.read_training_info() == (1, ({"stage": 2, "name": "xx"}, 3, ()))


@pytest.mark.parametrize(
    ("info", "said"), [({"f": lambda: 0}, "cannot be pickled"), ({"x": "x" * 2**16}, "at most 32768 are possible")]
)
def test_a_dict_that_cannot_be_sent_is_refused_at_once(run: Run, info: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run.set_training_info(info)


def test_an_observer_that_fails_while_it_says_something_fails_once() -> None:
    class Fails(Observer):
        def on_message(self, run: Run, text: str) -> None:
            raise ValueError("first")

        def on_episode(self, run: Run, episode: EpisodeRecord) -> None:
            run.say("something")
            raise ValueError("second")

    run = Run([Fails()])
    run.notify(Observer.on_episode, EpisodeRecord(1.0, 1))
    assert run.failure is not None
    assert str(run.failure.__cause__) == "first"


def test_a_file_that_cannot_be_closed_is_said_and_does_not_fail_the_run() -> None:
    class Full(RecordWriter):
        def write(self, record: Record) -> None:
            pass

        def close(self) -> None:
            raise OSError("no space left")

    run = Run([Full(), listening := Listens()])
    run.notify(Observer.on_end, mock.Mock())
    assert run.failure is None
    assert listening.said == ["Full could not be closed: OSError: no space left"]


def test_an_observer_that_raises_is_not_called_again_and_the_others_are() -> None:
    class Fails(Listens):
        def on_episode(self, run: Run, episode: EpisodeRecord) -> None:
            super().on_episode(run, episode)
            raise ValueError("of my own")

    observers = [Listens(), Fails(), Listens()]
    run = Run(observers)
    assert not run.is_stopping
    for _ in range(2):
        run.notify(Observer.on_episode, EpisodeRecord(1.0, 1))
    assert [observer.num_episodes for observer in observers] == [2, 1, 2]
    assert run.is_stopping and run.failure is not None
    assert isinstance(run.failure.__cause__, ValueError)


def test_what_the_user_changes_overrides_what_an_observer_has_changed() -> None:
    state = {"config": RUN_CONFIG.model_dump(), "hyperparameters": {"learning_rate": 0.2, "gamma": 0.5, "gone": 1.0}}
    assert saved_hyperparameters(state, RUN_CONFIG) == Hyperparameters(learning_rate=0.2, gamma=0.5)
    changed = RUN_CONFIG.model_copy(update={"learning_rate": 0.4})
    assert saved_hyperparameters(state, changed) == Hyperparameters(gamma=0.5)
    assert saved_hyperparameters({"config": RUN_CONFIG.model_dump()}, RUN_CONFIG) == Hyperparameters()
