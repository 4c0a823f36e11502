"""The policies that come with asyncrl can be found, played and started from, and their table has their results."""

from __future__ import annotations

import json
from pathlib import Path

import make_zoo
import numpy as np
import pytest
from small_training import SMALL

from asyncrl import TrainConfig, Trainer, UsageError, load_policy
from asyncrl import evaluate as evaluate_command
from asyncrl.commands.main import main
from asyncrl.config.loading import load
from asyncrl.contrib.zoo import policies
from asyncrl.storage import checkpoint as checkpoints

MOST_BYTES = 10_000_000


def test_each_policy_acts_and_has_a_result() -> None:
    assert "CartPole-v1" in policies.zoo_names()
    for name in policies.zoo_names():
        policy, result = load_policy(f"zoo:{name}"), policies.results_of(name)["deterministic"]
        assert policy.env_steps == result["env_steps"] and policy.config.env.replace("/", "_") == name
        row = np.zeros(policy.spec.observation.row_size, dtype=np.float32)
        action, _ = policy.step(row[None], policy.initial_state(1), deterministic=True)
        assert np.isfinite(action).all()
        low, high = result["ci95"]
        assert low <= result["mean_reward"] <= high and result["episodes"] == make_zoo.EPISODES


def test_the_table_has_the_results_and_the_folder_stays_small() -> None:
    folder = policies.zoo_folder()
    assert (folder / "README.md").read_text() == make_zoo.table()
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < MOST_BYTES
    assert not [path for path in folder.rglob(policies.RESULTS) if "/" in json.loads(path.read_text())[0]["checkpoint"]]
    for path in folder.rglob("environment.json"):
        assert "command" not in json.loads(path.read_text())
    for path in folder.rglob("state.json"):
        assert not Path(json.loads(path.read_text())["state"]["config"]["train_dir"]).is_absolute()


def test_cartpole_is_played_as_well_as_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate_command.main(["zoo:CartPole-v1", "--episodes=5", "--deterministic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_reward"] == 500.0


def test_a_run_starts_from_a_policy_of_the_zoo(tmp_path: Path) -> None:
    small = {**SMALL, "eval_every_env_steps": None, "train_for_env_steps": 200, "learning_rate": 0.0}
    saved = load_policy("zoo:CartPole-v1").config
    own = {"encoder_mlp_layers": saved.encoder_mlp_layers, "normalize_input": saved.normalize_input}
    config = TrainConfig(**{**small, **own}, train_dir=str(tmp_path), experiment="next", init_from="zoo:CartPole-v1")
    after = checkpoints.latest(Trainer(config, preset="none").run().folder / "checkpoints")
    before = checkpoints.latest(policies.find("zoo:CartPole-v1") / "checkpoints")
    assert after is not None and before is not None
    weights, same = (checkpoints.load(path).model for path in (before, after))
    name = "policy_head.weight"
    assert np.array_equal(weights[name].numpy(), same[name].numpy())


def test_a_name_that_is_not_there_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"There is no policy zoo:CartPole-v2: `asyncrl zoo` lists .*CartPole-v1"):
        load_policy("zoo:CartPole-v2")
    assert main(["evaluate", "zoo:nothing"]) == 2
    assert "There is no policy zoo:nothing" in capsys.readouterr().err


def test_a_slash_in_an_environment_is_written_as_in_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ALE_Pong-v5").mkdir()
    (tmp_path / "ALE_Pong-v5" / policies.MARKER).touch()
    monkeypatch.setattr(policies, "zoo_folder", lambda: tmp_path)
    assert policies.find("zoo:ALE/Pong-v5") == policies.find("zoo:ALE_Pong-v5") == tmp_path / "ALE_Pong-v5"


def test_the_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["policy", "deterministic"]
    assert [row.split()[0] for row in rows] == [f"zoo:{name}" for name in policies.zoo_names()]


@pytest.mark.parametrize("env", make_zoo.TASKS)
def test_the_settings_of_a_policy_are_those_of_its_command_today(env: str) -> None:
    """After a change of one of these in a preset its policy has to be trained again."""
    saved = load_policy(f"zoo:{env}").config
    config = load(make_zoo.flags_of(env, saved.seed)).config
    for name in ("env", "algo", "async_rl", "seed", "train_for_env_steps", "gamma", "encoder_mlp_layers"):
        assert getattr(saved, name) == getattr(config, name)


def test_a_policy_with_another_return_than_the_stored_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = {"actions": "sampled", "mean_reward": 10.0, "ci95": [9.0, 11.0]}
    monkeypatch.setattr(make_zoo, "results_of", lambda name: policies.by_kind(stored))
    for mean, meets in ((10.5, True), (12.5, False)):
        new = {"actions": "sampled", "mean_reward": mean, "ci95": [mean - 1.0, mean + 1.0]}
        monkeypatch.setattr(make_zoo, "play", lambda *arguments, new=new: new)
        assert make_zoo.check(["CartPole-v1"]) is meets
    assert capsys.readouterr().out.count("DIFFERENT") == 1
