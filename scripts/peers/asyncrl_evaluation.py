"""Evaluates checkpoints of a run, one after the other: asyncrl.evaluate without a start for each of them.

Usage: asyncrl_evaluation.py RESULTS_FILE OPTIONS, the last one JSON: seed, episodes, policies (folders of checkpoints).
Actions are drawn; weights and statistics are the checkpoint's.
"""

import json
import sys
from pathlib import Path

import torch
from learning_log import write_evaluation

from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import load_policy


def main() -> int:
    results, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)  # more only wait for one another over a few observations
    for path in options["policies"]:
        policy = load_policy(path, seed=options["seed"])
        result = evaluate(policy, episodes=options["episodes"], seed=options["seed"])
        write_evaluation(results, path, result.mean_reward)
    return 0


if __name__ == "__main__":
    sys.exit(main())
