"""Agents with different spaces: each is played and trained on by policies of its own spaces only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helper import GAMES, FinishedRun, run

from asyncrl import RunFailed, TrainConfig, Trainer, load_policy
from asyncrl.evaluate import main as evaluate_main
from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import Policy
from asyncrl.observers.reports import EvaluationReport
from asyncrl.storage import checkpoint
from asyncrl.storage.locating import policy_folder
from asyncrl.validate import main as validate

SETTINGS: dict[str, Any] = {**GAMES, "batch_size": 64, "train_for_env_steps": 2500}
GAME = "agent_envs:unlike"  # narrow_0, wide, narrow_1; the best return of each agent is 5


def policies_of(finished: FinishedRun) -> list[Policy]:
    folders = [policy_folder(finished.folder / "checkpoints", idx) for idx in range(finished.plan.num_policies)]
    return [load_policy(newest) for folder in folders if (newest := checkpoint.latest(folder)) is not None]


def returns(narrow: Policy, wide: Policy) -> dict[str, float]:
    played = evaluate(
        narrow, episodes=8, deterministic=True, others=[wide], choose=lambda agent, _: int(agent == 1)
    ).returns_by_agent
    return {agent: float(np.mean(each)) for agent, each in played.items()}


ALL_RIGHT = {"narrow_0": 5.0, "wide": 5.0, "narrow_1": 5.0}


@pytest.mark.parametrize("mode", ["sync-central", "async-local"])
def test_agents_of_both_kinds_learn(tmp_path: Path, mode: str) -> None:
    finished = run(tmp_path, mode, GAME, num_policies=2, **SETTINGS)
    assert returns(*policies_of(finished)) == ALL_RIGHT
    if not mode.startswith("async"):
        check_ratios(finished)


def check_ratios(finished: FinishedRun) -> None:
    """Each row was acted by the policy that trains on it, with the weights that it has now."""
    trained = [report.train for report in finished.learner_reports if report.train is not None]
    assert max(metrics.max_ratio_deviation_first_batch for metrics in trained) < 1e-4
    assert finished.largest_lag == 0


def test_each_policy_trains_on_rows_of_its_own_agents(tmp_path: Path) -> None:
    memory = {"use_rnn": True, "rnn_size": 8, "train_for_env_steps": 1000}
    finished = run(tmp_path, "serial", GAME, recorded=True, num_policies=4, **{**SETTINGS, **memory})
    check_ratios(finished)
    steps = {report.policy_idx: report.agent_steps for report in finished.learner_reports}
    assert 1.6 < (steps[0] + steps[1]) / (steps[2] + steps[3]) < 2.4  # two narrow agents, one wide one
    assert 0.7 < steps[0] / steps[1] < 1.4 and 0.7 < steps[2] / steps[3] < 1.4
    sizes = set()
    for dataset in finished.datasets:
        obs, valid = dataset["obs"][:-1], dataset["valid"]
        row_size, num_choices = obs.shape[-1], dataset["action_parameters"].shape[-1]
        sizes.add((row_size, num_choices))
        if row_size == 3:
            np.testing.assert_array_equal(obs[valid][:, :2], np.broadcast_to([0.5, -0.5], (valid.sum(), 2)))
        assert set(np.abs(obs[valid][:, -1])) == {1.0}
        assert dataset["action"][valid].max() == num_choices - 1
    assert sizes == {(1, 2), (3, 4)}


def test_independent_policies_have_the_spaces_of_their_agents_and_are_evaluated_with_the_others(tmp_path: Path) -> None:
    evaluation = {"eval_every_env_steps": 2500, "eval_deterministic": True}
    own = {"num_policies": 3, "policy_mapping": "independent", **evaluation}
    finished = run(tmp_path, "serial", GAME, **{**SETTINGS, **own})
    assert [policy.spec.observation.row_size for policy in policies_of(finished)] == [1, 3, 1]
    last = {each.policy_idx: each.mean_reward for each in finished.reports if isinstance(each, EvaluationReport)}
    assert last == {0: 5.0, 1: 5.0, 2: 5.0}


def test_a_policy_is_evaluated_as_its_own_agents_while_it_trains(tmp_path: Path) -> None:
    settings = {"policies": {1: {"learning_rate": 0.0}}, "eval_every_env_steps": 2500, "eval_deterministic": True}
    settings["seed"] = 2  # the untrained policy is always wrong
    finished = run(tmp_path, "async-local", GAME, num_policies=2, **{**SETTINGS, **settings})
    last = {each.policy_idx: each.mean_reward for each in finished.reports if isinstance(each, EvaluationReport)}
    assert last[0] == 5.0 > 4.0 > last[1]


def trained(folder: Path, env_steps: int, **more: Any) -> Path:
    config = TrainConfig(
        env=GAME,
        experiment="game",
        train_dir=str(folder),
        serial_mode=True,
        encoder_mlp_layers=[16],
        learning_rate=0.02,
        normalize_input=False,
        **{**SETTINGS, "train_for_env_steps": env_steps, **more},
    )
    return Trainer(config).run().folder


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert evaluate_main([*flags, "--episodes=10", "--deterministic=True", "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_runs_policies_are_loaded_evaluated_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path, 1000, num_policies=4)
    trained(tmp_path, 4000, num_policies=4)
    loaded = [load_policy(folder, policy=idx) for idx in range(4)]
    assert [policy.spec.observation.row_size for policy in loaded] == [1, 1, 3, 3]
    assert int(loaded[2].act(np.array([0.5, -0.5, 1.0], np.float32), deterministic=True)) == 3
    capsys.readouterr()
    for policy_idx, agents in ((0, ["narrow_0", "narrow_1"]), (3, ["wide"])):
        path = f"--checkpoint={folder}/checkpoints/policy_{policy_idx}"
        result = shown(capsys, path)
        assert result["mean_reward"] == 5.0
        assert result["mean_reward_by_agent"] == dict.fromkeys(agents, 5.0)
    alone = checkpoint.latest(folder / "checkpoints" / "policy_0")
    assert alone is not None
    moved = alone.rename(tmp_path / alone.name)
    assert evaluate_main([f"--checkpoint={moved}"]) == 2
    assert "cannot play wide, which have other spaces, and it is in no run's folder" in capsys.readouterr().err


def test_a_wrong_draw_of_a_function_is_one_sentence(tmp_path: Path) -> None:
    mapping = {"num_policies": 4, "policy_mapping": "agent_envs:sometimes_of_other_spaces"}
    with pytest.raises(
        RunFailed, match=r"returned 2 for agent 'narrow_0' .* episode 2, but policy 2 has the spaces of"
    ):
        trained(tmp_path, 2000, **mapping)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "different spaces, each with as many policies, and --num_policies=1 is not a multiple of that: set"),
        (("--num_policies=5",), "--num_policies=5 is not a multiple of that: set --num_policies=6."),
        (("--num_policies=3", "--policy_mapping=by_space"), "not a multiple of that: set --num_policies=4."),
        (("--num_policies=2", "--policy_mapping=random"), "agents to policies of other spaces"),
        (("--num_policies=2", "--policy_mapping=shared"), "so set --policy_mapping=by_space"),
        (("--num_policies=2", "--policy_mapping=independent"), "set --num_policies=3"),
        (("--num_policies=3", "--policy_mapping=agent_envs:seldom_the_second"), "set --num_policies=4"),
    ],
)
def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], text: str) -> None:
    assert validate([f"--env={GAME}", *flags]) == 2
    error = capsys.readouterr().err
    assert text in error and "--" in error
    assert "Traceback" not in error
