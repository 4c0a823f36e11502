import dataclasses
import hashlib
import json
import os
import pickle
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.checkpoint import Checkpoint, CheckpointError, ForeignCheckpointError, SavedReplay


def make_checkpoint(value=1.0):
    flat = torch.full((6,), value)
    # Views of one tensor, as the learner's parameters are, one of them not contiguous.
    model = {"weight": flat[:4].view(2, 2).t(), "bias": flat[4:]}
    return Checkpoint(model, {"exp_avg": torch.arange(3, dtype=torch.float64)}, {"policy_version": 7, "rate": 3e-4})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def make_replay(num_rows=5):
    rows = np.arange(num_rows * 3)
    columns = {
        "truncated": [rows[: num_rows - 1] % 2 == 0, rows[:0] > 0],
        "obs": [rows.reshape(num_rows, 3).astype(np.uint8)],
        "reward": [rows[:2].astype(np.float32), rows[2:num_rows].astype(np.float32)],
        "action": [rows[:num_rows].astype(np.int64)],
    }
    return SavedReplay(columns, lambda: [2, 0])


def test_what_was_saved_is_loaded_and_its_replay_only_if_asked_for(tmp_path):
    saved = dataclasses.replace(make_checkpoint(), replay=make_replay())
    saved.model["weight"][0, 1] = 5.0
    path = checkpoints.save(tmp_path, saved, env_steps=1234, keep=1)
    loaded = checkpoints.load(path)
    assert (loaded.state, loaded.replay, checkpoints.saved_env_steps(path)) == (saved.state, None, 1234)
    for part in ("model", "optimizer"):
        expected, found = getattr(saved, part), getattr(loaded, part)
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)
    replay = checkpoints.load(path, with_replay=True).replay
    assert replay.count_lost() == [2, 0]
    assert replay.columns.keys() == saved.replay.columns.keys()
    for name, parts in saved.replay.columns.items():
        (found,) = replay.columns[name]
        expected = np.concatenate(parts)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    # Whoever reads safetensors can read the file.
    assert safetensors.numpy.load_file(path / checkpoints.REPLAY_FILE)["action"].tolist() == [0, 1, 2, 3, 4]
    # A copy may lack the replay, and no other file.
    assert {file.name for file in path.iterdir()} == {*checkpoints.SHARED_FILES, checkpoints.REPLAY_FILE}
    (path / checkpoints.REPLAY_FILE).unlink()
    assert checkpoints.load(path, with_replay=True).replay is None
    (path / checkpoints.OPTIMIZER_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"it has no optimizer\.safetensors"):
        checkpoints.load(path)


def test_a_large_replay_is_saved_and_loaded_without_a_copy_in_memory(tmp_path):
    column = np.zeros((1 << 26) // 4, np.float32)
    saved = Checkpoint({}, {}, {}, SavedReplay({"obs.0": [column[:1000], column[1000:]]}, lambda: [0]))
    tracemalloc.start()
    try:
        replay = checkpoints.load(checkpoints.save(tmp_path, saved, 1, keep=1), with_replay=True).replay
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert replay.columns["obs.0"][0].shape == column.shape
    assert peak < column.nbytes // 2
    assert checkpoints.REPLAY_FILE in Path("/proc/self/maps").read_text(), "it is read where it lies"


def test_the_newest_are_kept_and_found_by_steps_not_by_name_or_time(tmp_path):
    for env_steps in (900, 1000, 2_000_000_000_000):
        newest = checkpoints.save(tmp_path, make_checkpoint(), env_steps, keep=10)
    os.utime(newest, (0, 0))
    assert checkpoints.latest(tmp_path).name == "checkpoint_2000000000000"
    newest = checkpoints.save(tmp_path, make_checkpoint(), 2_000_000_000_001, keep=2)
    assert names(tmp_path) == ["checkpoint_2000000000000", newest.name]
    assert checkpoints.latest(tmp_path) == newest
    (tmp_path / "killed" / ".tmp_checkpoint_000000000099").mkdir(parents=True)
    assert checkpoints.latest(tmp_path / "missing") is checkpoints.latest(tmp_path / "killed") is None
    path = checkpoints.save(tmp_path / "killed", make_checkpoint(), 1, keep=1)
    assert names(tmp_path / "killed") == [path.name], "what a killed run left is deleted"


def test_a_checkpoint_of_fewer_or_the_same_steps_replaces_those_that_a_resumed_run_has_left(tmp_path):
    for env_steps in (40, 80, 100):
        checkpoints.save(tmp_path, make_checkpoint(), env_steps, keep=3)
    path = checkpoints.save(tmp_path, make_checkpoint(), 50, keep=3)
    assert names(tmp_path) == ["checkpoint_000000000040", path.name]
    path = checkpoints.save(tmp_path, make_checkpoint(2.0), 50, keep=3)
    assert checkpoints.load(path).model["bias"].tolist() == [2.0, 2.0], "the second at these steps stays"
    assert names(tmp_path) == ["checkpoint_000000000040", path.name]


def test_the_newest_best_replaces_the_one_of_a_killed_run_that_had_more_steps(tmp_path):
    for env_steps, mean_return in ((150, 500.0), (120, 600.0)):
        path = checkpoints.save(tmp_path, make_checkpoint(), env_steps, keep=2)
        best = checkpoints.copy_as_best(path, tmp_path, mean_return)
        assert checkpoints.newest_first(tmp_path / "best") == [best]
        assert checkpoints.best_return(tmp_path) == mean_return
        assert checkpoints.load(best).model.keys() == checkpoints.load(path).model.keys()


@pytest.mark.parametrize("fails_in", ["fsync", "rename"])
def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_half_written(tmp_path, monkeypatch, fails_in):
    older = checkpoints.save(tmp_path, make_checkpoint(), 10, keep=1)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, fails_in, fail)
    with pytest.raises(CheckpointError, match="checkpoint_000000000020: No space left on device"):
        checkpoints.save(tmp_path, make_checkpoint(), 20, keep=1)
    assert names(tmp_path) == [older.name]
    checkpoints.load(older)


def test_a_checkpoint_gets_its_name_only_when_its_files_are_on_the_disk(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append(f"rename {b.name}"), rename(a, b)))
    checkpoints.save(tmp_path, make_checkpoint(), 1, keep=1)
    # Four files and their folder, then the name, then the folder that holds the name.
    assert events == ["sync"] * 5 + ["rename checkpoint_000000000001", "sync"]


FILES = ["model.safetensors", "optimizer.safetensors", "replay.safetensors", "state.json", "SHA256SUMS"]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_of_any_byte_and_a_cut_are_noticed(tmp_path, name):
    content = dataclasses.replace(make_checkpoint(), replay=make_replay())
    path = checkpoints.save(tmp_path, content, 1, keep=1)
    assert sorted(FILES) == names(path)
    sound = (path / name).read_bytes()
    flips = [sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :] for place in range(len(sound))]
    cuts = [sound[:length] for length in (0, 1, len(sound) // 2, len(sound) - 1)]
    for damaged in (*flips, *cuts):
        (path / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged") as caught:
            checkpoints.load(path, with_replay=name in ("replay.safetensors", "SHA256SUMS"))
        assert name in str(caught.value) or name == "SHA256SUMS"
    (path / name).write_bytes(sound)
    assert checkpoints.load(path, with_replay=True).state == content.state


def test_what_the_state_says_is_never_taken_from_a_damaged_file(tmp_path):
    path = checkpoints.save(tmp_path / "best", make_checkpoint(), 50, keep=1)
    (path / "state.json").write_text((path / "state.json").read_text().replace('"env_steps": 50', '"env_steps": 51'))
    for read in (checkpoints.saved_env_steps, checkpoints.load_state):
        with pytest.raises(CheckpointError, match=r"the checksum of state\.json"):
            read(path)
    assert checkpoints.best_return(tmp_path) is None


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", FILES)
def test_a_pickle_in_the_place_of_a_file_is_never_opened(tmp_path, name):
    path, executed = checkpoints.save(tmp_path / "run", make_checkpoint(), 1, keep=1), tmp_path / "executed"
    (path / name).write_bytes(pickle.dumps(Malicious(executed)))
    if name != "SHA256SUMS":  # whoever puts it there can compute checksums
        sums = [f"{hashlib.sha256((path / other).read_bytes()).hexdigest()}  {other}\n" for other in names(path)]
        (path / "SHA256SUMS").write_text("".join(line for line in sums if "SHA256SUMS" not in line))
    is_foreign = name.endswith(".safetensors")
    with pytest.raises(ForeignCheckpointError if is_foreign else CheckpointError):
        checkpoints.load(path, with_replay=True)
    assert not executed.exists()
    pickle.loads(pickle.dumps(Malicious(executed))).close()
    assert executed.exists(), "it would have been seen"


@pytest.mark.parametrize("killed_before_rename", [1, 2])
def test_a_run_killed_between_two_renames_keeps_its_only_checkpoint(tmp_path, monkeypatch, killed_before_rename):
    checkpoints.save(tmp_path, make_checkpoint(1.0), 10, keep=1)
    renames = []

    class Killed(BaseException):
        pass

    def rename(source, target, os_rename=os.rename):
        renames.append(target)
        if len(renames) == killed_before_rename:
            raise Killed
        os_rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", rename)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # who is killed tidies nothing up
        with pytest.raises(Killed):
            checkpoints.save(tmp_path, make_checkpoint(2.0), 10, keep=1)
    (left,) = checkpoints.newest_first(tmp_path)
    assert checkpoints.load(left).model["bias"].tolist() == [1.0, 1.0]
    path = checkpoints.save(tmp_path, make_checkpoint(3.0), 20, keep=2)
    assert [found.name for found in checkpoints.newest_first(tmp_path)] == [path.name, "checkpoint_000000000010"]
    assert names(tmp_path) == ["checkpoint_000000000010", path.name]


def test_a_folder_that_is_not_a_checkpoint_is_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="there is no such folder"):
        checkpoints.load(tmp_path / "missing")
    path = checkpoints.save(tmp_path, make_checkpoint(), 1, keep=1)
    manifest = json.loads((path / "state.json").read_text())
    (path / "SHA256SUMS").unlink()
    for text, problem in (
        ("{", "not JSON"),
        ("[]", "no format_version"),
        (json.dumps(manifest | {"format_version": 99}), "format version 99"),
        (json.dumps({"format_version": 3, "sha256": {}}), "format version 3, but this asyncrl reads version 4"),
        (json.dumps(manifest), "has no SHA256SUMS"),
    ):
        (path / "state.json").write_text(text)
        with pytest.raises(CheckpointError, match=problem):
            checkpoints.load(path)
    text = json.dumps({"format_version": 4})
    (path / "state.json").write_text(text)
    (path / "SHA256SUMS").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}  state.json\n")
    with pytest.raises(CheckpointError, match="lacks env_steps, state"):
        checkpoints.load(path)
    (path / "SHA256SUMS").unlink()
    (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"it has no state\.json"):
        checkpoints.load(path)
