"""Stands in for `asyncrl.evaluate`: the mean return is the number of episodes."""

from __future__ import annotations

import json
import sys

if __name__ == "__main__":
    episodes = next(int(flag.partition("=")[2]) for flag in sys.argv if flag.startswith("--episodes="))
    print("an evaluation")
    print(json.dumps({"mean_reward": float(episodes), "ci95": [episodes - 1.0, episodes + 1.0]}))
    sys.stdout.flush()
    print("Exception ignored in: <a library that is torn down>", file=sys.stderr)
