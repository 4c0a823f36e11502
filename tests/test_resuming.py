"""What a run continues from: settings in their layers, changes that are possible, and the newest usable checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from layouts import vector_observation

from asyncrl.config.errors import ConfigError, UsageError
from asyncrl.config.fixed_settings import changes
from asyncrl.config.loading import LoadedConfig, load
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import OF_ONE_START, TrainConfig
from asyncrl.envs.spec import Action, BoxAction, Channels, DiscreteAction, EnvSpec, ObservationLayout, ObservationPart
from asyncrl.models.factory import make_acting_model
from asyncrl.observers.observer import StartPoint
from asyncrl.observers.summary import ResumedTotals
from asyncrl.run import resuming
from asyncrl.run.setup import RunSetup, state_to_begin_with
from asyncrl.storage import checkpoint
from asyncrl.storage.locating import policy_folder
from asyncrl.storage.run_folder import RunFolder, find_saved_config

SPEC = EnvSpec("CartPole-v1", vector_observation(4), DiscreteAction(2, 0), 500)
PLAN = resolve(TrainConfig(), Machine(cores=2))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run that was started with some settings of its own, to overwrite what was there."""
    config = TrainConfig(env="CartPole-v1", learning_rate=0.5, seed=3, restart_behavior="overwrite", experiment="old")
    with RunFolder.create(str(tmp_path), "run", "resume") as folder:
        folder.write_config(config)
    return folder


def load_again(folder: RunFolder, *flags: str) -> LoadedConfig:
    where = (f"--train_dir={folder.path.parent}", "--experiment=run")
    return load([*where, *flags], find_saved=find_saved_config)


def test_saved_settings_stand_for_the_preset_and_flags_stand_above_them(folder: RunFolder) -> None:
    loaded = load_again(folder, "--seed=4")
    assert loaded.preset is None
    assert (loaded.config.env, loaded.config.learning_rate, loaded.config.seed) == ("CartPole-v1", 0.5, 4)
    assert (loaded.origins["learning_rate"], loaded.origins["seed"]) == ("saved run", "flag")
    assert [str(change) for change in changes(loaded.saved, loaded.config)] == ["seed: 3 -> 4"]


TEXTS = {"mode": "none", "id": "12e5", "w": "1e-4", "v": "inf", "r": "nan", "n": "08", "on": "on"}
"""Texts that a reader could take for something else."""


@pytest.mark.parametrize("dump", [None, yaml.safe_dump], ids=["this version", "earlier versions"])
def test_texts_of_a_saved_run_stay_texts(folder: RunFolder, dump: Callable[[object], str] | None) -> None:
    config = TrainConfig(env="CartPole-v1", env_kwargs={**TEXTS, "number": 1e-5, "nothing": None})
    if dump is None:
        folder.write_config(config)
    else:
        folder.config.write_text(dump(config.model_dump(mode="json", exclude=set(OF_ONE_START))))
    assert load_again(folder).config.env_kwargs == folder.read_config().env_kwargs == config.env_kwargs


def test_what_a_command_says_of_the_folder_is_never_taken_from_the_saved_run(folder: RunFolder) -> None:
    config = load_again(folder).config
    assert config.restart_behavior == "resume"
    assert (config.train_dir, config.experiment) == (str(folder.path.parent), "run")


@pytest.mark.parametrize("behavior", ["restart", "overwrite"])
def test_a_run_that_begins_anew_takes_nothing_over(folder: RunFolder, behavior: str) -> None:
    loaded = load_again(folder, "--env=CartPole-v1", f"--restart_behavior={behavior}")
    assert loaded.saved is None
    assert loaded.preset == "classic_control"
    assert loaded.config.seed == 0


@pytest.mark.parametrize("content", ["learning_rate: fast\n", "[", "colour: blue\n"])
def test_saved_settings_that_cannot_be_read_are_one_mistake(folder: RunFolder, content: str) -> None:
    folder.config.write_text(content)
    with pytest.raises(ConfigError, match="Cannot resume") as caught:
        load_again(folder)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("algo", "possible", "impossible"),
    [
        (
            "ppo",
            "--learning_rate=0.1 --async_rl=False --train_for_env_steps=99 --env=moved.here:CartPole-v1",
            "--env=Acrobot-v1 --encoder_mlp_layers=[7] --normalize_returns=False --action_unit=raw",
        ),
        ("dqn", "--exploration_final_eps=0.2", "--dueling=False"),
        (
            "sac",  # does not read these
            "--normalize_returns=False --adaptive_stddev=True --actor_critic_share_weights=True",
            "--critic_layer_norm=True",
        ),
    ],
)
def test_a_run_goes_on_with_other_settings_but_not_with_another_model(
    folder: RunFolder, algo: str, possible: str, impossible: str
) -> None:
    folder.write_config(TrainConfig(env="CartPole-v1", algo=algo, dueling=algo == "dqn", experiment="run"))
    flags = [*possible.split(), *impossible.split()]
    assert all(resuming.find_problems(load_again(folder, flag)) == [] for flag in flags), "nothing was saved yet"
    save(folder.checkpoints, 100)
    assert resuming.find_problems(load_again(folder)) == []
    problems = {flag: resuming.find_problems(load_again(folder, flag)) for flag in flags}
    assert [flag for flag in flags if problems[flag]] == impossible.split()
    for flag in impossible.split():
        (problem,) = problems[flag]
        assert problem.text.startswith("Cannot resume: the checkpoint was made with ")
        assert "--restart_behavior=restart" in str(problem)


def save(folder: Path, env_steps: int, spec: EnvSpec = SPEC) -> Path:
    state: dict[str, Any] = {"spec": spec.to_data(), "env_steps": env_steps, "elapsed_s": 7.5}
    state |= {"env_steps_of_worker_0": env_steps - 10, "env_steps_of_worker_1": 10}
    content = checkpoint.Checkpoint({"weight": torch.zeros(3)}, {}, state)
    return checkpoint.save(folder, content, env_steps, keep=9)


def test_the_newest_checkpoint_is_taken_and_a_damaged_one_passed_over(tmp_path: Path) -> None:
    assert resuming.find_checkpoint(tmp_path, SPEC, PLAN) is None
    older, newer = save(tmp_path, 100), save(tmp_path, 200)
    save(tmp_path / "best", 300)
    assert resuming.find_checkpoint(tmp_path, SPEC, PLAN) == resuming.Resumption(
        newer, 200, 7.5, worker_env_steps=(190, 10)
    )
    (newer / "model.safetensors").write_bytes(b"")
    found = resuming.find_checkpoint(tmp_path, SPEC, PLAN)
    assert found is not None
    assert (found.checkpoint, found.env_steps) == (older, 100)
    assert newer.name in found.skipped[0]
    (older / "state.json").write_text((older / "state.json").read_text().replace("elapsed_s", "elapsed"))
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint can be used"):
        resuming.find_checkpoint(tmp_path, SPEC, PLAN)


def test_a_run_in_whose_folder_somebody_put_a_pickle_does_not_go_on(tmp_path: Path) -> None:
    save(tmp_path, 100)
    newer = save(tmp_path, 200)
    (newer / "model.safetensors").write_bytes(pickle.dumps({"weight": 1.0}))
    sums = (newer / "SHA256SUMS").read_text().splitlines()
    sums[0] = f"{hashlib.sha256((newer / 'model.safetensors').read_bytes()).hexdigest()}  model.safetensors"
    (newer / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    with pytest.raises(UsageError, match="not a safetensors file"):
        resuming.find_checkpoint(tmp_path, SPEC, PLAN)


def test_a_damaged_replay_makes_a_checkpoint_damaged_and_one_of_other_environments_is_taken(tmp_path: Path) -> None:
    state = {"env_steps": 1, "elapsed_s": 0.0, "spec": SPEC.to_data(), "updates_due": 3}
    replay = checkpoint.SavedReplay({"reward.0": [np.ones(9, np.float32)]}, lambda: [0])
    content = checkpoint.Checkpoint({"w": torch.ones(1)}, {"m": torch.ones(1)}, state, replay)
    older, newer = (checkpoint.save(tmp_path, content, steps, keep=5) for steps in (1, 2))
    (newer / checkpoint.REPLAY_FILE).write_bytes(b"cut short")
    sac = TrainConfig(algo="sac", num_workers=2, num_envs_per_worker=4)
    found = resuming.find_checkpoint(tmp_path, SPEC, resolve(sac))
    assert found is not None
    assert (found.checkpoint, len(found.skipped), found.updates_due) == (older, 1, 3)


def test_an_environment_with_other_spaces_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 100)
    same = EnvSpec("my:CartPole-v7", vector_observation(4, "float64"), DiscreteAction(2, 0), None)
    assert resuming.find_checkpoint(tmp_path, same, PLAN) is not None
    for other in (
        EnvSpec("X", vector_observation(5), SPEC.action, 500),
        EnvSpec("X", vector_observation(4), DiscreteAction(3, 0), 500),
    ):
        with pytest.raises(UsageError, match="was trained on"):
            resuming.find_checkpoint(tmp_path, other, PLAN)


def board(channels: Channels) -> EnvSpec:
    image = ObservationPart((), "image", (9, 9, 17), "uint8", channels=channels)
    return EnvSpec("Board-v0", ObservationLayout((image,)), SPEC.action, None)


def test_an_image_that_was_looked_at_along_other_axes_is_refused_with_the_flag_for_them(tmp_path: Path) -> None:
    save(tmp_path, 100, board("first"))
    assert resuming.find_checkpoint(tmp_path, board("first"), PLAN) is not None
    with pytest.raises(UsageError, match="--image_channels=first"):
        resuming.find_checkpoint(tmp_path, board("last"), PLAN)


ONE = {"w": torch.ones(1)}


def source(folder: Path, spec: EnvSpec = SPEC, **settings: Any) -> Path:
    """A checkpoint of another run with these settings."""
    saved = TrainConfig(**{"env": "X-v0", **settings}).model_dump(mode="json")
    return checkpoint.save(folder, checkpoint.Checkpoint(ONE, ONE, {"spec": spec.to_data(), "config": saved}), 100, 9)


def source_problems(path: Path, spec: EnvSpec = SPEC, **settings: Any) -> str:
    """Why a run of this environment cannot start from a checkpoint."""
    config = TrainConfig(**{"env": "X-v0", "init_from": str(path), "train_dir": str(path.parents[2]), **settings})
    return " ".join(map(str, resuming.find_source_problems(config, spec)))


def test_a_checkpoint_with_another_unit_of_actions_is_started_from_where_it_makes_no_difference(tmp_path: Path) -> None:
    def problems(action: Action, **settings: Any) -> str:
        spec = dataclasses.replace(SPEC, action=action)
        return source_problems(source(tmp_path / "run" / "checkpoints", spec, action_unit="raw"), spec, **settings)

    small = BoxAction((1,), (-0.4,), (0.4,), "float32")
    assert "made with action_unit=raw; this run has bounds." in problems(small)
    assert problems(small, action_unit="raw") == ""
    assert problems(BoxAction((1,), (-1.0,), (1.0,), "float32")) == ""
    assert problems(DiscreteAction(2, 0)) == ""


@pytest.mark.parametrize(
    ("before", "now", "is_possible"),
    [("sac", "sac", True), ("ppo", "a2c", True), ("sac", "td3", False), ("td3", "sac", False), ("dqn", "sac", False)],
)
def test_a_run_from_a_replay_starts_only_from_one_with_the_same_kind_of_model(
    tmp_path: Path, before: str, now: str, is_possible: bool
) -> None:
    found = source_problems(source(tmp_path / "run" / "checkpoints", algo=before), algo=now)
    assert found == "" if is_possible else f"made with algo={before}; this run has {now}." in found


def test_what_gives_numbers_another_meaning_cannot_be_started_from(tmp_path: Path) -> None:
    path = source(tmp_path / "run" / "checkpoints", env="Acrobot-v1")
    assert source_problems(path, experiment="other") == source_problems(path, experiment="run") == ""
    assert "removes" in source_problems(path, experiment="run", restart_behavior="overwrite")
    assert "made with nonlinearity=tanh; this run has relu" in source_problems(path, nonlinearity="relu")
    assert "made with normalize_input=True; this run has False" in source_problems(path, normalize_input=False)
    assert source_problems(path, encoder_mlp_layers=[8]) == ""
    assert "no such folder" in source_problems(path.with_name("missing"))
    path = source(tmp_path / "run" / "checkpoints", board("first"))
    assert "--image_channels=first" in source_problems(path, board("last"))


@pytest.mark.parametrize("algo", ["ppo", "sac", "dqn"])
def test_one_sentence_says_which_tensors_begin_new(algo: str, tmp_path: Path) -> None:
    before = TrainConfig(env="Acrobot-v1", algo=algo, encoder_mlp_layers=[16, 8])
    state = {"spec": SPEC.to_data(), "config": before.model_dump(mode="json")}
    policy = make_acting_model(SPEC, before).state_dict()
    paths = {}
    for number, (kind, optimizer) in enumerate({"trained": {"m": torch.ones(1)}, "best": {}}.items()):
        content = checkpoint.Checkpoint(policy, optimizer, state)
        paths[kind] = checkpoint.save(tmp_path, content, 100 + number, keep=9)

    def said(kind: str, spec: EnvSpec = SPEC, **settings: Any) -> tuple[str, str]:
        given = {"encoder_mlp_layers": [16, 8], **settings}
        config = TrainConfig(env="CartPole-v1", algo=algo, init_from=str(paths[kind]), **given)
        assert resuming.find_source_problems(config, spec) == []
        problems, warnings = resuming.find_source_misfits(config, spec)
        return " ".join(map(str, problems)), " ".join(map(str, warnings))

    rest = "the critics, the optimizer's state" if algo == "sac" else "the optimizer's state"
    assert said("trained") == ("", "")
    everything = f"{len(policy)} of {len(policy)} tensors of the policy are taken; what begins new: {rest}."
    assert said("best") == ("", f"--init_from={paths['best']}: {everything}")
    _, wider = said("trained", encoder_mlp_layers=[16, 9])
    assert "of the policy" in wider and wider.endswith("the optimizer's state.")
    assert ("the critics" in wider) == (algo == "sac")
    changed = [name for name in policy if name in wider]
    assert 0 < len(changed) < len(policy)
    assert f"{len(policy) - len(changed)} of {len(policy)} tensors" in wider
    _, other = said("trained", EnvSpec("X", vector_observation(9), SPEC.action, None))
    assert "begins new: statistics, " in other and "of the policy, the" in other
    nothing, _ = said(
        "trained", EnvSpec("X", vector_observation(9), DiscreteAction(3, 0), None), encoder_mlp_layers=[4]
    )
    assert ("no tensor of its policy fits" in nothing) == (algo == "sac")  # others have a parameter of size 1


def several_policies(folder: Path, *policies: dict[str, Any]) -> Path:
    """A run with a checkpoint of each policy, of which `policies` has the settings; its weights are its number."""
    own = dict(enumerate(policies))
    config = TrainConfig(env="CartPole-v1", num_policies=len(policies), policies=own, encoder_mlp_layers=[8])
    with RunFolder.create(str(folder), "source", "resume") as run:
        run.write_config(config)
    for idx in own:
        of_policy = config.for_policy(idx)
        weights = {
            name: torch.full_like(each, idx) for name, each in make_acting_model(SPEC, of_policy).state_dict().items()
        }
        state = {"spec": SPEC.to_data(), "config": of_policy.model_dump(mode="json"), "learning_rate": 0.1}
        content = checkpoint.Checkpoint(weights, {"m": torch.ones(1)}, state)
        for env_steps in (100 + idx, 200 + idx):
            checkpoint.save(policy_folder(run.checkpoints, idx), content, env_steps, keep=9)
    return run.path


def begins_with(source: str | Path, folder: Path, **settings: Any) -> TrainConfig:
    given = {"env": "CartPole-v1", "num_policies": 2, "encoder_mlp_layers": [8], "train_dir": str(folder)}
    return resuming.resolve_source(TrainConfig(**{**given, **settings}, init_from=str(source)))


def test_each_policy_begins_with_the_policy_of_its_number(tmp_path: Path) -> None:
    path = several_policies(tmp_path, {}, {"gamma": 0.9})
    for named in ("source", path):
        config = begins_with(named, tmp_path)
        assert resuming.find_source_problems(config, SPEC) == []
        assert resuming.find_source_misfits(config, SPEC) == ([], [])
        setup = RunSetup.create(config, resolve(config, Machine(cores=2)), SPEC, tmp_path / "new")
        for idx in range(2):
            begun = state_to_begin_with(setup.for_policy(idx))
            assert begun is not None and begun.is_whole
            assert {float(each.float().mean()) for each in begun.model.values()} == {float(idx)}


def test_a_checkpoint_of_one_policy_is_no_source_of_several(tmp_path: Path) -> None:
    path = several_policies(tmp_path, {}, {})
    for one in (path / "checkpoints" / "policy_1", path / "checkpoints" / "policy_1" / "checkpoint_000000000101"):
        with pytest.raises(UsageError, match="is a checkpoint of one policy, and --num_policies=2 needs one of each"):
            begins_with(one, tmp_path)


def test_the_settings_of_each_policy_are_compared_with_those_of_its_source(tmp_path: Path) -> None:
    path = several_policies(tmp_path, {}, {"normalize_input": False, "encoder_mlp_layers": [4]})

    def problems(**settings: Any) -> list[str]:
        config = begins_with(path, tmp_path, **settings)
        return list(map(str, resuming.find_source_problems(config, SPEC)))

    start = f"--init_from={path}: the checkpoint was made with "
    like_source: dict[str, Any] = {"normalize_input": False, "encoder_mlp_layers": [4]}
    assert problems(policies={1: like_source}) == []
    assert problems() == [
        f"{start}policy.1.normalize_input=False; this run has True. Would pass: --policy.1.normalize_input=False."
    ]
    (text,) = problems(policies={1: {**like_source, "nonlinearity": "relu"}})
    assert text.startswith(f"{start}policy.1.nonlinearity=tanh; this run has relu.")
    (text,) = problems(policies={1: like_source}, nonlinearity="relu")
    assert text == f"{start}nonlinearity=tanh; this run has relu. Would pass: --nonlinearity=tanh."
    (text,) = problems(num_policies=3)
    assert "made with num_policies=2; this run has 3." in text
    wider = begins_with(path, tmp_path, policies={1: {"normalize_input": False}})
    assert resuming.find_source_problems(wider, SPEC) == []
    (warning,) = resuming.find_source_misfits(wider, SPEC)[1]
    assert warning.text.startswith(f"Policy 1: --init_from={path}: ") and "begins new" in warning.text
    shutil.rmtree(path / "checkpoints" / "policy_1")
    assert f"{path} has no policy 1" in problems()[0]


def test_a_resumed_run_keeps_its_algorithm_and_says_what_may_change(folder: RunFolder) -> None:
    save(folder.checkpoints, 100)
    (problem,) = resuming.find_problems(load_again(folder, "--algo=a2c", "--encoder_mlp_layers=32"))
    assert problem.text == (
        "Cannot resume: the checkpoint was made with algo=ppo; you gave a2c, and with encoder_mlp_layers=[64, 64]; "
        "you gave [32]. Environment, algorithm, network and normalization are fixed; all other settings may change."
    )


def test_changed_settings_are_shown_as_lasting(folder: RunFolder) -> None:
    loaded = load_again(folder, "--learning_rate=0.1", "--train_for_seconds=5")
    assert loaded.saved is not None
    found = tuple(map(str, changes(loaded.saved, loaded.config)))
    changed = "Settings that change for this run from now on:\n  learning_rate: 0.5 -> 0.1"
    for path, before, where in (
        (None, None, "No checkpoint yet: starting at step 0 with the settings in config.yaml."),
        (Path.cwd() / "somewhere", ResumedTotals(12_000), "Resuming from somewhere (12,000 steps)."),
    ):
        assert StartPoint(path, before, True, found).sentences == [where, changed]
    assert StartPoint().sentences == []


def test_a_source_is_not_needed_once_the_run_has_a_checkpoint(folder: RunFolder) -> None:
    config = load_again(folder, "--init_from=gone").config
    with pytest.raises(UsageError, match="--init_from=gone: There is no run 'gone'"):
        resuming.resolve_source(config)
    save(folder.checkpoints, 100)
    assert resuming.resolve_source(config) == config
    assert resuming.find_source_problems(config, SPEC) == []
