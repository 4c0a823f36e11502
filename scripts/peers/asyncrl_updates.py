"""Times asyncrl's updates alone: SAC, TD3 or DQN with a replay, A2C or PPO on one rollout, which is always the same.

Usage: asyncrl_updates.py OPTIONS, JSON: env, algo ("sac", "td3", "dqn", "a2c" or "ppo"), storage, precision, threads,
seconds, warm_up_s, seed, perhaps device and compile. Prints one line of JSON: {"per_s": ...}, updates a second; of PPO
samples a second, each of which is used in ten passes over 2,048 of them in minibatches of 64.

The storage "own" means the learner of the actor/learner backend, "shared" that of a single Hogwild worker. An update of
A2C includes the exchange of weights in its backend: the learner publishes after it, the worker pulls before it.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from learning_log import calls_per_s

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.replay import ReplayStripes, replay_specs
from asyncrl.buffers.shared_tensors import ReturnUnits, shared_tensor_specs
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.config.algorithms import imported
from asyncrl.config.loading import load
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import read_spec
from asyncrl.envs.spec import EnvSpec
from asyncrl.inference.acting import make_act
from asyncrl.learner.dataset import Batcher, Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.slot_ledger import Columns
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.factory import make_acting_model
from asyncrl.models.flat import FlatParameters
from asyncrl.models.sizes import shared_sizes
from asyncrl.models.uniform import UniformPolicy
from asyncrl.modes.choice import arena_specs
from asyncrl.modes.hogwild.actor_critic import HogwildActorCritic
from asyncrl.modes.hogwild.storage import Copies, InitialStorage, SharedStorage
from asyncrl.modes.hogwild.worker import OwnActions, PrivateSlot
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.sinks import SlotSink
from asyncrl.rollout.worker import Split

NUM_RANDOM_STEPS = 5000
UPDATES_AT_ONCE = 16
CPU = torch.device("cpu")
REPLAY = ["--encoder_mlp_layers=[256,256]", "--batch_size=256"]
PPO = [
    *("--num_envs_per_worker=1", "--rollout=2048", "--batch_size=64", "--num_batches_per_epoch=32", "--num_epochs=10"),
    *("--encoder_mlp_layers=[64,64]", "--target_kl=none", "--preset=none"),
]


def main() -> int:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    algo, is_shared = options["algo"], options["storage"] == "shared"
    # Both use the preset of Hogwild, so that the rollout and the work are the same.
    flags = [f"--env={options['env']}", f"--algo={'a3c' if algo == 'a2c' else algo}", "--num_workers=1"]
    flags += [f"--device={options.get('device', 'cpu')}", f"--compile={options.get('compile', 'auto')}"]
    flags += {"a2c": [], "ppo": PPO}.get(algo, REPLAY)
    config = load([*flags, f"--precision={options['precision']}", f"--seed={options['seed']}"]).config
    spec = read_spec(gymnasium.make(config.env), config.env)
    make = {"a2c": make_a2c_updates, "ppo": make_ppo_updates}.get(algo, make_replay_updates)
    update, at_once = make(config, spec, is_shared)
    print(json.dumps({"per_s": at_once * calls_per_s(update, options["warm_up_s"], options["seconds"])}))
    return 0


def make_replay_updates(config: TrainConfig, spec: EnvSpec, is_shared: bool) -> tuple[Callable[[], Any], int]:
    """Returns a function that makes updates from a replay of random steps, and how many it makes per call."""
    stripes = ReplayStripes(Arena.create(replay_specs(spec, 1, 1, config.replay_size)))
    model = make_acting_model(spec, config)
    env = gymnasium.make(config.env)
    group, policy = EnvGroup([env], [config.seed], 0, spec, mapping="squashed"), UniformPolicy(model.distribution, 0)
    group.reset(stripes.obs_at((0, 0)))
    for row in range(NUM_RANDOM_STEPS):
        stripes.answer((0, row), slice(0, 1), policy.act(stripes.obs_at((0, row))), version=0, now=0.0)
        stripes.publish(0, group.step(stripes.store_action(0, row), stripes.rows(0, row)))
    storage, make_learner = ParameterStore(), imported(config.algorithm.make_learner)
    if is_shared:
        arena = shared_arena(spec, config, lambda begun: make_learner(model, config, spec, CPU, begun))
        storage = SharedStorage(arena, owner=1)
    device = torch.device(config.device)
    learner = make_learner(model, config, spec, device, storage)
    sampler = ReplaySampler(stripes, config.n_step, config.gamma, config.reward_scale, None, config.seed, device)
    return lambda: learner.train(sampler.sample(UPDATES_AT_ONCE, config.batch_size)), UPDATES_AT_ONCE


def make_a2c_updates(config: TrainConfig, spec: EnvSpec, is_shared: bool) -> tuple[Callable[[], Any], int]:
    """Returns a function that makes one update from a rollout of a new policy, and 1."""
    whole = {"num_epochs": 1, "num_batches_per_epoch": 1, "shuffle_minibatches": False}
    # No sample is older than the last publication, so no older policy is kept.
    once = config.model_copy(update={**whole, "max_policy_lag": 0})
    dataset, model = collect(config, spec), ActorCritic(spec, config)
    if is_shared:
        arena = shared_arena(spec, config, lambda begun: OnPolicyLearner(model, once, CPU, begun))
        storage, units = SharedStorage(arena, owner=1, copies=Copies.PULLED), ReturnUnits(arena)
        units.values[:] = [0.0, 1.0]
        hogwild = HogwildActorCritic(model, once, storage, units)

        def update_shared() -> None:
            hogwild.begin()
            dataset.policy_version.fill_(hogwild.policy_version)
            for _ in hogwild.updates(dataset, 0):
                pass

        return update_shared, 1
    learner = OnPolicyLearner(model, once, CPU)
    block = learner.publication()

    def update() -> None:
        dataset.policy_version.fill_(learner.policy_version)
        for progress in learner.updates(dataset, 0):
            if progress.ends_pass:
                learner.publication(block)

    return update, 1


def make_ppo_updates(config: TrainConfig, spec: EnvSpec, is_shared: bool) -> tuple[Callable[[], Any], int]:
    """Returns a function that trains on one dataset, and the number of its samples."""
    device = torch.device(config.device)
    collected = collect(config, spec)
    fields = {field.name: getattr(collected, field.name) for field in dataclasses.fields(collected)}
    dataset = Dataset(**{name: each.to(device) if torch.is_tensor(each) else each for name, each in fields.items()})
    # No sample is older than the last publication, so no older policy is kept.
    learner = OnPolicyLearner(ActorCritic(spec, config), config.model_copy(update={"max_policy_lag": 0}), device)
    block = learner.publication()

    def update() -> None:
        dataset.policy_version.fill_(learner.policy_version)
        for _ in learner.updates(dataset, 0):
            pass
        learner.publication(block)
        learner.take_metrics()

    return update, config.batch_size * config.num_batches_per_epoch


def collect(config: TrainConfig, spec: EnvSpec) -> Dataset:
    """Collects one rollout as a Hogwild worker does."""
    plan = resolve(config).for_one_worker
    slots = TrajectorySlots(Arena.create(arena_specs(spec, plan, num_weights=1)))
    slots.reset()
    model = ActorCritic(spec, config)
    FlatParameters(model)
    actions = OwnActions(make_act(model, CPU, config.seed), slots, lambda: 0)
    envs = [gymnasium.make(config.env) for _ in range(plan.num_envs_per_worker)]
    group = EnvGroup(envs, list(range(len(envs))), 0, spec, mapping="raw")
    split = Split(0, group, SlotSink(0, group, slots, PrivateSlot(slots)), actions)
    split.begin()
    while split.place is not None:
        split.advance()
    slots.take(0)
    return Batcher(slots, slots.num_envs).collect([Columns(0, 0, slots.num_envs, is_last=True)])


def shared_arena(spec: EnvSpec, config: TrainConfig, begin: Callable[[ParameterStore], object]) -> Arena:
    """The shared tensors of a Hogwild run with one worker; `begin` makes a learner, whose weights they get."""
    sizes = shared_sizes(spec, config)
    arena = Arena.create(shared_tensor_specs(sizes.tensors, sizes.moments, num_workers=1))
    begin(InitialStorage(arena))
    return arena


if __name__ == "__main__":
    sys.exit(main())
