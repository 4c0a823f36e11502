import json
import shutil

import pytest
import torch

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec
from asyncrl.evaluate import main
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.runtime import checkpoint as checkpoints
from asyncrl.runtime.checkpoint import Checkpoint
from asyncrl.runtime.run_folder import RunFolder


@pytest.fixture
def trained(tmp_path):
    """A run with two checkpoints: at 100 steps it always pushes left, at 200 it draws at random."""
    config = TrainConfig(env="CartPole-v1", encoder_mlp_layers=[8])
    env = make_env(config.env, config.env_kwargs)
    spec = read_spec(env, config.env)
    model = ActorCritic(spec, config)
    state = {"config": config.model_dump(mode="json"), "spec": spec.to_data()}
    with RunFolder.create(str(tmp_path), "run", "resume") as folder:
        folder.write_config(config)
        with torch.no_grad():
            model.policy_head.weight.zero_()
            model.policy_head.bias.copy_(torch.tensor([50.0, 0.0]))
            checkpoints.save(folder.checkpoints, Checkpoint(model.state_dict(), {}, state), 100, keep=2)
            checkpoints.save(folder.checkpoints / "best", Checkpoint(model.state_dict(), {}, state), 100, keep=1)
            model.policy_head.bias.zero_()
            checkpoints.save(folder.checkpoints, Checkpoint(model.state_dict(), {}, state), 200, keep=2)
    return folder


def call(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_last_line_is_the_result_of_the_newest_checkpoint(trained, capsys):
    train_dir = f"--train-dir={trained.path.parent}"
    code, out, err = call(capsys, train_dir, "--experiment=run", "--episodes", "12", "--json=true", "--seed=3")
    assert (code, err) == (0, "")
    result = json.loads(out.splitlines()[-1])
    assert list(result) == [
        "mean_reward", "std_reward", "ci95", "mean_ep_length", "episodes", "env_steps", "checkpoint",
    ]  # fmt: skip
    assert (result["episodes"], result["env_steps"]) == (12, 200)
    assert result["checkpoint"] == str(trained.checkpoints / "checkpoint_000000000200")
    # Balancing at random lasts about 22 steps, pushing to one side always about 9.
    assert result["mean_reward"] == result["mean_ep_length"] > 12
    assert result["ci95"][0] < result["mean_reward"] < result["ci95"][1]


def test_a_checkpoint_is_enough_to_find_its_run(trained, capsys):
    path = trained.checkpoints / "checkpoint_000000000100"
    code, out, _ = call(capsys, f"--checkpoint={path}", "--episodes=5", "--json", "--deterministic", "--num_envs=2")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert result["env_steps"] == 100
    assert result["mean_reward"] < 11


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give --experiment=NAME"),
        (("--experiment=other",), "no run 'other'"),
        (("--experiment=../run",), "There is no run ../run: no such path"),
        (("--experiment=.run",), "cannot name a run"),
        (("--experiment=run", "--checkpoint=missing"), "There is no checkpoint 'missing' of"),
        (("--checkpoint=missing",), "There is no run 'missing'"),
        (("--experiment=run", "--episodes=0"), "--episodes=0 is not possible: expected a whole number greater than 0"),
        (("--experiment=run", "--episods=3"), "the nearest is --episodes"),
        (("--experiment=run", "--device=tpu"), "Device tpu"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(trained, capsys, arguments, problem):
    code, out, err = call(capsys, f"--train_dir={trained.path.parent}", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert problem in err
    assert len(err.splitlines()) == 1


def test_the_best_checkpoint_is_there_by_name(trained, capsys):
    where = (f"--train_dir={trained.path.parent}", "--experiment=run", "--checkpoint=best")
    arguments = (*where, "--episodes=3", "--json")
    code, out, _ = call(capsys, *arguments)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["checkpoint"] == str(trained.checkpoints / "best/checkpoint_000000000100")
    shutil.rmtree(trained.checkpoints / "best")
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert "no best checkpoint yet" in err


def test_episodes_are_recorded_as_videos(trained, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    arguments = (f"--train_dir={trained.path.parent}", "--experiment=run", "--episodes=3", "--num_envs=2")
    code, out, err = call(capsys, *arguments, f"--video={tmp_path / 'videos'}")
    assert (code, err) == (0, "")
    assert f"recorded 3 videos in {tmp_path / 'videos'}: env-0-episode-0.mp4, env-0-episode-1.mp4" in out
    assert len(list((tmp_path / "videos").glob("*.mp4"))) == 3


def test_a_run_without_a_checkpoint_says_so(tmp_path, capsys):
    with RunFolder.create(str(tmp_path), "run", "resume") as folder:
        folder.write_config(TrainConfig(env="CartPole-v1"))
    code, _, err = call(capsys, f"--train_dir={tmp_path}", "--experiment=run")
    assert code == 2
    assert "no newest checkpoint yet" in err


def test_help_names_every_flag(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for flag in (
        "train_dir",
        "experiment",
        "checkpoint",
        "episodes",
        "num_envs",
        "seed",
        "device",
        "deterministic",
        "json",
    ):
        assert f"--{flag}" in out
