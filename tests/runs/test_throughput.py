"""The preset for many environments and few, large updates: its values, and a short run of each algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.analysis.records import STEPS, read_records
from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.config.warnings import find_warnings
from asyncrl.modes.choice import find_problems
from asyncrl.run.trainer import Trainer

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_the_preset_trains_with_its_values(algo: str, tmp_path: Path) -> None:
    flags = ["--env=Pendulum-v1", f"--algo={algo}", "--preset=throughput"]
    loaded, machine = load(flags), Machine(cores=2)
    config, plan = loaded.config, resolve(loaded.config, machine)
    assert find_problems(config, plan, machine) == [] and find_warnings(config, plan, loaded.given) == []
    assert 32 <= plan.num_workers * plan.num_envs_per_worker <= 128
    assert (config.updates_per_env_step, config.batch_size, config.policy_delay, config.n_step) == (0.125, 512, 2, 3)
    assert (config.learning_rate, config.tau) == (0.001, 0.01)
    assert algo == "sac" or (config.exploration_stddev, config.exploration_stddev_max) == (0.05, 0.4)
    short = TrainConfig(
        env="Pendulum-v1",
        algo=algo,
        serial_mode=True,
        async_rl=False,
        train_dir=str(tmp_path),
        warmup_env_steps=256,
        train_for_env_steps=896,
        stagger_episodes=False,  # rows after shortened episodes are not environment steps
        with_tensorboard=False,
        quiet=True,
    )
    result = Trainer(short, preset="throughput").run()
    assert result.config.batch_size == 512
    last = read_records(result.folder / "metrics.jsonl")[-1]
    assert (last[STEPS], last["train/n_updates"]) == (896, (896 - 256) / 8)
