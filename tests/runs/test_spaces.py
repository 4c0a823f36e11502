"""Whole runs on spaces of every kind, with and without a recurrent core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_helper import run

from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import load_policy

LEARNING: dict[str, Any] = {
    "rollout": 20,
    "batch_size": 320,
    "num_batches_per_epoch": 1,
    "entropy_loss_coeff": 0.01,
    "gamma": 0.0,
}


def mean_return(checkpoint: str | None, episodes: int = 40) -> float:
    assert checkpoint is not None
    return evaluate(load_policy(Path(checkpoint)), episodes=episodes, deterministic=True).mean_reward


@pytest.mark.long
def test_an_image_and_a_vector_are_answered_by_a_choice_and_a_number(tmp_path: Path) -> None:
    # With larger learning rates some policies lost their image (docs/results.md, "Memory, spaces, lag").
    small = {"learning_rate": 0.0005, "batch_size": 80, "num_batches_per_epoch": 4, "num_epochs": 2}
    more = {"initial_stddev": 0.2, "encoder_conv_mlp_layers": [32], "train_for_env_steps": 128_000}
    settings = {**LEARNING, **small, **more}
    finished = run(tmp_path, "async-central", "space_envs:SeeAndTell-v0", **settings)
    assert mean_return(finished.outcome.checkpoint) > 0.9  # of 1; without the image 0.75 at best


def test_only_allowed_actions_are_taken_and_the_first_ratio_is_one(tmp_path: Path) -> None:
    # The environment raises at an action that its mask forbids.
    finished = run(tmp_path, "sync-local", "space_envs:Masked-v0", **{**LEARNING, "train_for_env_steps": 8000})
    trained = [report.train for report in finished.learner_reports if report.train is not None]
    assert max(metrics.max_ratio_deviation_first_batch for metrics in trained) < 1e-4
    assert mean_return(finished.outcome.checkpoint) == pytest.approx(1.0)


def test_a_recurrent_policy_recalls_what_was_shown(tmp_path: Path) -> None:
    recurrent = {"use_rnn": True, "rnn_size": 24, "encoder_mlp_layers": [], "learning_rate": 0.01}
    finished = run(
        tmp_path, "serial", "space_envs:Recall-v0", **{**LEARNING, **recurrent, "train_for_env_steps": 20_000}
    )
    assert mean_return(finished.outcome.checkpoint) > 0.95  # without memory a third is chance
