"""Every row that is trained on is one step of one environment, whatever the way to run; see `row_cases`."""

from __future__ import annotations

from pathlib import Path

import pytest
from gymnasium.vector import AutoresetMode
from row_cases import Case, run_case

pytestmark = pytest.mark.usefixtures("leaves_nothing")

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode


def each(*cases: Case) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


@each(
    Case("ppo", "serial"),
    Case("ppo", "serial", NEXT_STEP, "lstm"),
    Case("ppo", "async-central"),
)
def test_every_row_is_a_step_with_its_own_action_reward_end_policy_and_advantage(case: Case, tmp_path: Path) -> None:
    _, counts = run_case(case, tmp_path)
    assert counts.dropped == 0


@each(Case("ppo", "async-local", DISABLED, drops_old=True))
def test_rows_that_are_too_old_are_not_trained_on_and_reported_as_dropped(case: Case, tmp_path: Path) -> None:
    finished, _ = run_case(case, tmp_path)
    assert 0 < finished.largest_lag <= finished.plan.lag_bound == 10
    assert finished.learner_reports[-1].dropped_samples > 0


@each(
    Case("ppo", "sync-local", NEXT_STEP, killed="rollout"),
    Case("ppo", "async-local", SAME_STEP, killed="rollout"),
    Case("ppo", "async-central", rnn_type="lstm", killed="rollout"),
)
def test_rollout_workers_that_are_killed_are_replaced_and_nothing_goes_across_the_gap(
    case: Case, tmp_path: Path
) -> None:
    finished, counts = run_case(case, tmp_path)
    assert counts.lives > finished.plan.num_envs


@each(
    Case("ppo", "sync-central", DISABLED, killed="inference"),
    Case("ppo", "async-central", rnn_type="gru", killed="inference"),
)
def test_an_inference_worker_that_is_killed_is_replaced_and_no_action_serves_twice(case: Case, tmp_path: Path) -> None:
    finished, counts = run_case(case, tmp_path)
    assert counts.lives == finished.plan.num_envs
    assert finished.learner_reports[-1].dropped_samples == 0


@each(
    Case("sac", "serial", NEXT_STEP, n_step=3),
    Case("sac", "sync-local", DISABLED, killed="rollout"),
    Case("sac", "sync-central", killed="inference"),
    Case("sac", "async-central", SAME_STEP, n_step=3, killed="rollout"),
)
def test_a_replay_holds_every_step_and_what_is_drawn_from_it_never_goes_across_an_end_or_a_death(
    case: Case, tmp_path: Path
) -> None:
    finished, counts = run_case(case, tmp_path)
    assert counts.trained >= finished.config.train_for_env_steps, "the replay is large enough for all steps"


@each(
    Case("a2c-synced", "async-local", rnn_type="gru", killed="rollout"),
    Case("a2c-shared", "async-local"),
    Case("a2c-gradients", "async-local", NEXT_STEP, killed="rollout"),
    Case("ppo-shared", "serial", SAME_STEP),
    Case("hogwild-sac", "async-local", SAME_STEP, n_step=3, killed="rollout"),
)
def test_hogwild_workers_train_on_their_own_rows_and_are_replaced_when_killed(case: Case, tmp_path: Path) -> None:
    finished, _ = run_case(case, tmp_path)
    assert finished.learner_reports[-1].num_updates > 0
