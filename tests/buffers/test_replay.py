"""Rows wrap around, are read only while they are whole, and go through a checkpoint without joining two episodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from replays import TaggedWriter, check_one_step, new_replay

from asyncrl.buffers.replay import ReplayStripes, replay_specs, rows_per_stripe
from asyncrl.buffers.replay_blocks import Block, deal_blocks
from asyncrl.envs.spec import BoxAction, EnvSpec, ObservationLayout, ObservationPart
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.storage import checkpoint
from asyncrl.storage.checkpoint import Checkpoint, SavedReplay

GAMMA = 0.9


def joined(kept: SavedReplay) -> dict[str, Any]:
    """Columns, each in one part."""
    return {name: np.concatenate(parts) for name, parts in kept.columns.items()}


def test_only_rows_that_the_worker_cannot_be_writing_are_whole() -> None:
    _, stripes = new_replay(1, 1, 5)
    writer = TaggedWriter(stripes, 0, seed=0, end_probability=0.0)
    assert (stripes.capacity, stripes.first_whole_row(0)) == (7, 0)
    writer.write_rows(5)
    assert stripes.first_whole_row(0) == 0
    writer.write_rows(1)
    # Row 6 and the observation of row 7, which lies at index 0, come next.
    assert stripes.first_whole_row(0) == 1
    assert stripes.num_held_steps == 5
    assert stripes.obs_at((0, 7)) is not stripes.obs_at((0, 0))
    assert np.shares_memory(stripes.obs_at((0, 7)), stripes.obs_at((0, 0)))


@pytest.mark.parametrize("written", [3, 5, 23], ids=["not full", "just full", "wrapped"])
@pytest.mark.parametrize("rows", [4, 5, 50], ids=["into less", "into the same", "into more"])
def test_a_restored_replay_holds_the_newest_rows_and_closes_open_episodes(written: int, rows: int) -> None:
    _, stripes = new_replay(2, 3, 5)
    for split_idx in range(2):
        TaggedWriter(stripes, split_idx, seed=split_idx).write_rows(written)
    kept_replay = stripes.content()
    content = joined(kept_replay)
    assert len(content["reward.0"]) == min(written, 5)
    assert len(content["obs.0"]) == len(content["reward.0"]) + 1

    _, restored = new_replay(2, 3, rows)
    restored.restore(kept_replay)
    assert restored.total_env_steps() == stripes.total_env_steps()
    kept = min(len(content["reward.0"]), rows - 1)
    assert restored.num_rows[0] == kept + 1
    last = restored.obs[:, kept - 1], restored.obs[:, kept]
    newest = [content[f"obs.{split}"][-1] for split in range(2)]
    assert np.array_equal(last[1], newest)
    assert not restored.valid[:, kept].any()
    ends = restored.terminated[:, kept - 1] | restored.truncated[:, kept - 1] | ~restored.valid[:, kept - 1]
    assert ends.all()
    for split in range(2):  # only what was open is closed
        before = {name: content[f"{name}.{split}"][-1] for name in ("terminated", "truncated", "valid")}
        was_open = before["valid"] & ~before["terminated"]
        assert np.array_equal(restored.truncated[split, kept - 1], before["truncated"] | was_open)

    for split_idx in range(2):  # new episodes begin in the row after
        TaggedWriter(restored, split_idx, seed=9).write_rows(2)
    sampler = ReplaySampler(restored, 1, GAMMA, 1.0, None, seed=0)
    check_one_step(sampler.sample(1, 2000)[0], GAMMA)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("written", range(12))
def test_no_transition_leads_from_a_dead_worker_to_the_one_that_follows(written: int, n_step: int) -> None:
    _, stripes = new_replay(1, 3, 8)
    TaggedWriter(stripes, 0, seed=written, end_probability=0.2).write_rows(written)
    if written > 0:  # it dies in the middle of the next row
        fields = stripes.rows(0, written)
        fields.reward[:], fields.next_obs[:] = np.nan, np.nan
        fields.valid[:], fields.terminated[:] = True, False
    stripes.close_episodes(0)
    follower = TaggedWriter(stripes, 0, seed=9, end_probability=0.0)
    follower._episodes = [1000] * 3
    for env in range(3):
        stripes.obs_at((0, stripes.num_rows[0]))[env] = follower._obs(env)
    assert stripes.num_rows[0] == written + (written > 0)
    follower.write_rows(4)
    sampler = ReplaySampler(stripes, n_step, 1.0, 1.0, None, seed=0)
    batch = sampler.sample(1, 500)[0]
    obs, after, goes_on = batch.obs.numpy(), batch.next_obs.numpy(), batch.discount.numpy() > 0
    assert np.array_equal(after[goes_on, 2], obs[goes_on, 2])
    assert (after[goes_on, 3] - obs[goes_on, 3] <= n_step).all()
    assert np.isfinite(batch.reward.numpy()).all() and np.isfinite(obs).all() and np.isfinite(after).all()
    if n_step == 1:
        check_one_step(batch, 1.0)


def test_a_worker_that_dies_before_its_first_row_leaves_no_row_behind() -> None:
    _, stripes = new_replay(1, 3, 8)
    TaggedWriter(stripes, 0, seed=1, end_probability=0.2).write_rows(4)
    for _ in range(3):  # a worker, and two that take its place
        stripes.close_episodes(0)
    assert stripes.num_rows[0] == 5
    assert not stripes.valid[0, 4].any()


LAYOUTS = [(1, 1), (3, 2), (4, 5)]


def kept_steps(stripes: ReplayStripes) -> set[tuple[int, ...]]:
    """Split, environment, episode and step of all rows from which a transition may start."""
    found = set()
    for split in range(stripes.num_splits):
        for row in range(stripes.first_whole_row(split), stripes.num_rows[split]):
            at = row % stripes.capacity
            found |= {tuple(map(int, obs)) for obs in stripes.obs[split, at][stripes.valid[split, at]]}
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("written", [(3, 4), (40, 40), (700, 690)], ids=str)
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_replay_of_another_layout_keeps_every_step_and_joins_no_two_episodes(
    layout: tuple[int, int], written: tuple[int, int], n_step: int
) -> None:
    _, stripes = new_replay(2, 3, 600, is_prioritized=True)
    for split, count in enumerate(written):
        TaggedWriter(stripes, split, seed=split, end_probability=0.1).write_rows(count)
    stripes.priority[...] = stripes.obs[..., 3] + 1.0
    _, other = new_replay(*layout, 5000, is_prioritized=True)
    other.restore(stripes.content())
    assert kept_steps(other) == kept_steps(stripes)
    assert other.total_env_steps() == stripes.total_env_steps()
    valid = other.valid & (np.arange(other.capacity) < np.array(other.num_rows)[:, None])[..., None]
    assert valid.sum() == len(kept_steps(stripes)), "no step is there twice"
    assert np.array_equal(other.priority[valid], other.obs[valid][:, 3] + 1.0)
    for split in range(other.num_splits):  # workers begin new episodes in the rows after
        assert not other.valid[split, other.num_rows[split] - 1].all() or other.num_rows[split] == 0
        TaggedWriter(other, split, seed=9).write_rows(5)
    batch = ReplaySampler(other, n_step, 1.0, 1.0, None, seed=0).sample(1, 4000)[0]
    obs, after, goes_on = batch.obs.numpy(), batch.next_obs.numpy(), batch.discount.numpy() > 0
    assert np.array_equal(after[goes_on, :3], obs[goes_on, :3])
    steps = after[goes_on, 3] - obs[goes_on, 3]
    assert ((steps >= 1) & (steps <= n_step)).all()
    if n_step == 1:
        check_one_step(batch, 1.0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_smaller_replay_of_another_layout_keeps_the_newest_rows(layout: tuple[int, int]) -> None:
    _, stripes = new_replay(2, 3, 600)
    for split in range(2):
        TaggedWriter(stripes, split, seed=split, end_probability=0.0).write_rows(600)
    _, other = new_replay(*layout, 900 // (layout[0] * layout[1]))
    other.restore(stripes.content())
    steps = np.array(sorted(kept_steps(other)))
    assert 0.85 * 900 < len(steps) <= 900
    kept = [set(steps[(steps[:, :2] == column).all(1), 3]) for column in np.ndindex(2, 3)]
    # 900 of 3600 rows are a quarter of each column; the last blocks that find room may be those of a few columns.
    assert all(each == set(range(600 - len(each), 600)) for each in kept)
    assert max(map(len, kept)) - min(map(len, kept)) <= 224
    assert max(other.num_rows) <= other.capacity - 2


@pytest.mark.parametrize("end_probability", [0.0, 0.3], ids=["endless", "episodes"])
@pytest.mark.parametrize("written_meanwhile", [0, 2, 5, 30])
def test_rows_overwritten_while_they_are_saved_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_meanwhile: int, end_probability: float
) -> None:
    _, stripes = new_replay(1, 3, 5)
    writer = TaggedWriter(stripes, 0, seed=0, end_probability=end_probability)
    writer.write_rows(20)
    content = stripes.content()
    serialize = checkpoint._serialize_columns

    def serialize_slowly(columns: Any) -> Iterator[bytes]:
        for number, piece in enumerate(serialize(columns)):
            if number == 4:  # some columns are written, the others are not
                writer.write_rows(written_meanwhile)
            yield piece

    monkeypatch.setattr(checkpoint, "_serialize_columns", serialize_slowly)
    path = checkpoint.save(tmp_path, Checkpoint({}, {}, {}, content), 1, keep=1)
    loaded = checkpoint.load(path, with_replay=True).replay
    assert loaded is not None
    assert loaded.count_lost() == [min(5, written_meanwhile)]

    _, restored = new_replay(1, 3, 5)
    restored.restore(loaded)
    assert restored.num_rows[0] == max(0, min(4, 5 - written_meanwhile) + (written_meanwhile < 5))
    TaggedWriter(restored, 0, seed=9).write_rows(2)
    check_one_step(ReplaySampler(restored, 1, GAMMA, 1.0, None, seed=0).sample(1, 500)[0], GAMMA)


def test_stripes_tell_where_episodes_begin() -> None:
    _, stripes = new_replay(1, 2, 6)
    for row in range(7):  # once around
        rows = stripes.rows(0, row)
        rows.terminated[:], rows.truncated[:], rows.valid[:] = row == 5, False, [True, row != 6]
    found = [stripes.beginnings((0, row)).begins.tolist() for row in (5, 6, 7)]
    assert found == [[False, False], [True, True], [False, True]]


def test_a_replay_holds_the_steps_it_was_asked_for_and_images_stay_bytes() -> None:
    image = ObservationLayout((ObservationPart((), "image", (12,), "uint8"),))
    spec = EnvSpec("Image", image, BoxAction((3,), (0.0,) * 3, (1.0,) * 3, "float32"), None)
    shapes = {array.name: (array.dtype, array.shape) for array in replay_specs(spec, 2, 3, replay_size=61)}
    assert rows_per_stripe(2, 3, 61) == 13  # 11 rows of 6 environments, and 2 that are being written
    assert shapes["replay.obs"] == ("uint8", (2, 13, 3, 12))
    assert shapes["replay.action"] == ("float32", (2, 13, 3, 3))
    assert shapes["mailbox.action"] == ("float32", (2, 3, 3))


def test_actions_reach_a_row_through_the_mailbox_of_their_split() -> None:
    _, stripes = new_replay(2, 2, 5)
    answer = SimpleNamespace(action=np.array([1, 0, 0, 1]))
    stripes.answer((1, 3), slice(0, 2), answer, version=7, now=0.0)
    stripes.answer((0, 9), slice(2, 4), answer, version=7, now=0.0)
    assert stripes.store_action(1, 3).tolist() == [1, 0]
    assert stripes.store_action(0, 9).tolist() == [0, 1]
    assert stripes.action[1, 3].tolist() == [1, 0]
    assert stripes.action[0, 9 % stripes.capacity].tolist() == [0, 1]
    assert (stripes.policy_version[1, 3], stripes.policy_version[0, 9 % stripes.capacity]) == (7, 7)


def test_blocks_are_dealt_from_the_newest_on_to_the_shortest_column() -> None:
    # 2 stripes of 1 environment with 8 and 4 rows for 3 columns: blocks of one row, for which there is much room.
    # In the order of their ages they are 7, 3', 6, 2', 5, 1', 4, 0', 3, 2, 1, 0, where ' marks the second stripe.
    assert deal_blocks([8, 4], 1, 3, room=100) == [
        [Block(0, 0, 2, 3), Block(0, 0, 4, 5), Block(1, 0, 2, 3), Block(0, 0, 7, 8)],
        [Block(0, 0, 1, 2), Block(1, 0, 0, 1), Block(0, 0, 5, 6), Block(1, 0, 3, 4)],
        [Block(0, 0, 0, 1), Block(0, 0, 3, 4), Block(1, 0, 1, 2), Block(0, 0, 6, 7)],
    ]
    # Room for 12 rows: four blocks of two steps and the observation after them.
    assert deal_blocks([50], 1, 1, room=12) == [[Block(0, 0, start, start + 2) for start in (42, 44, 46, 48)]]
    assert deal_blocks([0, 0], 2, 3, room=5) == [[], [], []]
    (long,) = deal_blocks([10_000], 1, 1, room=10**6)
    assert {block.stop - block.start for block in long[1:]} == {256}
