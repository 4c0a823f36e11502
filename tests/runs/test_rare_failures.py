"""Environments that fail now and then: only what fails again in the same way at once is a broken environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from command import Command

TRACEBACK = "Traceback (most recent call last)"
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


Run = Callable[..., Command]


@pytest.fixture
def run(tmp_path: Path, start: Callable[..., Command]) -> Run:
    """Runs a command to its end, with environments that fail in a place."""
    (tmp_path / "sometimes.py").write_text(ENVIRONMENT)

    def run(command: str, *arguments: str, place: str = "nowhere") -> Finished:
        return Finished(*start(f"asyncrl.{command}", f'--env_kwargs={{"place": "{place}"}}', *arguments).finish())

    return run


class Finished(NamedTuple):
    """How a command has ended."""

    code: int
    out: str
    err: str


SMALL = ("--num_workers=1", "--num_envs_per_worker=6", "--train_for_env_steps=600", "--with_tensorboard=False")
TRAIN = ("train", "--env=sometimes:Sometimes", "--rollout=16", "--batch_size=96", *SMALL)
SERIAL = ("--serial_mode=True", "--async_rl=False")


@pytest.mark.parametrize("place", ["reset", "making"])
def test_an_environment_that_fails_before_the_first_episode_is_recreated(run: Run, place: str) -> None:
    done = run(*TRAIN, *SERIAL, place=place)
    assert done.code == 0, done.err
    assert (done.out + done.err).count(TRACEBACK) <= 1


def test_learning_from_a_replay_and_processes_recreate_it_too(run: Run) -> None:
    done = run(*TRAIN, "--algo=dqn", "--warmup_env_steps=200", "--batch_size=32", place="step")
    assert done.code == 0, done.err
    assert (done.out + done.err).count(TRACEBACK) == 1


def test_a_serial_run_ends_as_others_if_too_many_environments_fail_before_its_first_step(run: Run) -> None:
    done = run(*TRAIN, *SERIAL, "--max_env_failures=0", place="reset")
    assert done.code == 3
    assert "environments of rollout worker 0 failed 1 times" in done.err
    assert (done.out + done.err).count(TRACEBACK) == 1 and "asyncrl/run" not in done.err


def test_an_environment_that_always_fails_ends_the_run_with_one_traceback(run: Run) -> None:
    done = run(*TRAIN, *SERIAL, place="always")
    assert done.code == 1
    assert (done.out + done.err).count(TRACEBACK) == 1


def test_a_traceback_that_a_warning_had_is_not_printed_again_at_the_end(run: Run) -> None:
    done = run(*TRAIN, *SERIAL, "--max_env_failures=40", "--train_for_env_steps=6000", place="late")
    assert done.code == 3
    warnings, _, end = done.err.partition("error: ")
    assert warnings.count(TRACEBACK) == 1 and "lost the simulator" in warnings
    assert "(traceback above; logs: " in end and "Traceback (" not in end


def test_evaluations_recreate_the_environment_and_count_what_was_lost(run: Run, tmp_path: Path) -> None:
    trained = run(*TRAIN, *SERIAL, "--eval_every_env_steps=300", "--eval_episodes=4", place="step")
    assert trained.code == 0, trained.err
    assert "eval/mean_reward" in (tmp_path / "runs/run/metrics.jsonl").read_text()

    done = run("evaluate", "--episodes=6", "--num_envs=3", "--deterministic=False", "--json", place="step")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["episodes"], found["mean_reward"]) == (6, 30.0)
    assert found["lost_episodes"] > 0 and done.err.count("Traceback") == 1

    broken = run("evaluate", "--episodes=6", place="always")
    assert broken.code == 1 and broken.err.count("lost the simulator") >= 1
