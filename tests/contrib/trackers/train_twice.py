"""Trains and resumes a run with a tracker, and prints what the tracker holds; started as a module with arguments.

NAME        of the tracker
SETTINGS    of the run, as JSON
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from monitoring_readers import READERS

from asyncrl import TrainConfig, Trainer
from asyncrl.observers import trackers

FIRST_STEPS, ALL_STEPS = 1000, 2000


def train(name: str, settings: str, env_steps: int) -> None:
    config = TrainConfig(**json.loads(settings), track=[name], train_for_env_steps=env_steps)
    Trainer(config, preset="none").run()
    time.sleep(1.0)  # wandb names the folder of a start by the second, and its service may still write


if __name__ == "__main__":
    # A library is imported within the wait at the end of a short run.
    trackers.Tracker.__init__.__defaults__ = (200.0,)  # type: ignore[misc]
    train(*sys.argv[1:], FIRST_STEPS)
    # As if the run had been killed before its last checkpoint.
    shutil.rmtree(max(Path("train_dir/tracked/checkpoints").glob("checkpoint_*")))
    train(*sys.argv[1:], ALL_STEPS)
    print(json.dumps(READERS[sys.argv[1]]()))
