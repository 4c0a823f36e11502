"""Launches: what is made, what is not made again, and what is said of failures and changed settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from command import wait_until
from path_options import check_users_folder
from unread_pipe import PATIENCE_S, start

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.experiments import launch_command
from asyncrl.contrib.experiments.grid import read_grid
from asyncrl.contrib.experiments.launch import Launch
from asyncrl.contrib.experiments.launch_command import main
from asyncrl.contrib.experiments.ownership import Owner
from asyncrl.contrib.experiments.runs import PlannedRun, changed_settings
from asyncrl.storage.checkpoint import Checkpoint, save
from asyncrl.storage.run_folder import RunFolder

GRID = """
settings: {env: CartPole-v1, train_for_env_steps: 1000, serial_mode: true, async_rl: false}
grid: {track_project: [well, fails_once]}
seeds: 2
evaluate: {episodes: 5}
"""


def launch(folder: Path, text: str, **options) -> Launch:
    path = folder / "grid.yaml"
    path.write_text(text)
    return Launch(read_grid(path, folder / "runs"), num_core_sets=2, **options)


def starts(folder: Path) -> dict[str, int]:
    found = (folder / "runs").glob("*/starts")
    return {
        path.parent.name.removeprefix("CartPole-v1_").removeprefix("track_project-"): len(path.read_text())
        for path in found
    }


def test_finished_runs_are_not_repeated_and_failed_ones_are_resumed(tmp_path, pretends) -> None:
    said: list[str] = []
    assert launch(tmp_path, GRID).make_all(said.append)
    assert starts(tmp_path) == {"well_seed0": 1, "well_seed1": 1, "fails_once_seed0": 2, "fails_once_seed1": 2}
    assert sum("exit code 1: something broke" in text and "started again" in text for text in said) == 2
    assert len(pretends) == 6 + 4, "each run, two of them twice, and four evaluations"

    pretends.clear()
    again = launch(tmp_path, GRID)
    assert again.make_all()
    assert pretends == []
    entries = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert [entry["state"] for entry in entries] == ["finished"] * 4
    assert [entry["training_return"] for entry in entries] == [100.0, 100.0, 101.0, 101.0]
    row = "| CartPole-v1_track_project-well | 2 of 2 | 1,000 | 100 [100, 101] | 5.00 | 100 |"
    assert row in again.table().splitlines()

    more = launch(tmp_path, GRID.replace("episodes: 5", "episodes: 6").replace("seeds: 2", "seeds: 3"))
    assert more.make_all()
    assert len(pretends) == 2 + 1 + 6, "the runs of the third seed, one twice; all are evaluated"
    assert starts(tmp_path)["well_seed0"] == 1


def test_a_run_that_keeps_failing_is_given_up_and_the_others_are_made(tmp_path, pretends) -> None:
    said: list[str] = []
    made = launch(tmp_path, GRID.replace("fails_once", "fails, refuses"), retries=1)
    assert not made.make_all(said.append)
    counts = starts(tmp_path)
    assert (counts["fails_seed0"], counts["refuses_seed0"], counts["well_seed0"]) == (2, 1, 1)
    assert any("refuses_seed0: failed with exit code 2: these settings are not possible" in text for text in said)
    assert "| CartPole-v1_track_project-fails | 0 of 2 | - | - | - | - |" in made.table()


def test_a_run_with_changed_settings_is_refused_repeated_or_resumed(tmp_path, pretends) -> None:
    text = GRID.replace("[well, fails_once]", "[well]").replace("evaluate: {episodes: 5}", "")
    assert launch(tmp_path, text).make_all()
    changed = text.replace("train_for_env_steps: 1000", "train_for_env_steps: 2000, gamma: 0.9")
    with pytest.raises(UsageError, match=r"seed0 was made with other settings: .*gamma: 0.99 -> 0.9") as refused:
        launch(tmp_path, changed)
    assert "--changed=repeat" in str(refused.value)
    assert main([str(tmp_path / "grid.yaml"), "--table"]) == 0, "a table of what was made"

    assert launch(tmp_path, changed, if_changed="resume").make_all()
    assert starts(tmp_path) == {"seed0": 2, "seed1": 2}
    assert launch(tmp_path, changed).make_all(), "it is as the grid wants it now"
    assert starts(tmp_path) == {"seed0": 2, "seed1": 2}

    with pytest.raises(UsageError, match=r"seed0 has reached its limit, so nothing .* with gamma: 0.9 -> 0.8"):
        launch(tmp_path, changed.replace("0.9", "0.8"), if_changed="resume")
    shown = launch(tmp_path, changed.replace("0.9", "0.8"), if_changed="show")
    assert [each.state for each in shown.runs] == ["finished"] * 2

    without = changed.replace(", gamma: 0.9", "")
    assert launch(tmp_path, without, if_changed="repeat").make_all()
    assert starts(tmp_path) == {"seed0": 1, "seed1": 1, "seed0_old": 2, "seed1_old": 2}
    assert launch(tmp_path, without).make_all()


@pytest.mark.parametrize(
    ("if_changed", "behaviour", "counts"),
    [
        ("repeat", "fails_at_once", {"seed0": 1, "seed0_old": 1}),
        ("repeat", "fails_once", {"seed0": 2, "seed0_old": 1}),  # the failed start had moved the old run
        ("resume", "fails_at_once", {"seed0": 2}),
    ],
)
def test_a_changed_run_that_fails_before_its_settings_are_saved_starts_again_in_the_same_way(
    tmp_path, pretends, if_changed, behaviour, counts
) -> None:
    text = "settings: {env: CartPole-v1, train_for_env_steps: 1000, track_project: well, gamma: 0.9}"
    assert launch(tmp_path, text).make_all()
    changed = text.replace("1000", "2000").replace("well, gamma: 0.9", behaviour)
    made = launch(tmp_path, changed, if_changed=if_changed)
    assert made.make_all()
    assert starts(tmp_path) == counts
    assert not changed_settings(made.runs[0].run)
    assert made.runs[0].num_failures == 1


def test_a_run_that_a_callback_has_ended_can_be_resumed_with_other_settings(tmp_path, pretends) -> None:
    text = GRID.replace("[well, fails_once]", "[well]").replace("evaluate: {episodes: 5}", "").replace("seeds: 2", "")
    made = launch(tmp_path, text)
    assert made.make_all()
    summary = made.runs[0].run.folder.summary
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "status": "stopped"}))
    assert [each.state for each in launch(tmp_path, text).runs] == ["finished"]
    assert launch(tmp_path, text.replace("1000", "1000, gamma: 0.9"), if_changed="resume").make_all()
    assert starts(tmp_path) == {"seed0": 2}


def test_a_setting_that_begins_to_vary_leaves_the_runs_before_as_they_are(tmp_path, pretends) -> None:
    text = "settings: {env: CartPole-v1, train_for_env_steps: 1000}\ngrid: GRID\nseeds: 2"
    assert launch(tmp_path, text.replace("GRID", "{gamma: [0.9]}")).make_all()
    assert starts(tmp_path) == {"seed0": 1, "seed1": 1}
    larger = launch(tmp_path, text.replace("GRID", "[{gamma: [0.9, 0.8]}, {gae_lambda: [0.5]}]"))
    assert larger.make_all()
    new = {f"{name}_seed{seed}": 1 for name in ("gamma-0.8", "gae_lambda-0.5") for seed in (0, 1)}
    assert starts(tmp_path) == {"seed0": 1, "seed1": 1, **new}
    assert "| CartPole-v1_gamma-0.9 | 2 of 2 |" in larger.table()


def test_the_check_before_runs_start_is_of_their_own_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for train_dir in ("train_dir", "runs"):
        with RunFolder.create(train_dir, f"of_{train_dir}", "restart") as folder:
            folder.write_config(TrainConfig(env="CartPole-v1"))
            save(folder.checkpoints, Checkpoint({}, {}, {}), 600, keep=1)
    text = "settings: {env: CartPole-v1, train_for_env_steps: 1000, init_from: of_train_dir}"
    with pytest.raises(UsageError, match=r"There is no run 'of_train_dir' in .*/runs; the newest there: of_runs"):
        launch(tmp_path, text).make_all()
    assert not (tmp_path / "runs" / "output").exists(), "nothing was started"


def test_what_an_environment_of_tensors_needs_is_no_changed_setting(tmp_path) -> None:
    planned = PlannedRun("run", tmp_path, (), TrainConfig(env="X"), threads=1)
    tensor = {"env_backend": "tensor", "serial_mode": True, "async_rl": False, "num_workers": 1}
    for settings, names in (
        (tensor, []),
        ({"num_workers": 1, "worker_num_splits": 1}, []),
        ({**tensor, "gamma": 0.9}, ["gamma"]),
        ({"serial_mode": True}, ["serial_mode"]),
    ):
        with RunFolder.create(str(tmp_path), "run", "restart") as folder:
            folder.write_config(TrainConfig(env="X", **settings))
        assert [change.name for change in changed_settings(planned)] == names


def test_a_run_with_a_time_limit_is_finished_when_its_checkpoint_has_that_age(tmp_path, pretends) -> None:
    text = "settings: {env: CartPole-v1, train_for_env_steps: 1000, train_for_seconds: 20}"
    made = launch(tmp_path, text)
    assert made.make_all()
    (each,) = made.runs
    each.run.folder.summary.write_text(json.dumps({"status": "completed", "env_steps": 600}))
    assert launch(tmp_path, text).runs[0].state == "waiting", "it has no checkpoint"
    save(each.run.folder.checkpoints, Checkpoint({}, {}, {"elapsed_s": 20.5}), 600, keep=1)
    assert launch(tmp_path, text).runs[0].state == "finished"
    assert launch(tmp_path, text.replace("20}", "30}")).runs[0].state == "waiting", "it was given more time"


PLAIN = "settings: {env: CartPole-v1, train_for_env_steps: 1000}"


def test_a_job_file_does_not_change_runs(tmp_path, pretends, capsys) -> None:
    assert launch(tmp_path, PLAIN).make_all()
    job, grid, folder = tmp_path / "job.sbatch", tmp_path / "grid.yaml", f"--train_dir={tmp_path / 'runs'}"
    for changed in ("repeat", "resume"):
        given = [str(grid), folder, "--write=slurm", f"--out={job}", f"--changed={changed}"]
        grid.write_text(PLAIN.replace("1000", "2000"))
        assert main(given) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: --write cannot be combined with --changed={changed} when runs have other")
        assert said.count("\n") == 1 and not job.exists()
        grid.write_text(PLAIN)
        assert main(given) == 0
        job.unlink()


def test_a_job_of_slurm_can_write_its_output(tmp_path) -> None:
    grid, folder = tmp_path / "grid.yaml", tmp_path / "50% of all" / "runs"
    grid.write_text(PLAIN)
    assert main([str(grid), f"--train_dir={folder}", "--write=slurm", f"--out={tmp_path / 'job.sbatch'}"]) == 0
    assert folder.is_dir()
    lines = (tmp_path / "job.sbatch").read_text().splitlines()
    assert f'#SBATCH --output="{tmp_path}/50%% of all/runs/slurm-%A_%a.log"' in lines


def test_a_job_file_is_not_lost_and_one_that_cannot_be_written_is_a_mistake(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "grid.yaml").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    given = ["grid.yaml", "--write=kubernetes"]
    assert main([*given, "--out=missing/job.yaml"]) == 2
    assert capsys.readouterr().err == "error: Cannot write missing/job.yaml: No such file or directory.\n"
    (tmp_path / "launch.yaml").write_text("edited")
    assert main(given) == 2
    assert capsys.readouterr().err.startswith("error: launch.yaml exists, perhaps with your changes")
    assert (tmp_path / "launch.yaml").read_text() == "edited"
    assert main([*given, "--out=launch.yaml"]) == 0
    assert "kind: Job" in (tmp_path / "launch.yaml").read_text()


def test_two_launches_do_not_make_the_same_runs(tmp_path, pretends) -> None:
    with Owner(tmp_path / "runs" / "owners") as owner:
        assert owner.claim(tmp_path / "runs" / "launch")
        with pytest.raises(UsageError, match="Another launch makes runs in"):
            launch(tmp_path, GRID).make_all()
    assert launch(tmp_path, GRID).make_all()


def test_settings_that_cannot_run_are_refused_before_anything_starts(tmp_path, pretends) -> None:
    with pytest.raises(UsageError, match=r"CartPole-v1_track_project-well_seed0: .*gamma=7") as refused:
        launch(tmp_path, GRID.replace("async_rl: false", "async_rl: false, gamma: 7"))
    assert len(str(refused.value).splitlines()) == 1, "not once for each run"
    assert not (tmp_path / "runs").exists()


def test_a_launch_that_is_stopped_stops_its_runs_and_continues(tmp_path, pretends) -> None:
    text = GRID.replace("[well, fails_once]", "[slow]").replace(
        "train_for_env_steps: 1000", "train_for_env_steps: 100000"
    )
    text = text.replace("async_rl: false", "async_rl: false, eval_every_env_steps: 10")

    class Stop(Exception):
        pass

    def stop(runs) -> None:
        if all((each.run.folder.metrics).exists() for each in runs):
            raise Stop

    stopped = launch(tmp_path, text)
    with pytest.raises(Stop):
        stopped.make_all(show=stop)
    summaries = [json.loads(each.run.folder.summary.read_text()) for each in stopped.runs]
    assert [summary["status"] for summary in summaries] == ["interrupted"] * 2
    assert [each.state for each in launch(tmp_path, text).runs] == ["waiting"] * 2


@pytest.mark.timeout(480)
def test_a_killed_launch_leaves_no_process_and_goes_on(tmp_path) -> None:
    grid = tmp_path / "grid.yaml"
    settings = "{env: CartPole-v1, serial_mode: true, async_rl: false, train_for_env_steps: 20000, save_every_s: 0.2}"
    grid.write_text(f"settings: {settings}\nseeds: 1\n")
    command = [sys.executable, "-m", "asyncrl", "launch", str(grid), f"--train_dir={tmp_path / 'runs'}"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        checkpoints = tmp_path / "runs" / "CartPole-v1_seed0" / "checkpoints"
        wait_until(lambda: any(checkpoints.glob("checkpoint_*")), 200.0, "a run has saved a checkpoint")
        children = psutil.Process(first.pid).children(recursive=True)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    assert children
    _, alive = psutil.wait_procs(children, timeout=10.0)
    assert not alive

    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "| CartPole-v1 | 1 of 1 | " in done.stdout
    entries = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert [entry["env_steps"] >= 20000 for entry in entries] == [True]
    output = (tmp_path / "runs" / "output" / "CartPole-v1_seed0.log").read_text()
    assert "Resuming from" in output or "Nothing to do" in output


def test_launched_runs_are_made_although_nobody_reads(tmp_path: Path, unread: int) -> None:
    grid = "settings: {env: CartPole-v1, serial_mode: true, train_for_env_steps: 300, rollout: 32, batch_size: 64, "
    grid += "num_workers: 1, num_envs_per_worker: 2, num_batches_per_epoch: 1, async_rl: false}\nseeds: 1\n"
    (tmp_path / "grid.yaml").write_text(grid)
    launched = start(("-m", "asyncrl.launch", "grid.yaml", "--train_dir=runs"), tmp_path, unread, unread)
    try:
        assert launched.wait(PATIENCE_S) == 0
    finally:
        launched.kill()
        launched.wait()
    assert list((tmp_path / "runs").glob("*/summary.json"))


def test_a_path_may_begin_with_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    check_users_folder(launch_command._Options, ("train_dir", "out"), monkeypatch)
