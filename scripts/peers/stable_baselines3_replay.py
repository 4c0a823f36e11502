"""Times Stable-Baselines3's SAC, TD3 or DQN: updates alone, or training at one update a step, in a virtual environment.

Usage: stable_baselines3_replay.py OPTIONS, JSON: env, algo, what ("updates" or "run"), threads, seconds, warm_up_s,
seed. Prints one line of JSON: {"per_s": ...}, updates or environment steps a second.
"""

import functools
import json
import sys
import time

import gymnasium
import torch
from learning_log import calls_per_s
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback

NUM_RANDOM_STEPS = 5000
ALGORITHMS = {"sac": SAC, "td3": TD3, "dqn": DQN}


class Stopwatch(BaseCallback):
    """Counts steps from the end of a warm-up, which begins with the first update, and stops after a time."""

    def __init__(self, warm_up_s: float, seconds: float) -> None:
        super().__init__()
        self._warm_up_s, self._seconds = warm_up_s, seconds
        self._began_at: float | None = None
        self._first: tuple[float, int] | None = None
        self.per_s = 0.0

    def _on_step(self) -> bool:
        if self.num_timesteps <= NUM_RANDOM_STEPS:
            return True
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
        if now - self._began_at < self._warm_up_s:
            return True
        if self._first is None:
            self._first = (now, self.num_timesteps)
        if now - self._first[0] < self._seconds:
            return True
        self.per_s = (self.num_timesteps - self._first[1]) / (now - self._first[0])
        return False


def main() -> int:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    model = ALGORITHMS[options["algo"]](
        "MlpPolicy",
        gymnasium.make(options["env"]),
        policy_kwargs={"net_arch": [256, 256]},
        learning_starts=NUM_RANDOM_STEPS,
        device="cpu",
        seed=options["seed"],
    )
    if options["what"] == "run":
        stopwatch = Stopwatch(options["warm_up_s"], options["seconds"])
        model.learn(10**9, callback=stopwatch)
        print(json.dumps({"per_s": stopwatch.per_s}))
        return 0
    model.learn(NUM_RANDOM_STEPS)
    train = functools.partial(model.train, gradient_steps=50, batch_size=256)
    print(json.dumps({"per_s": 50 * calls_per_s(train, options["warm_up_s"], options["seconds"])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
