"""Splits write rows that join, ask only when they may step, and stop where the learner's limits are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from replay_workers import ENDLESS, Worker
from small_runs import BOX, new_control

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.observers.reports import Phase
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.failures import EnvironmentCallFailed, FailureLog
from asyncrl.rollout.worker import WAIT_S


def test_rows_hold_the_step_from_their_observation_and_the_row_after_an_end_begins_anew() -> None:
    run = Worker([(1.0, 0.5, False, False), (2.0, 1.5, False, True), (4.0, 2.5, True, False), (5.0, 3.5, False, False)])
    run.limits.set(None, ENDLESS)
    run.step(5)
    stripes = run.stripes
    assert run.rows() == [5, 5]
    # Row 2 holds the final observation of the truncated episode, row 3 the reset after it, row 4 that after the end.
    assert stripes.obs[0, :6, 0, 0].tolist() == [-1.0, 1.0, 2.0, -2.0, -3.0, 5.0]
    assert stripes.valid[0, :5, 0].tolist() == [True, True, False, True, True]
    assert stripes.reward[0, :5, 0][stripes.valid[0, :5, 0]].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert stripes.truncated[0, :5, 0].tolist() == [False, True, False, False, False]
    assert stripes.terminated[0, :5, 0].tolist() == [False, False, False, True, False]
    assert np.allclose(stripes.action[0, :5, 0, 0], 0.1 * np.arange(5))
    assert np.allclose([action[0] for action in run.envs[0].taken], 0.5 * np.tanh([0.0, 0.1, 0.3, 0.4]))
    assert stripes.total_env_steps() == 8
    assert run.control.collected_steps(0) == 8
    assert run.worker.report().env_steps == 8
    assert run.learner.count == 10


def test_a_split_asks_for_actions_only_when_it_may_step() -> None:
    run = Worker([(1.0, 0.0, False, False)] * 9)
    assert run.worker.poll() == WAIT_S
    assert run.worker.waiting_for == Phase.WAIT_UPDATES
    assert run.actions.asked == []
    run.limits.set([1, 2], ENDLESS)
    for _ in range(4):
        run.worker.poll()
    assert run.rows() == [1, 2]
    assert run.actions.asked == [(0, 0), (1, 0), (1, 1)]
    run.limits.set(None, 4)
    for _ in range(4):
        run.worker.poll()
    assert run.stripes.total_env_steps() == 4
    assert run.worker.poll() == WAIT_S


def test_one_split_steps_while_the_other_waits_for_its_actions() -> None:
    run = Worker([(1.0, 0.0, False, False)] * 9, at_once=False)
    run.limits.set(None, ENDLESS)
    assert run.worker.poll() == 0.0
    assert run.worker.poll() == WAIT_S
    assert run.worker.waiting_for == Phase.WAIT_ACTIONS
    run.actions.answer(1)
    assert run.worker.poll() == 0.0
    assert run.rows() == [0, 1]
    assert run.worker.poll() == 0.0  # asks for the next
    assert run.actions.asked == [(0, 0), (1, 0), (1, 1)]


def test_a_restored_stripe_goes_on_in_the_row_after_its_last() -> None:
    run = Worker([(1.0, 0.5, False, False)] * 9)
    run.limits.set(None, ENDLESS)
    run.step()
    other = Worker([(7.0, 0.5, False, False)] * 9)
    other.stripes.restore(run.stripes.content())
    other.limits.set(None, ENDLESS)
    split = other.split(EnvGroup([other.envs[0]], [0], 0, BOX, "squashed"))
    assert split.begin()
    assert split.advance() == 1
    assert other.actions.asked == [(0, 2)]
    assert other.stripes.obs[0, :4, 0, 0].tolist() == [-1.0, 1.0, -2.0, 7.0]
    assert other.stripes.valid[0, :3, 0].tolist() == [True, False, True]


@pytest.mark.parametrize("failure", [RuntimeError("broken"), (float("nan"), 1.0, False, False)])
@pytest.mark.parametrize("n_step", [1, 3])
def test_no_transition_starts_from_a_step_that_failed_or_leads_across_it(failure: Any, n_step: int) -> None:
    run = Worker([(1.0, 1.0, True, False), (2.0, 1.0, False, False), (3.0, 1.0, False, False), failure] * 2)
    run.limits.set(None, ENDLESS)
    run.step(7)
    stripes = run.stripes
    # Row 3 holds what was seen last before the failure, row 4 what the environment began again with.
    begun = -1.0 if isinstance(failure, Exception) else -3.0
    assert stripes.obs[0, 1:5, 0, 0].tolist() == [-2.0, 2.0, 3.0, begun]
    assert stripes.valid[0, :5, 0].tolist() == [True, True, True, False, True]
    assert stripes.truncated[0, :5, 0].tolist() == [False, False, True, False, False]
    assert stripes.terminated[0, :5, 0].tolist()[:4] == [True, False, False, False]
    assert stripes.total_env_steps() == 12
    sampler = ReplaySampler(stripes, n_step, gamma=0.5, reward_scale=1.0, reward_clip=None, seed=0)
    (batch,) = sampler.sample(1, 500)
    starts, ends = batch.obs[:, 0], batch.next_obs[:, 0]
    assert not (starts == 3.0).any()
    from_last, from_first = starts == 2.0, starts == -2.0
    assert from_last.any() and from_first.any()
    assert (ends[from_last] == 3.0).all() and (batch.discount[from_last] == 0.5).all()
    if n_step == 3:
        assert (ends[from_first] == 3.0).all() and (batch.discount[from_first] == 0.25).all()
        assert (batch.reward[from_first] == 1.5).all()


@pytest.mark.parametrize(("algo", "kept"), [("sac", "stay in the replay"), ("ppo", "are dropped")])
def test_the_warning_of_a_failure_says_what_becomes_of_the_samples(algo: str, kept: str) -> None:
    log = FailureLog(0, TrainConfig(algo=algo), new_control(has_finished_episode=True))
    log.record_failure(EnvironmentCallFailed(3, 7, "raised"))
    (warning,) = log.take().warnings
    assert warning.endswith(f"the samples of its unfinished episode {kept}")


def test_a_step_that_failed_first_in_its_episode_leaves_the_end_before_it_as_it_is() -> None:
    run = Worker([(1.0, 1.0, True, False), RuntimeError("broken")])
    run.limits.set(None, ENDLESS)
    run.step(3)
    assert run.stripes.terminated[0, :3, 0].tolist() == [True, False, False]
    assert run.stripes.truncated[0, :3, 0].tolist() == [False, False, False]
    assert run.stripes.valid[0, :3, 0].tolist() == [True, False, True]
    report = run.worker.report()
    assert (report.failures.num_failures, len(report.failures.warnings)) == (2, 1)  # one of each split, of one kind
