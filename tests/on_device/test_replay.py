"""A replay on the device gives the learner what a replay in shared memory gives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from small_runs import new_control
from tensor_envs import AsTensors
from tensor_groups import CPU, NUM_ENVS, NumberedSentinel, sentinels, tensor_group

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.replay import ReplayStripes, replay_specs
from asyncrl.config.plan import ReplayPlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import read_spec
from asyncrl.learner.ranks import Ranks
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.return_scale import ReturnScale
from asyncrl.learner.sac import SacLearner
from asyncrl.models.exploration import ActionNoise
from asyncrl.models.factory import make_acting_model
from asyncrl.modes.tensors.replay import DeviceReplay
from asyncrl.modes.tensors.worker import WAIT_S, DeviceReplayWorker
from asyncrl.rollout.vector_env_group import VectorEnvGroup

SPEC = read_spec(NumberedSentinel(0), "Sentinels")
SIZE, NUM_ROWS = 40 * NUM_ENVS, 70
in_each_mode = pytest.mark.parametrize("mode", AutoresetMode)


def actions() -> np.ndarray:
    return np.random.default_rng(0).uniform(-0.6, 0.6, (NUM_ROWS, NUM_ENVS, 2)).astype(np.float32)


def ordinary(mode: AutoresetMode) -> tuple[Any, ReplayStripes]:
    arena = Arena.create(replay_specs(SPEC, 1, NUM_ENVS, SIZE))
    stripes = ReplayStripes(arena)
    group = VectorEnvGroup(sentinels(mode), 7, 0, SPEC, "raw")
    group.reset(stripes.obs_at((0, 0)))
    for row, action in enumerate(actions()):
        stripes.action[0, row % stripes.capacity] = action
        stripes.publish(0, group.step(action, stripes.rows(0, row)))
    return arena, stripes


def worker_of(
    learner: Any, mode: AutoresetMode, num_rows: int, exploration: Any = None
) -> tuple[DeviceReplayWorker, DeviceReplay]:
    """A worker with a replay, which has written as many rows as it may write."""
    replay = DeviceReplay(SPEC, NUM_ENVS, ReplayPlan(SIZE, 1, 1.0, 0.0), CPU)
    limits: Any = SimpleNamespace(may_step=lambda split, row, steps: row < num_rows)
    group = tensor_group(AsTensors(sentinels(mode)))
    worker = DeviceReplayWorker(group, learner, replay, limits, CPU, 0, new_control(), exploration)
    for _ in range(num_rows):
        assert worker.poll() == 0.0
    return worker, replay


def on_device(mode: AutoresetMode, num_rows: int = NUM_ROWS) -> tuple[DeviceReplayWorker, DeviceReplay]:
    scripted = iter(torch.from_numpy(actions()))
    distribution = make_acting_model(SPEC, TrainConfig(algo="sac")).distribution
    act = lambda obs, generator: SimpleNamespace(action=next(scripted))  # noqa: E731
    learner: Any = SimpleNamespace(
        policy_version=1,
        model=SimpleNamespace(training=False, distribution=distribution, layout=SPEC.observation, act=act),
    )
    return worker_of(learner, mode, num_rows)


@in_each_mode
def test_rows_steps_and_transitions_are_those_of_shared_memory(mode: AutoresetMode) -> None:
    (arena, stripes), (worker, replay) = ordinary(mode), on_device(mode)
    assert worker.poll() == WAIT_S, "no further than the learner allows"
    assert replay.num_rows == list(stripes.num_rows) and replay.total_env_steps() == stripes.total_env_steps()
    assert replay.num_held_steps == stripes.num_held_steps
    assert worker.report().env_steps == stripes.total_env_steps()
    for n_step in (1, 3):
        batches = [ReplaySampler(each, n_step, 0.9, 2.0, 1.5, seed=3).sample(4, 64) for each in (stripes, replay)]
        for found, expected in zip(*batches, strict=True):
            assert all(torch.equal(field, other) for field, other in zip(found, expected, strict=True))
    del arena


def test_updates_are_those_with_a_replay_in_shared_memory() -> None:
    replays = ordinary(AutoresetMode.NEXT_STEP), on_device(AutoresetMode.NEXT_STEP)
    config = TrainConfig(algo="sac", batch_size=32, encoder_mlp_layers=[16], precision="float32")
    states = []
    for _, replay in replays:
        learner = SacLearner(make_acting_model(SPEC, config), config, SPEC, CPU)
        sampler = ReplaySampler(replay, 1, 0.99, 1.0, None, seed=0, device=CPU)
        for _ in range(3):
            assert learner.train(sampler.sample(4, 32)) is not None
        states.append(learner.state_dict())
    first, second = states
    assert first.scalars == second.scalars and first.scalars["policy_version"] == 12
    for kind in ("model", "optimizer"):
        tensors, others = getattr(first, kind), getattr(second, kind)
        assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


def test_td3_explores_on_the_device() -> None:
    config = TrainConfig(algo="td3", exploration_stddev=0.2)
    model = make_acting_model(SPEC, config)
    learner: Any = SimpleNamespace(policy_version=1, model=model)
    exploration = ActionNoise(model.distribution, config, 1, NUM_ENVS, seed=0)
    in_training: list[bool] = []
    for module in model.children():
        module.register_forward_hook(lambda module, *_: in_training.append(module.training))
    _, replay = worker_of(learner, AutoresetMode.NEXT_STEP, 30, exploration)
    assert in_training and not any(in_training) and model.training, "dropout of a user's network is off"
    without = model.act(replay.obs[0, :30].flatten(0, 1)).action
    noise = replay.action[0, :30].flatten(0, 1).tanh() - without.tanh()
    assert float(noise.std()) == pytest.approx(0.2, rel=0.2)
    assert (replay.policy_version[0, :30] == 1).all()


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_until_the_first_update_actions_are_drawn_from_the_whole_range(algo: Any) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("neither the policy nor its noise has a part in the warm-up")

    model: Any = make_acting_model(SPEC, TrainConfig(algo=algo))
    model.act = refuse
    learner: Any = SimpleNamespace(policy_version=0, model=model)
    worker, replay = worker_of(learner, AutoresetMode.SAME_STEP, 30, SimpleNamespace(explored=refuse))
    taken = replay.action[0, :30].tanh()
    assert 0.45 < float(taken.abs().mean()) < 0.55 and float(taken.abs().max()) > 0.95
    assert float(taken.mean()) == pytest.approx(0.0, abs=0.1)
    assert (replay.policy_version[0, :30] == 0).all()
    learner.policy_version = 1
    with pytest.raises(AssertionError, match="has a part in the warm-up"):
        worker._act(replay.obs_at((0, 30)))


def test_a_replay_is_saved_and_restored() -> None:
    _, replay = on_device(AutoresetMode.SAME_STEP, 30)
    restored = DeviceReplay(SPEC, NUM_ENVS, ReplayPlan(SIZE, 1, 1.0, 0.0), CPU)
    restored.restore(replay.content())
    assert restored.num_rows == [31], "the open episodes are closed by a row"
    assert restored.total_env_steps() == replay.total_env_steps()
    for name in ("obs", "action", "reward", "terminated"):
        assert torch.equal(getattr(restored, name)[:, :30], getattr(replay, name)[:, :30])
    assert (restored.valid[:, :30] == replay.valid[:, :30]).all() and not restored.valid[:, 30].any()


@in_each_mode
def test_the_deviation_of_returns_is_that_of_a_replay_in_shared_memory_in_one_transfer(
    mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    stripes, replay = ordinary(mode)[1], on_device(mode)[1]
    transfers = []
    stack = torch.stack
    monkeypatch.setattr(torch, "stack", lambda tensors: transfers.append(len(tensors)) or stack(tensors))
    divisors = []
    for each in (stripes, replay):
        scale = ReturnScale(each, None, Ranks())
        scale._next_row = [0]
        scale.update(0.9)
        divisors.append(scale.divisor)
    assert divisors[0] == divisors[1] != 1.0
    assert transfers == [3], "rewards and ends together"
