"""Ids of environments as people type them: the family that each is of, and one sentence where there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import typed_envs

import asyncrl
from asyncrl import evaluate, train, validate
from asyncrl.envs.factory import make_env

SERIAL = {"serial_mode": True, "async_rl": False, "num_envs_per_worker": 4, "train_for_env_steps": 64, "rollout": 8}
SMALL = {**SERIAL, "batch_size": 32, "num_batches_per_epoch": 1}
FLAGS = [f"--{name}={value}" for name, value in SMALL.items()]
PRESETS = [
    ("gymnasium:Humanoid-v5", "mujoco"),
    ("CartPole", "classic_control"),
    ("ale_py:ALE/Breakout-v5", "atari"),
    ("ALE/Breakout", "atari"),
    ("BreakoutNoFrameskip-v4", "atari"),
    ("typed_envs:PongNoFrameskip-v0", "atari"),
    ("ale_py:Breakout-v4", "atari"),
    ("typed_envs:make", "classic_control"),
    ("typed_envs:scaled", "classic_control"),
    ("typed_envs:bare", "classic_control"),
    ("typed_envs:many", "classic_control"),
    ("typed_envs:game", "atari"),
    ("typed_envs:TypedCart-v0", "classic_control"),
    ("typed_envs:TypedHopper-v3", "mujoco"),
    ("typed_envs:TypedPong-v0", "atari"),
]
MEANT = [
    ("LunarLander-v2", "LunarLander-v3"),
    ("Taxi-v3", "Taxi-v4"),
    ("gymnasium:FrozenLake-v0", "gymnasium:FrozenLake-v1"),
    ("HalfCheetah-v2", "HalfCheetah-v5"),
    ("CartPole-v7", "CartPole-v1"),
    ("typed_envs:Turned-v1", "typed_envs:Turned-v3"),
    ("cartpole-v1", "CartPole-v1"),
    ("ale/pong-v5", "ALE/Pong-v5"),
    ("Breakout-v5", "ALE/Breakout-v5"),
    ("BreakoutDeterministic-v4", "BreakoutNoFrameskip-v4"),
    ("ale_py:PongDeterministic-v0", "ale_py:PongNoFrameskip-v0"),
]
MEMORY = """--env=ALE/Breakout-v5 --env_kwargs='{"obs_type": "ram"}'"""


def checked(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """What `validate` finds, as JSON, and its exit code."""
    code = validate.main([*flags, "--json"])
    return {**json.loads(capsys.readouterr().out), "code": code}


@pytest.mark.usefixtures("probes_here")
@pytest.mark.parametrize(("env", "preset"), PRESETS)
def test_the_preset_follows_from_the_environment_that_is_made(
    env: str, preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(capsys, f"--env={env}")
    assert (found["code"], found["preset"]) == (0, preset)
    (part,) = found["environment"]["observation"]
    assert (part["shape"] == [4, 84, 84]) == (preset == "atari")


@pytest.mark.usefixtures("probes_here")
def test_a_function_around_an_environment_has_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    plain, function = (
        checked(capsys, f"--env={env}", "--print_config")["config"] for env in ("CartPole-v1", "typed_envs:make")
    )
    differing = {name for name, each in plain.items() if each["value"] != function[name]["value"]}
    assert differing == {"env"}
    named = checked(capsys, "--env=typed_envs:make", "--preset=classic_control", "--print_config")["config"]
    assert named["normalize_input"]["value"] is False, "the values for single environments are taken, too"


def test_a_wrapper_that_changes_spaces_has_no_preset_and_the_run_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "preset none: typed_envs:stacked makes CartPole-v1 with other spaces"
    assert train.main(["--env=typed_envs:stacked", f"--train_dir={tmp_path}", *FLAGS]) == 0
    said = capsys.readouterr().out
    assert reason in said and "--preset=NAME chooses one" in said
    assert validate.main(["--env=typed_envs:stacked"]) == 0
    assert reason.removeprefix("preset ") in capsys.readouterr().out


@pytest.mark.usefixtures("probes_here")
@pytest.mark.parametrize("env", ["typed_envs:Large", "FrozenLake-v1"])
def test_validate_says_that_no_preset_is_for_an_environment(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main([f"--env={env}"]) == 0
    assert f"none: no preset is for {env}; --preset=NAME chooses one: atari" in capsys.readouterr().out


def test_a_function_given_to_the_trainer_has_the_preset_and_a_resumed_run_keeps_its_settings(tmp_path: Path) -> None:
    said: list[str] = []

    class Listens(asyncrl.Observer):
        def on_message(self, run: asyncrl.Run, text: str) -> None:
            said.append(text)

    def run(**settings: Any) -> asyncrl.RunResult:
        config = asyncrl.TrainConfig(train_dir=str(tmp_path), experiment="run", **{**SMALL, **settings})
        return asyncrl.Trainer(config, [Listens()]).run()

    first = run(env=lambda: gymnasium.make("CartPole-v1"))
    assert (first.config.learning_rate, first.config.normalize_input) == (0.0025, False)
    assert any(text.startswith("preset classic_control") and "for CartPole-v1" in text for text in said)
    said.clear()
    second = run(env=lambda: gymnasium.make("CartPole-v1"), learning_rate=0.001, train_for_env_steps=128)
    assert (second.config.learning_rate, second.config.normalize_input) == (0.001, False)
    assert any(text.startswith("preset none: a resumed run keeps its settings") for text in said)


@pytest.mark.parametrize(
    ("env", "kwargs", "frames"),
    [
        ("PongNoFrameskip-v4", {}, 4),
        ("ale_py:Pong-v4", {}, 4),
        ("ale_py:ALE/Pong-v5", {"frameskip": 2}, 2),
        ("typed_envs:game", {}, 4),  # the game skips frames itself
        ("typed_envs:game_without_skip", {}, 4),
        ("typed_envs:TypedPong-v0", {}, 4),
        ("typed_envs:skipped", {}, 4),  # a wrapper skips frames
    ],
)
def test_a_game_skips_frames_once_whatever_makes_it(env: str, kwargs: dict[str, Any], frames: int) -> None:
    made = make_env(env, kwargs)
    made.reset(seed=0)
    before = made.unwrapped.ale.getEpisodeFrameNumber()  # type: ignore[attr-defined]
    made.step(0)
    assert made.unwrapped.ale.getEpisodeFrameNumber() - before == frames  # type: ignore[attr-defined]
    assert (made.observation_space.shape == (4, 84, 84)) == (env != "typed_envs:skipped")


@pytest.mark.usefixtures("probes_here")
def test_raw_frames_behind_a_wrapper_that_skips_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    said = [warning["text"] for warning in checked(capsys, "--env=typed_envs:skipped")["warnings"]]
    assert any("not preprocessed, because step() of MaxAndSkipObservation may skip" in text for text in said), said
    assert checked(capsys, "--env=typed_envs:skipped", "--atari_preprocessing=False")["warnings"] == []


@pytest.mark.usefixtures("probes_here")
def test_a_game_without_preprocessing_is_raw_and_other_environments_have_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw = checked(capsys, "--env=ale_py:ALE/Pong-v5", "--atari_preprocessing=False")
    assert raw["environment"]["observation"][0]["shape"] == [210, 160, 3]
    memory = checked(capsys, "--env=ALE/Pong-v5", '--env_kwargs={"obs_type": "ram"}')
    assert memory["code"] == 0
    assert memory["environment"]["observation"][0]["shape"] == [128]
    other = checked(capsys, "--env=CartPole-v1", "--atari_preprocessing=False")
    assert ["atari_preprocessing", "env"] in [warning["settings"] for warning in other["warnings"]]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        *((env, f"give --env={meant}.") for env, meant in MEANT),
        *((env, f"observed by {MEMORY}.") for env in ("ALE/Breakout-ram-v5", "ale_py:Breakout-ramNoFrameskip-v4")),
    ],
)
def test_an_id_that_gymnasium_has_replaced_ends_in_one_sentence_with_what_to_give(env: str, said: str) -> None:
    with pytest.raises(asyncrl.UsageError) as caught:
        make_env(env)
    assert str(caught.value).endswith(said) and "\n" not in str(caught.value)


def test_a_replaced_id_is_one_sentence_in_train_trainer_and_evaluate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = [f"--train_dir={tmp_path}", "--experiment=run"]
    assert train.main(["--env=LunarLander-v2", *place]) == 2
    assert "give --env=LunarLander-v3." in capsys.readouterr().err
    with pytest.raises(asyncrl.UsageError, match=r"give --env=Taxi-v4\."):
        asyncrl.Trainer(asyncrl.TrainConfig(env="Taxi-v3", train_dir=str(tmp_path), **SMALL)).run()

    gymnasium.register("Renamed-v1", entry_point=typed_envs.make)
    (tmp_path / "renamed.py").write_text("import gymnasium, typed_envs\n" + REGISTER.format(1))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert train.main(["--env=renamed:Renamed-v1", *place, *FLAGS]) == 0
    monkeypatch.delitem(gymnasium.registry, "Renamed-v1")
    monkeypatch.setitem(sys.modules, "renamed", typed_envs)  # which no longer registers it
    gymnasium.register("Renamed-v2", entry_point=typed_envs.make)
    capsys.readouterr()
    assert evaluate.main([*place, "--episodes=1"]) == 2
    assert capsys.readouterr().err.strip().endswith("give --env=renamed:Renamed-v2.")
    del gymnasium.registry["Renamed-v2"]


REGISTER = "gymnasium.register('Renamed-v{}', entry_point=typed_envs.make)\n"


@pytest.mark.usefixtures("fresh_probes")
@pytest.mark.parametrize(("package", "when"), [("dm_control", "import"), ("gymnasium_robotics", "construction")])
def test_a_simulator_that_does_not_know_mujoco_4_names_the_version_to_install(
    package: str, when: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = "mujoco.mjtNotThere"
    code = {"import": f"import mujoco\n{fails}\n", "construction": f"import mujoco\ndef make():\n    {fails}\n"}[when]
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(code)
    (tmp_path / "mujoco.py").write_text("__version__ = '4.0.1'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert validate.main([f"--env={package}:make"]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1] == f"mujoco 4.0.1 is installed, and {package} may need an earlier version: pip install 'mujoco<4'"
    (tmp_path / "mujoco.py").write_text("__version__ = '3.10.0'\n")
    assert validate.main([f"--env={package}:make"]) == 1
    assert "pip install" not in capsys.readouterr().err


@pytest.mark.usefixtures("probes_here")
@pytest.mark.parametrize(
    ("flags", "is_said"),
    [
        (("--env=typed_envs:Large",), True),
        (("--env=typed_envs:Large", "--algo=dqn", "--replay_size=100", "--warmup_env_steps=64"), True),
        (("--env=typed_envs:Large", '--env_kwargs={"height": 84, "width": 84}'), False),
        (("--env=ALE/Pong-v5", "--preset=atari"), False),
    ],
)
def test_validate_warns_of_an_unusually_large_rollout_of_images(
    flags: tuple[str, ...], is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(capsys, *flags, "--num_envs_per_worker=1", "--num_workers=1", "--num_batches_per_epoch=1")
    said = [each["text"] for each in found["warnings"] if "takes" in each["text"] and "Images of" in each["text"]]
    assert bool(said) == is_said, found
