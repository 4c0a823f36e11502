"""An algorithm of a user's module: its settings on the command line, in the run's folder and in checkpoints."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import toy_algorithms
import yaml
from command import Command

import asyncrl
from asyncrl.config import algorithms
from asyncrl.config.errors import UsageError
from asyncrl.config.loading import load
from asyncrl.config.schema import TrainConfig
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

TOY = "--algo=toy_algorithms:REINFORCE"
OWN_SETTINGS = """
from typing import Literal

from pydantic import Field, field_validator, model_validator

import asyncrl


class Settings(asyncrl.TrainConfig):
    shape: Literal["none", "hard"] = "none"
    sizes: list[int] = Field(default_factory=lambda: [1, 2], description="sizes")

    @field_validator("sizes")
    @classmethod
    def check_sizes(cls, sizes):
        if 0 in sizes:
            raise ValueError("nothing has the size 0")
        return sizes

    @model_validator(mode="after")
    def check(self):
        if self.shape == "hard" and len(self.sizes) != 3:
            raise ValueError("hard needs three sizes")
        return self


OWN = asyncrl.Algorithm("own", settings=Settings, loss=print)
"""
SMALL = ("--num_workers=2", "--num_envs_per_worker=4", "--rollout=32", "--encoder_mlp_layers=16", "--seed=1")


def test_it_trains_resumes_and_is_evaluated_by_the_command_lines(
    start: Callable[..., Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (TOY, "--env=CartPole-v1", "--preset=none", "--advantage_power=0.5", *SMALL)
    training = start("asyncrl.train", *flags, "--train_for_env_steps=4000")
    code, _, stderr = training.finish()
    assert code == 0, stderr
    saved = yaml.safe_load((training.folder / "config.yaml").read_text())
    assert (saved["algo"], saved["advantage_power"], saved["num_epochs"]) == ("toy_algorithms:REINFORCE", 0.5, 1)
    first = training.checkpoint()
    assert first is not None
    assert checkpoint.load(first).state["config"]["advantage_power"] == 0.5

    resumed = start("asyncrl.train", "--train_for_env_steps=8000")
    code, _, stderr = resumed.finish()
    assert code == 0, stderr
    assert resumed.summary()["env_steps"] >= 8000
    second = resumed.checkpoint()
    assert second is not None and second != first
    before, after = checkpoint.load(first), checkpoint.load(second)
    assert after.state["config"]["advantage_power"] == 0.5, "the run resumes with its settings"
    assert any(not np.array_equal(before.model[name], after.model[name]) for name in after.model)

    code, stdout, stderr = start("asyncrl.evaluate", "--episodes=2", "--json").finish()
    assert code == 0, stderr
    assert json.loads(stdout)["episodes"] == 2
    policy = asyncrl.load_policy(training.folder)
    assert policy.act(np.zeros(4, np.float32), deterministic=True) in (0, 1)


def test_its_settings_reach_the_loss(tmp_path: Path) -> None:
    seen: list[float] = []
    loss = toy_algorithms.reinforce_loss

    def noting(*args: object) -> object:
        seen.append(args[-1].advantage_power)  # type: ignore[attr-defined]
        return loss(*args)  # type: ignore[arg-type]

    record = toy_algorithms.REINFORCE
    with mock.patch.dict(record.__dict__, {"loss": noting}):
        config = toy_algorithms.ReinforceConfig(
            env="CartPole-v1",
            algo="toy_algorithms:REINFORCE",
            advantage_power=0.25,
            train_dir=str(tmp_path),
            serial_mode=True,
            train_for_env_steps=512,
            num_envs_per_worker=4,
            rollout=32,
        )
        result = asyncrl.Trainer(config, preset="none").run()
    assert result.status == "completed"
    assert set(seen) == {0.25}


@pytest.fixture
def registered() -> Iterator[None]:
    """An algorithm is registered by a module that a test imports."""
    with mock.patch.dict(algorithms._algorithms), mock.patch.dict(sys.modules):
        sys.modules.pop("toy_registration", None)
        yield


@pytest.mark.usefixtures("registered")
def test_a_registered_name_is_found_with_its_module() -> None:
    loaded = load(["--env=CartPole-v1", "--algo=reinforce", "--import_modules=toy_registration"])
    with pytest.raises(UsageError, match=r"sac, td3, dqn, reinforce.*; the nearest is reinforce"):
        load(["--env=CartPole-v1", "--algo=reinforc"])
    assert isinstance(loaded.config, toy_algorithms.ReinforceConfig)
    assert loaded.origins["batch_size"] == "default of reinforce"
    assert loaded.origins["advantage_power"] == "default"


def test_its_flags_are_typed_and_their_mistakes_named(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env=CartPole-v1", TOY, "--preset=none"]
    assert load([*flags, "--advantage_power", "0.5"]).config.model_dump()["advantage_power"] == 0.5
    for mistake, said in {
        "--advantage_power=2": "--advantage_power=2 is not possible: expected a number greater than 0 and at most 1.",
        "--advantage_powr=0.5": "the nearest is --advantage_power.",
        "--algo=toy_algorithms:MISSING": "the module toy_algorithms has no asyncrl.Algorithm with the name MISSING",
        "--algo=no_such_module:TOY": "There is no module 'no_such_module'",
    }.items():
        with pytest.raises(UsageError) as caught:
            load([*flags, mistake])
        assert said in str(caught.value), mistake
    with pytest.raises(UsageError, match="There is no flag --advantage_power"):
        load(["--env=CartPole-v1", "--advantage_power=0.5"])
    with pytest.raises(SystemExit):
        load([TOY, "--help=algorithm"])
    assert "advantages are raised to this power" in capsys.readouterr().out


def test_any_kind_of_own_setting_is_read_from_a_file_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_settings.py").write_text(OWN_SETTINGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "config.yaml"
    path.write_text("algo: own_settings:OWN\nshape: none\n")
    config = load(["--env=CartPole-v1", f"--config={path}"]).config
    assert (config.model_dump()["shape"], config.model_dump()["sizes"]) == ("none", [1, 2])
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude={"train_dir", "experiment"})))
    resumed = load(["--experiment=run"], find_saved=lambda train_dir, experiment: path)
    assert resumed.config.model_dump()["shape"] == "none"
    with pytest.raises(UsageError, match="hard needs three sizes"):
        load(["--env=CartPole-v1", "--algo=own_settings:OWN", "--shape=hard"])
    refused = "sizes=3,0 is not possible: expected a list, each element a whole number; nothing has the size 0."
    with pytest.raises(UsageError, match=f"^--{refused}$"):
        load(["--env=CartPole-v1", "--algo=own_settings:OWN", "--sizes=3,0"])
    path.write_text("algo: own_settings:OWN\nsizes: [3, 0]\n")
    with pytest.raises(UsageError, match=f"^In the file {path} {refused}$"):
        load(["--env=CartPole-v1", f"--config={path}"])


def test_a_module_that_raises_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_algorithm.py").write_text("missing_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for flags in (["--algo=broken_algorithm:NAME"], ["--algo=mine", "--import_modules=broken_algorithm"]):
        with pytest.raises(UsageError, match="missing_name"):
            load(["--env=CartPole-v1", *flags])
    with pytest.raises(UsageError, match="missing_name"):
        TrainConfig(algo="broken_algorithm:NAME")
    with pytest.raises(UsageError, match="There is no module 'no_such_module'"):
        TrainConfig(algo="no_such_module:NAME")
    with pytest.raises(UsageError):
        TrainConfig(algo=3)  # type: ignore[arg-type]


def test_actions_are_squashed_where_the_actor_of_sac_acts() -> None:
    config = load(["--env=Pendulum-v1", "--algo=toy_algorithms:BOUNDED_SAC", "--preset=none"]).config
    assert config.action_mapping == "squashed"


def test_one_that_learns_from_a_replay_is_trained(start: Callable[..., Command]) -> None:
    flags = ("--algo=toy_algorithms:BOUNDED_SAC", "--env=Pendulum-v1", "--preset=none", "--most_value=0.5")
    sizes = ("--train_for_env_steps=600", "--warmup_env_steps=200", "--num_workers=1", "--num_envs_per_worker=2")
    training = start("asyncrl.train", *flags, *sizes)
    code, _, stderr = training.finish()
    assert code == 0, stderr
    saved = training.checkpoint()
    assert saved is not None
    state = checkpoint.load(saved).state
    assert state["config"]["most_value"] == 0.5 and state["policy_version"] > 0


def test_names_of_the_package_are_not_taken() -> None:
    for name in ("ppo", "a3c", "module:NAME"):
        with pytest.raises(ValueError, match="choose another name"):
            asyncrl.register_algorithm(asyncrl.Algorithm(name, loss=toy_algorithms.reinforce_loss))
    with pytest.raises(ValueError, match="so it needs make_learner"):
        asyncrl.Algorithm("incomplete", collects="replay")

    with pytest.raises(ValueError, match="Hogwild workers do not use it"):
        asyncrl.Algorithm(
            "own_learner", collects="replay", make_learner=toy_algorithms.BoundedSac, runs_on_hogwild=True
        )

    class WithoutDefault(asyncrl.TrainConfig):
        temperature: float

    with pytest.raises(ValueError, match="has settings without defaults: temperature"):
        asyncrl.Algorithm("incomplete", settings=WithoutDefault, loss=toy_algorithms.reinforce_loss)


def test_a_config_crosses_to_other_processes_with_its_settings() -> None:
    config = toy_algorithms.ReinforceConfig(env="CartPole-v1", algo="toy_algorithms:REINFORCE", advantage_power=0.5)
    assert pickle.loads(pickle.dumps(config)) == config
    assert TrainConfig.from_saved(config.model_dump(mode="json")) == config
