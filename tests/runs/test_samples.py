"""What reaches the learner: the age of rows, and the batches that chose their actions; rows: `test_rows`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_checks import SAME_POLICY
from run_helper import SMALL, FinishedRun, run

pytestmark = pytest.mark.usefixtures("leaves_nothing")

NORMALIZED: dict[str, Any] = {"normalize_input": True, "normalize_returns": True}


def ratio_deviations(run: FinishedRun) -> list[float]:
    return [report.train.max_ratio_deviation_first_batch for report in run.learner_reports]


@pytest.mark.parametrize(
    ("env", "memory"),
    [("Masked-v0", {}), ("Recall-v0", {"use_rnn": True, "rnn_size": 8, "recurrence": 4})],
    ids=["masked", "memory"],
)
def test_the_decoupled_objective_begins_at_ratio_one_whatever_the_lag(
    env: str, memory: dict[str, Any], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {**NORMALIZED, "debug_forced_lag": 8, "ppo_objective": "decoupled", **memory}
    settings["train_for_env_steps"] = 1500
    finished = run(tmp_path, "serial", f"space_envs:{env}", **settings)
    lags = [(report.lag.mean, report.lag.max) for report in finished.learner_reports if report.lag is not None]
    assert lags == [(0.0, 0)] + [(8.0, 8)] * (len(lags) - 1), "every sample is one dataset old, but for the first ones"
    assert max(ratio_deviations(finished)) < SAME_POLICY
    sizes = [report.train.effective_sample_size for report in finished.learner_reports if report.train is not None]
    assert sizes[0] == pytest.approx(1.0)
    assert 0.0 < min(sizes) < 0.999


def test_async_at_equal_pace_is_one_dataset_behind_at_most(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    num_envs = SMALL["num_workers"] * SMALL["num_envs_per_worker"]
    np.zeros(num_envs, np.int64).tofile(counts)
    env_kwargs = {"run_seed": SMALL["seed"], "counts": str(counts), "num_envs": num_envs}
    finished = run(tmp_path, "async-local", "KeepsPace", env_kwargs=env_kwargs, train_for_env_steps=2000)
    assert finished.plan.slots_per_dataset == finished.plan.num_splits
    assert finished.plan.steady_lag_bound == finished.plan.updates_per_dataset
    assert 0 < finished.largest_lag <= finished.plan.steady_lag_bound


@pytest.mark.parametrize("mode", ["async-local", "async-central"])
def test_with_a_fixed_lag_every_sample_is_one_dataset_old_and_runs_repeat(mode: str, tmp_path: Path) -> None:
    finished = []
    for number in range(2):
        settings: dict[str, Any] = {**NORMALIZED, "fixed_lag": True, "rollout": 4, "train_for_env_steps": 1000}
        settings |= {"num_epochs": 2 + number} if mode == "async-central" else {}
        finished.append(run(tmp_path / str(number), mode, "CartPole-v1", **settings))
        lags = [(report.lag.mean, report.lag.max) for report in finished[-1].learner_reports if report.lag is not None]
        updates = finished[-1].plan.updates_per_dataset
        assert lags == [(0.0, 0)] + [(updates, updates)] * (len(lags) - 1)
    if mode == "async-local":  # batches of central inference depend on who asks first
        weights = [torch.cat([tensor.flatten() for tensor in each.model.state_dict().values()]) for each in finished]
        assert torch.equal(*weights)


def test_forward_passes_serve_several_splits_and_each_split_has_one_server(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        "sync-central",  # each dataset has slots of all splits
        "Sentinel",
        recorded=True,
        env_kwargs={"run_seed": SMALL["seed"], "delay_s": 0.001},
        num_workers=4,
        num_envs_per_worker=4,
        worker_num_splits=2,
        num_inference_workers=2,
        inference_max_wait_ms=200.0,
        train_for_env_steps=800,
    )
    for server_idx in range(2):
        reports = [report for report in finished.inference_reports if report.worker_idx == server_idx]
        num_observations = sum(report.num_observations for report in reports)
        assert num_observations > 1.5 * finished.plan.envs_per_split * sum(r.num_forward_passes for r in reports)
    first, second = finished.served_splits
    assert first.isdisjoint(second)
    assert first | second == set(range(finished.plan.num_splits))


@pytest.mark.parametrize("mode", ["serial", "async-local"])
def test_a_run_ends_after_its_seconds(mode: str, tmp_path: Path) -> None:
    limit_s = 0.5
    finished = run(tmp_path, mode, "ConstantReward", train_for_env_steps=10**9, train_for_seconds=limit_s)
    assert finished.outcome.is_complete
    assert finished.outcome.elapsed_s >= limit_s
    assert finished.outcome.env_steps < 10**9
    assert finished.values([0.0]), "the checkpoint loads"
