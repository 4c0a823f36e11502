"""Learners that train together make the steps that one of them would make with all samples."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from arena_targets import exchange_once
from critics import with_values
from datasets import BOX, CHOICE, CPU, Actor, train_on
from graph_stand_ins import FixedCall
from replay_learners import make
from small_runs import planned, small_arena
from thread_ranks import ThreadRanks, together
from torch import Tensor
from transitions import BOX as SAC_BOX
from transitions import CHOICE as SAC_CHOICE
from transitions import draw

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import PolicyChange, RunControl, control_specs
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner import update_runner
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import LearningRate, ParameterStore, RunningMoments
from asyncrl.learner.ranks import RankConsensus, Ranks, Turn
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.state import LearnerState
from asyncrl.learner.trajectory_loop import TrajectoryLoop
from asyncrl.learner.worker import LearnerContext, StopCondition
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.sac import SacActor

ONE_AT_A_TIME = threading.Lock()
"""Initial weights are drawn from the generator of the whole process."""


def columns(dataset: Dataset, first: int, last: int) -> Dataset:
    """Some of a dataset's columns."""
    return Dataset(**{name: field[:, first:last].clone() for name, field in dataset.tensors().items()})


def on_policy(spec: EnvSpec, ranks: Ranks, **settings: Any) -> OnPolicyLearner:
    given = {"encoder_mlp_layers": [16], "num_epochs": 2, "shuffle_minibatches": False, **settings}
    config = TrainConfig(**given)
    with ONE_AT_A_TIME:
        return OnPolicyLearner(with_values(ActorCritic(spec, config)), config, CPU, ParameterStore(ranks))


def collect(spec: EnvSpec, settings: dict[str, Any], ends: bool) -> Dataset:
    """A dataset of the weights that every new learner begins with; without ends all of its rows are samples."""
    learner = on_policy(spec, Ranks(), **settings)
    memory = {name: value for name, value in settings.items() if name in ("use_rnn", "rnn_size")}
    actor = Actor(spec, TrainConfig(encoder_mlp_layers=[16], **memory))
    dataset = actor.collect(actor.receive(learner), shift=20.0)
    if not ends:
        dataset.truncated[:], dataset.valid[:] = False, True
    return dataset


def train(learner: OnPolicyLearner, *datasets: Dataset) -> LearnerState:
    learner.publication()
    for number, dataset in enumerate(datasets):
        dataset.policy_version[:] = learner.policy_version
        train_on(learner, dataset, 100 * number)
        learner.publication()
    return learner.state_dict()


def assert_same(state: LearnerState, expected: LearnerState, tolerance: float = 2e-6) -> None:
    assert state.scalars == pytest.approx(expected.scalars)
    for mine, theirs in ((state.model, expected.model), (state.optimizer, expected.optimizer)):
        for name in theirs.keys() - {"generator"}:
            torch.testing.assert_close(
                mine[name], theirs[name], rtol=1e-4, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )


PPO = {"learning_rate": 0.01, "max_grad_norm": 0.05, "ppo_clip_ratio": 0.02}


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
@pytest.mark.parametrize(
    ("settings", "split", "ends"),
    [
        ({"num_batches_per_epoch": 2}, 8, False),
        ({"num_batches_per_epoch": 1}, 3, True),
        ({"num_batches_per_epoch": 1, "algo": "a2c", "normalize_advantage": False}, 5, True),
        ({"num_batches_per_epoch": 2, "lr_schedule": "kl_adaptive_minibatch"}, 8, False),
        ({"num_batches_per_epoch": 2, "normalize_advantage_over": "dataset"}, 8, False),
        ({"num_batches_per_epoch": 1, "with_vtrace": True, "entropy_loss_coeff": 0.01, "kl_loss_coeff": 0.1}, 4, True),
        ({"num_batches_per_epoch": 1, "use_rnn": True, "rnn_size": 8, "rollout": 8}, 3, True),
    ],
    ids=["halves", "uneven", "a2c", "adaptive rate", "over the dataset", "vtrace", "by autograd"],
)
def test_two_ranks_learn_what_one_does_with_the_samples_of_both(
    spec: EnvSpec, settings: dict[str, Any], split: int, ends: bool
) -> None:
    settings = {**PPO, **settings}
    dataset = collect(spec, settings, ends)
    expected = train(on_policy(spec, Ranks(), **settings), dataset, dataset)

    def work(ranks: ThreadRanks) -> LearnerState:
        own = columns(dataset, *((0, split) if ranks.rank == 0 else (split, 16)))
        return train(on_policy(spec, ranks, **settings), own, own)

    begun = on_policy(spec, Ranks(), **settings).state_dict()
    assert any((begun.model[name] - expected.model[name]).abs().max() > 1e-3 for name in begun.model)
    for state in together(2, work):
        assert_same(state, expected)


@pytest.mark.parametrize("memory", [{}, {"use_rnn": True, "rnn_size": 8, "rollout": 8}], ids=["", "recurrent"])
def test_two_ranks_learn_as_graphs_what_one_does_without(
    memory: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_runner, "GraphedFunction", FixedCall)
    settings = {**PPO, **memory, "num_batches_per_epoch": 1, "normalize_input": False}
    dataset = collect(BOX, settings, ends=True)
    expected = train(on_policy(BOX, Ranks(), **settings), *[dataset] * 3)
    parts = ((0, 3), (3, 16))

    def work(ranks: ThreadRanks) -> LearnerState:
        learner = on_policy(BOX, ranks, compile="cuda_graph", **settings)
        state = train(learner, *[columns(dataset, *parts[ranks.rank])] * 3)
        assert learner.notice is None
        return state

    for state in together(2, work):
        assert_same(state, expected, tolerance=1e-4)  # Adam's first steps enlarge the rounding of small gradients


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
def test_two_ranks_weigh_old_samples_and_value_them_again_as_one_does(spec: EnvSpec) -> None:
    settings = {**PPO, "num_batches_per_epoch": 1, "ppo_objective": "decoupled", "recompute_advantages": True}
    dataset = collect(spec, settings, ends=True)
    dataset.policy_version[:] = 0

    def train_late(learner: OnPolicyLearner, own: Dataset) -> tuple[LearnerState, float]:
        learner.publication()
        for _ in range(3):
            metrics = train_on(learner, own)
            assert metrics is not None
        return learner.state_dict(), metrics.approx_kl

    expected, approx_kl = train_late(on_policy(spec, Ranks(), **settings), dataset)
    parts = ((0, 3), (3, 16))
    for state, of_rank in together(
        2, lambda ranks: train_late(on_policy(spec, ranks, **settings), columns(dataset, *parts[ranks.rank]))
    ):
        assert_same(state, expected, tolerance=1e-5)  # as above
        assert of_rank == pytest.approx(approx_kl, rel=1e-3)


def test_ranks_leave_out_the_same_passes_by_the_divergence_of_all_samples() -> None:
    settings = {**PPO, "num_batches_per_epoch": 1, "num_epochs": 3}
    dataset = collect(BOX, settings, ends=True)
    parts = [columns(dataset, 0, 3), columns(dataset, 3, 16)]

    def passes(ranks: Ranks, target: float) -> int:
        learner = on_policy(BOX, ranks, target_kl=target, **settings)
        flags: list[bool] = []
        learner.publication()
        train_on(learner, parts[ranks.rank], 0, flags.append)
        return len(flags)

    learner = on_policy(BOX, Ranks(), **{**settings, "num_epochs": 2})
    learner.publication()
    metrics = train_on(learner, dataset)
    assert metrics is not None
    of_second_pass = 2.0 * metrics.approx_kl  # that of the first is 0
    assert together(2, lambda ranks: passes(ranks, 0.99 * of_second_pass)) == [2, 2]
    assert together(2, lambda ranks: passes(ranks, 1.01 * of_second_pass)) == [3, 3]


@pytest.mark.parametrize("num_batches", [1, 3])
@pytest.mark.parametrize("compile", ["off", "cuda_graph"])
def test_a_rank_without_samples_makes_the_steps_of_the_others(
    num_batches: int, compile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_runner, "GraphedFunction", FixedCall)
    settings = {**PPO, "num_batches_per_epoch": num_batches}
    dataset = collect(BOX, settings, ends=True)
    expected = train(on_policy(BOX, Ranks(), **settings), dataset)
    settings["compile"] = compile
    empty = columns(dataset, 0, 4)
    empty.valid[:] = False

    def work(ranks: ThreadRanks) -> LearnerState:
        return train(on_policy(BOX, ranks, **settings), dataset if ranks.rank == 1 else empty)

    for state in together(2, work):
        assert_same(state, expected, tolerance=1e-4 if compile == "cuda_graph" else 2e-6)


def test_a_step_that_is_not_finite_in_one_rank_is_left_out_in_all() -> None:
    settings = {**PPO, "num_batches_per_epoch": 2, "num_epochs": 1}
    dataset = collect(BOX, settings, ends=False)

    def work(ranks: ThreadRanks) -> tuple[int, LearnerState]:
        own = columns(dataset, 8 * ranks.rank, 8 * ranks.rank + 8)
        if ranks.rank == 1:
            own.log_prob[-1] = math.nan  # the second minibatch
        learner = on_policy(BOX, ranks, **settings)
        state = train(learner, own)
        return learner.skipped_steps, state

    (skipped, first), (skipped_too, second) = together(2, work)
    assert skipped == skipped_too == 1
    assert first.scalars["policy_version"] == second.scalars["policy_version"] == 2
    assert first.optimizer["step"] == 1
    assert all(torch.isfinite(tensor).all() for tensor in first.model.values())
    assert_same(second, first)


def test_statistics_are_those_of_the_vectors_of_all_ranks() -> None:
    batches = [torch.randn(size, 3) * 2.0 + 1e4 * (1 + size) for size in (5, 0, 11)]
    batches.append(torch.full((4, 3), math.inf))

    def work(ranks: ThreadRanks) -> RunningMoments:
        moments = RunningMoments(3, CPU, ranks)
        moments.update(batches[ranks.rank])
        moments.update(batches[ranks.rank] + 1.0)
        return moments

    finite = torch.cat([batch + shift for shift in (0.0, 1.0) for batch in batches[:3]]).double()
    for moments in together(4, work):
        assert moments.count == 32
        torch.testing.assert_close(moments.mean, finite.mean(0), rtol=1e-6, atol=0.0)
        torch.testing.assert_close(moments.variance, finite.var(0, correction=0), rtol=1e-5, atol=0.0)


class GivenNoise(SacLearner):
    """Draws actions with noise that was drawn before."""

    given: list[Tensor]

    def _inputs_of(self, batch: Transitions, trains_actor: bool) -> Sequence[Tensor]:
        return *batch, self.given[self.policy_version - 1]


def off_policy(spec: EnvSpec, ranks: Ranks, noise: list[Tensor]) -> GivenNoise:
    config = TrainConfig(
        algo="sac", encoder_mlp_layers=[16], normalize_input=True, max_grad_norm=0.1, precision="float32"
    )
    with ONE_AT_A_TIME:
        learner = GivenNoise(SacActor(spec, config), config, spec, CPU, ParameterStore(ranks))
    learner.given = noise
    return learner


@pytest.mark.parametrize("spec", [SAC_BOX, SAC_CHOICE], ids=["box", "choice"])
def test_two_ranks_learn_from_half_batches_what_one_does_from_whole_ones(spec: EnvSpec) -> None:
    batches = draw(spec, num=6, size=12)
    present, following = torch.randn(2, 6, 12, 2, generator=torch.Generator().manual_seed(2)).unbind()

    def learn(ranks: Ranks, first: int, last: int) -> LearnerState:
        noise = [torch.cat((now[first:last], then[first:last])) for now, then in zip(present, following, strict=True)]
        learner = off_policy(spec, ranks, noise if spec is SAC_BOX else [torch.empty(0)] * 6)
        own = [Transitions(*(tensor[first:last] for tensor in batch)) for batch in batches]
        learner.observe(torch.cat([batch.obs for batch in own]))
        learner.train(own)
        return learner.state_dict()

    expected = learn(Ranks(), 0, 12)
    for state in together(2, lambda ranks: learn(ranks, 6 * ranks.rank, 6 * ranks.rank + 6)):
        assert_same(state, expected)
    assert expected.optimizer["log_ent_coef"].abs() > 1e-4, "the entropy coefficient was adapted"


def learn_without_noise(algo: str, ranks: Ranks, **settings: Any) -> LearnerState:
    """What TD3 or DQN learns from batches that the ranks share in equal parts."""
    spec, size = SAC_BOX if algo == "td3" else SAC_CHOICE, 12 // ranks.num_ranks
    given = {"target_policy_noise": 0.0, "learning_rate": 0.01, "normalize_input": True, "max_grad_norm": 0.5}
    with ONE_AT_A_TIME:
        learner = make(spec, algo=algo, storage=ParameterStore(ranks), **{**given, **settings})
    rows = slice(size * ranks.rank, size * ranks.rank + size)
    own = [Transitions(*(each[rows] for each in batch)) for batch in draw(spec, num=6, size=12)]
    learner.observe(torch.cat([batch.obs for batch in own]))
    learner.train(own)
    state: LearnerState = learner.state_dict()
    return state


@pytest.mark.parametrize("algo", ["td3", "dqn"])
def test_learners_without_noise_do_the_same_on_two_ranks(algo: str) -> None:
    expected = learn_without_noise(algo, Ranks())
    for state in together(2, lambda ranks: learn_without_noise(algo, ranks)):
        assert_same(state, expected)


@pytest.mark.parametrize(
    ("scale_lr", "of_two", "of_four"), [("none", 1.0, 1.0), ("linear", 2.0, 4.0), ("sqrt", math.sqrt(2.0), 2.0)]
)
def test_the_learning_rate_is_scaled_by_the_number_of_ranks(scale_lr: str, of_two: float, of_four: float) -> None:
    settings: dict[str, Any] = {"lr_schedule": "linear_decay", "train_for_env_steps": 1000, "scale_lr": scale_lr}
    config = TrainConfig(learning_rate=0.01, **settings)
    rate = LearningRate(config, 4)
    assert rate.value == pytest.approx(0.01 * of_four)
    rate.start_dataset(500)
    assert rate.value == pytest.approx(0.005 * of_four)
    assert rate.unscaled == pytest.approx(0.005)
    resumed = LearningRate(config, 2)
    resumed.resume(rate.unscaled)
    assert resumed.value == pytest.approx(0.005 * of_two)
    rate.follow(config.model_copy(update={"learning_rate": 0.03}))
    assert rate.value == pytest.approx(0.03 * of_four)


def with_rate(state: LearnerState, learning_rate: float) -> LearnerState:
    return dataclasses.replace(state, scalars={**state.scalars, "learning_rate": learning_rate})


@pytest.mark.parametrize(("scale_lr", "factor"), [("linear", 2.0), ("sqrt", math.sqrt(2.0))])
def test_two_ranks_with_a_scaled_learning_rate_learn_what_one_does_at_the_product(scale_lr: str, factor: float) -> None:
    settings = {**PPO, "num_batches_per_epoch": 2}
    scaled = {"learning_rate": 0.01 / factor, "scale_lr": scale_lr}
    dataset = collect(BOX, settings, ends=False)
    expected = train(on_policy(BOX, Ranks(), **settings), dataset, dataset)

    def work(ranks: ThreadRanks) -> LearnerState:
        own = columns(dataset, 8 * ranks.rank, 8 * ranks.rank + 8)
        return train(on_policy(BOX, ranks, **{**settings, **scaled}), own, own)

    for state in together(2, work):
        assert_same(state, with_rate(expected, 0.01 / factor))
    expected = learn_without_noise("dqn", Ranks())
    for state in together(2, lambda ranks: learn_without_noise("dqn", ranks, **scaled)):
        assert_same(state, with_rate(expected, 0.01 / factor))


def test_sac_leaves_a_step_out_in_all_ranks_if_one_has_numbers_that_are_not_finite() -> None:
    batches = draw(SAC_BOX, num=2, size=12)
    noise = [torch.randn(24, 2, generator=torch.Generator().manual_seed(3))] * 2

    def work(ranks: ThreadRanks) -> tuple[int, LearnerState]:
        learner = off_policy(SAC_BOX, ranks, noise)
        bad = batches[1]._replace(reward=batches[1].reward + (math.inf if ranks.rank == 0 else 0.0))
        learner.train([batches[0], bad])
        return learner.skipped_steps, learner.state_dict()

    (skipped, first), (skipped_too, second) = together(2, work)
    assert skipped == skipped_too == 1
    assert_same(second, first)


def test_new_hyperparameters_of_rank_0_reach_all_ranks_with_the_same_turn() -> None:
    def work(ranks: ThreadRanks) -> list[Hyperparameters | None]:
        control = RunControl(Arena.create(control_specs()), num_workers=0)
        agreement = RankConsensus(ranks, control, Hyperparameters(gae_lambda=0.5))
        seen = [agreement.sync_ranks(1, 10).new_values]
        control.send_change(
            PolicyChange(Hyperparameters(gamma=0.1 * (1 + ranks.rank)))
        )  # that of other ranks is not read
        seen += [agreement.sync_ranks(1, 20).new_values, agreement.sync_ranks(1, 30).new_values]
        return [*seen, agreement.hyperparameters]

    new = Hyperparameters(gamma=0.1)
    assert together(3, work) == [[None, new, None, Hyperparameters(gamma=0.1, gae_lambda=0.5)]] * 3


def test_schedules_of_all_ranks_follow_the_clock_of_the_first() -> None:
    def work(ranks: ThreadRanks) -> int:
        control = RunControl(Arena.create(control_specs()), num_workers=0)
        control.steps_by_time = 100 + 7 * ranks.rank
        RankConsensus(ranks, control).sync_ranks(1, 10)
        return control.steps_by_time

    assert together(3, work) == [100, 100, 100]


def test_ranks_take_turns_save_and_end_together() -> None:
    def work(ranks: ThreadRanks) -> list[Any]:
        agreement = RankConsensus(ranks)
        seen: list[Any] = [agreement.sync_ranks(3 + ranks.rank, 10 * (1 + ranks.rank))]
        seen.append(agreement.should_save(is_due=True))  # only what is due in rank 0 counts, with the next turn
        seen.append(agreement.sync_ranks(1, 100))
        seen.append(agreement.should_save(is_due=False))
        seen.append(agreement.should_save(is_due=False))
        if ranks.rank == 1:
            agreement.end(is_interrupted=True, env_steps=7)
            agreement.end(is_interrupted=False, env_steps=8)  # it was said
        else:
            seen.append(agreement.sync_ranks(1, 5))
            agreement.end(is_interrupted=False, env_steps=9)
        return [*seen, agreement.is_over, agreement.was_interrupted, agreement.env_steps]

    first, second = together(2, work)
    shared = [Turn(False, False, 3, 30), False, Turn(False, False, 1, 200), True, False]
    assert first == [*shared, Turn(True, True, 1, 12), True, True, 12]
    assert second == [*shared, True, True, 12]


def test_a_save_that_was_asked_for_waits_for_the_next_turn_and_is_made_once() -> None:
    def work(ranks: ThreadRanks) -> list[bool]:
        agreement, saves = RankConsensus(ranks), []
        saves += [agreement.should_save(is_due=ranks.rank == 0), agreement.should_save(is_due=False)]
        for is_due in (True, False, False):  # what is due is so until it was saved
            agreement.sync_ranks(1, 10)
            saves.append(agreement.should_save(is_due and ranks.rank == 0))
        return saves

    assert together(2, work) == [[False, False, True, False, False]] * 2


def test_a_rank_that_is_done_goes_on_with_the_others_until_all_are() -> None:
    def work(ranks: ThreadRanks) -> list[Turn]:
        agreement = RankConsensus(ranks)
        turns = [(4, 10, False), (0, 10, True)] if ranks.rank == 0 else [(6, 20, False), (5, 25, False)]
        seen = [agreement.sync_ranks(*turn) for turn in turns]
        return [*seen, agreement.sync_ranks(0, 30, is_done=True)]

    for turns in together(2, work):
        assert turns == [Turn(False, False, 4, 30), Turn(False, False, 5, 35), Turn(True, False, 0, 60)]


def test_ranks_end_an_update_after_the_same_pass() -> None:
    settings = {**PPO, "num_epochs": 6, "num_batches_per_epoch": 2, "target_kl": None}
    dataset = collect(BOX, settings, ends=False)

    def work(ranks: ThreadRanks) -> tuple[Any, LearnerState]:
        own = columns(dataset, *((0, 8) if ranks.rank == 0 else (8, 16)))
        learner = on_policy(BOX, ranks, **settings)
        arena, _ = small_arena(planned(batch_size=8, num_workers=1, num_envs_per_worker=2))
        control = RunControl(arena, 1)

        def publish(block: Any, version: int, env_steps: int) -> None:
            if version == 4 and ranks.rank == 1:  # after the second of six passes
                control.request_stop()

        source = SimpleNamespace(
            ready=(),
            dropped_samples=0,
            take_dataset=lambda *_: [],
            collect=lambda _: own,
            lag=lambda *_: None,
            release=lambda _: None,
        )
        stopping, agreement = StopCondition(control, None), RankConsensus(ranks)
        context = LearnerContext(TrainConfig(**settings), control, stopping, agreement=agreement)
        trainer = TrajectoryLoop(learner, source, source, SimpleNamespace(publish=publish), context)
        report = trainer.train_once(0.0)
        assert report is not None
        return (report.num_updates, report.env_steps, report.num_samples), learner.state_dict()

    (first, of_first), (second, of_second) = together(2, work)
    num_steps = dataset.num_valid
    assert first == second == (4, num_steps, 2 * num_steps)
    assert_same(of_second, of_first)


def test_one_learner_agrees_with_itself() -> None:
    agreement = RankConsensus(Ranks())
    assert agreement.sync_ranks(5, 40) == Turn(False, False, 5, 40)
    assert [agreement.should_save(is_due) for is_due in (True, False)] == [True, False]
    agreement.end(is_interrupted=False, env_steps=41)
    assert agreement.is_over
    assert not agreement.was_interrupted


def test_processes_exchange_over_a_process_group(context: BaseContext, free_port: int) -> None:
    results = context.Queue()
    processes = [context.Process(target=exchange_once, args=(rank, 3, free_port, results)) for rank in range(3)]
    for process in processes:
        process.start()
    answers = sorted(results.get(timeout=200.0) for _ in processes)
    for process in processes:
        process.join(10.0)
    assert answers == [(rank, [6.0, 12.0], [[0, 5], [1, 5], [2, 5]], [1.0, 2.0]) for rank in range(3)]
