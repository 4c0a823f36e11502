"""Whole runs of several ranks, under torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from command import PROBE, Command, wait_until

from asyncrl.runtime import checkpoint

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("leaves_nothing")]

SAC = (
    "--env=Pendulum-v1",
    "--algo=sac",
    "--num_workers=1",
    "--num_envs_per_worker=2",
    "--warmup_env_steps=200",
    "--replay_size=2000",
    "--updates_per_env_step=0.5",
    "--batch_size=32",
    "--encoder_mlp_layers=[16]",
    "--learner_threads=1",
    "--save_replay=True",
)


def ranks(num_ranks: int, cwd: Path, *flags: str) -> Command:
    launcher = ("torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", "-m")
    return Command("asyncrl.train", *flags, cwd=cwd, launcher=launcher)


def assert_all_gone(run: Command) -> None:
    """No process of any rank lives; torchrun gives each a session of its own."""
    logs = [path.read_text() for path in run.folder.glob("**/logs/*.log")]
    pids = [int(pid) for log in logs for pid in re.findall(r"started as process (\d+)", log)]
    assert len(pids) > 2
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10.0, "all processes are gone")


def state_of(path: Path) -> dict[str, torch.Tensor]:
    loaded = checkpoint.load(path)
    return {**loaded.model, **loaded.optimizer}


def test_ranks_hold_the_same_weights_and_any_number_of_them_goes_on(tmp_path: Path) -> None:
    run = ranks(2, tmp_path, *SAC, "--train_for_env_steps=1000")
    code, _, errors = run.finish()
    assert code == 0, errors
    (newest,) = checkpoint.newest_first(run.folder / "checkpoints")
    (of_other,) = checkpoint.newest_first(run.folder / "ranks" / "1" / "checkpoints")
    assert newest.name == of_other.name
    first, second = state_of(newest), state_of(of_other)
    own = {"generator", "replay_generator"}
    assert all(torch.equal(first[name], second[name]) for name in first.keys() - own)
    samples = [checkpoint.load(path, with_replay=True).replay for path in (newest, of_other)]
    assert samples[0] is not None and samples[1] is not None
    assert not (samples[0].columns["reward.0"][0][:50] == samples[1].columns["reward.0"][0][:50]).all()
    before = checkpoint.load(newest).state
    assert 1000 <= before["env_steps"] < 1100
    assert before["policy_version"] == pytest.approx(0.5 * (500 - 200), abs=4)  # of each rank's own steps

    for num_ranks, steps in ((3, 1600), (1, 2000)):
        resumed = (
            ranks(num_ranks, tmp_path, f"--train_for_env_steps={steps}")
            if num_ranks > 1
            else Command("asyncrl.train", f"--train_for_env_steps={steps}", cwd=tmp_path)
        )
        code, output, errors = resumed.finish()
        assert code == 0, errors
        assert "going on from" in output
        after = checkpoint.load(checkpoint.newest_first(run.folder / "checkpoints")[0]).state
        assert steps <= after["env_steps"] < steps + 100
        assert after["policy_version"] > before["policy_version"]
        before = after


def test_a_rank_whose_learner_is_killed_ends_the_run_everywhere_by_name(tmp_path: Path) -> None:
    run = ranks(2, tmp_path, *PROBE, "--env=CartPole-v1", "--train_for_env_steps=100000000", "--save_every_s=1")
    wait_until(lambda: bool(checkpoint.newest_first(run.folder / "checkpoints")), 120.0, "a checkpoint")
    log = (run.folder / "ranks" / "1" / "logs" / "learner.log").read_text()
    (pid,) = re.findall(r"started as process (\d+)", log)
    os.kill(int(pid), signal.SIGKILL)
    killed_at = time.monotonic()
    code, _, errors = run.finish()
    assert code != 0
    assert time.monotonic() - killed_at < 60.0
    assert re.search(r"error: rank 1 on \S+ failed: .*learner.*SIGKILL", errors), errors
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert_all_gone(run)


def test_one_rank_that_is_asked_to_stop_stops_all_and_everything_is_saved(tmp_path: Path) -> None:
    run = ranks(2, tmp_path, *PROBE, "--env=CartPole-v1", "--train_for_env_steps=100000000")
    wait_until(lambda: any("train/loss" in record for record in run.records()), 120.0, "training is reported")
    holder = int((run.folder / "ranks" / "1" / ".lock").read_text())
    psutil.Process(holder).send_signal(signal.SIGTERM)
    run.finish()
    summaries = [json.loads((path / "summary.json").read_text()) for path in (run.folder, run.folder / "ranks" / "1")]
    assert_all_gone(run)
    assert [summary["status"] for summary in summaries] == ["interrupted", "interrupted"]
    assert summaries[0]["env_steps"] == summaries[1]["env_steps"] > 0
    assert checkpoint.load(tmp_path / summaries[0]["checkpoint"]).state["env_steps"] == summaries[0]["env_steps"]


def test_a_mistake_is_said_once_and_ends_all_ranks(tmp_path: Path) -> None:
    run = ranks(2, tmp_path, "--env=CartPole-v1", "--backend=hogwild")
    code, _, errors = run.finish()
    assert code != 0
    assert errors.count("--backend=hogwild trains in one machine's memory, not in 2 ranks") == 1
