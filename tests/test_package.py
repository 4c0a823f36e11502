"""What `import asyncrl` costs and gives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import asyncrl
from asyncrl.observers.summary import Summary

ROOT = Path(asyncrl.__file__).parents[1]


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, asyncrl; print(sorted({'torch', 'gymnasium', 'numpy', 'pydantic'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"


@pytest.mark.parametrize(
    "statement",
    [
        "import asyncrl.train",
        "from asyncrl import Observer, TrainConfig, Trainer",
        "from asyncrl import Trainer",
        "import asyncrl; asyncrl.TrainConfig; asyncrl.ProgressBar",
        "from asyncrl.commands.main import main; import asyncrl.train",
    ],
)
def test_numpy_is_imported_with_one_thread_wherever_a_run_begins(statement: str) -> None:
    code = f"""
import os, sys
class Sees:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print(os.environ.get("OPENBLAS_NUM_THREADS"))
sys.meta_path.insert(0, Sees())
{statement}
"""
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env).stdout
    assert shown == "1\n"


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert f'\nversion = "{asyncrl.__version__}"\n' in project
    assert citation["version"] == asyncrl.__version__


def test_the_workflows_are_yaml_and_start_what_is_there() -> None:
    workflows = sorted((ROOT / ".github").rglob("*.yml"))
    assert len(workflows) >= 6 and all(map(yaml.safe_load, map(Path.read_text, workflows)))
    started = set(re.findall(r"scripts/[\w.]+", "".join(map(Path.read_text, workflows))))
    assert started and all((ROOT / name).exists() for name in started)


def test_every_name_that_is_exported_is_there_and_no_other() -> None:
    assert all(callable(getattr(asyncrl, name)) for name in asyncrl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'register_everything'"):
        asyncrl.register_everything  # noqa: B018
    assert dir(asyncrl) == sorted([*asyncrl.__all__, "__version__"])


def test_the_class_of_an_algorithm_is_answered_with_the_settings_that_train_it() -> None:
    for name in ("PPO", "A2C", "A3C", "SAC", "TD3", "DQN"):
        run = f'Trainer(TrainConfig(env=..., algo="{name.lower()}")).run()'
        with pytest.raises(AttributeError, match=re.escape(f"asyncrl has no {name} class: {run}")):
            getattr(asyncrl, name)
    assert not hasattr(asyncrl, "TRPO") and not hasattr(asyncrl, "ppo")


def test_settings_and_results_are_shown_in_one_line() -> None:
    config = asyncrl.TrainConfig(env="CartPole-v1", gamma=0.9, num_workers="auto", encoder_mlp_layers=[64, 64])
    assert repr(config) == "TrainConfig(env='CartPole-v1', gamma=0.9)"
    assert repr(asyncrl.TrainConfig()) == "TrainConfig()"
    summary = Summary("interrupted", env_steps=20_480, ep_rew_mean=123.44)
    assert (
        repr(asyncrl.RunResult(summary, config, Path("train_dir/run")))
        == "RunResult(interrupted, train_dir/run, 20,480 steps, return 123.4)"
    )
    assert "return unknown" in repr(asyncrl.RunResult(Summary("failed"), config, Path("run")))
