"""Trains with SBX's CrossQ, which is in JAX, and prints its returns beside those of `--critic=crossq` on a CPU.

    pip install torch==2.13.0 sbx-rl==0.28.0 "gymnasium[mujoco]"
    XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 python scripts/peers/sbx_crossq.py Humanoid-v5 100000

Its critics have the widths that asyncrl's have on a CPU, 512-512. Every 5,000 steps it prints the steps, the seconds,
and the mean return of the last 100 training episodes.
"""

import statistics
import sys
import time

import gymnasium
from sbx import CrossQ
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

EVERY = 5000


class Printer(BaseCallback):
    """Prints the progress."""

    def _on_training_start(self) -> None:
        self._started_at = time.monotonic()

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        if self.num_timesteps % EVERY == 0 and returns:
            seconds = time.monotonic() - self._started_at
            print(f"{self.num_timesteps:,} steps, {seconds:.0f} s, return {statistics.fmean(returns):.0f}", flush=True)
        return True


def main() -> int:
    env_id, steps = sys.argv[1], int(sys.argv[2])
    widths = {"pi": [256, 256], "qf": [512, 512]}
    env = Monitor(gymnasium.make(env_id))
    model = CrossQ("MlpPolicy", env, learning_starts=EVERY, policy_kwargs={"net_arch": widths}, seed=0)
    model.learn(steps, callback=Printer())
    return 0


if __name__ == "__main__":
    sys.exit(main())
