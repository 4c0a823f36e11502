"""Transitions are ones that really happened, of every length, and drawn evenly."""

from __future__ import annotations

from multiprocessing.context import BaseContext

import numpy as np
import pytest
import torch
from replays import TaggedWriter, check_one_step, new_replay, write_until

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.replay import ReplayStripes
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.observers.reports import SampleAges

GAMMA = 0.5


def scripted(
    rewards: list[float], terminated: int | None = None, truncated: int | None = None
) -> tuple[Arena, ReplayStripes]:
    """One environment whose observation is the row, and whose episode ends in one of the rows at most."""
    arena, stripes = new_replay(1, 1, 50)
    for row, reward in enumerate(rewards):
        fields = stripes.rows(0, row)
        stripes.obs_at((0, row))[:] = row
        fields.reward[:], fields.valid[:] = reward, row - 1 != truncated
        fields.terminated[:], fields.truncated[:] = row == terminated, row == truncated
        fields.next_obs[:] = row + 1
        stripes.publish(0, 1)
    return arena, stripes


def drawn_by_row(stripes: ReplayStripes, n_step: int, **settings: float) -> dict[int, tuple[float, float, float]]:
    """(reward, next observation, discount) by the row that a transition starts from."""
    options = {"reward_scale": 1.0, "reward_clip": None, **settings}
    sampler = ReplaySampler(stripes, n_step, GAMMA, seed=0, **options)
    (batch,) = sampler.sample(1, 500)
    return {
        int(obs[0]): (reward.item(), after[0].item(), discount.item())
        for obs, reward, after, discount in zip(batch.obs, batch.reward, batch.next_obs, batch.discount, strict=True)
    }


def test_several_steps_add_up_discounted_and_end_where_the_rows_end() -> None:
    _, stripes = scripted([1.0, 2.0, 4.0, 8.0])
    # Rows 2 and 3 have not three rows after them yet.
    assert drawn_by_row(stripes, 3) == {0: (3.0, 3.0, 0.125), 1: (6.0, 4.0, 0.125)}


def test_several_steps_stop_at_a_termination_which_counts_nothing_after_it() -> None:
    _, stripes = scripted([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], terminated=2)
    found = drawn_by_row(stripes, 3)
    assert {row: (reward, discount) for row, (reward, _, discount) in found.items()} == {
        0: (3.0, 0.0),
        1: (4.0, 0.0),
        2: (4.0, 0.0),
        3: (24.0, 0.125),
    }


def test_what_follows_a_termination_is_not_even_read() -> None:
    # Vectorized environments leave a row that is not valid after every end.
    _, stripes = scripted([1.0, 2.0, np.nan, 8.0, 16.0, 32.0], terminated=1)
    stripes.valid[0, 2] = False
    found = drawn_by_row(stripes, 3)
    assert {row: (reward, discount) for row, (reward, _, discount) in found.items()} == {
        0: (2.0, 0.0),
        1: (2.0, 0.0),
        3: (24.0, 0.125),
    }


def test_several_steps_stop_at_a_truncation_and_go_on_from_its_final_observation() -> None:
    _, stripes = scripted([1.0, 2.0, 4.0, np.nan, 16.0, 32.0, 64.0], truncated=2)
    assert drawn_by_row(stripes, 3) == {
        0: (3.0, 3.0, 0.125),
        1: (4.0, 3.0, 0.25),
        2: (4.0, 3.0, 0.5),
        # Row 3 holds the final observation and starts nothing.
        4: (48.0, 7.0, 0.125),
    }


def test_observations_between_are_those_of_the_steps_that_a_transition_has() -> None:
    for end in ({"terminated": 2}, {"truncated": 2}):
        _, stripes = scripted([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0], **end)
        stripes.obs_at((0, 3))[:] = 3.0
        (batch,) = ReplaySampler(stripes, 3, GAMMA, 1.0, None, seed=0).sample(1, 500)
        assert batch.between_obs.shape == (500, 2, 4)
        found = {
            int(obs[0]): [
                (int(after[0]), float(count)) for after, count in zip(between, discount, strict=True) if count
            ]
            for obs, between, discount in zip(batch.obs, batch.between_obs, batch.between_discount, strict=True)
        }
        assert found.pop(0) == [(1, 0.5), (2, 0.25)]
        assert found.pop(1) == [(2, 0.5)]
        assert found.pop(2) == []
        assert found.pop(4) == [(5, 0.5), (6, 0.25)]


def test_rewards_are_scaled_then_clipped_before_they_add_up() -> None:
    _, stripes = scripted([1.0, -20.0, 3.0])
    assert drawn_by_row(stripes, 2, reward_scale=2.0, reward_clip=4.0) == {0: (0.0, 2.0, 0.25), 1: (-2.0, 3.0, 0.25)}


def test_every_step_is_drawn_as_often_whatever_stripe_it_lies_in() -> None:
    _, stripes = new_replay(3, 2, 40)
    for split_idx, rows in enumerate((10, 30, 90)):
        TaggedWriter(stripes, split_idx, seed=split_idx).write_rows(rows)
    (batch,) = ReplaySampler(stripes, 1, GAMMA, 1.0, None, seed=1).sample(1, 200_000)
    check_one_step(batch, np.float32(GAMMA))
    _, counts = np.unique(batch.obs.numpy(), axis=0, return_counts=True)
    valid = [
        stripes.valid[split, row % stripes.capacity].sum()
        for split in range(3)
        for row in range(stripes.first_whole_row(split), stripes.num_rows[split])
    ]
    assert len(counts) == sum(valid)
    expected = 200_000 / len(counts)
    assert ((counts - expected) ** 2).sum() / expected < len(counts) + 5 * np.sqrt(2 * len(counts))


def test_batches_are_parts_of_one_draw_and_the_generator_continues_it() -> None:
    _, stripes = new_replay(1, 2, 40)
    TaggedWriter(stripes, 0, seed=0).write_rows(30)
    sampler = ReplaySampler(stripes, 1, GAMMA, 1.0, None, seed=1)
    state = sampler.generator.get_state()
    first, second = sampler.sample(2, 8)
    assert first.obs.shape == second.obs.shape == (8, 4)
    assert not torch.equal(first.obs, second.obs)
    sampler.generator.set_state(state)
    assert torch.equal(torch.cat([batch.obs for batch in sampler.sample(2, 8)]), torch.cat((first.obs, second.obs)))


def test_nothing_is_drawn_before_a_transition_is_whole() -> None:
    _, stripes = scripted([1.0, 2.0])
    assert drawn_by_row(stripes, 2).keys() == {0}
    with pytest.raises(RuntimeError, match="no transition of 3 steps is whole yet: the longest stripe has 2 rows"):
        ReplaySampler(stripes, 3, GAMMA, 1.0, None, seed=0).sample(1, 4)


def test_what_is_overwritten_while_it_is_read_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stripes = new_replay(1, 4, 30)
    writer = TaggedWriter(stripes, 0, seed=0)
    writer.write_rows(35)
    sampler = ReplaySampler(stripes, 1, GAMMA, 1.0, None, seed=1)
    gather, writes = sampler._gather, [20, 3, 0]

    def gather_late(*places: np.ndarray) -> tuple[np.ndarray, ...]:
        writer.write_rows(writes.pop(0))
        return gather(*places)

    monkeypatch.setattr(sampler, "_gather", gather_late)
    (batch,) = sampler.sample(1, 500)
    check_one_step(batch, np.float32(GAMMA))
    assert writes == []


@pytest.mark.usefixtures("leaves_nothing")
def test_no_half_written_row_is_drawn_while_four_processes_write(context: BaseContext) -> None:
    arena, stripes = new_replay(4, 3, 40)
    writers = [context.Process(target=write_until, args=(arena, split_idx, 20_000)) for split_idx in range(4)]
    for writer in writers:
        writer.start()
    sampler = ReplaySampler(stripes, 1, GAMMA, 1.0, None, seed=0)
    num_checked = 0
    while any(writer.is_alive() for writer in writers):
        if all(stripes.num_rows[split_idx] > 2 for split_idx in range(4)):
            for batch in sampler.sample(2, 64):
                check_one_step(batch, np.float32(GAMMA))
                num_checked += 64
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
        writer.close()
    arena.close()
    assert num_checked > 5_000


def test_samples_have_the_age_of_their_rows_and_of_the_policy_that_acted() -> None:
    _, stripes = new_replay(2, 3, 10)
    for split in range(2):
        TaggedWriter(stripes, split, seed=split, end_probability=0.0).write_rows(25)
        for row in range(25):
            stripes.policy_version[split, row % stripes.capacity] = 10 * row
    sampler = ReplaySampler(stripes, 1, GAMMA, 1.0, None, seed=0)
    (batch,) = sampler.sample(1, 400)
    sampler.record_ages(policy_version=300, num_replays=4)
    rows = batch.obs[:, 3].numpy()  # an episode without an end counts its steps
    ages = sampler.ages
    assert ages.num_samples == ages.num_of_known_policy == 400
    assert ages.env_steps == pytest.approx((25 - rows).sum() * 2 * 3 * 4)
    assert ages.updates == pytest.approx((300 - 10 * rows).sum())
    assert SampleAges(4, 20.0, 2, 7.0).scalars() == {"age_env_steps": 5.0, "age_updates": 3.5}


def test_who_acted_in_a_saved_replay_is_not_known() -> None:
    _, stripes = new_replay(1, 1, 10)
    TaggedWriter(stripes, 0, seed=0, end_probability=0.0).write_rows(4)
    _, restored = new_replay(1, 1, 10)
    restored.restore(stripes.content())
    sampler = ReplaySampler(restored, 1, GAMMA, 1.0, None, seed=0)
    sampler.sample(1, 50)
    sampler.record_ages(policy_version=300)
    assert set(sampler.ages.scalars()) == {"age_env_steps"}
