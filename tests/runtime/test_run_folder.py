import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from full_disk import files_of_at_most

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import OF_ONE_START, TrainConfig
from asyncrl.runtime.run_folder import RunFolder, default_experiment, find_saved_config, write_text_atomically

HOLD_LOCK = """
import sys, time
from asyncrl.runtime.run_folder import RunFolder, default_experiment, find_saved_config
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


def test_a_name_may_end_with_a_slash(train_dir):
    with RunFolder.create(train_dir, "p1/", "resume") as created:
        assert created.path.name == "p1"
    assert RunFolder.open(train_dir, "p1/").path.name == "p1"


def test_a_link_to_a_folder_elsewhere_is_refused(train_dir, tmp_path):
    with RunFolder.create(str(tmp_path / "elsewhere"), "run", "resume") as folder:
        target = folder.path
    train_dir.mkdir()
    (train_dir / "run").symlink_to(target)
    with pytest.raises(UsageError, match="is a link"):
        RunFolder.create(str(train_dir), "run", "overwrite")
    assert (target / "logs").is_dir()


def test_resuming_keeps_a_runs_files_and_overwriting_deletes_them(train_dir):
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        folder.log("learner").write_text("old")
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        assert folder.log("learner").read_text() == "old"
    with RunFolder.create(str(train_dir), "run", "overwrite") as folder:
        assert not folder.log("learner").exists()


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


def test_overwriting_follows_no_link_out_of_the_run(train_dir, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("keep")
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        (folder.path / "link").symlink_to(precious)
    RunFolder.create(str(train_dir), "run", "overwrite").close()
    assert (precious / "data").read_text() == "keep"


def test_a_folder_that_is_no_run_is_never_touched(train_dir):
    foreign = train_dir / "run"
    foreign.mkdir(parents=True)
    (foreign / "thesis.tex").write_text("keep")
    with pytest.raises(UsageError, match="is not an asyncrl run"):
        RunFolder.create(str(train_dir), "run", "overwrite")
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]


def test_a_disk_without_room_is_one_sentence_and_what_was_there_stays(train_dir):
    with RunFolder.create(str(train_dir), "run", "resume") as folder:
        folder.write_config(TrainConfig(seed=1))
        before = sorted(folder.path.iterdir())
        for write in (
            lambda: folder.write_config(TrainConfig(seed=2)),
            lambda: folder.write_environment({"name": "x" * 1000}),
        ):
            with files_of_at_most(500), pytest.raises(UsageError, match=r"Cannot write to .*run: File too large"):
                write()
        assert sorted(folder.path.iterdir()) == before
        assert folder.read_config().seed == 1


def test_a_file_in_the_way_is_one_sentence(train_dir):
    train_dir.mkdir()
    (train_dir / "run").write_text("")
    with pytest.raises(UsageError, match="Cannot use"):
        RunFolder.create(str(train_dir), "run", "overwrite")


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


def test_a_run_that_does_not_exist_is_answered_with_those_that_do(train_dir):
    RunFolder.create(str(train_dir), "walker", "resume").close()
    with pytest.raises(UsageError, match=r"no run 'wlaker'.*walker"):
        RunFolder.open(str(train_dir), "wlaker")


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


def test_the_default_name_can_name_a_run(train_dir):
    name = default_experiment("my.module:ALE/Pong-v5", "ppo", now=lambda: 0.0)
    assert name.startswith("my.module-ALE-Pong-v5_ppo_19")
    RunFolder.create(str(train_dir), name, "resume").close()


def test_two_machines_write_one_file_at_the_same_time(tmp_path, monkeypatch):
    replace = os.replace

    def replace_after_another(source, target):
        monkeypatch.setattr(os, "replace", replace)
        write_text_atomically(target, "another machine")
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_after_another)
    write_text_atomically(tmp_path / "results.md", "this one")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("results.md", "this one")]
