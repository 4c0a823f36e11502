"""Times asyncrl's SAC updates alone, sampling from its replay included.

Usage: asyncrl_sac_updates.py OPTIONS, JSON: env, precision, threads, seconds, warm_up_s, seed. Prints one line of JSON:
{"per_s": ...}, updates a second.
"""

import json
import sys
import time

import gymnasium
import torch

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.replay import ReplayStripes, replay_specs
from asyncrl.config.loading import load
from asyncrl.envs.spaces import read_spec
from asyncrl.learner.off_policy import OffPolicyLearner
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.models.sac import SacActor
from asyncrl.models.uniform import UniformPolicy
from asyncrl.rollout.env_group import EnvGroup, StepRows

NUM_RANDOM_STEPS = 5000
UPDATES_AT_ONCE = 16


def main() -> int:
    """Runs the command line."""
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    flags = [
        f"--env={options['env']}",
        "--algo=sac",
        f"--precision={options['precision']}",
        f"--seed={options['seed']}",
    ]
    config = load(flags).config
    env = gymnasium.make(options["env"])
    spec = read_spec(env, options["env"])
    stripes = ReplayStripes(Arena.create(replay_specs(spec, 1, 1, config.replay_size)))
    actor = SacActor(spec, config)
    group, policy = EnvGroup([env], [options["seed"]], 0, spec, squash=True), UniformPolicy(actor.distribution, 0)
    group.reset(stripes.obs_at((0, 0)))
    for row in range(NUM_RANDOM_STEPS):
        stripes.answer((0, row), slice(0, 1), policy.act(stripes.obs_at((0, row))), version=0, now=0.0)
        fields = stripes.rows(0, row)
        rows = StepRows(fields.reward, fields.terminated, fields.truncated, fields.valid, fields.next_obs)
        stripes.publish(0, group.step(stripes.store_action(0, row), rows))
    learner = OffPolicyLearner(actor, config, spec, torch.device("cpu"))
    sampler = ReplaySampler(stripes, config.n_step, config.gamma, config.reward_scale, None, config.seed)
    started, count = time.monotonic(), 0
    while time.monotonic() - started < options["warm_up_s"]:
        learner.train(sampler.sample(UPDATES_AT_ONCE, config.batch_size))
    started = time.monotonic()
    while time.monotonic() - started < options["seconds"]:
        learner.train(sampler.sample(UPDATES_AT_ONCE, config.batch_size))
        count += UPDATES_AT_ONCE
    print(json.dumps({"per_s": count / (time.monotonic() - started)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
