"""Whole runs of self-play against a pool."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from command import PROBE, Command

from asyncrl import RunResult, TrainConfig, Trainer
from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec
from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import load_policy
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.run import runner
from asyncrl.storage import checkpoint
from asyncrl.storage.checkpoint import Checkpoint
from asyncrl.validate import main as validate

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("probes_here")]

SMALL: dict[str, Any] = {
    "env": "agent_envs:duel",
    "experiment": "run",
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "rollout": 8,
    "batch_size": 64,
    "num_batches_per_epoch": 2,
    "num_epochs": 4,
    "learning_rate": 0.01,
    "gamma": 0.9,
    "normalize_input": False,
    "encoder_mlp_layers": [],
    "learner_threads": 1,
    "report_every_s": 0.1,
    "with_tensorboard": False,
    "ppo_objective": "clip",  # its ratio is from the policy that acted
    "self_play": True,
}
MODES = {
    "serial": {"serial_mode": True, "async_rl": False},
    "sync-central": {"async_rl": False, "inference_mode": "central"},
    "async-local": {"inference_mode": "local"},
}


def train(folder: Path, **settings: Any) -> RunResult:
    return Trainer(TrainConfig(**{"train_dir": str(folder), **SMALL, **settings}), preset="none").run()


def values_of(result: RunResult, name: str) -> list[float]:
    return [record.scalars[name] for record in result.records if name in record.scalars]


def ratings_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "self_play" / "ratings.json").read_text())


def save_member(folder: Path, env_steps: int, names_the_bit: bool) -> None:
    """A member of the pool that always names its bit, or always the other one."""
    config = TrainConfig(**SMALL)
    spec = read_spec(make_env("agent_envs:duel"), "agent_envs:duel")
    model = ActorCritic(spec, config)
    sign = 50.0 if names_the_bit else -50.0
    with torch.no_grad():
        model.policy_head.weight.zero_()
        model.policy_head.weight[:2, 0] = torch.tensor([-sign, sign])
        model.policy_head.bias.zero_()
    state = {"config": config.model_dump(mode="json"), "spec": spec.to_data()}
    checkpoint.save(folder / "self_play", Checkpoint(model.state_dict(), {}, state), env_steps, keep=None)


@pytest.mark.parametrize("mode", MODES)
def test_the_policy_learns_from_its_own_rows_only(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = {"self_play_pool_share": 0.9, "self_play_add_every_env_steps": 1000, "self_play_pool_size": 3}
    monkeypatch.setattr(runner, "WATCH_S", 0.02)  # the runner adds to the pool when it looks
    result = train(tmp_path, train_for_env_steps=8000, **pool, **MODES[mode])
    policy = load_policy(result.folder)
    assert evaluate(policy, episodes=10, deterministic=True).mean_reward == 5.0
    if not mode.startswith("async"):
        # With the newest weights, every first ratio is 1: no row of a member, whose weights are older, was trained on.
        ratios = values_of(result, "train/max_ratio_deviation_first_batch")
        assert len(ratios) > 1 and max(ratios) < 1e-4
    size = values_of(result, "self_play/pool_size")[-1]
    assert size == 3.0 if mode == "serial" else size >= 1.0
    assert len(list((result.folder / "self_play").glob("checkpoint_*"))) == size


def test_a_recurrent_policy_trains_on_its_own_rows_of_a_game_of_turns(tmp_path: Path) -> None:
    pool = {"self_play_pool_share": 0.7, "self_play_add_every_env_steps": 500, "env": "agent_envs:masked"}
    result = train(tmp_path, train_for_env_steps=1200, use_rnn=True, rnn_size=8, **pool, **MODES["serial"])
    ratios = values_of(result, "train/max_ratio_deviation_first_batch")
    assert len(ratios) > 1 and max(ratios) < 1e-4
    assert sum(member["won"] + member["lost"] for member in ratings_of(result.folder)["members"]) > 10


@pytest.mark.parametrize("mode", ["serial", "sync-central"])
def test_members_play_with_the_weights_with_which_they_were_frozen(tmp_path: Path, mode: str) -> None:
    """Without learning, nobody wins against one that names each bit, or loses against one that never does."""
    settings = {"learning_rate": 0.0, "self_play_pool_share": 1.0, "self_play_add_every_env_steps": 10**9}
    first = train(tmp_path, train_for_env_steps=256, **settings, **MODES["serial"])
    save_member(first.folder, 100, names_the_bit=True)
    save_member(first.folder, 200, names_the_bit=False)
    train(tmp_path, train_for_env_steps=3000, **settings, **MODES[mode])
    right, wrong = ratings_of(first.folder)["members"]
    assert (right["env_steps"], wrong["env_steps"]) == (100, 200)
    assert right["won"] == 0 and right["lost"] > 50
    assert wrong["lost"] == 0 and wrong["won"] > 50
    assert right["elo"] > 1300 > 1100 > wrong["elo"]


def test_a_serial_run_of_self_play_repeats_itself(tmp_path: Path) -> None:
    pool = {"self_play_add_every_env_steps": 500, "self_play_pool_size": 2, "train_for_env_steps": 3000}
    models = []
    for name in ("one", "two"):
        result = train(tmp_path / name, **pool, **MODES["serial"])
        members = checkpoint.newest_first(result.folder / "self_play")
        assert len(members) == 2
        models += [{str(path.name): checkpoint.load(path).model for path in members}]
    assert models[0].keys() == models[1].keys()
    for name, tensors in models[0].items():
        assert all(torch.equal(tensor, models[1][name][key]) for key, tensor in tensors.items())


FLAGS = (*PROBE, "--env=agent_envs:duel", "--self_play=True", "--self_play_pool_size=3", "--save_every_s=0.3")


def test_a_killed_run_continues_with_the_same_pool(start: Callable[..., Command]) -> None:
    flags = (*FLAGS, "--train_for_env_steps=100000000", "--self_play_add_every_env_steps=3000")
    training = start("asyncrl.train", *flags)
    folder = training.folder

    def has_three() -> bool:
        return any(record.get("self_play/pool_size") == 3.0 for record in training.records())

    training.wait_until(lambda: has_three() and training.checkpoint() is not None, "the pool has three members")
    for process in (psutil.Process(training.process.pid), *training.session()):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with its parent
            process.kill()
    training.process.communicate()
    before = ratings_of(folder)
    saved = [int(path.name.removeprefix("checkpoint_")) for path in checkpoint.newest_first(folder / "self_play")]
    assert len(saved) in (3, 4), "killed after a member was saved and before the oldest was removed"
    newest = training.checkpoint()
    assert newest is not None
    saved = [env_steps for env_steps in saved if env_steps <= checkpoint.saved_env_steps(newest)][:3]
    resumed = start("asyncrl.train", "--train_for_env_steps=100000000", "--self_play_add_every_env_steps=1000000000")

    def games(member: dict[str, Any]) -> int:
        return member["won"] + member["drawn"] + member["lost"]

    games_before = {member["env_steps"]: games(member) for member in before["members"]}

    def has_played_all() -> bool:
        members = ratings_of(folder)["members"]
        return all(games(member) > games_before.get(member["env_steps"], 0) for member in members)

    num_before = len(training.records())
    resumed.wait_until(lambda: len(resumed.records()) > num_before + 5 and has_played_all(), "it continues")
    resumed.process.send_signal(signal.SIGINT)
    code, _, stderr = resumed.finish()
    assert code in (0, 130), stderr
    after = ratings_of(folder)
    assert [member["env_steps"] for member in after["members"]] == sorted(saved)
    for member in after["members"]:
        assert games(member) > games_before.get(member["env_steps"], 0)


def test_a_run_that_begins_again_for_want_of_a_checkpoint_begins_with_an_empty_pool(tmp_path: Path) -> None:
    first = train(tmp_path, train_for_env_steps=1000, self_play_add_every_env_steps=200, **MODES["serial"])
    assert checkpoint.newest_first(first.folder / "self_play")
    shutil.rmtree(first.folder / "checkpoints")
    second = train(tmp_path, train_for_env_steps=500, self_play_add_every_env_steps=10**6, **MODES["serial"])
    assert not checkpoint.newest_first(second.folder / "self_play")
    assert values_of(second, "self_play/pool_size")[-1] == 0.0


GAME = "--env=agent_envs:duel"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--env=CartPole-v1",), "--self_play=True needs an environment of several agents, and CartPole-v1 has one"),
        (("--env=agent_envs:unlike",), "--self_play=True needs agents with the same spaces"),
        ((GAME, "--num_policies=2"), "trains one policy against its own earlier versions, not --num_policies=2"),
        ((GAME, "--algo=sac"), "--self_play=True cannot be used with --algo=sac"),
        ((GAME, "--fixed_lag=True"), "--fixed_lag is not available with --self_play=True"),
        ((GAME, "--policy_mapping=random"), "so --policy_mapping=random has no effect"),
        ((GAME, "--save_best_metric=train"), "--save_best_metric=train cannot compare them"),
        ((GAME, "--self_play_pool_share=2"), "--self_play_pool_share=2 is not possible"),
        ((GAME, "--self_play_pool_size=0"), "--self_play_pool_size=0 is not possible"),
    ],
)
def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], text: str) -> None:
    assert validate([*flags, "--self_play=True"]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "is not a multiple" not in error, "the rule of policies of other spaces"
