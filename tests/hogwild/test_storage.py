"""Statistics of several processes add up to those of one, and tensors are where they should be."""

from __future__ import annotations

from multiprocessing.context import BaseContext

import numpy as np
import pytest
import torch
from hogwild.shared import batch_of, observe_times, shared_arena

from asyncrl.buffers.shared_tensors import RUN, SharedMoments, SharedTensor
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import RunningMoments
from asyncrl.modes.hogwild.storage import Copies, InitialStorage, MergedMoments, SharedStorage

pytestmark = pytest.mark.usefixtures("leaves_nothing")

TAKEN = torch.zeros(())
"""What a step is given as `found_inf`, so that it is taken."""


def test_moments_of_processes_at_work_are_those_of_all_their_batches(context: BaseContext) -> None:
    arena = shared_arena(3)
    before = torch.full((4, 2), 3.0)
    base = RunningMoments(2, torch.device("cpu"))
    base.update(before)
    SharedMoments(arena, "obs").write(RUN, base.count, base.mean.numpy(), base.variance.numpy())
    processes = [context.Process(target=observe_times, args=(arena, owner, 300)) for owner in (1, 2, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    merged = MergedMoments(SharedMoments(arena, "obs"), RUN)
    everything = torch.cat([before, *(batch_of(owner, n) for owner in (1, 2, 3) for n in range(300))]).double()
    assert merged.count == len(everything)
    torch.testing.assert_close(merged.mean, everything.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(merged.variance, everything.var(0, unbiased=False), rtol=1e-5, atol=1e-6)
    arena.close()


def test_a_writer_that_dies_leaves_its_entry_as_it_was_before() -> None:
    arena = shared_arena(1)
    shared = SharedMoments(arena, "obs")
    moments = MergedMoments(shared, owner=1)
    moments.update(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    before, after = shared.new_entries(), shared.new_entries()
    shared.read_all(before)
    assert before[1, 0] == 2
    with pytest.raises(ValueError, match="broadcast"):
        shared.write(1, 99, np.array([7.0, 7.0]), np.zeros(3))  # ends in the middle: count and mean are written
    shared.read_all(after)
    np.testing.assert_array_equal(after, before)
    other = MergedMoments(shared, RUN)
    assert (other.count, other.mean.tolist()) == (2, [2.0, 4.0])
    moments.update(torch.tensor([[5.0, 1.0]]))
    other.merge()
    assert (other.count, other.mean.tolist()) == (3, [3.0, 3.0])
    arena.close()


def test_a_process_in_the_place_of_another_goes_on_with_its_entry() -> None:
    arena = shared_arena(1)
    shared = SharedMoments(arena, "obs")
    MergedMoments(shared, owner=1).update(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    again = MergedMoments(shared, owner=1)
    again.update(torch.tensor([[5.0, 1.0]]))
    again.merge()
    assert (again.count, again.mean.tolist()) == (3, [3.0, 3.0])
    arena.close()


def test_shared_storage_is_the_shared_memory_and_a_private_one_a_copy_until_it_is_pulled() -> None:
    arena = shared_arena(2, size=3)
    InitialStorage(arena).allocate("model", torch.tensor([1.0, 2.0, 3.0]))
    shared, private = SharedStorage(arena, 1), SharedStorage(arena, 2, Copies.PULLED)
    direct, copy = shared.allocate("model", torch.zeros(3)), private.allocate("model", torch.zeros(3))
    assert direct.tolist() == copy.tolist() == [1.0, 2.0, 3.0]
    gradient = torch.ones(3)
    optimizer = private.optimizer(["model"], [copy], [gradient], TrainConfig())
    optimizer.step(0.5, TAKEN)
    np.testing.assert_allclose(direct.numpy(), [0.5, 1.5, 2.5], atol=1e-4)
    assert copy.tolist() == [1.0, 2.0, 3.0]
    private.sync()
    assert torch.equal(copy, direct)
    arena.close()


def test_a_copy_that_follows_is_where_the_shared_values_are_after_each_step_of_its_own() -> None:
    arena = shared_arena(2, size=3)
    InitialStorage(arena).allocate("model", torch.tensor([1.0, 2.0, 3.0]))
    other, following = SharedStorage(arena, 1), SharedStorage(arena, 2, Copies.FOLLOWING)
    direct, copy = other.allocate("model", torch.zeros(3)), following.allocate("model", torch.zeros(3))
    gradient = torch.ones(3)
    mine = following.optimizer(["model"], [copy], [gradient], TrainConfig())
    others = other.optimizer(["model"], [direct], [gradient], TrainConfig())
    mine.step(0.5, TAKEN)
    assert torch.equal(copy, direct)
    others.step(0.5, TAKEN)
    assert not torch.equal(copy, direct)
    following.sync()
    assert torch.equal(copy, direct)
    others.step(0.5, TAKEN)
    before = direct.clone()
    mine.step(0.0, TAKEN)
    assert torch.equal(copy, before)  # it takes in what others have done, and undoes nothing of it
    assert torch.equal(direct, before)
    arena.close()


def test_what_a_checkpoint_held_is_handed_over() -> None:
    arena = shared_arena(2)
    initial = InitialStorage(arena)
    initial.allocate("model", torch.ones(6))
    optimizer = initial.optimizer(["model"], [torch.zeros(6)], [torch.zeros(6)], TrainConfig())
    moments = initial.moments("obs", 2, torch.device("cpu"))
    optimizer.steps[0].fill_(17.0)
    optimizer.exp_avgs[0].fill_(0.25)
    moments.update(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    initial.finish()
    assert SharedTensor(arena, "model").num_steps == 17
    assert SharedTensor(arena, "model").first.tolist() == [0.25] * 6
    assert MergedMoments(SharedMoments(arena, "obs"), 1).count == 2
    arena.close()
