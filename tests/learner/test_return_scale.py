"""The standard deviation of discounted returns against a loop over episodes, in a resumed run and with ranks."""

from __future__ import annotations

import numpy as np
import pytest
from replays import TaggedWriter, new_replay
from thread_ranks import ThreadRanks, together

from asyncrl.buffers.replay import ReplayStripes
from asyncrl.learner.ranks import Ranks
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.return_scale import ReturnScale

GAMMA = 0.8


def returns_of(stripes: ReplayStripes, factor: float = 1.0, clip: float = np.inf) -> list[float]:
    """The discounted sum of rewards at each step, one environment at a time."""
    found = []
    for split in range(stripes.num_splits):
        for env in range(stripes.num_envs):
            total = 0.0
            for row in range(stripes.num_rows[split]):
                step = stripes.rows(split, row)
                if not step.valid[env]:
                    continue
                total = GAMMA * total + min(max(factor * float(step.reward[env]), -clip), clip)
                found.append(total)
                if step.terminated[env] or step.truncated[env]:
                    total = 0.0
    return found


def written(rows: int, seed: int = 3) -> tuple[ReplayStripes, list[TaggedWriter]]:
    _, stripes = new_replay(2, 3, 400)
    writers = [TaggedWriter(stripes, split, seed + split) for split in range(2)]
    for writer in writers:
        writer.write_rows(rows)
    return stripes, writers


def test_rewards_are_divided_by_the_deviation_of_the_sums_in_their_episodes() -> None:
    _, stripes = new_replay(2, 3, 400)
    writers = [TaggedWriter(stripes, split, 3 + split) for split in range(2)]
    scale = ReturnScale(stripes, None, Ranks())
    assert scale.divisor == pytest.approx(1.0)
    for count in (7, 1, 50, 0):  # sums continue from one call to the next
        for writer in writers:
            writer.write_rows(count)
        scale.update(GAMMA, factor=0.01, clip=1.5)
        assert scale.divisor == pytest.approx(np.std(returns_of(stripes, 0.01, 1.5)), rel=1e-4)


def test_no_sum_is_larger_than_the_limit() -> None:
    stripes, _ = written(60)
    returns = np.array(returns_of(stripes))
    for limit in (0.5, 1000.0):
        scale = ReturnScale(stripes, limit, Ranks())
        scale._next_row = [0, 0]
        scale.update(GAMMA)
        assert scale.divisor == pytest.approx(max(np.std(returns), np.abs(returns).max() / limit), rel=1e-6)


def test_a_resumed_run_counts_on_after_the_rows_that_it_restored() -> None:
    stripes, writers = written(30)
    scale = ReturnScale(stripes, 0.5, Ranks())
    scale._next_row = [0, 0]
    scale.update(GAMMA)
    resumed = ReturnScale(stripes, 0.5, Ranks())
    resumed.load_state_dict(scale.state_dict())
    assert resumed.divisor == scale.divisor
    resumed.update(GAMMA)
    assert resumed.state_dict() == scale.state_dict()
    writers[0].write_rows(5)
    resumed.update(GAMMA)
    assert resumed.state_dict()["count"] > scale.state_dict()["count"]


def test_ranks_have_the_statistics_of_all() -> None:
    together_stripes = [written(40, seed=seed)[0] for seed in (3, 8)]

    def work(ranks: ThreadRanks) -> float:
        scale = ReturnScale(together_stripes[ranks.rank], 0.01, ranks)
        if ranks.rank == 0:
            scale.load_state_dict({"count": 0, "mean": 0.0, "variance": 1.0, "largest": 1.0})
        scale.take_from_first()
        scale._next_row = [0, 0]
        scale.update(GAMMA)
        return scale.divisor

    returns = np.concatenate([returns_of(stripes) for stripes in together_stripes])
    expected = max(np.std(returns), np.abs(returns).max() / 0.01)
    assert together(2, work) == pytest.approx([expected] * 2, rel=1e-6)


def test_the_sampler_divides_clipped_rewards() -> None:
    stripes, _ = written(60)
    sampler = ReplaySampler(stripes, 2, 0.9, 0.5, 3.0, seed=1)
    plain = sampler.sample(1, 64)[0].reward
    again = ReplaySampler(stripes, 2, 0.9, 0.5, 3.0, seed=1)
    again.reward_divisor = 4.0
    assert again.sample(1, 64)[0].reward.numpy() == pytest.approx(plain.numpy() / 4.0)
