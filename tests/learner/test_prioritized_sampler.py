"""Prioritized replay: the tree against a loop, draws and weights against their definition, which rows are in it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from replays import TaggedWriter, check_one_step, new_replay

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.buffers.replay import ReplayStripes
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.prioritized_sampler import PrioritizedSampler, SumTree, importance_exponent

GAMMA = np.float32(0.5)


def sampler_of(stripes: ReplayStripes, alpha: float = 1.0, beta: float = 1.0, **settings: Any) -> PrioritizedSampler:
    options: dict[str, Any] = {"n_step": 1, "gamma": 0.5, "reward_scale": 1.0, "reward_clip": None, "seed": 0}
    return PrioritizedSampler(stripes, alpha, beta, **{**options, **settings})


def written(rows: int, num_splits: int = 2, num_envs: int = 3, capacity: int = 30) -> tuple[ReplayStripes, list[Any]]:
    _, stripes = new_replay(num_splits, num_envs, capacity, is_prioritized=True)
    writers = [TaggedWriter(stripes, split, seed=split) for split in range(num_splits)]
    for writer in writers:
        writer.write_rows(rows)
    return stripes, writers


def tags(batch: Transitions) -> list[tuple[int, ...]]:
    """Which step each transition is: split, environment, episode, step."""
    return [tuple(map(int, obs)) for obs in batch.obs]


def set_by_step(sampler: PrioritizedSampler, error_of: Any, draws: int = 4000) -> None:
    """Gives each transition the error of its step, by drawing all of them."""
    (batch,) = sampler.sample(1, draws)
    sampler.set_errors(torch.tensor([[float(error_of(tag)) for tag in tags(batch)]]))


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100])
def test_the_tree_is_a_running_sum(size: int) -> None:
    tree, plain, random = SumTree(size), np.zeros(size), np.random.default_rng(size)
    for _ in range(30):
        indices = random.integers(size, size=5)
        numbers = random.random(5) * random.integers(0, 2, 5)
        tree.set(indices, numbers)
        for index, number in zip(indices, numbers, strict=True):
            plain[index] = number
        assert tree.total == pytest.approx(plain.sum())
        np.testing.assert_array_equal(tree.get(np.arange(size)), plain)
        if tree.total > 0.0:
            sums = random.random(50) * tree.total
            expected = [next(idx for idx in range(size) if plain[: idx + 1].sum() > passed) for passed in sums]
            assert tree.find(sums).tolist() == expected


def test_what_is_0_is_never_found() -> None:
    tree = SumTree(6)
    tree.set(np.array([1, 4]), [0.1, 0.2])
    ends = np.array([0.0, np.nextafter(tree.total, 0.0), tree.total])  # rounding may carry a draw to the end
    assert tree.find(ends).tolist() == [1, 4, 4]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_draws_follow_the_errors_and_weights_correct_them(alpha: float) -> None:
    stripes, _ = written(20)
    sampler = sampler_of(stripes, alpha, beta=0.7)
    set_by_step(sampler, lambda tag: 1 + tag[3] + 3 * tag[1])
    batches = sampler.sample(4, 20_000)
    for batch in batches:
        check_one_step(batch, GAMMA)
    found, counts = np.unique(np.concatenate([batch.obs.numpy() for batch in batches]), axis=0, return_counts=True)
    assert len(found) == stripes.valid[:, :20].sum(), "every valid row, and no other"
    priority = (1 + found[:, 3] + 3 * found[:, 1]) ** alpha
    probability = priority / priority.sum()
    expected = 80_000 * probability
    assert ((counts - expected) ** 2 / expected).sum() < len(counts) + 5 * np.sqrt(2 * len(counts))
    of_tag = {tuple(map(int, tag)): each for tag, each in zip(found, probability, strict=True)}
    for batch in batches:
        drawn = np.array([of_tag[tag] for tag in tags(batch)])
        weight = (len(found) * drawn) ** -0.7
        np.testing.assert_allclose(batch.weight.numpy(), weight / weight.max(), rtol=1e-4)


def test_new_rows_have_the_largest_priority_so_far() -> None:
    stripes, writers = written(10)
    sampler = sampler_of(stripes)
    set_by_step(sampler, lambda tag: 7.0 if tag == (0, 1, 0, 0) else 0.01)
    set_by_step(sampler, lambda tag: 0.01)
    before = {tag for batch in sampler.sample(1, 4000) for tag in tags(batch)}
    writers[1].write_rows(1)
    counts = np.unique(
        [tag not in before for batch in sampler.sample(1, 4000) for tag in tags(batch)], return_counts=True
    )[1]
    num_new = int(stripes.valid[1, 10].sum())
    assert num_new > 0 and sampler.max_priority == pytest.approx(7.0, rel=1e-4)
    assert counts[1] / 4000 == pytest.approx(7.0 * num_new / (7.0 * num_new + 0.01 * len(before)), abs=0.02)


def test_new_rows_do_not_outweigh_others_where_all_errors_are_small() -> None:
    stripes, (writer,) = written(10, num_splits=1)
    sampler = sampler_of(stripes)
    assert stripes.priority.max() == 1.0
    set_by_step(sampler, lambda tag: 0.01)
    writer.write_rows(5)
    sampler.refresh()
    np.testing.assert_allclose(stripes.priority[stripes.priority > 0.0], 0.01, rtol=1e-3)


def test_rows_leave_before_they_are_overwritten_and_transitions_enter_when_they_are_whole() -> None:
    stripes, writers = written(5, num_splits=1)
    sampler = sampler_of(stripes, n_step=3)
    for rows in (1, 4, 9, 25, 31, 200):
        writers[0].write_rows(rows)
        sampler.refresh()
        first, stop = stripes.first_whole_row(0), stripes.num_rows[0] - 2
        held = {row % stripes.capacity for row in range(first, stop)}
        expected = [[row in held and bool(valid) for valid in stripes.valid[0, row]] for row in range(stripes.capacity)]
        assert ((stripes.priority[0] > 0.0) == expected).all()
        assert sampler._tree.total == pytest.approx(stripes.priority.sum())


def test_errors_of_rows_that_were_overwritten_meanwhile_are_not_those_of_their_successors() -> None:
    stripes, writers = written(25, num_splits=1)
    sampler = sampler_of(stripes)
    (batch,) = sampler.sample(1, 4000)
    writers[0].write_rows(15)
    sampler.set_errors(torch.full((1, 4000), 50.0))
    drawn = set(tags(batch))
    sampler.refresh()
    for row in range(stripes.first_whole_row(0), stripes.num_rows[0]):
        place = row % stripes.capacity
        for env in np.flatnonzero(stripes.valid[0, place]):
            was_drawn = tuple(map(int, stripes.obs[0, place, env])) in drawn
            assert was_drawn == (row < 25)
            assert stripes.priority[0, place, env] == pytest.approx(50.0 if was_drawn else 1.0)
    (after,) = sampler.sample(1, 500)
    check_one_step(after, GAMMA)


def test_errors_that_are_not_finite_leave_priorities_as_they_are() -> None:
    stripes, _ = written(10)
    sampler = sampler_of(stripes)
    set_by_step(sampler, lambda tag: 2.0)
    before = stripes.priority.copy()
    set_by_step(sampler, lambda tag: np.nan if tag[3] else np.inf)
    np.testing.assert_array_equal(stripes.priority, before)
    assert np.isfinite(sampler.max_priority)


def test_what_is_overwritten_while_it_is_read_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stripes, (writer,) = written(35, num_splits=1)
    sampler = sampler_of(stripes)
    set_by_step(sampler, lambda tag: 1 + tag[3])
    gather, writes = sampler._gather, [20, 3, 0]

    def gather_late(*places: np.ndarray) -> tuple[np.ndarray, ...]:
        writer.write_rows(writes.pop(0))
        return gather(*places)

    monkeypatch.setattr(sampler, "_gather", gather_late)
    (batch,) = sampler.sample(1, 500)
    check_one_step(batch, GAMMA)
    assert writes == [] and torch.isfinite(batch.weight).all() and batch.weight.max() == 1.0
    sampler.set_errors(torch.ones(1, 500))


@pytest.mark.parametrize("saved_with_priorities", [True, False])
def test_a_restored_replay_is_drawn_from_as_before(saved_with_priorities: bool) -> None:
    stripes, _ = written(45)
    sampler = sampler_of(stripes, alpha=0.6)
    set_by_step(sampler, lambda tag: 1 + tag[3] % 5)
    saved = stripes.content()
    if not saved_with_priorities:
        others = {name: each for name, each in saved.columns.items() if not name.startswith("priority")}
        saved = dataclasses.replace(saved, columns=others)
    _, other = new_replay(2, 3, 30, is_prioritized=True)
    other.restore(saved)
    restored = sampler_of(other, alpha=0.6, max_priority=sampler.max_priority)
    assert restored.max_priority == sampler.max_priority == pytest.approx(5**0.6)
    num_compared = 0
    for split in range(2):
        for row in range(1, other.num_rows[split] - 1):
            for env in np.flatnonzero(other.valid[split, row]):
                step = int(other.obs[split, row, env, 3])
                expected = (1 + step % 5) ** 0.6 if saved_with_priorities else sampler.max_priority
                assert other.priority[split, row, env] == pytest.approx(expected, rel=1e-5)
                num_compared += 1
    assert num_compared > 50 and restored._tree.total == pytest.approx(other.priority.sum(dtype=np.float64))


def test_nothing_is_drawn_before_a_transition_is_whole() -> None:
    stripes, _ = written(2)
    with pytest.raises(RuntimeError, match="no transition of 3 steps is whole yet: the longest stripe has 2 rows"):
        sampler_of(stripes, n_step=3).sample(1, 4)


def test_weights_correct_the_draw_completely_at_the_end() -> None:
    config = TrainConfig(algo="dqn", prioritized_replay_beta=0.4, train_for_env_steps=1000)
    assert [importance_exponent(config, steps) for steps in (0, 500, 1000, 2000)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
