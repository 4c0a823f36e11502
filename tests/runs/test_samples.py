"""What reaches the learner: every row, its policy, its age, and the batches that chose its actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_helper import MODES, SMALL, FinishedRun, run
from sentinel_rows import check_rows

from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, read_block

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("leaves_nothing")]

NORMALIZED: dict[str, Any] = {"normalize_input": True, "normalize_returns": True}
SAME_POLICY = 1e-5  # rounding in another order of summation, and no more


_sentinel_runs: dict[str, FinishedRun] = {}


@pytest.fixture(params=MODES)
def sentinel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, leaves_nothing: None
) -> FinishedRun:
    """A recorded run, made once for each mode. Steps take random time; weights and statistics change all the time."""
    mode = request.param
    if mode not in _sentinel_runs:
        _sentinel_runs[mode] = run(
            tmp_path_factory.mktemp(mode),
            mode,
            "Sentinel",
            recorded=True,
            env_kwargs={"run_seed": SMALL["seed"], "delay_s": 0.001},
            learning_rate=0.003,
            train_for_env_steps=2000,
            **NORMALIZED,
        )
    return _sentinel_runs[mode]


def test_every_sample_is_one_step_of_one_environment(sentinel: FinishedRun) -> None:
    assert check_rows(sentinel) == set(range(sentinel.plan.num_envs))
    for data in sentinel.datasets:
        assert (np.abs(data["action"][data["valid"]]) > 1.0).any(), "actions are stored as drawn, unclipped"


def test_every_sample_was_chosen_and_valued_by_the_version_that_it_names(sentinel: FinishedRun) -> None:
    policies = {version: policy_of(sentinel, block) for version, block in sentinel.publications.items()}
    for data in sentinel.datasets:
        versions, valid = data["policy_version"], data["valid"]
        for version in np.unique(versions).tolist():
            rows = versions == version
            check_acting(policies[version], data, valid & rows)
            assert_close(values_of(policies[version], data["obs"][:-1][rows]), data["value"][:-1][rows])
        check_last_values(policies, data)
    assert len(np.unique([data["policy_version"] for data in sentinel.datasets])) > 3


def policy_of(run: FinishedRun, block: np.ndarray) -> ActorCritic:
    model = ActorCritic(run.spec, run.config)
    read_block(model, FlatParameters(model, with_grad=False), torch.from_numpy(block))
    return model


def check_acting(policy: ActorCritic, data: dict[str, np.ndarray], rows: np.ndarray) -> None:
    """Action parameters and log-probabilities of these rows follow from the policy and their own observations."""
    with torch.inference_mode():
        parameters = policy(policy.normalize_obs(torch.from_numpy(data["obs"][:-1][rows]))).action_parameters
        log_prob = policy.distribution.log_prob(parameters, torch.from_numpy(data["action"][rows]))
    assert_close(parameters, data["action_parameters"][rows])
    assert_close(log_prob, data["log_prob"][rows])


def check_last_values(policies: dict[int, ActorCritic], data: dict[str, np.ndarray]) -> None:
    """Which version valued the row after the last step is not stored, but none older than the row before it did."""
    values, known = data["value"][-1], data["policy_version"][-1]
    is_explained = np.zeros(values.shape, bool)
    for version, policy in policies.items():
        is_possible = (known <= version) & (version <= data["learner_version"])
        is_explained |= is_possible & np.isclose(values_of(policy, data["obs"][-1]), values, rtol=1e-4, atol=1e-4)
    assert is_explained.all()


@torch.inference_mode()
def values_of(policy: ActorCritic, obs: np.ndarray) -> np.ndarray:
    normalized = policy(policy.normalize_obs(torch.from_numpy(obs))).normalized_value
    return policy.denormalize_value(normalized).numpy()


def assert_close(found: torch.Tensor | np.ndarray, stored: np.ndarray) -> None:
    np.testing.assert_allclose(found, stored, rtol=1e-4, atol=1e-4)


def test_sync_and_serial_train_only_on_the_newest_policy(sentinel: FinishedRun) -> None:
    if sentinel.plan.async_rl:
        assert sentinel.largest_lag <= sentinel.plan.lag_bound
    else:
        assert sentinel.largest_lag == 0
        assert max(ratio_deviations(sentinel)) < SAME_POLICY


def ratio_deviations(run: FinishedRun) -> list[float]:
    return [report.train.max_ratio_deviation_first_batch for report in run.learner_reports]


@pytest.mark.parametrize("mode", MODES)
def test_without_learning_the_first_ratio_is_one(mode: str, tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        mode,
        "Sentinel",
        env_kwargs={"run_seed": SMALL["seed"]},
        learning_rate=0.0,
        train_for_env_steps=2000,
        normalize_input=True,
        normalize_returns=True,
    )
    assert max(ratio_deviations(finished)) < SAME_POLICY


@pytest.mark.parametrize(("mode", "recurrence"), [("serial", 8), ("serial", 2), ("async-central", 4)])
@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_a_memory_says_in_training_what_it_said_in_acting(
    mode: str, recurrence: int, rnn_type: str, tmp_path: Path
) -> None:
    # The sentinel's episodes end in either way anywhere in a sequence.
    finished = run(
        tmp_path,
        mode,
        "Sentinel",
        recorded=True,
        env_kwargs={"run_seed": SMALL["seed"]},
        learning_rate=0.0,
        train_for_env_steps=1500,
        use_rnn=True,
        rnn_type=rnn_type,
        rnn_size=6,
        recurrence=recurrence,
    )
    assert max(ratio_deviations(finished)) < SAME_POLICY
    learner = OnPolicyLearner(finished.model, finished.config, torch.device("cpu"))
    for data in finished.datasets:
        fields = {name: torch.from_numpy(array) for name, array in data.items() if name != "learner_version"}
        assert fields["rnn_state"].shape[0] == finished.plan.rollout // recurrence
        assert_close(learner._present_values(Dataset(**fields)), data["value"])
    assert any(data["rnn_state"].any() for data in finished.datasets)


def test_async_at_equal_pace_is_one_dataset_behind_at_most(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    num_envs = SMALL["num_workers"] * SMALL["num_envs_per_worker"]
    np.zeros(num_envs, np.int64).tofile(counts)
    env_kwargs = {"run_seed": SMALL["seed"], "counts": str(counts), "num_envs": num_envs}
    finished = run(tmp_path, "async-local", "KeepsPace", env_kwargs=env_kwargs)
    assert finished.plan.slots_per_dataset == finished.plan.num_splits
    assert finished.plan.steady_lag_bound == finished.plan.updates_per_dataset
    assert 0 < finished.largest_lag <= finished.plan.steady_lag_bound


def test_async_trains_on_nothing_older_than_allowed(tmp_path: Path) -> None:
    allowed = 10
    finished = run(
        tmp_path, "async-local", "ConstantReward", recorded=True, max_policy_lag=allowed, num_batches_to_accumulate=4
    )
    assert 0 < finished.largest_lag <= allowed == finished.plan.lag_bound
    assert finished.learner_reports[-1].dropped_samples > 0


def test_forward_passes_serve_several_splits_and_each_split_has_one_server(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        "async-central",
        "Sentinel",
        recorded=True,
        env_kwargs={"run_seed": SMALL["seed"], "delay_s": 0.001},
        num_workers=4,
        num_envs_per_worker=4,
        worker_num_splits=2,
        num_inference_workers=2,
        inference_max_wait_ms=20.0,
        train_for_env_steps=2000,
    )
    for server_idx in range(2):
        reports = [report for report in finished.inference_reports if report.worker_idx == server_idx]
        num_observations = sum(report.num_observations for report in reports)
        assert num_observations > 1.5 * finished.plan.envs_per_split * sum(r.num_forward_passes for r in reports)
    first, second = finished.served_splits
    assert first.isdisjoint(second)
    assert first | second == set(range(finished.plan.num_splits))


@pytest.mark.parametrize("async_rl", [False, True])
def test_a_serial_run_repeats_to_the_bit(async_rl: bool, tmp_path: Path) -> None:
    first, second, other = (
        run(
            tmp_path / name,
            "serial",
            "EndlessReward",
            env_kwargs={"terminates": False},
            async_rl=async_rl,
            seed=seed,
            train_for_env_steps=1500,
            **NORMALIZED,
        ).model.state_dict()
        for name, seed in (("first", 5), ("second", 5), ("other", 6))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["statistics"], other["statistics"])


@pytest.mark.parametrize("mode", ["serial", "async-local"])
def test_a_run_ends_after_its_seconds(mode: str, tmp_path: Path) -> None:
    finished = run(tmp_path, mode, "ConstantReward", train_for_env_steps=10**9, train_for_seconds=0.3)
    assert 0 < finished.outcome.env_steps < 10**9
    assert finished.values([0.0]), "the checkpoint loads"
