"""Whole runs that learn from a replay: on environments whose right answer is known, at the asked ratio, and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay_checks import checking_learner_main, slow_learner_main
from run_helper import REPLAY_MODES, SMALL, FinishedRun, assert_same_training, mean_return, run
from sac_runs import SAC

from asyncrl.envs.actions import ActionAdapter
from asyncrl.inference.policy import load_policy
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.state import LearnerState
from asyncrl.models.encoders import Inputs
from asyncrl.models.sac import SacActor
from asyncrl.run import runner
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

in_each_mode = pytest.mark.parametrize("mode", REPLAY_MODES)


GREEDY: dict[str, Any] = {"ent_coef": 1e-4}  # so little entropy that values are those of rewards


def learner_of(finished: FinishedRun) -> SacLearner:
    """The learner, as the run's last checkpoint holds it."""
    content = checkpoint.load(Path(finished.outcome.checkpoint))
    learner = SacLearner(SacActor(finished.spec, finished.config), finished.config, finished.spec, torch.device("cpu"))
    learner.load_state_dict(LearnerState(dict(content.model), dict(content.optimizer), dict(content.state)))
    return learner


def values(finished: FinishedRun, *observations: list[float]) -> np.ndarray:
    """What the critics, on average, say of observations, whose actions mean nothing."""
    with torch.no_grad():
        obs = torch.tensor(observations)
        return learner_of(finished).critic.values(Inputs(obs), obs.new_empty((len(obs), 0))).mean((0, 2)).numpy()


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


@in_each_mode
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_truncated_episode_goes_on_in_its_values(mode: str, n_step: int, tmp_path: Path) -> None:
    settings = {**SAC, **GREEDY, "n_step": n_step, "env_kwargs": {"terminates": False}}
    finished = run(tmp_path, mode, "EndlessReward", **settings)
    assert values(finished, [0.0, 0.0], [1.0, 0.0]) == pytest.approx([5.0, -5.0 + 0.8 * 5.0], abs=0.35)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_terminated_episode_ends_in_its_values(n_step: int, tmp_path: Path) -> None:
    settings = {**SAC, **GREEDY, "n_step": n_step, "env_kwargs": {"terminates": True}}
    finished = run(tmp_path, "async-local", "EndlessReward", **settings)
    assert values(finished, [0.0, 3.0], [0.0, 1.0]) == pytest.approx([1.0, 1.0 + 0.8 + 0.64], abs=0.2)


@in_each_mode
def test_a_distant_action_is_found_and_the_policy_can_be_taken_away(mode: str, tmp_path: Path) -> None:
    settings = {**SAC, "ent_coef": 0.1, "train_for_env_steps": 2500, "reward_scale": 0.1}
    finished = run(tmp_path, mode, "DistantTarget", **settings)
    policy = load_policy(Path(finished.outcome.checkpoint))
    assert policy.act([0.0], deterministic=True) == pytest.approx([5.0], abs=0.3)


def test_a_contextual_bandit_is_solved(tmp_path: Path) -> None:
    finished = run(tmp_path, "async-local", "ContextualBandit", **{**SAC, "ent_coef": 0.05})
    policy = load_policy(Path(finished.outcome.checkpoint))
    assert policy.act(np.eye(2), deterministic=True).tolist() == [0, 1]


@pytest.mark.parametrize("mode", ["serial", "async-central"])
def test_only_allowed_ones_of_several_choices_are_taken(mode: str, tmp_path: Path) -> None:
    # The environment raises at an action that its mask forbids, in the warm-up as well.
    finished = run(tmp_path, mode, "space_envs:Masked-v0", **{**SAC, "ent_coef": 0.01})
    assert mean_return(finished) == pytest.approx(1.0)


@pytest.mark.parametrize("mode", ["serial", pytest.param("async-central", marks=pytest.mark.long)])
def test_an_image_and_a_vector_are_answered_by_a_choice_and_a_number(mode: str, tmp_path: Path) -> None:
    small = {"encoder_conv_mlp_layers": [32], "encoder_mlp_layers": [32], "train_for_env_steps": 1400}
    more = {"gamma": 0.0, "ent_coef": 0.005, "learning_rate": 0.003, "updates_per_env_step": 0.4}
    finished = run(tmp_path, mode, "space_envs:SeeAndTell-v0", **{**SAC, **small, **more})
    assert mean_return(finished) > 0.85  # of 1; without the image 0.75 at best


@pytest.mark.parametrize("network", ["encoder", "model"])
def test_networks_of_a_users_own_are_trained(network: str, tmp_path: Path) -> None:
    settings = {**SAC, "ent_coef": 0.05, "import_modules": ["own_networks"], network: f"sac_{network}"}
    finished = run(tmp_path, "async-local", "ContextualBandit", **settings)
    content = checkpoint.load(Path(finished.outcome.checkpoint))
    assert any(name.startswith("encoder.scale") for name in content.model)
    policy = load_policy(Path(finished.outcome.checkpoint))
    assert policy.act(np.eye(2), deterministic=True).tolist() == [0, 1]


def test_hogwild_workers_share_networks_of_any_kind(tmp_path: Path) -> None:
    settings = {**SAC, "ent_coef": 0.01, "backend": "hogwild", "num_workers": 2}
    finished = run(tmp_path, "async-local", "space_envs:Masked-v0", **settings)
    assert mean_return(finished) > 0.9


@pytest.mark.parametrize("ratio", [0.25, 4.0])
def test_the_asked_ratio_is_kept(ratio: float, tmp_path: Path) -> None:
    settings = {**SAC, "updates_per_env_step": ratio, "batch_size": 8, "train_for_env_steps": 1200}
    finished = run(tmp_path, "async-local", "ConstantReward", **settings)
    assert_updates_are_made_when_due(finished, env_steps=200)


@pytest.mark.parametrize(
    ("mode", "learner_main", "step_delay_s"),
    [
        ("async-local", checking_learner_main, 0.0),
        ("async-central", checking_learner_main, 0.0),
        ("async-local", slow_learner_main, 0.0),
        ("async-local", checking_learner_main, 0.02),
    ],
    ids=["local", "central", "slow-learner", "slow-workers"],
)
def test_four_workers_fill_a_replay_whose_every_sample_is_a_step_and_the_ratio_is_kept(
    mode: str, learner_main: Any, step_delay_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_learner_main", learner_main)
    settings: dict[str, Any] = {
        **SAC,
        "num_workers": 4,
        "replay_size": 400,  # overwritten several times
        "train_for_env_steps": 2500,
        "updates_per_env_step": 0.5,
        "replay_ratio_tolerance": 0.0,
    }
    finished = run(
        tmp_path, mode, "Sentinel", **settings, env_kwargs={"run_seed": SMALL["seed"], "delay_s": step_delay_s}
    )
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


@pytest.mark.parametrize("async_rl", [False, True])
def test_a_serial_run_that_is_resumed_with_its_replay_equals_one_that_never_stopped(
    async_rl: bool, tmp_path: Path
) -> None:
    settings = {**SAC, "async_rl": async_rl, "checkpoint_resets": True, "save_replay": True, "normalize_input": True}
    settings |= {"save_every_env_steps": 500, "keep_checkpoints": 100, "lr_schedule": "linear_decay"}
    whole = run(tmp_path / "whole", "serial", "CartPole-v1", **settings)
    found = checkpoint.newest_first(tmp_path / "whole" / "checkpoints")
    assert len(found) == 3
    for path in found[1:]:
        resumed = run(tmp_path / path.name, "serial", "CartPole-v1", resume_from=path, **settings)
        assert resumed.outcome.env_steps == whole.outcome.env_steps
        first, second = (checkpoint.load(Path(f.outcome.checkpoint), with_replay=True) for f in (whole, resumed))
        assert_same_training(first, second)
        columns, others = first.replay.columns, second.replay.columns
        assert columns.keys() == others.keys()
        assert all(np.array_equal(column[0], others[name][0]) for name, column in columns.items())


def test_a_replay_that_is_dealt_to_many_environments_waits_until_a_transition_is_whole(tmp_path: Path) -> None:
    settings = {**SAC, "n_step": 16, "save_replay": True, "num_envs_per_worker": 1, "train_for_env_steps": 260}
    first = run(tmp_path / "first", "serial", "ConstantReward", **settings)
    path = Path(first.outcome.checkpoint)
    more = {"num_envs_per_worker": 40, "warmup_env_steps": 1, "train_for_env_steps": 2000}
    resumed = run(tmp_path / "resumed", "serial", "ConstantReward", resume_from=path, **settings | more)
    assert learner_of(resumed).policy_version > learner_of(first).policy_version


def test_serial_mode_collects_and_trains_in_turn_whatever_async_rl_says(tmp_path: Path) -> None:
    settings = {**SAC, "train_for_env_steps": 400, "updates_per_env_step": 20.0, "warmup_env_steps": 300}
    weights = []
    for async_rl in (False, True):
        finished = run(tmp_path / str(async_rl), "serial", "CartPole-v1", **settings, async_rl=async_rl)
        weights.append(checkpoint.load(Path(finished.outcome.checkpoint)).model)
    first, second = weights
    assert all(np.array_equal(array, second[name]) for name, array in first.items())


OTHER_LAYOUT = {"num_workers": 1, "num_envs_per_worker": 3, "replay_size": 2800}


@pytest.mark.parametrize(("keeps_replay", "layout"), [(True, {}), (True, OTHER_LAYOUT), (False, {})])
def test_a_resumed_run_counts_on_with_its_replay_and_fills_a_new_one_without(
    keeps_replay: bool, layout: dict[str, int], tmp_path: Path
) -> None:
    settings = {**SAC, "save_replay": keeps_replay}
    first = run(tmp_path / "first", "async-local", "ConstantReward", **settings)
    path = Path(first.outcome.checkpoint)
    resumed = run(
        tmp_path / "again",
        "async-local",
        "ConstantReward",
        resume_from=path,
        **{**settings, "train_for_env_steps": 2500, **layout},
    )
    assert 2500 <= resumed.outcome.env_steps < 2520
    if keeps_replay:
        assert_updates_are_made_when_due(resumed, env_steps=200)
    else:
        before = learner_of(first).policy_version
        assert_updates_are_made_when_due(resumed, env_steps=first.outcome.env_steps + 200, updates=before)


@pytest.mark.parametrize("mode", ["serial", "async-local"])
def test_a_run_begins_with_the_best_policy_of_an_evaluation_and_with_a_wider_one(mode: str, tmp_path: Path) -> None:
    settings = {**SAC, "train_for_env_steps": 300, "normalize_input": True, "normalize_rewards": True}
    first = run(tmp_path / "first", "serial", "CartPole-v1", **settings, eval_every_env_steps=300, eval_episodes=1)
    (best,) = checkpoint.newest_first(first.folder / "checkpoints" / "best")
    before = checkpoint.load(best).state["policy_version"]
    assert before == 100
    for name, own in {"again": {}, "wider": {"encoder_mlp_layers": [33]}}.items():
        finished = run(tmp_path / name, mode, "CartPole-v1", **{**settings, **own, "init_from": str(best)})
        assert checkpoint.load(Path(finished.outcome.checkpoint)).state["policy_version"] >= before + 100


def test_evaluation_changes_nothing_of_a_repeatable_run(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", "serial", "CartPole-v1", **SAC)
    watched = run(tmp_path / "watched", "serial", "CartPole-v1", **SAC, eval_every_env_steps=400, eval_episodes=2)
    first, second = (checkpoint.load(Path(finished.outcome.checkpoint)) for finished in (plain, watched))
    assert all(torch.equal(tensor, second.optimizer[name]) for name, tensor in first.optimizer.items())
