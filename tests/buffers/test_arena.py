"""One mapping, seen by all, gone with its last user."""

from __future__ import annotations

import os
import tempfile
from multiprocessing.context import BaseContext
from pathlib import Path

import arena_targets
import numpy as np
import pytest
from command import wait_until

from asyncrl.buffers.arena import Arena, ArraySpec, arena_size
from asyncrl.buffers.messages import Waker
from asyncrl.config import host

SPECS = (
    ArraySpec("bytes", "bool", (3,)),
    ArraySpec("numbers", "int64", (5,)),
    ArraySpec("matrix", "float32", (7, 11)),
)


def test_arrays_start_zeroed_on_cache_lines_of_their_own() -> None:
    arena = Arena.create(SPECS)
    arrays = [arena.array(spec.name) for spec in SPECS]
    assert [(array.dtype, array.shape) for array in arrays] == [(np.dtype(spec.dtype), spec.shape) for spec in SPECS]
    assert not any(array.any() for array in arrays)
    starts = [array.ctypes.data for array in arrays]
    assert all(start % 128 == 0 for start in starts)
    ends = [array.ctypes.data + array.nbytes for array in arrays]
    assert all(end <= start for end, start in zip(ends[:-1], starts[1:], strict=True))
    assert arena_size(SPECS) == 128 + 128 + 384
    arena.words("numbers")[2] = -7
    assert arena.array("numbers").tolist() == [0, 0, -7, 0, 0]


def test_arrays_of_one_name_and_words_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="share a name"):
        Arena.create([SPECS[0], SPECS[0]])
    with pytest.raises(ValueError, match="one dimension, got float32 with 2"):
        Arena.create(SPECS).words("matrix")


def test_all_pages_are_taken_at_the_start_and_have_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, sizes = set(os.listdir("/dev/shm")), []
    allocate = os.posix_fallocate

    def noticed(fd: int, offset: int, size: int) -> None:
        allocate(fd, offset, size)
        sizes.append((os.fstat(fd).st_blocks * 512, os.fstat(fd).st_nlink))

    monkeypatch.setattr(os, "posix_fallocate", noticed)
    arena = Arena.create([ArraySpec("large", "float32", (1_000_000,))])
    assert sizes[0][0] >= 4_000_000
    assert sizes[0][1] == 0
    wait_until(lambda: set(os.listdir("/dev/shm")) <= entries, 10.0, "there is no new name, also of other programs")
    arena.close()


def test_an_arena_that_nobody_has_closed_leaves_no_descriptor_and_its_views_stay() -> None:
    def num_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = num_open()
    arena = Arena.create(SPECS)
    numbers, view = arena.array("numbers"), arena.scoped("policy.1.")
    opened = num_open()
    del arena
    assert num_open() == opened > before, "the view needs it"
    del view
    assert num_open() == opened - (1 if host.IS_LINUX else 2), "the memory's, and that of a file for locks"
    numbers[:] = 3
    assert numbers.sum() == 15
    del numbers
    assert num_open() == before


@pytest.mark.skipif(not host.IS_LINUX, reason="unavoidable: no holes in files")
def test_a_freed_arena_gives_its_pages_back_although_a_view_is_left() -> None:
    arena = Arena.create([ArraySpec("large", "float32", (1_000_000,))])
    view, fd = arena.array("large"), os.dup(arena.lock_fileno())
    view[:] = 1.0
    arena.free()
    assert os.fstat(fd).st_blocks == 0 and not view.any()
    os.close(fd)


@pytest.mark.parametrize(("is_linux", "prefix"), [(True, ""), (False, ""), (True, "of.1.")])
@pytest.mark.usefixtures("leaves_nothing")
def test_a_child_sees_the_same_pages_and_wakes_its_parent(
    context: BaseContext, monkeypatch: pytest.MonkeyPatch, is_linux: bool, prefix: str, tmp_path: Path
) -> None:
    if not is_linux:  # the lock file is then a deleted one in the folder for temporary files
        monkeypatch.setattr(host, "IS_LINUX", False)
        monkeypatch.delattr(os, "posix_fallocate")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    arena, to_child, to_parent = Arena.create([*SPECS, ArraySpec("of.1.numbers", "int64", (5,))]), Waker(), Waker()
    view = arena.scoped(prefix) if prefix else arena
    entries = set(os.listdir("/dev/shm"))
    child = context.Process(target=arena_targets.add_one, args=(view, to_child, to_parent), daemon=True)
    child.start()
    view.array("numbers")[:] = range(5)
    to_child.wake()
    assert to_parent.wait(30.0)
    assert arena.array(f"{prefix}numbers").tolist() == [1, 2, 3, 4, 5]
    assert not arena.array("numbers" if prefix else "of.1.numbers").any()
    wait_until(lambda: set(os.listdir("/dev/shm")) <= entries, 10.0, "there is no new name, also of other programs")
    child.join()
    assert child.exitcode == 0
    assert list(tmp_path.glob("asyncrl-*")) == []
    for each in (arena, to_child, to_parent):
        each.close()


def test_a_scoped_view_finds_its_own_arrays_first_and_then_the_common_ones() -> None:
    arena = Arena.create(
        [ArraySpec(name, "int64", (1,)) for name in ("count", "only_common", "of.1.count", "of.1.own")]
    )
    for number, name in enumerate(("count", "only_common", "of.1.count", "of.1.own")):
        arena.words(name)[0] = number
    view = arena.scoped("of.1.")
    assert [view.words(name)[0] for name in ("count", "only_common", "own", "of.1.count")] == [2, 1, 3, 2]
    assert view.find_array("of.2.count") is None and view.find_array("own") is not None
    view.words("count")[0] = 7
    assert (arena.words("of.1.count")[0], arena.words("count")[0]) == (7, 0)
    view.close()
    assert arena.words("of.1.count")[0] == 7
