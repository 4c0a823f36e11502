"""The validation command line as a user runs it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl import train
from asyncrl.commands.validate import _finite
from asyncrl.validate import main

pytestmark = pytest.mark.usefixtures("probes_here")

SYNC = ["--async_rl=False", "--num_workers=16", "--num_envs_per_worker=8", "--rollout=32", "--env=CartPole-v1"]


def test_torch_is_never_imported() -> None:
    code = (
        "import sys; from asyncrl.validate import main; main(['--env=CartPole-v1']); assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("flags", [("validate", "--env=CartPole-v1"), ("train", "--help"), ("plot", "--help")])
def test_a_reader_that_has_gone_is_no_failure_of_the_program(flags: tuple[str, str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", f"asyncrl.{flags[0]}", flags[1]]
    ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_good_run_shows_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SYNC, "--batch_size=2048", "--num_batches_per_epoch=2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["problems"] == []
    plan = report["plan"]
    assert (plan["samples_per_iteration"], plan["num_slots"], plan["num_envs"]) == (4096, 16, 128)
    assert 0 < plan["shared_memory_bytes"] < plan["free_bytes"]
    assert plan["lag_bound"] == 0
    assert plan["num_processes"] == 18
    for more, is_told in (("--serial_mode=False", True), ("--serial_mode=True", False)):
        assert main(["--env=CartPole-v1", "--async_rl=False", more]) == 0
        assert ("rollout workers come last (nice 10)" in capsys.readouterr().out) == is_told
    assert plan["sgd_steps_per_run"] == plan["sgd_steps_per_dataset"] * -(-10_000_000 // 4096)


@pytest.mark.parametrize(
    ("env", "shown"), [("CartPole-v1", "500 steps"), ("space_envs:limited", "30 steps"), ("space_envs:endless", "none")]
)
def test_the_time_limit_is_shown(env: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--env={env}"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("time limit:")]
    assert line.split(maxsplit=2)[2] == shown


def test_ranks_are_shown_one_by_one_and_together(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SYNC, "--batch_size=4096"]
    assert main([*flags, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["plan"]
    assert main([*flags, "--json", "--num_ranks=6", "--num_local_ranks=3"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["num_ranks"], plan["num_local_ranks"], plan["num_envs"]) == (6, 3, 128)
    assert plan["shared_memory_bytes"] == 3 * alone["shared_memory_bytes"], "those of this machine share its memory"
    assert plan["sgd_steps_per_run"] == pytest.approx(
        alone["sgd_steps_per_run"] / 6, abs=alone["sgd_steps_per_dataset"]
    )
    assert main([*flags, "--num_ranks=6", "--num_local_ranks=3"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ranks:")]
    assert "6 (3 on this machine) with 6 x 128 = 768 environments, minibatches of 6 x 4096 = 24576" in line


def test_the_environment_is_shown_with_dtypes_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--env=space_envs:SeeAndTell-v0"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("environment:")]
    assert (
        "image Box(..., (8, 8, 1), uint8) as image with channels last, vector Box(..., (2,), float64) (72 bytes" in line
    )
    assert line.endswith("actions: 0 Discrete(2), 1 Box(-1.0, 1.0, (1,), float32)")
    assert main(["--env=space_envs:SeeAndTell-v0", "--image_channels=first"]) == 0
    assert (
        "image Box(..., (8, 8, 1), uint8), vector" in capsys.readouterr().out
    )  # a width of 1 is too small for an image
    assert main(["--env=CartPole-v1", "--json"]) == 0
    environment = json.loads(capsys.readouterr().out)["environment"]
    assert environment["is_vectorized"] and environment["observation"][0]["dtype"] == "float32"


def test_json_has_null_for_bounds_that_are_infinite() -> None:
    data = {"low": (-math.inf, -1.0), "high": [math.inf], "unknown": {"mean": math.nan}, "steps": 3}
    assert _finite(data) == {"low": [None, -1.0], "high": [None], "unknown": {"mean": None}, "steps": 3}


def test_every_problem_is_reported_and_the_exit_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SYNC, "--batch_size=512", "--num_batches_per_epoch=3", "--gamma=7", "--squash_actions=True"]
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.err.count("error: ") == 3
    assert "512 x 3 = 1536" in printed.err and "--gamma=7" in printed.err and "squash_actions" in printed.err
    assert main([*argv, "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 3


@pytest.mark.parametrize(
    "mistake", ["--num_workers=-2", "--batch_size=100", "--env=CartPol-v1", "--config=missing.yaml", "--wrokers=2"]
)
def test_a_mistake_is_shown_without_a_plan(capsys: pytest.CaptureFixture[str], mistake: str) -> None:
    gives_a_warning = "--atari_preprocessing=False"
    argv = ["--env=CartPole-v1", gives_a_warning, mistake, "--print_config"]
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and "warning: " not in printed.err
    assert main([*argv, "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["plan"], "config" in report) == (False, None, False)


def test_an_environment_that_raises_has_no_plan_above_its_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("import gymnasium\nraise ValueError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--env=broken_module:Broken-v0"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and "ValueError: broken" in printed.err


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (
            ["--num_workers=2", "--num_envs_per_worker=8", "--rollout=16", "--num_batches_per_epoch=4"],
            [
                "environments:   2 workers x 8 = 16",
                "iteration:      4 x 128 = 512 samples, from 32 trajectories of 16 steps",
                "buffers:        6, of 8 trajectories each; one iteration uses 4",
                "policy lag:     normally up to 8 updates; samples older than 1000 are dropped",
            ],
        ),
        (["--async_rl=False"], ["policy lag:     none: the policy that is trained collected every sample"]),
        (
            ["--algo=sac", "--num_workers=1", "--warmup_env_steps=10000"],
            [
                "replay:         1,000,000 environment steps; updates begin after 10,000",
                "updates:        1 for each environment step, from batches of 256 transitions; 9,990,000 in the run",
            ],
        ),
        (
            ["--algo=a3c", "--num_workers=2", "--num_envs_per_worker=4", "--rollout=5"],
            ["gradients:      each from 4 x 5 = 20 samples; an update combines 1"],
        ),
    ],
)
def test_the_plan_is_told_in_the_terms_of_the_documents(
    capsys: pytest.CaptureFixture[str], flags: list[str], lines: list[str]
) -> None:
    assert main(["--env=CartPole-v1", "--preset=none", "--num_epochs=2", *flags]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line not in shown] == [], shown


def test_print_config_says_where_each_value_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--env=CartPole-v1", "--print_config", "--gamma=0.5", "--num_workers=1"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert lines["gamma"] == ["0.5", "flag"]
    assert lines["rollout"][1:] == ["preset", "classic_control"]
    assert lines["seed"] == ["0", "default"]
    assert lines["num_workers"] == ["1", "flag"]
    assert lines["num_envs_per_worker"] == ["auto", "->", "32", "default,", "derived"]


def test_print_config_can_leave_out_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env=CartPole-v1", "--preset=none", "--gamma=0.5", "--seed=0", "--print_config=changed"]
    assert train.main(flags) == 0
    assert capsys.readouterr().out.splitlines() == ["env    CartPole-v1  flag", "gamma  0.5          flag"]
    assert main([*flags, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["config"]) == {"env", "gamma"}
    for run in (main, train.main):
        assert run([*flags, "--print_config=chnaged"]) == 2
        said = "--print_config=chnaged is not possible: expected one of True, False, changed; the nearest is changed."
        assert said in capsys.readouterr().err


def test_a_rule_between_the_settings_of_an_algorithm_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ruled.py").write_text(
        "import dataclasses, pydantic\nfrom asyncrl import Algorithm, TrainConfig\n"
        "from asyncrl.config.algorithms import find_algorithm\n\n"
        "class Settings(TrainConfig):\n    low: float = 0.0\n\n"
        "    @pydantic.model_validator(mode='after')\n    def check(self):\n        if self.low > 1.0:\n"
        "            raise ValueError('low must not exceed 1')\n        return self\n\n"
        "RULED = dataclasses.replace(find_algorithm('ppo'), name='ruled', settings=Settings)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--env=CartPole-v1", "--algo=ruled:RULED", "--low=2"]) == 2
    assert capsys.readouterr().err == "error: low must not exceed 1\n"
