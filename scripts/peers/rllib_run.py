"""Trains bodies with RLlib's APPO for some seconds and records its progress. Runs in a separate virtual environment.

Usage: rllib_run.py PROGRESS_FILE TRAIN_DIR OPTIONS, the last one JSON: task, env, seconds, num_workers,
num_envs_per_worker, seed. Each line of the progress file follows an iteration: {"time_s": ..., "env_steps": ...}.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

DATASET_SIZE = 4096
MINIBATCH_SIZE = 1024


def main() -> int:
    progress, options = Path(sys.argv[1]), json.loads(sys.argv[3])
    ray.init(num_cpus=options["num_workers"] + 1, include_dashboard=False, logging_level="ERROR")
    config = (
        APPOConfig()
        .environment(options["env"])
        .env_runners(
            num_env_runners=options["num_workers"],
            num_envs_per_env_runner=options["num_envs_per_worker"],
            rollout_fragment_length=64,
        )
        .training(
            lr=1e-12,
            train_batch_size_per_learner=DATASET_SIZE,
            minibatch_size=MINIBATCH_SIZE,
            num_epochs=2,
            use_circular_buffer=False,  # each batch is trained on once, not in random order as often as time allows
        )
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=True)
        )
        .learners(num_learners=0)
        .reporting(min_time_s_per_iteration=1)
        .debugging(seed=options["seed"], log_level="ERROR")
    )
    algorithm = config.build_algo()
    first_at = None
    with progress.open("w", encoding="utf-8", buffering=1) as file:
        while first_at is None or time.monotonic() - first_at < options["seconds"]:
            result = algorithm.train()
            now, env_steps = time.monotonic(), result.get("num_env_steps_sampled_lifetime", 0.0)
            if env_steps > 0.0:
                first_at = now if first_at is None else first_at
                file.write(json.dumps({"time_s": now, "env_steps": env_steps}) + "\n")
    algorithm.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
