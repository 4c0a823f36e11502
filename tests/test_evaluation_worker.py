"""Evaluation during training: when, of which weights, and what is kept of the best."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from layouts import vector_observation
from small_runs import planned, small_arena

from asyncrl.buffers.control import RunControl, TrainingInfo
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.evaluation import episodes
from asyncrl.evaluation import worker as module
from asyncrl.evaluation.episodes import EvaluationResult
from asyncrl.evaluation.worker import EvaluationWorker, PublishedPolicy, PublishedTeam
from asyncrl.inference.policy import Policy, load_policy
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.storage import checkpoint

SPEC = EnvSpec("CartPole-v1", vector_observation(4), DiscreteAction(2, 0), 500)


class Evaluating:
    """An evaluation worker over an arena, with a learner played by the test."""

    def __init__(self, folder: Path, env_steps: int = 0, **settings: Any) -> None:
        plan = planned(batch_size=8, num_workers=1, num_envs_per_worker=2)
        defaults = {"env": "CartPole-v1", "eval_every_env_steps": 1000, "eval_episodes": 3, "encoder_mlp_layers": [8]}
        self.config = TrainConfig(**{**defaults, **settings})
        self.model = ActorCritic(SPEC, self.config)
        self.flat = FlatParameters(self.model)
        arena, _ = small_arena(plan, SPEC, block_size(self.model))
        self.channel, self.control = WeightsChannel(arena), RunControl(arena, 1)
        policy = PublishedPolicy(self.config, SPEC, self.channel)
        self.worker = EvaluationWorker(PublishedTeam(policy), self.control, folder, env_steps)

    def publish(self, env_steps: int, bias: float = 0.0) -> None:
        """Publishes a policy that pushes to one side if `bias` is large."""
        with torch.no_grad():
            self.model.policy_head.bias[0] = bias
        block = torch.empty(block_size(self.model))
        write_block(self.model, self.flat, block)
        self.channel.publish(np.asarray(block), version=env_steps // 10, env_steps=env_steps)


def test_it_is_due_at_every_multiple_and_skips_those_it_was_too_slow_for(tmp_path: Path) -> None:
    run = Evaluating(tmp_path, env_steps=2500, save_best_metric="none")
    assert not run.worker.is_due, "there are no weights yet"
    due = []
    for env_steps in (2500, 2999, 3000, 3900, 6100, 6900, 7000):
        run.publish(env_steps)
        due.append(run.worker.is_due)
        if run.worker.is_due:
            (report,) = run.worker.run()
            assert (report.env_steps, report.policy_version, report.episodes) == (env_steps, env_steps // 10, 3)
    assert due == [False, False, True, False, True, False, True]


def test_it_ends_with_the_run_but_not_before_the_trained_policy_was_evaluated(tmp_path: Path) -> None:
    run = Evaluating(tmp_path, save_best_metric="none")
    run.publish(1000)
    (first,) = run.worker.run()
    run.publish(1010)
    assert not run.worker.is_due
    run.control.end()
    assert not run.worker.is_over
    (last,) = run.worker.run()
    assert (first.policy_version, last.policy_version, last.env_steps) == (100, 101, 1010)
    assert run.worker.is_over
    stopped = Evaluating(tmp_path)
    stopped.publish(1000)
    stopped.control.request_stop()
    assert stopped.worker.is_over


def test_the_trained_policy_is_evaluated_once(tmp_path: Path) -> None:
    run = Evaluating(tmp_path, save_best_metric="none", train_for_env_steps=3000)
    run.publish(3010)  # after the first pass over the last samples
    assert not run.worker.is_due
    run.publish(3010, bias=1.0)
    run.control.end()
    (report,) = run.worker.run()
    assert report.env_steps == 3010
    run.publish(3010, bias=1.0)  # the keeper of shared parameters publishes once more as it ends
    assert run.worker.is_over


def test_a_request_to_stop_ends_it_in_the_middle_of_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.0)
    run = Evaluating(tmp_path, eval_episodes=1_000_000)
    run.publish(1000)
    looks = []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 50:
            run.control.request_stop()

    assert run.worker.run(look) == []
    assert len(looks) == 50


def test_an_environment_that_fails_is_reported_and_training_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(env: Any, action: Any) -> None:
        raise ZeroDivisionError("the wheels came off")

    monkeypatch.setattr(CartPoleEnv, "step", fail)
    run = Evaluating(tmp_path, eval_episodes=1)
    run.publish(1000)
    (report,) = run.worker.run()
    where = "The environment failed in step, episode 0, at its step 0"
    assert report.reason == f"{where}: ZeroDivisionError: the wheels came off"
    assert not run.worker.is_due


def test_observations_of_another_kind_than_in_training_are_reported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CartPoleEnv, "reset", lambda env, **_: (np.zeros(1, np.float32), {}))
    run = Evaluating(tmp_path, eval_episodes=1)
    run.publish(1000)
    (report,) = run.worker.run()
    assert "episode 0, at its step 0: shape (1,)" in report.reason
    assert "its space promises shape (4,)" in report.reason
    run = Evaluating(tmp_path, env="probe_envs:Failing-v0", env_kwargs={"fail_at": 0}, eval_episodes=1)
    run.publish(1000)
    (report,) = run.worker.run()
    assert report.reason.startswith("probe_envs:Failing-v0 has spaces that the policy was not trained with: ")


def test_the_best_policy_that_was_evaluated_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = iter([5.0, 3.0, 8.0, 8.0, 6.0])

    def evaluated(policy: Policy, **_: Any) -> EvaluationResult:
        return EvaluationResult((next(returns),), (1,))

    monkeypatch.setattr(module, "evaluate", evaluated)
    run = Evaluating(tmp_path)
    kinds = []
    for number in range(1, 5):
        run.publish(1000 * number, bias=50.0 if number == 3 else -50.0)
        kinds.append([getattr(report, "kind", "evaluation") for report in run.worker.run()])
    assert kinds == [["evaluation", "best"], ["evaluation"], ["evaluation", "best"], ["evaluation"]]
    assert checkpoint.best_return(tmp_path) == 8.0
    best = load_policy(checkpoint.newest_first(tmp_path / "best")[0])
    assert not best.act(np.zeros((20, 4))).any()
    resumed = Evaluating(tmp_path, env_steps=4000)
    resumed.publish(5000)
    assert len(resumed.worker.run()) == 1


def test_a_return_of_other_tasks_or_measured_in_another_way_is_no_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = iter([9.0, 5.0, 3.0, 4.0])
    monkeypatch.setattr(module, "evaluate", lambda *_, **__: EvaluationResult((next(returns),), (1,)))
    run = Evaluating(tmp_path)
    run.publish(1000)
    run.worker.run()
    run.control.send_training_info(RunControl.pack_training_info(TrainingInfo({"level": 2}, 1)))
    run.publish(2000)
    assert len(run.worker.run()) == 2, "the best of the second level"
    assert checkpoint.best_return(tmp_path) == 5.0
    for settings, value in (({}, 5.0), ({"env_kwargs": {"a": 1}}, None), ({"eval_deterministic": True}, None)):
        other = Evaluating(tmp_path, env_steps=2000, **settings)
        assert checkpoint.best_return(tmp_path, other.config) == value
    assert checkpoint.best_return(tmp_path, TrainConfig(env="CartPole-v1", save_best_metric="train")) is None


def test_environments_of_an_evaluation_have_been_told_what_those_of_training_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("told_env:Told", vector_observation(2), DiscreteAction(2, 0), None)
    monkeypatch.setitem(globals(), "SPEC", spec)
    run = Evaluating(tmp_path, env="told_env:Told", eval_episodes=2)
    run.publish(1000)
    assert run.worker.run()[0].mean_reward == 0.0
    run.control.send_training_info(RunControl.pack_training_info(TrainingInfo({"reward": 3.0}, 1)))
    run.publish(2000)
    assert run.worker.run()[0].mean_reward == 15.0
    run.control.send_training_info(RunControl.pack_training_info(TrainingInfo({"other": 3.0}, 2)))
    run.publish(3000)
    (report,) = run.worker.run()
    assert "failed in set_training_info" in report.reason


def test_an_episode_without_an_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MOST_STEPS", 100)
    monkeypatch.setattr(CartPoleEnv, "step", lambda env, action: (np.zeros(4, np.float32), 1.0, False, False, {}))
    run = Evaluating(tmp_path, env="gymnasium.envs.classic_control:CartPoleEnv", eval_episodes=1)
    run.publish(1000)
    (report,) = run.worker.run()
    assert "has not ended after 100 steps" in report.reason


def test_a_reward_that_is_not_finite_fails_one_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = iter([1.0, math.nan, *[1.0] * 1000])
    take_step = CartPoleEnv.step

    def step(env: CartPoleEnv, action: Any) -> Any:
        obs, _, *others = take_step(env, action)
        return obs, next(rewards), *others

    monkeypatch.setattr(CartPoleEnv, "step", step)
    run = Evaluating(tmp_path, env="gymnasium.envs.classic_control:CartPoleEnv", eval_episodes=2)
    run.publish(1000)
    (report,) = run.worker.run()
    assert report.reason.startswith(
        "The environment returned a reward that is not finite, episode 1, at its step 0: nan"
    )
    assert checkpoint.best_return(tmp_path) is None
    run.publish(2000)
    assert len(run.worker.run()) == 2, "the next is as any other"


def test_evaluations_of_neighbouring_seeds_play_and_draw_differently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []

    def noting_evaluate(policy: Policy, *, seed: int, **rest: Any) -> EvaluationResult:
        given.append((seed, policy._generator.initial_seed()))
        return EvaluationResult((1.0,), (1,))

    monkeypatch.setattr(module, "evaluate", noting_evaluate)
    for seed in range(3):
        run = Evaluating(tmp_path, seed=seed, save_best_metric="none")
        run.publish(1000)
        run.worker.run()
    for seeds in zip(*given, strict=True):
        assert len(set(seeds)) == 3
        assert set(seeds).isdisjoint(range(1_000_010))  # those of `evaluate --seed`, and of a sum
