"""Several ranks, each with an environment of tensors of its own, train one policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Command

from asyncrl.storage import checkpoint

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("leaves_nothing")]

FLAGS = ("--num_envs_per_worker=8", "--encoder_mlp_layers=[16]", "--learner_threads=1")
RUNS: dict[str, tuple[str, ...]] = {
    "ppo": (
        "--env=tensor_envs:TensorCartPole-v0",
        *("--rollout=16", "--batch_size=64", "--num_batches_per_epoch=2", "--num_epochs=2"),
    ),
    "sac": (
        "--env=tensor_envs:make_reach",
        '--env_kwargs={"autoreset_mode": "SameStep"}',
        *("--algo=sac", "--warmup_env_steps=200", "--replay_size=2000", "--updates_per_env_step=0.2"),
        *("--batch_size=32", "--save_replay=True"),
    ),
}


def state_of(path: Path) -> dict[str, Any]:
    loaded = checkpoint.load(path)
    return {**loaded.model, **loaded.optimizer}


@pytest.mark.parametrize("algorithm", RUNS)
def test_two_ranks_collect_for_themselves_and_hold_the_same_weights(algorithm: str, tmp_path: Path) -> None:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    flags = (*RUNS[algorithm], *FLAGS, "--train_for_env_steps=1500")
    run = Command("asyncrl.train", *flags, cwd=tmp_path, launcher=launcher)
    try:
        code, _, errors = run.finish()
    finally:
        run.kill()
    assert code == 0, errors
    folders = (run.folder, run.folder / "ranks" / "1")
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    assert summaries[0]["status"] == summaries[1]["status"] == "completed"
    assert 1500 <= summaries[0]["env_steps"] == summaries[1]["env_steps"] < 1800
    (newest,) = checkpoint.newest_first(run.folder / "checkpoints")
    state = checkpoint.load(newest).state
    if algorithm == "ppo":  # a dataset of each rank for each update
        assert state["policy_version"] == 4 * -(-1500 // (2 * 128))
        return
    (of_other,) = checkpoint.newest_first(folders[1] / "checkpoints")
    first, second = state_of(newest), state_of(of_other)
    own = {"generator", "replay_generator"}
    assert all(torch.equal(first[name], second[name]) for name in first.keys() - own)
    replays = [checkpoint.load(path, with_replay=True).replay for path in (newest, of_other)]
    goals = [replay.columns["obs.0"][0] for replay in replays if replay is not None]
    assert not (goals[0][:50] == goals[1][:50]).any(), "each rank has its own environments"
