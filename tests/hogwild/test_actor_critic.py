"""What a Hogwild worker acts and learns with: one version for a rollout, fitting units, and gradients of its own."""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import vector_observation
from small_runs import BOX, CHOICE

from asyncrl.algorithms.losses import gae
from asyncrl.algorithms.ppo import ppo_loss
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.shared_tensors import ReturnUnits, SharedMoments, SharedTensor
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import FlatAdam, ParameterStore, clip_gradient
from asyncrl.learner.sac import SacLearner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters
from asyncrl.models.sac import SacActor
from asyncrl.models.sizes import trained_sizes
from asyncrl.modes.hogwild import roles as hogwild_roles
from asyncrl.modes.hogwild.actor_critic import HogwildActorCritic
from asyncrl.modes.hogwild.parameter_server import ParameterServer
from asyncrl.modes.hogwild.roles import HogwildRoles, build_parameter_server
from asyncrl.modes.hogwild.storage import Copies
from asyncrl.observers.reports import PhaseTimer
from asyncrl.run.setup import RunSetup
from asyncrl.storage import checkpoint

ENV = "probe_envs:EndlessReward-v0"
SETTINGS: dict[str, Any] = {
    "env": ENV,
    "env_kwargs": {"terminates": False},
    "algo": "a2c",
    "backend": "hogwild",
    "num_workers": 2,
    "num_envs_per_worker": 3,
    "rollout": 4,
    "encoder_mlp_layers": [8],
    "learning_rate": 0.01,
    "num_epochs": 1,
}
PROBE = EnvSpec(ENV, vector_observation(2), CHOICE.action.__class__(2, 0), None)


class Pair:
    """A server and two workers in one process."""

    def __init__(self, hyperparameters: Hyperparameters | None = None, **settings: Any) -> None:
        config = TrainConfig(**{**SETTINGS, **settings})
        plan = resolve(config, Machine(cores=2))
        self.setup = RunSetup.create(config, plan, PROBE, Path("unused"), hyperparameters=hyperparameters)
        self.wakers = [Waker() for _ in range(3)]
        self.server: ParameterServer = build_parameter_server(self.setup, self.wakers[0], self.wakers[1:], PhaseTimer())
        self.workers = [self.new_worker(idx) for idx in range(2)]
        self.shared = SharedTensor(self.setup.arena, "critic" if config.is_off_policy else "model")
        if not config.is_off_policy:
            self.shared.value += np.linspace(-0.5, 0.5, len(self.shared.value))  # a new critic says 0 everywhere
            self.server._publish()

    def new_worker(self, worker_idx: int, **changes: Any) -> Any:
        """A worker, of the setup with these changes."""
        setup = dataclasses.replace(self.setup, **changes)
        return HogwildRoles().worker(setup, worker_idx, self.wakers[:1], None)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        for waker in self.wakers:
            waker.close()
        self.setup.arena.close()


def pair_in(mode: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Pair:
    """A pair in a mode; "shared, copied" is what workers do whose networks are on another device."""
    mode, _, is_copied = mode.partition(", ")
    if is_copied:
        monkeypatch.setattr(hogwild_roles, "_copies_on", lambda device: Copies.FOLLOWING)
    return Pair(hogwild_mode=mode, **settings)


@pytest.fixture(params=["shared", "shared, copied", "synced"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """In each mode in which workers step."""
    found = pair_in(request.param, monkeypatch)
    yield found
    found.close()


def versions_of(worker: Any) -> set[float]:
    """What the first weight was at each row of the worker's next rollout."""
    seen = set()
    request = worker._split.actions.request

    def looking_request(*args: Any) -> None:
        seen.add(float(worker._learner.model.heads[0][0].detach()[0, 0]))
        request(*args)

    worker._split.actions.request = looking_request
    worker.poll()
    worker._split.actions.request = request
    return seen


def test_a_synced_rollout_is_of_one_version_though_others_step_and_a_shared_one_is_not() -> None:
    for mode, expected in (("synced", 1), ("shared", 5)):
        pair = Pair(hogwild_mode=mode)
        first, second = pair.workers
        step = first._split.group.step

        def step_while_the_other_learns(*args: Any, step: Any = step, second: Any = second) -> int:
            second.poll()
            return step(*args)

        first._split.group.step = step_while_the_other_learns
        assert len(versions_of(first)) == expected
        pair.close()


def test_both_workers_step_the_same_parameters_and_count_their_own_steps(pair: Pair) -> None:
    before = pair.shared.value.copy()
    for _ in range(3):
        pair.workers[0].poll()
    pair.workers[1].poll()
    assert list(pair.shared.steps) == [0, 3, 1]
    assert not np.array_equal(before, pair.shared.value)
    assert pair.server._num_updates == 0  # at the last look
    assert pair.server.state().scalars["policy_version"] == 4
    assert pair.server.env_steps == sum(pair.setup.control.collected_steps(worker) for worker in range(2)) > 0


@pytest.mark.parametrize("mode", ["shared", "synced", "gradients"])
def test_gradients_do_not_add_up_from_one_update_to_the_next(mode: str) -> None:
    still: dict[str, Any] = {"normalize_input": False, "normalize_returns": False, "max_grad_norm": 0.0}
    pair = Pair(hogwild_mode=mode, learning_rate=0.0, num_gradients_to_combine=1, **still)
    worker, datasets = pair.workers[0], []
    collect = worker._batcher.collect

    def collect_the_first(columns: Any) -> Any:
        datasets.append(copy.deepcopy(collect(columns)))  # the batcher takes its memory again
        datasets[0].policy_version.fill_(worker._learner.policy_version)
        return datasets[0]

    worker._batcher.collect = collect_the_first
    norms = []
    for _ in range(5):
        worker.poll()
        norms.append(worker._trained[-1].grad_norm)
        pair.server.train_once(0.0)
    assert norms == pytest.approx([norms[0]] * 5, rel=1e-5)
    assert norms[0] > 0.0
    pair.close()


def test_the_learning_rate_and_the_end_follow_the_steps_of_all() -> None:
    scheduled = Pair(lr_schedule="linear_decay", train_for_env_steps=100)
    for _ in range(4):
        scheduled.workers[1].poll()
    made = scheduled.server.env_steps
    scheduled.workers[0].poll()
    collected = scheduled.server.env_steps
    rate = scheduled.workers[0]._trained[-1].learning_rate
    assert made > 30
    assert rate == pytest.approx(0.01 * (1 - collected / 100))
    while scheduled.server.has_more_to_learn:
        scheduled.workers[0].poll()
    assert scheduled.workers[1].poll() > 0.0
    scheduled.close()


def test_new_units_of_returns_change_no_value_and_reach_the_workers(pair: Pair) -> None:
    pair.workers[0].poll()
    worker = pair.workers[1]
    obs = torch.tensor([[1.0, 0.0], [0.0, 0.0]])

    def values() -> torch.Tensor:
        worker._learner.begin()
        return values_of(worker, obs)

    pair.setup.arena.array("moments.return.values")[1] = [100.0, 7.0, 9.0]  # count, mean, variance
    before, units = values(), ReturnUnits(pair.setup.arena).values.copy()
    pair.server._refresh()
    after = values()
    assert ReturnUnits(pair.setup.arena).values == pytest.approx([7.0, 3.0], rel=1e-4)
    assert not np.allclose(units, [7.0, 3.0])
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["shared", "synced", "gradients"])
def test_the_server_finds_the_returns_of_a_rollout_in_the_statistics_of_all(mode: str) -> None:
    pair = Pair(hogwild_mode=mode)
    worker, server, datasets = pair.workers[0], pair.server, []
    collect = worker._batcher.collect

    def noting_collect(columns: Any) -> Any:
        datasets.append(copy.deepcopy(collect(columns)))  # the batcher takes its memory again
        return datasets[-1]

    worker._batcher.collect = noting_collect
    worker.poll()
    server._refresh()
    (rollout,), config, moments = datasets, pair.setup.config, server._learner._statistics.return_moments
    ends = rollout.terminated, rollout.truncated, rollout.valid
    returns = gae(rollout.reward, rollout.value, *ends, config.gamma, config.gae_lambda).returns[rollout.valid].double()
    assert moments.count == rollout.num_valid == len(returns) > 0
    torch.testing.assert_close(moments.mean, returns.mean().view(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moments.variance, returns.var(correction=0).view(1), rtol=1e-5, atol=1e-5)
    pair.close()


def move_units_at_each_step(pair: Pair, worker: Any) -> None:
    """The server finds other returns, and rescales the critic, while the worker collects."""
    step = worker._split.group.step
    returns = SharedMoments(pair.setup.arena, "return")
    count = 0

    def step_while_units_move(*args: Any) -> int:
        nonlocal count
        count += 1
        returns.write(0, 1_000_000, np.array([float(count)]), np.array([10.0 ** (count % 3)]))
        pair.server._refresh()
        return step(*args)

    worker._split.group.step = step_while_units_move


@pytest.mark.parametrize("mode", ["shared", "shared, copied", "synced", "gradients"])
def test_all_rows_are_trained_or_reported_as_dropped_though_returns_move(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pair_in(mode, monkeypatch, num_gradients_to_combine=1)
    num_trained = 0
    updates = HogwildActorCritic.updates

    def counting_updates(learner: HogwildActorCritic, dataset: Dataset, *args: Any, **kwargs: Any) -> Any:
        nonlocal num_trained
        num_trained += dataset.num_valid
        return updates(learner, dataset, *args, **kwargs)

    monkeypatch.setattr(HogwildActorCritic, "updates", counting_updates)
    for worker in pair.workers:
        move_units_at_each_step(pair, worker)
    for _ in range(5):
        for worker in pair.workers:
            worker.poll()
        pair.server.train_once(0.0)
    dropped = sum(worker.report().failures.num_dropped for worker in pair.workers)
    assert dropped == 0
    assert num_trained == pair.server.env_steps > 0
    pair.close()


def values_of(worker: Any, obs: torch.Tensor) -> torch.Tensor:
    """What the worker's network says of observations, in units of rewards."""
    model = worker._learner.model
    return model.denormalize_value(model(model.normalize_obs(obs)).normalized_value).detach().clone()


def test_values_in_a_slot_and_what_is_learned_from_them_fit_units_that_move_meanwhile(pair: Pair) -> None:
    still, moving = pair.workers
    obs = torch.tensor([[1.0, 0.0], [0.0, 0.0]])  # EndlessReward shows nothing else
    still._learner.begin()
    before = values_of(still, obs)
    assert (before.abs() > 0.1).all()
    move_units_at_each_step(pair, moving)
    calls: list[Any] = []
    updates = moving._learner.updates

    def looking_updates(*args: Any, **kwargs: Any) -> Any:
        shows_reset = torch.from_numpy(moving._slots.obs[0][..., 0] == 1.0)
        in_slot = torch.from_numpy(moving._slots.value[0])
        expected = torch.where(shows_reset, before[0], before[1])
        torch.testing.assert_close(in_slot, expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(values_of(moving, obs), before, rtol=1e-3, atol=1e-3)
        assert float(moving._learner.model.return_std) == ReturnUnits(pair.setup.arena).values[1]
        calls.append(args)
        return updates(*args, **kwargs)

    moving._learner.updates = looking_updates
    moving.poll()
    assert len(calls) == 1


def test_the_steps_of_a_worker_that_died_are_reported_as_dropped_by_its_successor() -> None:
    pair = Pair()
    pair.workers[0].poll()
    pair.setup.control.count_steps(0, 7)  # of a rollout that it does not finish
    successor = pair.new_worker(0)
    assert successor.report().failures.num_dropped == 7
    third = pair.new_worker(0)
    assert third.report().failures.num_dropped == 0
    for each in (successor, third):
        each.close()
    pair.close()


def test_a_rollout_that_the_end_of_the_run_interrupts_is_dropped_and_reported() -> None:
    pair = Pair(rollout=50)
    worker = pair.workers[0]
    step, rows_before_the_end = worker._split.group.step, 3

    def last_steps(actions: Any, rows: Any) -> int:
        nonlocal rows_before_the_end
        rows_before_the_end -= 1
        pair.setup.control.ended = rows_before_the_end == 0
        return step(actions, rows)

    worker._split.group.step = last_steps
    before = pair.shared.value.copy()
    worker.poll()
    assert worker.report().failures.num_dropped == worker._control.collected_steps(0) == 9
    assert np.array_equal(before, pair.shared.value)
    pair.close()


def test_each_step_of_ppo_is_a_turn_so_long_training_is_no_hang() -> None:
    pair = Pair(algo="ppo", hogwild_mode="synced", num_epochs=5, rollout=8, batch_size=12)
    worker, progress = pair.workers[0], pair.setup.control.progress
    seen = []
    updates = worker._learner.updates

    def watched(*args: Any) -> Any:
        for each in updates(*args):
            seen.append(progress(0))
            yield each

    worker._learner.updates = watched
    worker.poll()
    assert len(seen) == 10 and np.all(np.diff(seen) > 0)
    pair.close()


@pytest.mark.parametrize(("mode", "algo"), [("gradients", "a2c"), ("gradients", "ppo"), ("synced", "a2c")])
def test_workers_finish_when_the_run_ends_before_its_steps(mode: str, algo: str) -> None:
    combined = {"num_gradients_to_combine": 1} if mode == "gradients" else {}
    pair = Pair(hogwild_mode=mode, train_for_env_steps=10**9, **combined, **(PPO if algo == "ppo" else {}))
    pair.server._flush_s = 30.0
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            for worker in pair.workers:
                worker.poll()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(5):
        pair.server.train_once(0.01)
    began = time.monotonic()
    pair.server.flush()
    assert time.monotonic() - began < 20.0
    assert pair.server._clock.have_all_finished
    num_steps = pair.shared.num_steps
    time.sleep(0.1)
    is_over.set()
    thread.join()
    assert pair.shared.num_steps == num_steps, "what is saved after the end is the end"
    assert mode != "gradients" or pair.server._combiner._places.ready_places() == []
    assert all(worker._updates is None for worker in pair.workers), "a rollout was not trained on in all passes"
    pair.close()


def test_networks_act_in_evaluation_mode_and_learn_in_training_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.models.actor_critic.has_perceptron", lambda encoder: False)
    pair = Pair()
    worker, modes = pair.workers[0], []
    model = worker._learner.model
    model.actor.register_forward_pre_hook(lambda layers, _: modes.append(layers.training))
    worker.poll()
    assert modes[:4] == [False] * 4 and modes[-1] and modes == sorted(modes)
    assert model.training and model.actor.training
    pair.close()


def test_gradients_that_are_too_few_for_a_step_make_one_at_the_end() -> None:
    pair = Pair(hogwild_mode="gradients", num_gradients_to_combine=2)
    for _ in range(2):
        pair.workers[0].poll()
    pair.workers[1].poll()
    for worker in pair.workers:
        worker._clock.finish(worker.worker_idx)
    pair.server.flush()
    assert pair.shared.num_steps == 2
    assert pair.server._combiner._places.ready_places() == []
    pair.close()


def test_what_is_not_finite_never_reaches_the_shared_parameters(pair: Pair) -> None:
    worker = pair.workers[0]
    step = worker._split.group.step

    def step_to_infinity(actions: Any, rows: Any) -> int:
        num_steps = step(actions, rows)
        rows.reward[:] = np.inf
        return num_steps

    worker._split.group.step = step_to_infinity
    before = pair.shared.value.copy()
    worker.poll()
    assert np.array_equal(before, pair.shared.value)
    assert pair.shared.num_steps == 0
    assert worker.report().skipped_steps == 1
    assert np.isfinite(pair.setup.arena.array("moments.return.values")).all()


def test_the_parameter_server_of_a_resumed_run_changes_no_value(tmp_path: Path, pair: Pair) -> None:
    pair.setup.arena.array("moments.return.values")[1] = [100.0, 7.0, 9.0]
    pair.server._refresh()
    state = pair.server.state()
    content = checkpoint.Checkpoint(
        state.model, state.optimizer, {**state.scalars, "config": pair.setup.config.model_dump()}
    )
    path = checkpoint.save(tmp_path, content, 0, keep=1)
    obs = torch.tensor([[1.0, 0.0], [0.0, 0.0]])

    def values(setup: RunSetup) -> torch.Tensor:
        model = ActorCritic(PROBE, setup.config)
        model.load_state_dict(dict(state.model))
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        shared = torch.from_numpy(SharedTensor(setup.arena, "model").value)
        torch.testing.assert_close(flat, shared)
        return model.denormalize_value(model(obs).normalized_value)

    resumed = RunSetup.create(pair.setup.config, pair.setup.plan, PROBE, Path("unused"), path)
    waker = Waker()
    build_parameter_server(resumed, waker, [], PhaseTimer())
    torch.testing.assert_close(values(resumed), values(pair.setup))
    assert ReturnUnits(resumed.arena).values == pytest.approx([7.0, 3.0], rel=1e-4)
    waker.close()
    resumed.arena.close()


def test_the_end_is_saved_after_workers_have_nothing_in_hand() -> None:
    pair = Pair(train_for_env_steps=12)
    pair.server._flush_s = 30.0
    first, slow = pair.workers
    step, has_begun = slow._split.group.step, threading.Event()

    def step_slowly(actions: Any, rows: Any) -> int:
        has_begun.set()
        time.sleep(0.1)
        return step(actions, rows)

    slow._split.group.step = step_slowly

    def work() -> None:
        while slow.poll() == 0.0:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    has_begun.wait()
    while first.poll() == 0.0:
        pass
    pair.server.flush()
    assert pair.server.env_steps == 24
    report = pair.server.take_report()
    assert report.num_updates == sum(pair.shared.steps) == 2
    assert WeightsChannel(pair.setup.arena).newest.env_steps == pair.server.env_steps
    thread.join()
    pair.close()


def test_combined_gradients_make_one_step_of_the_server_which_workers_pull() -> None:
    pair = Pair(hogwild_mode="gradients", num_gradients_to_combine=2, normalize_returns=False)
    before = pair.shared.value.copy()
    first, second = pair.workers
    first.poll()
    pair.server.train_once(0.0)
    assert np.array_equal(before, pair.shared.value)  # one is not enough
    second.poll()
    assert np.array_equal(before, pair.shared.value)  # and workers step nothing
    pair.server.train_once(0.0)
    assert not np.array_equal(before, pair.shared.value)
    assert list(pair.shared.steps) == [1, 0, 0]
    first._learner.begin()
    assert first._learner.policy_version == 1
    np.testing.assert_array_equal(first._learner._flat.data.numpy(), pair.shared.value)
    for _ in range(2):
        assert first.poll() == 0.0
    assert first.poll() > 0.0  # two of its own are under way
    pair.close()


@pytest.mark.parametrize("settings", [{}, {"algo": "ppo", "batch_size": 12}], ids=["a2c", "ppo"])
def test_the_server_clips_the_mean_of_whole_gradients_and_steps_at_the_rate_of_the_schedule(
    settings: dict[str, Any],
) -> None:
    settings = {**settings, "max_grad_norm": 0.05, "lr_schedule": "linear_decay", "train_for_env_steps": 100}
    pair = Pair(**settings, hogwild_mode="gradients", num_gradients_to_combine=2, normalize_returns=False)
    places: Any = pair.server._combiner._places
    expected = torch.from_numpy(pair.shared.value.copy())
    gradient, rates = torch.zeros_like(expected), []
    adam = FlatAdam([expected], [gradient], pair.setup.config)
    for _ in range(2):
        for worker in pair.workers:
            worker.poll()
        sent = torch.from_numpy(places.values[places.ready_places()])
        assert len(sent) == 2
        assert torch.linalg.vector_norm(sent, dim=1).min() > 0.06, "workers clip nothing"
        gradient.copy_(sent.mean(0))
        assert clip_gradient(gradient, 0.05) > 0.06, "the server has something to clip"
        rates.append(0.01 * (1.0 - pair.server.env_steps / 100))
        adam.step(rates[-1], torch.zeros(()))
        pair.server.train_once(0.0)
        np.testing.assert_allclose(pair.shared.value, expected.numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(pair.shared.first, adam.exp_avgs[0].numpy(), rtol=1e-4, atol=1e-7)
    assert 0.01 > rates[0] > rates[1] > 0.0
    pair.close()


PPO: dict[str, Any] = {"algo": "ppo", "num_epochs": 3, "batch_size": 12, "max_grad_norm": 0.0, "target_kl": None}


def finish_rollout(pair: Pair, worker: Any) -> None:
    """Polls until a worker has made all passes over its rollout; in `gradients` mode the server takes each gradient."""
    worker.poll()
    pair.server.train_once(0.0)
    while worker._updates is not None:
        worker.poll()
        pair.server.train_once(0.0)


def gradient_of_ppo(pair: Pair, weights: torch.Tensor, units: tuple[float, float], batch: Any) -> torch.Tensor:
    """What autograd says of a minibatch at these weights, which predict in these units."""
    model = ActorCritic(PROBE, pair.setup.config)
    flat = FlatParameters(model)
    flat.data.copy_(weights)
    model.return_mean.fill_(units[0])
    model.return_std.fill_(units[1])
    parameters, values = model(batch.floats)
    ppo_loss(parameters, values, batch, model.distribution, pair.setup.config).loss.backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("mode", ["shared", "shared, copied", "synced", "gradients"])
def test_each_step_of_ppo_compares_the_newest_weights_with_the_policy_that_acted_whoever_moved_them(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pair_in(mode, monkeypatch, **PPO, num_gradients_to_combine=1, normalize_returns=False)
    worker: Any = pair.workers[0]
    learner, other = worker._learner, pair.workers[1]
    finish_rollout(pair, worker)
    steps: list[float] = []
    take_step = learner._take_step

    def step_after_others(batch: Any, learning_rate: float) -> Any:
        finish_rollout(pair, other)
        is_at_copy = not steps and mode != "shared"  # the first step is at the copy that has acted
        weights = learner._flat.data.clone() if is_at_copy else torch.from_numpy(pair.shared.value.copy())
        step_metrics, log_ratio = take_step(batch, learning_rate)
        valid = torch.from_numpy(worker._slots.valid[0])
        stored = torch.from_numpy(worker._slots.log_prob[0])[valid]
        torch.testing.assert_close(batch.log_prob.sort().values, stored.sort().values)
        expected = gradient_of_ppo(pair, weights, (0.0, 1.0), batch)
        torch.testing.assert_close(learner._gradient, expected, rtol=1e-3, atol=1e-5)
        steps.append(float(log_ratio.abs().max()))
        return step_metrics, log_ratio

    learner._take_step = step_after_others
    finish_rollout(pair, worker)
    assert len(steps) == 3
    assert min(steps[1:]) > 1e-3, "others have moved the weights away from the policy that acted"
    assert (steps[0] < 1e-5) == (mode != "shared"), "a first step is at the copy that has acted"
    pair.close()


@pytest.mark.parametrize("mode", ["shared", "synced", "gradients"])
def test_returns_are_in_the_units_of_the_critic_which_change_between_the_steps_of_ppo(mode: str) -> None:
    pair = Pair(**PPO, hogwild_mode=mode, num_gradients_to_combine=1)
    worker: Any = pair.workers[0]
    learner, units = worker._learner, ReturnUnits(pair.setup.arena)
    returns = SharedMoments(pair.setup.arena, "return")
    seen: list[tuple[float, torch.Tensor, torch.Tensor]] = []
    take_step, take_step_with_weights = learner._take_step, learner._step

    def step_in_new_units(batch: Any, learning_rate: float) -> Any:
        if seen:
            returns.write(0, 1_000_000, np.array([5.0 * len(seen)]), np.array([100.0 ** len(seen)]))
            pair.server._refresh()
            pair.server._publish()
        return take_step(batch, learning_rate)

    def looking_step(batch: Any, learning_rate: float) -> Any:
        mean, std = learner.model.return_mean, learner.model.return_std
        seen.append((float(std), batch.normalized_return * std + mean, batch.normalized_value * std + mean))
        assert (float(mean), float(std)) == tuple(units.values.tolist())
        return take_step_with_weights(batch, learning_rate)

    learner._take_step, learner._step = step_in_new_units, looking_step
    finish_rollout(pair, worker)
    assert len({std for std, _, _ in seen}) == 3
    for _, *in_rewards in seen[1:]:
        for now, first in zip(in_rewards, seen[0][1:], strict=True):
            torch.testing.assert_close(now, first, rtol=1e-3, atol=1e-3)
    pair.close()


def test_passes_of_ppo_wait_for_places_and_go_on_at_published_weights() -> None:
    pair = Pair(**PPO, hogwild_mode="gradients", num_gradients_to_combine=2)
    worker: Any = pair.workers[0]
    assert [worker.poll() > 0.0 for _ in range(3)] == [False, False, True]  # two of its own are under way
    assert worker._updates is not None
    steps = pair.server.env_steps
    pair.server.train_once(0.0)
    assert worker.poll() == 0.0
    assert (worker._updates, pair.server.env_steps) == (None, steps)
    np.testing.assert_array_equal(worker._learner._flat.data.numpy(), pair.shared.value)
    assert worker.report().train is not None
    pair.close()


SAC: dict[str, Any] = {
    "algo": "sac",
    "num_envs_per_worker": 3,
    "batch_size": 8,
    "warmup_env_steps": 240,
    "replay_size": 2000,
    "precision": "float32",
    "ent_coef": 1e-4,
    "learning_rate": 1e-6,
}


def first_actions(worker: Any, num_rows: int) -> list[float]:
    """What a worker of SAC does in its next rows of three environments."""
    actions: list[float] = []
    step = worker._split.group.step

    def noting_step(action: Any, rows: Any) -> int:
        actions.extend(np.asarray(action).tolist())
        return step(action, rows)

    worker._split.group.step = noting_step
    while len(actions) < 3 * num_rows:
        worker.poll()
    worker._split.group.step = step
    return actions


def test_a_worker_acts_at_random_until_its_first_update_whatever_the_policy_says() -> None:
    pair = Pair(**SAC)
    actor = SharedTensor(pair.setup.arena, "actor")
    actor.value[:] = 0.0
    actor.value[-2:] = [50.0, -50.0]  # logits of the two actions
    worker = pair.workers[0]
    warm_up = first_actions(worker, 40)
    assert worker._learner.policy_version == 0
    assert 35 < sum(warm_up) < 85  # of 120
    first_actions(worker, 40)  # rows that hold the last observation of an episode are no steps
    assert worker._learner.policy_version > 0
    assert sum(first_actions(worker, 20)) == 0
    pair.close()


def test_each_worker_and_each_resumption_draws_random_numbers_of_its_own() -> None:
    pair = Pair(**SAC)
    again, third = pair.new_worker(0), pair.new_worker(0, first_env_steps=1000)

    def drawn(worker: Any) -> tuple[Any, ...]:
        generators = worker._sampler.generator, worker._learner._generator
        return (*(torch.rand(3, generator=generator).tolist() for generator in generators), first_actions(worker, 20))

    first, *others = (drawn(worker) for worker in (*pair.workers, third))
    assert drawn(again) == first
    for other in others:
        assert all(mine != theirs for mine, theirs in zip(first, other, strict=True))
    for worker in (again, third):
        worker.close()
    pair.close()


def test_a_synced_worker_of_sac_acts_with_networks_that_only_its_own_updates_refresh() -> None:
    pair = Pair(**{**SAC, "learning_rate": 0.01}, hogwild_mode="synced")
    worker, other = pair.workers
    for each in (worker, other):
        first_actions(each, 50)
    actor = SharedTensor(pair.setup.arena, "actor")
    own = worker._learner._actor.flat.data
    before = own.clone()
    while worker._limiter.due == 0:
        worker.poll()
    first_actions(other, 20)
    assert torch.equal(own, before)
    assert not np.array_equal(own.numpy(), actor.value)
    worker.poll()
    np.testing.assert_array_equal(own.numpy(), actor.value)
    pair.close()


@pytest.mark.parametrize(
    ("mode", "settings"),
    [("shared", {}), ("synced", {}), ("gradients", {}), ("shared", SAC), ("synced", SAC)],
    ids=["shared-a2c", "synced-a2c", "gradients-a2c", "shared-sac", "synced-sac"],
)
def test_common_statistics_of_observations_are_published_and_begin_a_rollout(
    mode: str, settings: dict[str, Any]
) -> None:
    pair = Pair(**settings, normalize_input=True, hogwild_mode=mode)
    SharedMoments(pair.setup.arena, "obs").write(2, 50, np.array([3.0, -1.0]), np.array([4.0, 9.0]))
    pair.server._refresh()
    pair.server._publish()
    model, block = pair.server._learner.model, torch.empty(pair.server._learner.block_size)
    WeightsChannel(pair.setup.arena).read(block.numpy(), 0)
    found = [model.statistics, block[-len(model.statistics) :]]
    if not settings:  # a rollout begins with them
        pair.workers[0]._learner.begin()
        found.append(pair.workers[0]._learner.model.statistics)
    for statistics in found:
        torch.testing.assert_close(statistics[:4], torch.tensor([3.0, -1.0, 2.0, 3.0]), atol=1e-4, rtol=1e-4)
    pair.close()


@pytest.mark.parametrize("settings", [{}, SAC], ids=["a2c", "sac"])
def test_each_worker_has_its_networks_on_its_own_device(settings: dict[str, Any]) -> None:
    pair = Pair(**settings)
    plan = pair.setup.plan.hogwild
    assert plan is not None
    two = dataclasses.replace(plan, devices=("cpu", "cpu:0"))  # the same memory by two names
    workers = [pair.new_worker(idx, plan=dataclasses.replace(pair.setup.plan, hogwild=two)) for idx in range(2)]
    assert [str(worker._learner.device) for worker in workers] == ["cpu", "cpu:0"]
    for worker in workers:
        worker.close()
    pair.close()


class SizingStorage(ParameterStore):
    """Notes what a learner holds."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def allocate(self, name: str, initial: torch.Tensor) -> torch.Tensor:
        self.sizes[name] = initial.numel()
        return initial


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_sizes_of_shared_tensors_are_known_without_building_the_networks(spec: EnvSpec, layer_norm: bool) -> None:
    config = TrainConfig(encoder_mlp_layers=[5, 7], critic_layer_norm=layer_norm)
    storage = SizingStorage()
    OnPolicyLearner(ActorCritic(spec, config), config, torch.device("cpu"), storage)
    assert storage.sizes == trained_sizes(spec, config)
    config = config.model_copy(update={"algo": "sac"})
    storage = SizingStorage()
    SacLearner(SacActor(spec, config), config, spec, torch.device("cpu"), storage)
    assert storage.sizes == trained_sizes(spec, config)


def test_the_end_of_the_run_in_the_first_pass_over_a_rollout_is_no_error() -> None:
    pair = Pair(algo="ppo", hogwild_mode="synced", num_epochs=5, rollout=8, batch_size=12)
    worker, updates = pair.workers[0], pair.workers[0]._learner.updates

    def ended(*args: Any) -> Any:
        for each in updates(*args):
            pair.setup.control.ended = True
            yield each

    worker._learner.updates = ended
    worker.poll()
    assert pair.shared.num_steps == 1
    pair.close()


def test_each_update_of_sac_is_a_turn_so_many_in_a_row_are_no_hang() -> None:
    off_policy = {"algo": "sac", "warmup_env_steps": 12, "batch_size": 8, "updates_per_env_step": 2.0}
    pair = Pair(hogwild_mode="shared", **off_policy)
    worker, progress, seen = pair.workers[0], pair.setup.control.progress, []
    update = worker._learner._update_once

    def watched(*args: Any) -> Any:
        seen.append(progress(0))
        return update(*args)

    worker._learner._update_once = watched
    while not seen:
        worker.poll()
    assert len(seen) > 5 and np.all(np.diff(seen) > 0)
    pair.close()


def test_hyperparameters_that_an_observer_has_changed_stay_in_effect() -> None:
    pair = Pair(Hyperparameters(learning_rate=0.0), hogwild_mode="shared", learning_rate=0.1)
    before = pair.shared.value.copy()
    for worker in pair.workers:
        worker.poll()
    assert pair.shared.num_steps == 2 and np.array_equal(before, pair.shared.value)
    pair.close()
