"""Stands in for `asyncrl train` and `asyncrl evaluate`: writes the files of a run without training.

The return of an evaluation is learning_rate times the steps. `track_project` says how the run behaves: `fails`,
`fails_once`, `fails_at_once` (the first time, before it opens its folder), `refuses` (as for a user's mistake), `slow`,
`prunes` (a callback raises `optuna.TrialPruned`), or anything else to do well.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TextIO

from asyncrl.config.loading import load
from asyncrl.storage.run_folder import RunFolder, find_saved_config


def train(arguments: list[str], log: TextIO) -> int:
    config = load(arguments, find_saved=find_saved_config).config
    assert config.experiment is not None
    has_failed = Path(config.train_dir) / "has_failed"
    if config.track_project == "fails_at_once" and not has_failed.exists():
        has_failed.touch()
        print("error: something broke", file=log)
        return 1
    with RunFolder.create(config.train_dir, config.experiment, config.restart_behavior) as folder:
        starts = folder.path / "starts"
        num_starts = len(starts.read_text()) if starts.exists() else 0
        starts.write_text("x" * (num_starts + 1))
        folder.forget_after(-1)
        folder.write_config(config)
        behaviour = config.track_project
        if behaviour == "refuses":
            print("error: these settings are not possible", file=log)
            return 2
        if behaviour == "fails" or (behaviour == "fails_once" and num_starts == 0):
            print("error: something broke", file=log)
            return 1
        total = config.train_for_env_steps
        every = config.eval_every_env_steps or total
        status, steps = "completed", 0
        try:
            for steps in range(every, total + 1, every):
                value = steps * config.learning_rate
                record = {"env_steps": steps, "eval/mean_reward": value, "time/time_elapsed": steps / 100}
                record["rollout/ep_rew_mean"] = steps / 10
                with folder.metrics.open("a") as metrics:
                    metrics.write(json.dumps(record) + "\n")
                if behaviour == "prunes":
                    status = "stopped"
                    break
                if behaviour == "slow":
                    time.sleep(0.2)
        except KeyboardInterrupt:
            status = "interrupted"
        summary = {"status": status, "env_steps": steps, "ep_rew_mean": steps / 10 + config.seed, "fps": 100.0}
        error = "pruned: of my own" if status == "stopped" else None
        folder.summary.write_text(json.dumps({**summary, "wall_s": steps / 100, "error": error}))
    return 130 if status == "interrupted" else 0


def evaluate(arguments: list[str], log: TextIO) -> int:
    """The mean return is the number of episodes."""
    episodes = next(float(flag.partition("=")[2]) for flag in arguments if flag.startswith("--episodes="))
    result = json.dumps({"mean_reward": episodes, "ci95": [episodes - 1.0, episodes + 1.0]})
    print("an evaluation", result, "Exception ignored in: <a library that is torn down>", sep="\n", file=log)
    return 0


if __name__ == "__main__":
    sys.exit(train(sys.argv[1:], sys.stderr))
