"""Whole runs that learn from a replay: on environments whose right answer is known, at the asked ratio, and resumed.

`test_rows` checks each row and each transition of SAC in all ways to run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_checks import checking_learner_main, slow_learner_main
from run_helper import SMALL, FinishedRun, assert_same_training, mean_return, run
from sac_runs import DQN, GREEDY, SAC, TD3, learner_of, values

from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.envs.actions import ActionAdapter
from asyncrl.inference.policy import load_policy
from asyncrl.run import preflight, runner
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def policy_of(finished: FinishedRun) -> Any:
    return load_policy(Path(finished.outcome.checkpoint))


def assert_updates_are_made_when_due(finished: FinishedRun, env_steps: int = 0, updates: int = 0) -> None:
    """In no report an update is made too early, or more are owed than the contract allows; at the end none is owed.

    The contract (`buffers/replay.py`) says how far workers may be ahead of the updates, and all of them may step at
    the same time. It says nothing of time, so this holds on a machine of any pace.

    Args:
        finished: a run whose warm-up has ended.
        env_steps: when counting begins, warm-up included.
        updates: updates that were made before.
    """
    ratio, num_envs = finished.config.updates_per_env_step, finished.plan.num_envs
    most_owed = 2 + ratio * 3 * num_envs + finished.config.replay_ratio_tolerance
    counted = [report for report in finished.learner_reports if report.env_steps > env_steps]
    assert counted
    for report in counted:
        owed = ratio * (report.env_steps - env_steps) - (report.num_updates - updates)
        assert 0.0 <= owed <= most_owed, report
        assert report.replay is not None and report.replay.updates_per_env_step is not None
        # Steps may be made between the readings of the two figures.
        missing = (ratio - report.replay.updates_per_env_step) * (report.env_steps - env_steps)
        assert owed - 1e-9 <= missing <= most_owed, report
    assert owed < 1.0 + ratio * num_envs, "only for steps that were made after the last look are updates owed"


@pytest.mark.parametrize(
    ("settings", "mode", "n_step"),
    [
        pytest.param(GREEDY, "async-local", 3, id="sac-async-local-3"),
        pytest.param(TD3, "async-local", 3, id="td3-async-local-3"),
        pytest.param(DQN, "serial", 3, id="dqn-serial-3"),
        pytest.param(DQN, "async-central", 1, id="dqn-async-central"),
    ],
)
def test_a_truncated_episode_goes_on_in_its_values(
    settings: dict[str, Any], mode: str, n_step: int, tmp_path: Path
) -> None:
    kwargs = {"terminates": False, "is_continuous": settings is TD3}
    finished = run(tmp_path, mode, "EndlessReward", **settings, n_step=n_step, env_kwargs=kwargs)
    assert values(finished, [0.0, 0.0], [1.0, 0.0]) == pytest.approx([5.0, -5.0 + 0.8 * 5.0], abs=0.35)


@pytest.mark.parametrize(
    "settings",
    [{**GREEDY, "n_step": 3}, TD3, {**DQN, "prioritized_replay": True}],
    ids=["sac-3", "td3", "dqn-priorities"],
)
def test_a_terminated_episode_ends_in_its_values(settings: dict[str, Any], tmp_path: Path) -> None:
    kwargs = {"terminates": True, "is_continuous": settings is TD3}
    finished = run(tmp_path, "async-local", "EndlessReward", **settings, env_kwargs=kwargs)
    assert values(finished, [0.0, 3.0], [0.0, 1.0]) == pytest.approx([1.0, 1.0 + 0.8 + 0.64], abs=0.2)
    if "prioritized_replay" in settings:
        assert checkpoint.load(Path(finished.outcome.checkpoint)).state["max_priority"] > 1.0


def test_sac_finds_a_distant_action_and_the_policy_can_be_taken_away(tmp_path: Path) -> None:
    settings = {**SAC, "ent_coef": 0.1, "train_for_env_steps": 2500, "reward_scale": 0.1}
    finished = run(tmp_path, "async-central", "DistantTarget", **settings)
    assert policy_of(finished).act([0.0], deterministic=True) == pytest.approx([5.0], abs=0.3)


def test_td3_finds_a_distant_action_and_explores_around_it(tmp_path: Path) -> None:
    settings = {**TD3, "train_for_env_steps": 2500, "reward_scale": 0.1, "save_replay": True}
    finished = run(tmp_path, "async-central", "DistantTarget", **settings, exploration_stddev=0.05)
    policy = policy_of(finished)
    assert policy.act([0.0]) == policy.act([0.0], deterministic=True) == pytest.approx([5.0], abs=0.3)
    # What was collected last is the policy with its noise, in units of a half range of 4.
    replay = checkpoint.load(Path(finished.outcome.checkpoint), with_replay=True).replay
    # A worker that starts late may have made warm-up steps only.
    actions = max((np.concatenate(replay.columns[f"action.{split}"]) for split in range(2)), key=len)
    last = actions[-100:].flatten()
    taken = ActionAdapter(finished.spec, mapping="squashed").to_env_batch(last[:, np.newaxis])[:, 0]
    assert taken.mean() == pytest.approx(5.0, abs=0.4)
    assert 0.6 * 0.05 * 4.0 < taken.std() < 2.5 * 0.05 * 4.0


@pytest.mark.parametrize("dueling", [False, True])
def test_dqn_solves_a_contextual_bandit_and_its_policy_explores(dueling: bool, tmp_path: Path) -> None:
    finished = run(tmp_path, "async-local", "ContextualBandit", **DQN, dueling=dueling)
    policy = policy_of(finished)
    assert policy.act(np.eye(2), deterministic=True).tolist() == [0, 1]
    drawn = np.stack([policy.act(np.eye(2)) for _ in range(400)])
    wrong = (drawn != [0, 1]).mean()
    assert 0.0 < wrong < 0.06, "half of the choices at random, 5 %, are wrong ones"


@pytest.mark.parametrize(
    ("settings", "mode", "env"),
    [
        pytest.param(
            {**SAC, "ent_coef": 0.01, "train_for_env_steps": 1000}, "async-central", "Masked", id="sac-several-choices"
        ),
        pytest.param(DQN, "serial", "MaskedChoice", id="dqn"),
    ],
)
def test_only_allowed_choices_are_taken(settings: dict[str, Any], mode: str, env: str, tmp_path: Path) -> None:
    # The environment raises at an action that its mask forbids, in the warm-up as well.
    finished = run(tmp_path, mode, f"space_envs:{env}-v0", **settings)
    assert mean_return(finished) == pytest.approx(1.0)


@pytest.mark.long
def test_an_image_and_a_vector_are_answered_by_a_choice_and_a_number(tmp_path: Path) -> None:
    small = {"encoder_conv_mlp_layers": [32], "encoder_mlp_layers": [32], "train_for_env_steps": 1400}
    more = {"gamma": 0.0, "ent_coef": 0.005, "learning_rate": 0.003, "updates_per_env_step": 0.4}
    finished = run(tmp_path, "async-central", "space_envs:SeeAndTell-v0", **{**SAC, **small, **more})
    assert mean_return(finished) > 0.85  # of 1; without the image 0.75 at best


@pytest.mark.parametrize("network", ["encoder", "model"])
def test_networks_of_a_users_own_are_trained(network: str, tmp_path: Path) -> None:
    settings = {**SAC, "ent_coef": 0.05, "import_modules": ["own_networks"], network: f"sac_{network}"}
    settings["train_for_env_steps"] = 900
    finished = run(tmp_path, "async-local", "ContextualBandit", **settings)
    content = checkpoint.load(Path(finished.outcome.checkpoint))
    assert any(name.startswith("encoder.scale") for name in content.model)
    assert policy_of(finished).act(np.eye(2), deterministic=True).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("learner_main", "step_delay_s"),
    [(slow_learner_main, 0.0), (checking_learner_main, 0.02)],
    ids=["slow-learner", "slow-workers"],
)
def test_four_workers_fill_a_replay_whose_every_sample_is_a_step_and_the_ratio_is_kept(
    learner_main: Any, step_delay_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_learner_main", learner_main)
    settings: dict[str, Any] = {
        **SAC,
        "num_workers": 4,
        "replay_size": 400,  # overwritten several times
        "train_for_env_steps": 1500,
        "updates_per_env_step": 0.5,
        "replay_ratio_tolerance": 0.0,
    }
    kwargs = {"run_seed": SMALL["seed"], "delay_s": step_delay_s}
    finished = run(tmp_path, "async-local", "Sentinel", **settings, env_kwargs=kwargs)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert set(map(int, seen)) <= set(range(8)) and len(seen) >= 4, "a worker may start late"
    assert_updates_are_made_when_due(finished, env_steps=200)
    assert sum(seen.values()) == 32 * finished.learner_reports[-1].num_updates


def test_the_warm_up_covers_the_whole_range_of_actions_and_learning_starts_after_it(tmp_path: Path) -> None:
    settings = {**SAC, "warmup_env_steps": 600, "train_for_env_steps": 600, "save_replay": True}
    finished = run(tmp_path, "async-local", "DistantTarget", **settings)
    assert learner_of(finished).policy_version <= 8  # of a few steps beyond 600 at most
    replay = checkpoint.load(Path(finished.outcome.checkpoint), with_replay=True).replay
    drawn = np.concatenate([replay.columns[f"action.{split}"][0].flatten() for split in range(2)])[:600]
    taken = ActionAdapter(finished.spec, mapping="squashed").to_env_batch(drawn[:, np.newaxis])[:, 0]
    counts, _ = np.histogram(taken, bins=4, range=(-2.0, 6.0))
    assert np.abs(counts - 150).max() < 60


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        pytest.param("CartPole-v1", SAC, id="sac"),
        pytest.param("CartPole-v1", {**DQN, "prioritized_replay": True, "n_step": 2}, id="dqn-priorities"),
        pytest.param("Pendulum-v1", {**TD3, "exploration_noise": "pink"}, id="td3-pink-noise"),
    ],
)
def test_a_serial_run_that_is_resumed_with_its_replay_equals_one_that_never_stopped(
    env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**settings, "checkpoint_resets": True, "save_replay": True, "normalize_input": True}
    settings |= {"save_every_env_steps": 500, "keep_checkpoints": 100, "lr_schedule": "linear_decay"}
    settings["train_for_env_steps"] = 1000
    whole = run(tmp_path / "whole", "serial", env, **settings)
    _, halfway = checkpoint.newest_first(tmp_path / "whole" / "checkpoints")
    resumed = run(tmp_path / "resumed", "serial", env, resume_from=halfway, **settings)
    first, second = (checkpoint.load(Path(f.outcome.checkpoint), with_replay=True) for f in (whole, resumed))
    assert_same_training(first, second)
    columns, others = first.replay.columns, second.replay.columns
    assert columns.keys() == others.keys()
    assert ("priority.0" in columns) == ("prioritized_replay" in settings)
    for name, parts in columns.items():
        np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(others[name]), name)


def test_a_replay_that_is_dealt_to_many_environments_waits_until_a_transition_is_whole(tmp_path: Path) -> None:
    settings = {**SAC, "n_step": 16, "save_replay": True, "num_envs_per_worker": 1, "train_for_env_steps": 260}
    first = run(tmp_path / "first", "serial", "ConstantReward", **settings)
    path = Path(first.outcome.checkpoint)
    more = {"num_envs_per_worker": 40, "warmup_env_steps": 1, "train_for_env_steps": 2000}
    resumed = run(tmp_path / "resumed", "serial", "ConstantReward", resume_from=path, **settings | more)
    assert learner_of(resumed).policy_version > learner_of(first).policy_version


OTHER_LAYOUT = {"num_workers": 1, "num_envs_per_worker": 3, "replay_size": 2800}


@pytest.mark.parametrize(("keeps_replay", "layout"), [(True, OTHER_LAYOUT), (False, {})])
def test_a_resumed_run_counts_on_with_its_replay_and_fills_a_new_one_without(
    keeps_replay: bool, layout: dict[str, int], tmp_path: Path
) -> None:
    settings = {**SAC, "save_replay": keeps_replay, "train_for_env_steps": 600}
    first = run(tmp_path / "first", "async-local", "ConstantReward", **settings)
    path, longer = Path(first.outcome.checkpoint), {**settings, "train_for_env_steps": 1200, **layout}
    resumed = run(tmp_path / "again", "async-local", "ConstantReward", resume_from=path, **longer)
    assert 1200 <= resumed.outcome.env_steps < 1220
    if keeps_replay:
        assert_updates_are_made_when_due(resumed, env_steps=200)
    else:
        before = learner_of(first).policy_version
        assert_updates_are_made_when_due(resumed, env_steps=first.outcome.env_steps + 200, updates=before)


def test_a_run_begins_with_the_best_policy_of_an_evaluation_and_with_a_wider_one(tmp_path: Path) -> None:
    settings = {**SAC, "train_for_env_steps": 300, "normalize_input": True, "normalize_rewards": True}
    first = run(tmp_path / "first", "serial", "CartPole-v1", **settings, eval_every_env_steps=300, eval_episodes=1)
    (best,) = checkpoint.newest_first(first.folder / "checkpoints" / "best")
    before = checkpoint.load(best).state["policy_version"]
    assert before == 100
    for mode, own in (("async-local", {}), ("serial", {"encoder_mlp_layers": [33]})):
        finished = run(tmp_path / mode, mode, "CartPole-v1", **{**settings, **own, "init_from": str(best)})
        assert checkpoint.load(Path(finished.outcome.checkpoint)).state["policy_version"] >= before + 100


@pytest.mark.parametrize(
    ("algo", "env", "needs"),
    [
        ("dqn", "Pendulum-v1", "actions that are one choice (Discrete); Pendulum-v1 has "),
        ("td3", "CartPole-v1", "continuous actions only (Box); "),
        ("td3", "space_envs:SeeAndTell-v0", "continuous actions only (Box); "),
    ],
)
def test_actions_that_an_algorithm_cannot_train_are_one_sentence(algo: str, env: str, needs: str) -> None:
    (problem,) = preflight.run(load([f"--env={env}", f"--algo={algo}"], lenient=True), Machine(cores=2)).problems
    assert str(problem).startswith(f"--algo={algo} needs {needs}")
    assert "--algo=sac" in str(problem)


@pytest.mark.parametrize(
    ("algo", "env", "flags"),
    [
        ("dqn", "CartPole-v1", ["--backend=hogwild", "--use_rnn=True", "--num_policies=2"]),
        ("td3", "Pendulum-v1", ["--backend=hogwild", "--num_policies=2", "--env_backend=tensor"]),
    ],
)
def test_ways_of_running_that_an_algorithm_does_not_have_are_refused(algo: str, env: str, flags: list[str]) -> None:
    for flag in flags:
        loaded = load([f"--env={env}", f"--algo={algo}", flag], lenient=True)
        assert preflight.run(loaded, Machine(cores=2)).problems, flag
