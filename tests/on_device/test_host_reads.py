"""The host waits for the device a few times in an iteration, whatever the number of steps, minibatches and passes.

On a CPU nothing waits; `HostReads` finds what would on a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from graph_stand_ins import PlainCall
from host_reads import HostReads
from run_helper import FinishedRun, run
from torch import Tensor

from asyncrl.learner import on_policy, update_runner
from asyncrl.learner.fast.array_update import ArrayUpdate
from asyncrl.learner.replay_loop import ReplayLoop
from asyncrl.learner.trajectory_loop import TrajectoryLoop
from asyncrl.modes.tensors.env_group import TensorEnvGroup, TensorStep
from asyncrl.modes.tensors.worker import DeviceReplayWorker, DeviceWorker

TENSORS: dict[str, Any] = {"env_backend": "tensor", "num_workers": 1, "num_envs_per_worker": 16, "keep_checkpoints": 1}


def trained(
    monkeypatch: pytest.MonkeyPatch, folder: Path, worker: Any, loop: Any, env: str, **settings: Any
) -> tuple[HostReads, FinishedRun]:
    """A run, and where the host reads in it, but for its beginning and end."""
    reads = HostReads()
    monkeypatch.setattr(ArrayUpdate, "fits", lambda *args: False)  # PPO in NumPy is for models on a CPU
    monkeypatch.setattr(worker, "poll", reads.within(worker.poll))
    monkeypatch.setattr(loop, "train_once", reads.within(loop.train_once))
    return reads, run(folder, "serial", env, **{**TENSORS, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"target_kl": 1e6},
        {"target_kl": None, "normalize_input": True, "normalize_returns": True, "recompute_advantages": True},
        {"algo": "a2c", "num_epochs": 1, "with_vtrace": True},
        {"target_kl": None, "ppo_objective": "decoupled", "kl_loss_coeff": 0.1, "ppo_clip_value": 0.2},
        {"target_kl": None, "use_rnn": True, "rnn_size": 8},
    ],
    ids=["ppo", "normalized", "a2c", "decoupled", "recurrent"],
)
def test_an_iteration_of_on_policy_training_reads_five_times(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settings.get("use_rnn"):  # without graphs the host reads the lengths of sequences
        monkeypatch.setattr(update_runner, "GraphedFunction", PlainCall)
        monkeypatch.setattr(on_policy, "makes_graphs", lambda *args: True)
    settings = {"rollout": 8, "batch_size": 32, "num_batches_per_epoch": 4, "num_epochs": 3, **settings}
    env = "tensor_envs:TensorCartPole-v0"
    reads, finished = trained(
        monkeypatch, tmp_path, DeviceWorker, TrajectoryLoop, env, **settings, train_for_env_steps=384
    )
    num_datasets = len(finished.learner_reports)
    assert num_datasets == 3
    num_with_ends = reads.places.pop("env_group.record_ends")
    assert 0 < num_with_ends <= num_datasets, "one transfer for all episodes of a trajectory"
    decisions = reads.places.pop("ppo.exceeds_target_kl", 0)
    num_decisions = settings["num_epochs"] - 1 if settings.get("target_kl") else 0
    assert decisions == num_datasets * num_decisions, "one after each pass but the last"
    num_sizes = num_datasets * settings["num_epochs"] if settings.get("use_rnn") else 0
    assert reads.places.pop("graphed_step.start_pass", 0) == num_sizes, "one before each pass"
    assert reads.places == {
        "worker._collect": num_datasets,
        "worker.publish": num_datasets,
        "on_policy.take_metrics": 2 * num_datasets,
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "sac"},
        {"algo": "sac", "exploration_noise": "pink", "n_step": 3, "normalize_input": True},
        {"algo": "td3"},
        {"algo": "dqn"},
    ],
    ids=["sac", "pink noise", "td3", "dqn"],
)
def test_a_step_with_a_replay_reads_once_and_a_series_of_updates_twice(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = "tensor_envs:TensorCartPole-v0" if settings["algo"] == "dqn" else "tensor_envs:make_reach"
    kwargs = {} if settings["algo"] == "dqn" else {"env_kwargs": {"autoreset_mode": "NextStep"}}
    settings = {"batch_size": 32, "updates_per_env_step": 0.5, "warmup_env_steps": 64, **kwargs, **settings}
    num_steps = 0

    def step(group: TensorEnvGroup, actions: Tensor) -> TensorStep:
        nonlocal num_steps
        num_steps += 1
        return original(group, actions)

    original = TensorEnvGroup.step
    monkeypatch.setattr(TensorEnvGroup, "step", step)
    reads, finished = trained(
        monkeypatch, tmp_path, DeviceReplayWorker, ReplayLoop, env, **settings, train_for_env_steps=256
    )
    found = reads.places
    num_rows = found.pop("worker.poll")
    assert num_rows == num_steps and num_rows * 16 >= finished.outcome.env_steps
    assert 0 < found.pop("env_group.record_ends") <= num_rows
    assert found.pop("env_group.step", 0) in (0, num_rows), "of an environment of arrays"
    # The first update is due after 80 steps of 16 environments; in every other row of Reach these are reset.
    num_warm_up = 5 if settings["algo"] == "dqn" else 9
    assert found.pop("worker._act") == num_warm_up, "until the first update actions are drawn on the host"
    num_series = found.pop("worker.publish")
    assert found == {"replay_learner._metrics": num_series} and 0 < num_series <= num_rows


@pytest.mark.parametrize(
    "read",
    [
        Tensor.item,
        Tensor.cpu,
        Tensor.tolist,
        Tensor.numpy,
        bool,
        float,
        lambda x: x[x > 0],
        torch.nonzero,
        torch.unique,
        lambda x: torch.ones(1).repeat_interleave(x.long()),
        lambda x: x.index_put((x > 0,), x),
    ],
)
def test_each_way_to_read_is_found(read: Any) -> None:
    reads = HostReads()
    with reads.looking():
        number = torch.ones(1)
        assert not reads.places
        read(number)
        assert reads.places.total() == 1
        assert torch.randperm(3).cpu().add(1).tolist() is not None
        assert reads.places.total() == 1, "the host's own numbers are free to read"
