import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import OF_ONE_START, TrainConfig
from asyncrl.storage.locating import TRAIN_DIR, locate
from asyncrl.storage.run_folder import RunFolder, default_experiment, find_saved_config, write_text_atomically

HOLD_LOCK = """
import sys, time
from asyncrl.storage.run_folder import RunFolder, default_experiment, find_saved_config
folder = RunFolder.create(sys.argv[1], "run", "overwrite")
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def train_dir(tmp_path):
    return tmp_path / "runs"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../other", "a/b", "a\\b", "/tmp/x", ".hidden", "-x", " a", "a\nb", "x" * 201]
)
def test_a_name_that_could_leave_the_folder_or_confuse_is_refused(train_dir, name):
    with pytest.raises(UsageError, match="--experiment"):
        RunFolder.create(str(train_dir), name, "overwrite")
    with pytest.raises(UsageError, match="--experiment"):
        RunFolder.open(str(train_dir), name)
    assert not train_dir.exists()


def test_names_with_a_slash_and_default_names_are_taken_and_the_nearest_run_is_named(train_dir):
    default = default_experiment("my.module:ALE/Pong-v5", "ppo", now=lambda: 0.0)
    assert default.startswith("my.module-ALE-Pong-v5_ppo_19")
    for name, folder in (("walker/", "walker"), (default, default)):
        RunFolder.create(str(train_dir), name, "resume").close()
        assert RunFolder.open(str(train_dir), name).path.name == folder
    with pytest.raises(UsageError, match=r"no run 'wlaker'.*walker"):
        RunFolder.open(str(train_dir), "wlaker")


def test_a_file_a_foreign_folder_or_a_link_in_place_of_a_run_is_refused_and_kept(train_dir, tmp_path):
    with RunFolder.create(str(tmp_path / "elsewhere"), "run", "resume") as folder:
        target = folder.path
    (train_dir / "foreign").mkdir(parents=True)
    (train_dir / "foreign" / "thesis.tex").write_text("keep")
    (train_dir / "file").write_text("keep")
    (train_dir / "link").symlink_to(target)
    for name, said in (("foreign", "is not an asyncrl run"), ("file", "Cannot use"), ("link", "is a link")):
        with pytest.raises(UsageError, match=said):
            RunFolder.create(str(train_dir), name, "overwrite")
    assert [path.name for path in (train_dir / "foreign").iterdir()] == ["thesis.tex"]
    assert (target / "logs").is_dir() and (train_dir / "file").read_text() == "keep"


def test_resuming_keeps_a_runs_files_and_overwriting_deletes_them_but_follows_no_link(train_dir, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("keep")
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        folder.log("learner").write_text("old")
        (folder.path / "link").symlink_to(tmp_path / "precious")
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        assert folder.log("learner").read_text() == "old"
    with RunFolder.create(str(train_dir), "run", "overwrite") as folder:
        assert not folder.log("learner").exists()
    assert (tmp_path / "precious" / "data").read_text() == "keep"


def test_restarting_keeps_every_old_run_under_another_name(train_dir):
    for number in range(3):
        with RunFolder.create(str(train_dir), "run", "restart") as folder:
            assert not folder.log("learner").exists()
            folder.log("learner").write_text(str(number))
            with pytest.raises(UsageError, match="in use"):
                RunFolder.create(str(train_dir), "run", "restart")
    logs = {path.name: (path / "logs" / "learner.log").read_text() for path in train_dir.iterdir()}
    assert logs == {"run": "2", "run_old": "0", "run_old2": "1"}
    RunFolder.create(str(train_dir), "run_old", "resume").close()


def test_records_after_the_checkpoint_are_forgotten_with_a_line_that_was_cut_short(train_dir):
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        folder.forget_after(100)
        folder.metrics.write_text('{"env_steps": 50}\n{"env_steps": 100, "x": 1}\n{"env_steps": 150}\n{"env_st')
        folder.forget_after(100)
        assert folder.metrics.read_text() == '{"env_steps": 50}\n{"env_steps": 100, "x": 1}\n'


def test_without_a_checkpoint_no_policy_keeps_its_best(train_dir):
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        best = [folder.checkpoints / "best", folder.checkpoints / "policy_1" / "best"]
        for path in best:
            path.mkdir(parents=True)
        folder.forget_after(100)
        assert all(path.exists() for path in best)
        folder.forget_after(-1)
        assert not any(path.exists() for path in best)


def test_only_a_run_with_settings_goes_on(train_dir, tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.yaml").write_text("seed: 1\n")
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        assert find_saved_config(str(train_dir), "run") is None
        folder.write_config(TrainConfig())
        assert find_saved_config(str(train_dir), "run") == folder.config
    assert find_saved_config(str(tmp_path), "foreign") is None
    assert find_saved_config(str(tmp_path / "elsewhere"), "../runs/run") is None


def test_a_disk_without_room_is_one_sentence_and_what_was_there_stays(train_dir):
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        folder.write_config(TrainConfig(seed=1))
        before = sorted(folder.path.iterdir())
        for write in (
            lambda: folder.write_config(TrainConfig(seed=2)),
            lambda: folder.write_json(folder.environment, {"name": "x" * 1000}),
        ):
            with files_of_at_most(500), pytest.raises(UsageError, match=r"Cannot write to .*run: File too large"):
                write()
        assert sorted(folder.path.iterdir()) == before
        assert folder.read_config().seed == 1


def test_a_living_run_is_protected_and_a_killed_one_gives_way(train_dir):
    process = subprocess.Popen([sys.executable, "-c", HOLD_LOCK, str(train_dir)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(UsageError, match=rf"in use by another run \(process {process.pid}\)"):
            RunFolder.create(str(train_dir), "run", "overwrite")
        process.send_signal(signal.SIGKILL)
        process.wait()
        with RunFolder.create(str(train_dir), "run", "overwrite") as folder:
            assert (folder.path / ".lock").read_text() == f"{os.getpid()}\n"
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_a_callback_forked_does_not_keep_the_lock(train_dir):
    folder = RunFolder.create(str(train_dir), "run", "overwrite")
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60.0,))
    process.start()
    try:
        folder.close()
        with RunFolder.create(str(train_dir), "run", "overwrite") as again:
            assert process.is_alive() and (again.path / ".lock").read_text() == f"{os.getpid()}\n"
    finally:
        process.kill()
        process.join()


def test_closing_gives_the_lock_back_and_leaves_no_descriptor(train_dir):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        folder = RunFolder.create(str(train_dir), "run", "overwrite")
        folder.close()
        folder.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_config_comes_back_as_it_was_written_without_what_belongs_to_one_start(train_dir):
    config = TrainConfig(env="mod:Env-v0", env_kwargs={"a": [1, {"b": None}]}, encoder="123", adam_eps=1e-9)
    of_one_start = {"train_dir": "here", "experiment": "run", "restart_behavior": "restart", "train_for_seconds": 1.0}
    of_one_start |= {"quiet": True, "progress": "live", "profile": True}
    assert set(of_one_start) == set(OF_ONE_START)
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        folder.write_config(config.model_copy(update=of_one_start))
    assert RunFolder.open(str(train_dir), "run").read_config() == config
    folder.config.write_text("learning_rate: fast\n")
    with pytest.raises(UsageError, match=r"config\.yaml does not hold"):
        folder.read_config()


def test_two_machines_write_one_file_at_the_same_time(tmp_path, monkeypatch):
    replace = os.replace

    def replace_after_another(source, target):
        monkeypatch.setattr(os, "replace", replace)
        write_text_atomically(target, "another machine")
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_after_another)
    write_text_atomically(tmp_path / "results.md", "this one")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("results.md", "this one")]


def test_a_name_is_that_of_a_run_where_another_folder_has_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert locate(Path("mine")) == Path("mine")
    RunFolder.create(TRAIN_DIR, "mine", "resume").close()
    assert locate(Path("mine")) == Path(TRAIN_DIR) / "mine"
    RunFolder.create(".", "mine", "overwrite").close()
    assert locate(Path("mine")) == Path("mine")
