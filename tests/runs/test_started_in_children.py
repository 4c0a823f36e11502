"""Runs that a program starts in its own child processes, whichever way it has made them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import concurrent.futures, multiprocessing, os, sys
from asyncrl import TrainConfig, Trainer

def train(name, serial=False, threads=1):
    config = TrainConfig(
        env="CartPole-v1", train_dir="runs", experiment=name, serial_mode=serial, train_for_env_steps=500, rollout=32,
        num_workers=1, num_envs_per_worker=2, batch_size=64, num_batches_per_epoch=1, learner_threads=threads,
    )
    return Trainer(config).run().status

def evaluate_the_policy_of(name):
    from asyncrl import load_policy
    from asyncrl.evaluation.episodes import evaluate
    return str(len(evaluate(load_policy("runs/" + name), episodes=2).returns) == 2)

CONTEXT = multiprocessing.get_context("fork")

def in_pool(*arguments):
    with CONTEXT.Pool(1) as pool:
        return pool.apply(train, arguments)

def in_executor(function, *arguments):
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        return pool.submit(function, *arguments).result()
"""


def run(call: str, cwd: Path) -> list[str]:
    script = cwd / "script.py"
    script.write_text(SCRIPT + f'if __name__ == "__main__":\n    print("answers", {call})\n')
    finished = subprocess.run([sys.executable, str(script)], cwd=cwd, capture_output=True, text=True, timeout=150)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.rpartition("answers")[2].split()


def test_a_daemonic_process_may_train(tmp_path: Path) -> None:
    assert run('in_pool("a")', tmp_path) == ["completed"]


def test_a_fork_of_a_process_that_has_trained_may_train(tmp_path: Path) -> None:
    call = 'train("a"), in_executor(train, "b"), train("c")'
    assert run(call, tmp_path) == ["completed"] * 3


def test_a_daemonic_fork_of_a_process_that_has_trained_may_train(tmp_path: Path) -> None:
    assert run('train("a"), in_pool("b"), in_pool("c")', tmp_path) == ["completed"] * 3


def test_a_fork_of_a_process_with_busy_threads_may_train_and_evaluate(tmp_path: Path) -> None:
    call = 'train("a", True, 2), in_executor(train, "b", True, 2), in_executor(evaluate_the_policy_of, "a")'
    assert run(call, tmp_path) == ["completed", "completed", "True"]
