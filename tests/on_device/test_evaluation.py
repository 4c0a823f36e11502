"""Environments of the training simulator play whole episodes of a fixed policy, and training is as without them."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from run_helper import run
from tensor_envs import AsTensors
from tensor_groups import CPU, NUM_ENVS, NumberedSentinel, sentinels, tensor_group
from torch import Tensor

from asyncrl.buffers.weights import Publication
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import read_spec
from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import load_policy
from asyncrl.models.factory import make_acting_model
from asyncrl.modes.tensors import evaluation as evaluation_module
from asyncrl.modes.tensors.env_group import EpisodeEnds
from asyncrl.modes.tensors.evaluation import EvaluatingGroup, SimulatorEvaluation
from asyncrl.observers.reports import EvaluationFailed, EvaluationReport, RolloutReport

NUM_EVAL, ROLLOUT, NUM_TRAJECTORIES = 2, 9, 12
TENSORS: dict[str, Any] = {"env_backend": "tensor", "num_workers": 1, "num_envs_per_worker": 16}


class Recorder(SimpleNamespace):
    """Takes the place of an evaluation: it keeps what it is shown."""

    num_envs = NUM_EVAL

    def act(self, rows: Tensor) -> Tensor:
        self.rows.append(rows.clone())
        return torch.full((NUM_EVAL, 2), 0.25)

    def record(self, ends: EpisodeEnds, begins: Tensor) -> None:
        self.ended.append(ends.ended)
        self.lengths.append(ends.episode_length)
        self.begins.append(begins)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_training_is_unchanged_and_the_others_see_every_observation(mode: AutoresetMode) -> None:
    seen = Recorder(rows=[], ended=[], lengths=[], begins=[])
    spec = read_spec(NumberedSentinel(0), "Sentinels")
    shared = EvaluatingGroup(AsTensors(sentinels(mode, NUM_ENVS + NUM_EVAL)), 7, spec, "raw", CPU, seen)
    alone = tensor_group(AsTensors(sentinels(mode)))
    rows, expected_rows = shared.reset(), alone.reset()
    generator = torch.Generator().manual_seed(0)
    for _ in range(NUM_TRAJECTORIES):
        (rows, restarted), (expected_rows, expected) = (
            shared.start_trajectory(rows),
            alone.start_trajectory(expected_rows),
        )
        assert torch.equal(rows, expected_rows) and torch.equal(restarted, expected)
        for _ in range(ROLLOUT):
            actions = torch.rand((NUM_ENVS, 2), generator=generator) - 0.5
            step, wanted = shared.step(actions), alone.step(actions)
            for name in ("next_rows", "reward", "terminated", "truncated", "valid"):
                assert torch.equal(getattr(step, name), getattr(wanted, name)), name
            assert torch.equal(step.ends.ended, wanted.ends.ended)
            rows, expected_rows = step.next_rows.clone(), wanted.next_rows.clone()
    # Played one by one, each of the others has the same observations.
    for number in range(NUM_EVAL):
        env = NumberedSentinel(NUM_ENVS + number)
        obs, begins, ended = env.reset()[0], True, False
        for idx, row in enumerate(seen.rows):
            np.testing.assert_array_equal(row[number].numpy(), obs)
            if mode == AutoresetMode.NEXT_STEP and not begins and ended:
                obs, begins = env.reset()[0], True
                assert bool(seen.begins[idx][number])
                continue
            obs, _, terminated, truncated, _ = env.step(np.full(2, 0.25, np.float32))
            begins, ended = False, terminated or truncated
            assert bool(seen.ended[idx][number]) == ended
            if ended and mode != AutoresetMode.NEXT_STEP:
                obs, begins = env.reset()[0], True
            assert bool(seen.begins[idx][number]) == begins


@pytest.mark.parametrize(("algo", "autoreset_mode"), [("ppo", "NextStep"), ("sac", "SameStep"), ("ppo", "Disabled")])
def test_evaluations_are_of_fixed_policies_over_whole_episodes(algo: str, autoreset_mode: str, tmp_path: Path) -> None:
    every = {"eval_every_env_steps": 500, "eval_episodes": 6, "eval_num_envs": 4, "eval_deterministic": True}
    sac = {"algo": "sac", "warmup_env_steps": 300, "batch_size": 64, "updates_per_env_step": 0.5, "gamma": 0.8}
    settings = {**every, **(sac if algo == "sac" else {}), "env_kwargs": {"autoreset_mode": autoreset_mode}}
    finished = run(tmp_path, "serial", "tensor_envs:make_reach", **TENSORS, **settings, train_for_env_steps=2000)
    found = [report for report in finished.reports if isinstance(report, EvaluationReport)]
    assert [report.episodes for report in found] == [8] * len(found), "two of each environment"
    versions = [report.policy_version for report in found]
    assert len(found) >= 3 and versions == sorted(set(versions))
    last = found[-1]
    assert last.policy_version == max(report.num_updates for report in finished.learner_reports)
    assert (last.mean_ep_length, last.env_steps) == (1.0, finished.outcome.env_steps)
    expected = evaluate(load_policy(finished.outcome.checkpoint or ""), episodes=200, deterministic=True)
    assert last.mean_reward == pytest.approx(expected.mean_reward, abs=0.25)
    assert last.mean_reward > found[0].mean_reward
    collected = [report for report in finished.reports if isinstance(report, RolloutReport)]
    assert sum(report.env_steps for report in collected) == finished.outcome.env_steps, "steps of training only"


class Evaluating(SimpleNamespace):
    """An evaluation with two environments, of version 7 after 100 steps."""

    def __init__(self, folder: Path) -> None:
        spec = read_spec(NumberedSentinel(0), "Sentinels")
        config = TrainConfig(env="Sentinels", eval_every_env_steps=100, eval_episodes=4, save_best_metric="none")
        news = Publication(number=1, version=7, env_steps=100)
        weights = SimpleNamespace(newest=news)
        policy = SimpleNamespace(config=config, spec=spec, weights=weights, model=make_acting_model(spec, config))
        team: Any = SimpleNamespace(policy=policy, is_published=True, read=lambda: news)
        self.control: Any = SimpleNamespace(num_evaluations=0, ended=False, stop_requested=False)
        self.evaluation = SimulatorEvaluation(team, self.control, folder, 0, num_envs=2, device=CPU)
        self.evaluation.act(torch.zeros(2, 3))

    def record(self, lengths: tuple[int, int], reward: float = 2.0) -> None:
        """Ends an episode of each environment, with as many steps; 0 ends none."""
        of_step = torch.tensor(lengths)
        ended = of_step > 0
        self.evaluation.record(EpisodeEnds(ended, reward * of_step, of_step, {}), ended)


def test_each_environment_plays_as_many_episodes_and_open_ones_do_not_count(tmp_path: Path) -> None:
    evaluating = Evaluating(tmp_path)
    # Lengths of the episodes that end in each step; 0 where none ends. The first of each was open.
    script = [(7, 0), (2, 50), (3, 0), (99, 10), (0, 20), *[(99, 99)] * 20]
    for lengths in script:
        evaluating.record(lengths)
    (report,) = evaluating.evaluation.run()
    assert isinstance(report, EvaluationReport)
    assert (report.episodes, report.policy_version, report.env_steps) == (4, 7, 100)
    assert report.mean_ep_length == np.mean([2, 3, 10, 20]) and report.mean_reward == 2 * report.mean_ep_length


def test_an_evaluation_without_an_end_or_a_finite_return_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_module, "MOST_STEPS", 10)
    endless = Evaluating(tmp_path)
    endless.control.ended = True
    endless.evaluation.step_alone = lambda: endless.record((3, 0))
    (report,) = endless.evaluation.run()
    assert isinstance(report, EvaluationFailed) and "has not ended after 10 steps" in report.reason
    assert not endless.evaluation.is_due
    broken = Evaluating(tmp_path)
    for _ in range(20):
        broken.record((1, 1), reward=math.nan)
    (report,) = broken.evaluation.run()
    assert isinstance(report, EvaluationFailed) and "not finite" in report.reason
