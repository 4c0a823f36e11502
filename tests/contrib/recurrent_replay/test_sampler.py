"""Sequences are rows that really followed one another, of every start that the replay holds whole, and no other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contrib.recurrent_replay.states import StateWriter, new_states

from asyncrl.contrib.recurrent_replay.sampler import Sequences, SequenceSampler
from asyncrl.contrib.recurrent_replay.stripes import RecurrentStripes

GAMMA = 0.5
Start = tuple[int, int, int]


def sampler_of(stripes: RecurrentStripes, recurrence: int, burn_in: int, **settings: float) -> SequenceSampler:
    options = {"reward_scale": 1.0, "reward_clip": None, **settings}
    return SequenceSampler(stripes, recurrence, burn_in, n_step=1, gamma=GAMMA, seed=0, **options)


def looped(stripes: RecurrentStripes, start: Start, recurrence: int, burn_in: int) -> list[np.ndarray]:
    """The fields of the sequence that starts there, row by row."""
    split, first, env = start
    num_rows, at = burn_in + recurrence, lambda row: (split, row % stripes.capacity, env)
    found: dict[str, list[object]] = {name: [] for name in Sequences._fields}
    found["rnn_state"] = list(stripes.rnn_state[at(first)])
    for row in range(first, first + num_rows + 1):
        found["obs"].append(stripes.obs[at(row)])
        before = at(row - 1)
        found["begins"].append(row > first and bool(stripes.terminated[before] or not stripes.valid[before]))
        if first + burn_in <= row < first + num_rows:
            is_sample = bool(stripes.valid[at(row)])
            found["action"].append(stripes.action[at(row)])
            found["reward"].append(stripes.reward[at(row)] if is_sample else 0.0)
            found["discount"].append(0.0 if stripes.terminated[at(row)] else GAMMA)
            found["weight"].append(float(is_sample))
    return [np.array(values) for values in found.values()]


def starts_of(stripes: RecurrentStripes, num_rows: int) -> set[Start]:
    """All rows from which a sequence of whole rows begins, one by one."""
    found = set()
    for split in range(stripes.num_splits):
        written = stripes.num_rows[split]
        for row in range(written):
            is_whole = row >= 0 and row > written - stripes.capacity + 1 and row + num_rows <= written
            for env in range(stripes.num_envs):
                if is_whole and stripes.valid[split, row % stripes.capacity, env]:
                    found.add((split, row, env))
    return found


@pytest.mark.parametrize(("recurrence", "burn_in"), [(1, 0), (4, 0), (3, 5), (1, 6)])
@pytest.mark.parametrize("seed", range(4))
def test_sequences_are_those_of_a_loop_over_the_rows(recurrence: int, burn_in: int, seed: int) -> None:
    random, num_rows = np.random.default_rng(seed), burn_in + recurrence
    stripes = new_states(3, 2, int(random.integers(num_rows, 30)))
    for split in range(3):
        writer = StateWriter(stripes, split, seed=10 * seed + split, end_probability=0.4)
        writer.write_rows(int(random.integers(num_rows, 100)))
        # The worker is in the middle of the next row, and of the observation and state after it.
        next_row, after = (row % stripes.capacity for row in (stripes.num_rows[split], stripes.num_rows[split] + 1))
        stripes.reward[split, next_row] = stripes.obs[split, after] = stripes.rnn_state[split, after] = np.nan
    sampler = sampler_of(stripes, recurrence, burn_in)
    allowed = starts_of(stripes, num_rows)
    (batch,) = sampler.sample(1, 60 * len(allowed) * recurrence)
    starts = [tuple(start) for start in np.stack(sampler._drawn, 1).tolist()]
    assert set(starts) == allowed
    for name, field in zip(Sequences._fields, batch, strict=True):
        assert not torch.isnan(field).any(), name
    for idx, start in list(enumerate(starts))[:300]:
        for name, field, expected in zip(
            Sequences._fields, batch, looped(stripes, start, recurrence, burn_in), strict=True
        ):
            np.testing.assert_array_equal(field[idx].numpy(), expected, err_msg=f"{name} of {start}")


def test_an_episode_begins_where_the_writer_began_one_and_the_state_is_that_of_the_first_row() -> None:
    stripes = new_states(2, 3, 40)
    for split in range(2):
        StateWriter(stripes, split, seed=split).write_rows(70)
    (batch,) = sampler_of(stripes, 8, 4).sample(1, 8 * 500)
    episode = batch.obs[:, :, 2]
    assert torch.equal(batch.begins[:, 1:], episode[:, 1:] != episode[:, :-1])
    assert torch.equal(batch.rnn_state, batch.obs[:, 0, 2:])
    trained = batch.obs[:, 4:-1]
    expected = torch.where(batch.weight > 0, 1000 * trained[:, :, 2] + trained[:, :, 3], 0.0)
    assert torch.equal(batch.reward, expected)


def test_a_batch_has_as_many_rows_as_its_size_says_and_nothing_is_drawn_before_a_sequence_is_whole() -> None:
    stripes = new_states(1, 1, 40)
    writer, sampler = StateWriter(stripes, 0, seed=0, end_probability=0.0), sampler_of(stripes, 4, 3)
    writer.write_rows(6)
    with pytest.raises(RuntimeError, match="no transition of 7 steps is whole yet"):
        sampler.sample(1, 8)
    writer.write_rows(2)
    first, second = sampler.sample(2, 8)
    assert first.reward.shape == second.reward.shape == (2, 4)
    assert first.obs.shape == (2, 8, 4) and first.begins.shape == (2, 8)


@pytest.mark.parametrize("layout", [(2, 2), (1, 3)], ids=["same layout", "another"])
def test_a_saved_replay_keeps_its_states(layout: tuple[int, int]) -> None:
    stripes = new_states(2, 2, 20)
    for split in range(2):
        StateWriter(stripes, split, seed=split).write_rows(50)
    restored = new_states(*layout, 40)
    restored.restore(stripes.content())
    (batch,) = sampler_of(restored, 3, 2).sample(1, 900)
    assert torch.equal(batch.rnn_state, batch.obs[:, 0, 2:])
    assert batch.rnn_state.any()
