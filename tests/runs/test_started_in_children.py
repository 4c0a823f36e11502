"""Runs that a program starts in its own child processes, whichever way it has made them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from command import HELPERS

SCRIPT = """
import concurrent.futures, multiprocessing
import quick_probe
from asyncrl import TrainConfig, Trainer
from asyncrl.envs import probe

probe.subprocess = quick_probe.SUBPROCESS

def train(name, serial=False, threads=1):
    config = TrainConfig(
        env="CartPole-v1", train_dir="runs", experiment=name, serial_mode=serial, train_for_env_steps=128, rollout=32,
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


def test_forks_of_a_program_may_train_and_evaluate_before_and_after_it_has_trained(tmp_path: Path) -> None:
    calls = [
        ("daemonic", 'in_pool("a", True)', "completed"),
        ("leaves busy threads", 'train("b", True, 2)', "completed"),
        ("fork with busy threads", 'in_executor(train, "c", True, 2)', "completed"),
        ("evaluation", 'in_executor(evaluate_the_policy_of, "b")', "True"),
        ("leaves a fork server", 'train("d")', "completed"),
        ("daemonic fork of one that has trained", 'in_pool("e")', "completed"),
    ]
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT + f'if __name__ == "__main__":\n    print("answers", {", ".join(call for _, call, _ in calls)})\n'
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.rpartition("answers")[2].split()
    assert [(what, answer) for (what, _, _), answer in zip(calls, answers, strict=True)] == [
        (what, answer) for what, _, answer in calls
    ]
