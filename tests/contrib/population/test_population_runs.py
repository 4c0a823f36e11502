"""Whole runs with population-based training."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Command

import asyncrl
from asyncrl.storage import checkpoint
from asyncrl.storage.locating import policy_folder

pytestmark = pytest.mark.usefixtures("probes_here")

GAMES: dict[str, Any] = {
    "num_workers": 2,
    "num_envs_per_worker": 4,
    "rollout": 8,
    "batch_size": 64,
    "num_batches_per_epoch": 1,
    "num_epochs": 4,
    "encoder_mlp_layers": [16],
    "learner_threads": 1,
    "gamma": 0.9,
    "with_tensorboard": False,
    "report_every_s": 0.1,
    "pbt_start_mutation": 1000,
    "pbt_period_env_steps": 1000,
    "with_pbt": True,
}
SLOW = 1e-7


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "pbt.jsonl").read_text().splitlines()]


class StopAfterTakeovers(asyncrl.Observer):
    """Stops a run some environment steps after all of its policies have the learning rate of the good one."""

    def __init__(self, num_policies: int, env_steps: int) -> None:
        self.num_policies, self.env_steps = num_policies, env_steps
        self.since: int | None = None

    def on_record(self, run: asyncrl.Run, record: Any) -> None:
        are_taken = all(run.config_of(idx).learning_rate == 0.01 for idx in range(self.num_policies))
        self.since = record.env_steps if are_taken and self.since is None else self.since
        if self.since is not None and record.env_steps > self.since + self.env_steps:
            run.stop()


class StopWhenShared(asyncrl.Observer):
    """Stops a run that has learned once its weights are in the shared folder, however fast the machine is."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_record(self, run: asyncrl.Run, record: Any) -> None:
        if record.env_steps > 8000 and self.file.exists():
            run.stop()


def mean_return(run: asyncrl.RunResult, policy_idx: int = 0) -> float:
    """Mean return of a policy in a game whose best return is 20 / 3, and that of chance half of it."""
    from asyncrl.evaluation.episodes import evaluate

    newest = checkpoint.latest(policy_folder(run.folder / "checkpoints", policy_idx))
    policy = asyncrl.load_policy(run.folder if newest is None else newest)
    return evaluate(policy, episodes=10, deterministic=True).mean_reward


SERIAL: dict[str, Any] = {"serial_mode": True, "async_rl": False}


@pytest.mark.parametrize("mode", [SERIAL, {"inference_mode": "central"}], ids=["serial", "async-central"])
def test_policies_with_a_useless_learning_rate_take_over_from_the_one_that_mean_return(
    tmp_path: Path, mode: dict[str, Any]
) -> None:
    config = asyncrl.TrainConfig(
        env="agent_envs:own_bits",
        num_policies=3,
        train_for_env_steps=10**7,
        train_dir=str(tmp_path),
        experiment="run",
        learning_rate=0.01,
        pbt_mutation_rate=0.0,
        policies={1: {"learning_rate": SLOW}, 2: {"learning_rate": SLOW}},
        **{**GAMES, **mode, "pbt_start_mutation": 3000},
    )
    result = asyncrl.Trainer(config, callbacks=[StopAfterTakeovers(3, 300)]).run()
    history = lines(result.folder)
    replaced = [line for line in history if line["action"] == "replaced"]
    assert {line["policy"] for line in replaced} >= {1, 2}
    last = {line["policy"]: line["after"]["learning_rate"] for line in history}
    assert last == {0: 0.01, 1: 0.01, 2: 0.01}
    assert all(mean_return(result, policy_idx) > 6.0 for policy_idx in range(3))
    for policy_idx in range(3):  # what the checkpoints hold is what was asked last, or the run had ended before
        newest = checkpoint.latest(policy_folder(result.folder / "checkpoints", policy_idx))
        assert newest is not None
        state = checkpoint.load_state(newest)
        turns = [line for line in history if line["policy"] == policy_idx]
        carried_out = next(line for line in turns if line["turn"] == state["population_turn"])
        assert state["hyperparameters"] == pytest.approx(carried_out["after"])
        assert state["population_turn"] >= turns[-1]["turn"] - 1
        taken = [turn for turn in turns[: state["population_turn"] + 1] if turn["action"] == "replaced"]
        assert state["versions_left_out"] == len(taken) * (config.max_policy_lag + 1), "weights were taken over"
    # The jump in versions is not an update: an update is a pass of one minibatch over 64 rows.
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["policy_1/train/n_updates"] < 4 * records[-1]["policy_1/time/total_agent_steps"] / 40
    assert records[-1]["policy_1/hyperparameters/learning_rate"] == 0.01


class StopAfterTurns(asyncrl.Observer):
    """Stops a run once each of its policies has had so many turns."""

    def __init__(self, num_policies: int, num_turns: int) -> None:
        self.num_policies, self.num_turns = num_policies, num_turns

    def on_record(self, run: asyncrl.Run, record: Any) -> None:
        turns = [line["policy"] for line in lines(run.folder) if line["turn"] >= self.num_turns]
        if set(turns) == set(range(self.num_policies)):
            run.stop()


def test_a_policy_that_never_plays_the_first_agent_has_its_turns(tmp_path: Path) -> None:
    config = asyncrl.TrainConfig(
        env="agent_envs:opposed",
        num_policies=2,
        policy_mapping="independent",
        train_for_env_steps=20_000,
        train_dir=str(tmp_path),
        experiment="run",
        **SERIAL,
        **GAMES,
    )
    result = asyncrl.Trainer(config, callbacks=[StopAfterTurns(2, 1)]).run()
    assert result.status == "stopped"
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [records[-1][f"policy_{idx}/time/total_env_steps"] for idx in range(2)]
    assert all(0.45 < each / records[-1]["time/total_env_steps"] < 0.55 for each in steps)


class Returns(asyncrl.Observer):
    """Keeps the returns of each policy's episodes, and stops after some of the second one's."""

    def __init__(self) -> None:
        self.of_policies: tuple[set[float], set[float]] = (set(), set())
        self.count = 0

    def on_episode(self, run: asyncrl.Run, episode: Any) -> None:
        self.of_policies[episode.policy_idx].add(round(episode.episode_return / 5, 4))
        self.count += episode.policy_idx
        if self.count > 100:
            run.stop()


def test_each_policy_has_the_reward_shaping_of_its_line_in_the_environment(tmp_path: Path) -> None:
    config = asyncrl.TrainConfig(
        env="agent_envs:shaped",
        num_policies=2,
        train_for_env_steps=10**6,
        train_dir=str(tmp_path),
        experiment="run",
        **{**GAMES, "pbt_mutation_rate": 1.0, "pbt_start_mutation": 10**6},
    )
    returns = Returns()
    result = asyncrl.Trainer(config, callbacks=[returns]).run()
    first, second = (line["after"]["reward_shaping.bonus"] for line in lines(result.folder))
    assert first == 1.0 != second
    assert returns.of_policies[0] == {1.0}
    assert round(second, 4) in returns.of_policies[1] <= {1.0, round(second, 4)}  # 1 is that of the first episodes


SHARING: dict[str, Any] = {
    **GAMES,
    "env": "agent_envs:own_bits",
    "pbt_mutation_rate": 0.0,
    "batch_size": 192,  # 2 workers, 4 environments of 3 agents, 8 steps
    "train_for_env_steps": 10**7,
}


@pytest.fixture(scope="module")
def folder_of_a_good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared folder with the weights of a run that has learned."""
    place = tmp_path_factory.mktemp("good")
    folders = {"train_dir": str(place), "pbt_shared_dir": str(place / "shared")}
    good = asyncrl.TrainConfig(**SHARING, **SERIAL, **folders, experiment="good", learning_rate=0.01)
    until_shared = StopWhenShared(place / "shared" / "good.npz")
    assert mean_return(asyncrl.Trainer(good, callbacks=[until_shared]).run()) > 6.0
    return place / "shared"


@pytest.mark.parametrize("mode", [SERIAL, {}], ids=["serial", "async"])
def test_a_run_takes_over_weights_from_the_shared_folder(
    tmp_path: Path, folder_of_a_good_run: Path, mode: dict[str, Any]
) -> None:
    shutil.copytree(folder_of_a_good_run, tmp_path / "shared", copy_function=shutil.copy)  # files of now
    folders = {"train_dir": str(tmp_path), "pbt_shared_dir": str(tmp_path / "shared")}
    bad = asyncrl.TrainConfig(**SHARING, **mode, **folders, experiment="bad", learning_rate=SLOW)
    result = asyncrl.Trainer(bad, callbacks=[StopAfterTakeovers(1, 300)]).run()
    taken = [line for line in lines(result.folder) if line["action"] == "replaced"]
    assert taken and taken[0]["source"] == "good"
    assert result.config.learning_rate == 0.01
    assert mean_return(result) > 6.0


COMMAND = (
    "--env=CartPole-v1", "--num_policies=2", "--with_pbt=True", "--pbt_start_mutation=2000", "--report_every_s=0.2",
    "--pbt_period_env_steps=2000", "--pbt_mutation_rate=0.5", "--pbt_replace_reward_gap=0", "--save_every_s=0.5",
)  # fmt: skip


def test_a_killed_run_goes_on_with_the_turns_that_its_checkpoints_hold(start: Callable[..., Command]) -> None:
    training = start("asyncrl.train", *COMMAND, "--train_for_env_steps=100000000")
    folders = [policy_folder(training.folder / "checkpoints", idx) for idx in range(2)]

    def saved_turns() -> list[int]:
        newest = [checkpoint.latest(folder) for folder in folders]
        return [-1 if path is None else checkpoint.load_state(path).get("population_turn", -1) for path in newest]

    training.wait_until(lambda: min(saved_turns()) >= 2, "each policy has saved its second turn")
    os.kill(training.process.pid, signal.SIGKILL)
    training.finish()
    before, turns = lines_of_command(training), saved_turns()
    newest = [checkpoint.latest(folder) for folder in folders]
    resumed_at = sum(int(checkpoint.load_state(path)["policy_env_steps"]) for path in newest if path is not None)
    kept = [line for line in before if line["turn"] <= turns[line["policy"]]]
    num_records = len(training.records())
    resumed = start("asyncrl.train", "--experiment=run")
    resumed.wait_until(lambda: len(resumed.records()) > num_records, "it continues")
    resumed.wait_until(lambda: len(lines_of_command(resumed)) > len(kept), "a policy has taken its next turn")
    os.kill(resumed.process.pid, signal.SIGINT)
    code, _, stderr = resumed.finish()
    assert code == 130, stderr
    after = lines_of_command(training)
    assert after[: len(kept)] == kept
    later = [record for record in resumed.records() if record["env_steps"] > resumed_at]
    first = next(record for record in later if "policy_1/train/loss" in record)
    assert "policy_1/hyperparameters/ppo_clip_ratio" in first, "what was in effect is in effect at once"
    for idx in range(2):
        own = [line for line in after if line["policy"] == idx]
        assert [line["turn"] for line in own] == list(range(len(own)))
        assert all(late["before"] == pytest.approx(early["after"]) for early, late in zip(own, own[1:], strict=False))


def lines_of_command(command: Command) -> list[dict[str, Any]]:
    text = (command.folder / "pbt.jsonl").read_text()
    return [json.loads(line) for line in text.split("\n")[:-1]]
