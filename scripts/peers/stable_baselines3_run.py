"""Trains with Stable-Baselines3 for some seconds and records its progress. Runs in a separate virtual environment.

Usage: stable_baselines3_run.py PROGRESS_FILE TRAIN_DIR OPTIONS, the last one JSON: task, env, seconds, num_envs, seed.
Each line of the progress file is one trained dataset: {"time_s": ..., "env_steps": ...}.
"""

import json
import sys
import time
from pathlib import Path

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

DATASET_SIZE = 4096
ENDLESS_STEPS = 10**12


class ProgressWriter(BaseCallback):
    """Writes a line for each trained dataset, and stops after `seconds` from the end of the first."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__()
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._seconds = seconds
        self._first_at: float | None = None

    def _on_rollout_start(self) -> None:
        if self.num_timesteps == 0:
            return
        now = time.monotonic()
        self._first_at = now if self._first_at is None else self._first_at
        self._file.write(json.dumps({"time_s": now, "env_steps": self.num_timesteps}) + "\n")

    def _on_step(self) -> bool:
        return self._first_at is None or time.monotonic() - self._first_at < self._seconds


def make_pong(render_mode: str | None = None) -> gymnasium.Env:
    """Makes the game without Gymnasium's frame skip; each process that does has to register the games first."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5", frameskip=1, render_mode=render_mode)


def main() -> int:
    progress, options = Path(sys.argv[1]), json.loads(sys.argv[3])
    num_envs = options["num_envs"]
    if options["task"] == "Pong":
        games = make_atari_env(make_pong, num_envs, vec_env_cls=SubprocVecEnv)
        envs = VecFrameStack(games, 4)
        settings = {"policy": "CnnPolicy", "batch_size": 256, "n_epochs": 4}
    else:
        envs = SubprocVecEnv([lambda: gymnasium.make(options["env"]) for _ in range(num_envs)])
        settings = {"policy": "MlpPolicy", "batch_size": 1024, "n_epochs": 2, "policy_kwargs": {"net_arch": [64, 64]}}
    model = PPO(
        env=envs,
        n_steps=DATASET_SIZE // num_envs,
        learning_rate=1e-12,
        device="cpu",
        seed=options["seed"],
        **settings,
    )
    model.learn(ENDLESS_STEPS, callback=ProgressWriter(progress, options["seconds"]))
    envs.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
