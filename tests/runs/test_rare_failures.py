"""Environments that fail now and then: only what fails again in the same way at once is a broken environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 120.0
ENVIRONMENT = '''
import time
import gymnasium, numpy as np
from gymnasium import spaces

class Sometimes(gymnasium.Env):
    """Each second environment fails in `place`; `always` fails in each first step. Episodes have 30 steps.

    `late` fails in each 20th step of an environment, as soon as all have made 300.
    """

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
    num_made = num_steps = 0

    def __init__(self, place="nowhere"):
        Sometimes.num_made += 1
        self.place, self.fails = place, Sometimes.num_made % 2 == 1
        self.enter("making")

    def enter(self, place):
        is_late = self.place == "late" and Sometimes.num_steps > 300
        if (self.place == "always" or is_late) and place == "step" or self.fails and self.place == place:
            raise RuntimeError("lost the simulator")

    def reset(self, *, seed=None, options=None):
        self.enter("reset")
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        Sometimes.num_steps += 1
        if self.place == "late":
            time.sleep(0.004)  # reports come in the meantime
        if self.t == 20 or self.place == "always":
            self.enter("step")
        return np.zeros(1, np.float32), 1.0, False, self.t == 30, {}
'''


def run(tmp_path: Path, command: str, *arguments: str, place: str = "nowhere") -> subprocess.CompletedProcess[str]:
    (tmp_path / "sometimes.py").write_text(ENVIRONMENT)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            f"asyncrl.{command}",
            "--experiment=x",
            f'--env_kwargs={{"place": "{place}"}}',
            *arguments,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def train(tmp_path: Path, *arguments: str, place: str = "nowhere") -> subprocess.CompletedProcess[str]:
    small = ("--num_workers=1", "--num_envs_per_worker=6", "--train_for_env_steps=600", "--with_tensorboard=False")
    settings = ("--env=sometimes:Sometimes", "--rollout=16", "--batch_size=96", *small)
    return run(tmp_path, "train", *settings, *arguments, place=place)


SERIAL = ("--serial_mode=True", "--async_rl=False")


@pytest.mark.parametrize("place", ["step", "reset", "making"])
def test_an_environment_that_fails_before_the_first_episode_is_recreated(tmp_path: Path, place: str) -> None:
    result = train(tmp_path, *SERIAL, place=place)
    assert result.returncode == 0, result.stderr
    shown = result.stdout + result.stderr
    assert shown.count("Traceback (most recent call last)") <= 1


def test_learning_from_a_replay_and_processes_recreate_it_too(tmp_path: Path) -> None:
    result = train(tmp_path, "--algo=dqn", "--warmup_env_steps=200", "--batch_size=32", place="step")
    assert result.returncode == 0, result.stderr
    assert (result.stdout + result.stderr).count("Traceback (most recent call last)") == 1


def test_an_environment_that_always_fails_ends_the_run_with_one_traceback(tmp_path: Path) -> None:
    result = train(tmp_path, *SERIAL, place="always")
    assert result.returncode == 1
    assert (result.stdout + result.stderr).count("Traceback (most recent call last)") == 1


def test_a_traceback_that_a_warning_had_is_not_printed_again_at_the_end(tmp_path: Path) -> None:
    result = train(tmp_path, *SERIAL, "--max_env_failures=100", "--train_for_env_steps=6000", place="late")
    assert result.returncode == 3
    warnings, _, end = result.stderr.partition("error: ")
    assert warnings.count("Traceback (most recent call last)") == 1 and "lost the simulator" in warnings
    assert "(traceback above; logs: " in end and "Traceback (" not in end


def test_evaluations_recreate_the_environment_and_count_what_was_lost(tmp_path: Path) -> None:
    trained = train(tmp_path, *SERIAL)
    assert trained.returncode == 0, trained.stderr
    result = run(tmp_path, "evaluate", "--episodes=6", "--num_envs=3", "--json", place="step")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["episodes"], found["mean_reward"]) == (6, 30.0)
    assert found["lost_episodes"] > 0 and result.stderr.count("Traceback") == 1

    broken = run(tmp_path, "evaluate", "--episodes=6", place="always")
    assert broken.returncode == 1 and broken.stderr.count("lost the simulator") >= 1


def test_evaluations_in_training_continue_after_a_failure(tmp_path: Path) -> None:
    settings = ("--eval_every_env_steps=300", "--eval_episodes=4")
    result = train(tmp_path, *SERIAL, *settings, place="step")
    assert result.returncode == 0, result.stderr
    assert "eval/mean_reward" in (tmp_path / "train_dir/x/metrics.jsonl").read_text()
