"""Evaluates checkpoints of a run, one after the other: asyncrl.evaluate without a start for each of them.

Usage: asyncrl_evaluation.py RESULTS_FILE OPTIONS, the last one JSON: seed, episodes, policies (folders of checkpoints).
Weights and statistics are the checkpoint's.
"""

import json
import sys
from pathlib import Path

import torch
from learning_log import evaluate_all

from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import load_policy


def main() -> int:
    results, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    episodes, seed = options["episodes"], options["seed"]
    torch.set_num_threads(1)  # more only wait for one another over a few observations

    def play(path: str, deterministic: bool) -> float:
        policy = load_policy(path, seed=seed)
        return evaluate(policy, episodes=episodes, seed=seed, deterministic=deterministic).mean_reward

    evaluate_all(results, options["policies"], play)
    return 0


if __name__ == "__main__":
    sys.exit(main())
