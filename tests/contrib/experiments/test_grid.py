"""Grids of runs: what a file means, what is refused, and the job files of clusters."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from asyncrl.config.errors import UsageError
from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.contrib.experiments.grid import read_grid
from asyncrl.contrib.experiments.job_files import job_file
from asyncrl.contrib.experiments.runs import as_flag, plan_run
from asyncrl.contrib.experiments.sweep_results import best_settings

GRID = """
train_dir: runs/compare
settings:
  train_for_env_steps: 5000
  encoder_mlp_layers: [32, 32]
grid:
  env: [CartPole-v1, ALE/Pong-v5]
  learning_rate: [1e-3, 0.00012345678]
seeds: [3, 5]
evaluate: {episodes: 7, deterministic: true}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "grid.yaml"
    path.write_text(text)
    return path


def test_a_grid_is_every_combination_with_every_seed_and_seeds_come_last(tmp_path) -> None:
    grid = read_grid(write(tmp_path, GRID))
    assert [run.name for run in grid.runs] == [
        f"{env}_learning_rate-{rate}_seed{seed}"
        for seed in (3, 5)
        for env in ("CartPole-v1", "ALE-Pong-v5")
        for rate in ("0.001", "0.00012345678")
    ]
    assert grid.train_dir == Path("runs/compare")
    assert grid.evaluation is not None
    assert grid.evaluation.flags == ("--episodes=7", "--checkpoint=newest", "--deterministic=True")
    config = load(grid.runs[1].flags).config
    assert (config.learning_rate, config.encoder_mlp_layers, config.seed) == (0.00012345678, [32, 32], 3)


def test_names_with_dashes_are_those_of_settings_in_every_part(tmp_path) -> None:
    text = "settings: {learning-rate: 0.1}\ngrid:\n  - {env: [A-v0], learning-rate: [0.2]}\n  - {env: [B-v0]}"
    assert [run.flags[:2] for run in read_grid(write(tmp_path, text)).runs] == [
        ("--learning_rate=0.2", "--env=A-v0"),
        ("--learning_rate=0.1", "--env=B-v0"),
    ]
    with pytest.raises(UsageError, match="train_dir cannot be in grid"):
        read_grid(write(tmp_path, "grid: [{env: [A-v0], train-dir: [/tmp/elsewhere]}]"))


def test_several_grids_are_one_after_the_other(tmp_path) -> None:
    text = "grid:\n  - {env: [A-v0], train_for_env_steps: [10]}\n  - {env: [B-v0], train_for_env_steps: [20]}\nseeds: 2"
    runs = read_grid(write(tmp_path, text)).runs
    assert [run.group for run in runs[:2]] == ["A-v0_train_for_env_steps-10", "B-v0_train_for_env_steps-20"]
    assert len(runs) == 4
    assert read_grid(write(tmp_path, text)).train_dir == Path("train_dir/grid")


@pytest.mark.parametrize(
    "value", [0.1, 1e-7, True, False, None, [1, 2], {"a": [1, {"b": "c d"}]}, "linear_decay", 12, "x=1, y"]
)
def test_a_flag_keeps_the_value(value) -> None:
    name = {bool: "quiet", dict: "env_kwargs", list: "encoder_mlp_layers", float: "gamma"}.get(type(value), "init_from")
    if value is None or (isinstance(value, (int, str)) and not isinstance(value, bool)):
        name = {int: "batch_size"}.get(type(value), "init_from")
    assert getattr(load([as_flag(name, value)], lenient=True).config, name) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grids: {env: [A]}", "unknown key 'grids'; the nearest is grid"),
        ("grid: {env: CartPole-v1}", "in grid, env must be a list of values, such as [CartPole-v1]"),
        ("settings: {seed: 3}", "seed cannot be in settings: use seeds"),
        ("settings: [1]", "settings must hold"),
        ("seeds: none", "seeds must be a number of seeds"),
        ("seeds: [0, -1]", "seeds must be a number of seeds"),
        ("seeds: [0, 1, 1]", "a list of different ones"),
        ("evaluate: {episode: 3}", "in evaluate there is no episode; the nearest is episodes"),
        ("evaluate: many", "evaluate needs a number of episodes"),
        ("grid: {env: [A, A]}", "the same run twice: --env=A"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path, text, said) -> None:
    with pytest.raises(UsageError, match=said.replace("[", r"\[")):
        read_grid(write(tmp_path, text))


def test_names_that_are_too_long_or_the_same_end_with_a_hash(tmp_path) -> None:
    layers = ", ".join(str([64] * count) for count in (40, 41))
    runs = read_grid(write(tmp_path, f"grid: {{env: [a/b, a:b], encoder_mlp_layers: [{layers}]}}")).runs
    assert len({run.name for run in runs}) == 4
    assert all(len(run.name) < 150 for run in runs)


def shell_arguments(script: str, variable: str, number: int) -> list[str]:
    """The arguments with which a script would start training."""
    shown = script.replace("exec srun", "printf '%s\\n' srun").replace("exec asyncrl", "printf '%s\\n' asyncrl")
    environment = {variable: str(number), "SLURM_CPUS_PER_TASK": "4", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", shown], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_job_files_start_each_run_in_its_task(tmp_path) -> None:
    grid = read_grid(write(tmp_path, GRID.replace("0.00012345678]", "0.002]").replace("ALE/Pong-v5", "Acrobot-v1")))
    machine = Machine(cores=4)
    text = '{"a b": "c\'d"}'
    runs = [plan_run(run.name, grid.train_dir, (*run.flags, f"--env_kwargs={text}"), machine) for run in grid.runs]
    slurm = job_file(runs, "slurm", Path("launch.sbatch"), max_tasks=3)
    assert "#SBATCH --array=0-7%3\n" in slurm
    kubernetes = yaml.safe_load(job_file(runs, "kubernetes", Path("launch.yaml"), max_tasks=3))
    assert (kubernetes["spec"]["completions"], kubernetes["spec"]["parallelism"]) == (8, 3)
    (container,) = kubernetes["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["bash", "-c"]
    for number, run in ((0, runs[0]), (7, runs[7])):
        arguments = shell_arguments(slurm, "SLURM_ARRAY_TASK_ID", number)
        assert arguments[-len(run.flags) - 2 :] == [*run.flags, *run.place]
        arguments = shell_arguments(container["args"][0], "JOB_COMPLETION_INDEX", number)
        assert arguments[-len(run.flags) - 2 :] == [*run.flags, "--train_dir=/runs", run.place[1]]


def test_a_grid_plans_the_settings_that_the_run_of_a_function_has(tmp_path: Path) -> None:
    planned = plan_run("run", tmp_path, ("--env=typed_envs:make", "--num_workers=1"), Machine(cores=2))
    assert (planned.config.learning_rate, planned.config.normalize_input) == (0.0025, False)
    assert best_settings(["--env=typed_envs:make"])["normalize_input"] is False
