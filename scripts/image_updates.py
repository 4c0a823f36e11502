"""Times updates and acting of PPO on images: microseconds of wall clock for each sample, on one thread or several.

    python scripts/image_updates.py --precision=bf16 --threads=2

It trains Nature's network with the recipe of configs/atari.yaml on a dataset of 4,096 random images that an older
policy acted on, as in asynchronous training, and acts on 32 images at once. No environment takes part.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from asyncrl.config.loading import load
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.processes.memory import keep_freed_memory

NUM_STEPS, NUM_COLUMNS, NUM_ACTIONS = 128, 32, 6
CPU = torch.device("cpu")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    flags = ["--env=ALE/Pong-v5", "--algo=ppo", "--num_workers=1", "--device=cpu", f"--precision={options.precision}"]
    config = load(flags).config
    space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    spec = spec_of_spaces(space, gymnasium.spaces.Discrete(NUM_ACTIONS), config.env, None)
    model = ActorCritic(spec, config)
    learner = OnPolicyLearner(model, config, CPU)
    learner.publication()
    dataset, acted = random_dataset(), 0

    def update() -> None:
        nonlocal acted
        dataset.policy_version.fill_(acted)
        acted = learner.policy_version  # the next dataset is one older than the policy, from the second call on
        for _ in learner.updates(dataset, 0):
            pass
        learner.publication()
        learner.take_metrics()

    images = torch.randint(0, 256, (32, 4 * 84 * 84), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    update_us = 1e6 / (NUM_STEPS * NUM_COLUMNS) * fastest_s(update, options.rounds, 1)
    with torch.inference_mode():
        acting_us = 1e6 / len(images) * fastest_s(lambda: model.act(images, generator), options.rounds, 100)
    print(f"{options.precision}, {options.threads} threads: update {update_us:.0f}, acting {acting_us:.0f} us a sample")
    return 0


def random_dataset() -> Dataset:
    """Images of noise, with actions of a uniform policy."""
    shape = (NUM_STEPS, NUM_COLUMNS)
    nothing = torch.zeros(shape, dtype=torch.bool)
    return Dataset(
        obs=torch.randint(0, 256, (NUM_STEPS + 1, NUM_COLUMNS, 4 * 84 * 84), dtype=torch.uint8),
        rnn_state=torch.zeros(1, NUM_COLUMNS, 0),
        action=torch.randint(0, NUM_ACTIONS, shape),
        action_parameters=torch.log_softmax(torch.zeros(*shape, NUM_ACTIONS), -1),
        log_prob=torch.full(shape, -float(np.log(NUM_ACTIONS))),
        value=torch.zeros(NUM_STEPS + 1, NUM_COLUMNS),
        reward=torch.randn(shape),
        terminated=nothing,
        truncated=nothing,
        valid=~nothing,
        policy_version=torch.zeros(shape, dtype=torch.int64),
    )


def fastest_s(call: Callable[[], Any], rounds: int, count: int) -> float:
    """The shortest mean time of `count` calls over some rounds, after one call, in seconds."""
    call()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - began) / count)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
