import csv
import dataclasses
import json
import shutil

import pytest
import torch

from asyncrl.commands.evaluate import main
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec
from asyncrl.evaluation.comparison import Comparison
from asyncrl.evaluation.episodes import EvaluationResult, episode_seed
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.checkpoint import Checkpoint
from asyncrl.storage.run_folder import RunFolder


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


def test_json_is_the_result_of_the_newest_checkpoint(trained, capsys):
    train_dir = f"--train-dir={trained.path.parent}"
    code, out, err = call(capsys, train_dir, "--experiment=run", "--episodes", "12", "--json=true", "--seed=3")
    assert code == 0 and "\nreturn " in err
    result = json.loads(out)
    assert list(result) == [
        "mean_reward", "std_reward", "ci95", "mean_ep_length", "episodes", "env_steps", "checkpoint", "actions",
        "deterministic",
    ]  # fmt: skip
    assert result["actions"] == "sampled" and result["deterministic"]["actions"] == "deterministic"
    assert result["deterministic"]["episodes"] == 12
    assert (result["episodes"], result["env_steps"]) == (12, 200)
    assert result["checkpoint"] == str(trained.checkpoints / "checkpoint_000000000200")
    # Balancing at random lasts about 22 steps, pushing to one side always about 9.
    assert result["mean_reward"] == result["mean_ep_length"] > 12
    assert result["ci95"][0] < result["mean_reward"] < result["ci95"][1]


def test_a_checkpoint_is_enough_to_find_its_run(trained, capsys, monkeypatch):
    path = trained.checkpoints / "checkpoint_000000000100"
    code, out, _ = call(capsys, f"--checkpoint={path}", "--episodes=5", "--json", "--deterministic", "--num_envs=2")
    assert code == 0
    result = json.loads(out)
    assert result["env_steps"] == 100
    assert result["mean_reward"] < 11
    monkeypatch.setenv("HOME", str(trained.path.parent))
    named = (f"--train_dir={trained.path.parent}", "--experiment=run", "--checkpoint=~/run/checkpoints/" + path.name)
    code, out, _ = call(capsys, *named, "--episodes=1", "--json")
    assert code == 0 and json.loads(out)["env_steps"] == 100


def test_the_run_is_an_argument_and_the_kind_of_actions_is_told(trained, capsys, monkeypatch):
    monkeypatch.chdir(trained.path.parent)
    flags = ("--train_dir=.", "--episodes=1")
    code, out, err = call(capsys, *flags, "--json", "true", "run")
    assert code == 0
    assert [line for line in err.splitlines() if " actions" in line] == ["sampled actions", "deterministic actions"]
    assert err.count("environment steps), 1 episodes") == 1
    assert json.loads(out)["env_steps"] == 200
    code, out, _ = call(capsys, "run/checkpoints/best", *flags, "--deterministic", "--compare=newest")
    assert code == 0
    assert "\ndeterministic actions\n" in out and "sampled actions" not in out
    assert "run/best/checkpoint_000000000100" in out and "run/checkpoint_000000000200" in out


@pytest.mark.parametrize(
    ("flag", "actions"),
    [("--deterministic", "deterministic"), ("--deterministic=False", "sampled"), ("--episodes_csv=a.csv", "sampled")],
)
def test_a_flag_chooses_one_kind_of_actions(trained, capsys, monkeypatch, flag, actions):
    monkeypatch.chdir(trained.path.parent)
    code, out, _ = call(capsys, "run", "--train_dir=.", "--episodes=6", "--json", flag)
    result = json.loads(out)
    assert code == 0 and result["actions"] == actions and "deterministic" not in result


def test_both_kinds_of_actions_are_those_that_their_flags_give(trained, capsys, monkeypatch):
    monkeypatch.chdir(trained.path.parent)
    both, *alone = (
        json.loads(call(capsys, "run", "--train_dir=.", "--episodes=8", "--json", *flags)[1])
        for flags in ((), ("--deterministic=False",), ("--deterministic",))
    )
    assert both.pop("deterministic") == alone[1] and both == alone[0]
    assert alone[0]["mean_reward"] > alone[1]["mean_reward"]  # equal values: the mode pushes to one side always


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--experiment=../run",), "There is no run ../run: no such path"),
        (("--experiment=.run",), "cannot name a run"),
        (("--experiment=run", "--episods=3"), "the nearest is --episodes"),
        (("--experiment=run", "--seed=-1"), "--seed=-1 is not possible"),
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
    assert json.loads(out)["checkpoint"] == str(trained.checkpoints / "best/checkpoint_000000000100")
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


def test_arguments_of_the_environment_may_differ_from_those_of_the_run(trained, capsys):
    arguments = (f"--train_dir={trained.path.parent}", "--experiment=run", "--episodes=3", "--json")
    code, out, _ = call(capsys, *arguments, '--env_kwargs={"sutton_barto_reward": true}')
    assert code == 0
    assert json.loads(out)["mean_reward"] == -1.0  # only the end is paid
    for given, problem in (
        ('{"sutton": 1}', "does not take these arguments (env_kwargs)"),
        ("sutton", "expected a JSON object, such as"),
    ):
        code, out, err = call(capsys, *arguments, f"--env_kwargs={given}")
        assert (code, out) == (2, "") and problem in err and len(err.splitlines()) == 1


def test_the_environment_may_have_another_name_but_no_other_spaces(trained, capsys, tmp_path):
    arguments = (f"--train_dir={trained.path.parent}", "--experiment=run", "--episodes=1", "--num_envs=1")
    code, out, _ = call(capsys, *arguments, "--env=gymnasium.envs.classic_control:CartPoleEnv")
    assert code == 0 and out.startswith("gymnasium.envs.classic_control:CartPoleEnv: ")
    code, out, err = call(capsys, *arguments, "--env=Acrobot-v1")
    assert (code, out) == (2, "")
    assert "--env=Acrobot-v1 gives Acrobot-v1 spaces that the policy was not trained with" in err
    path = save_policy(tmp_path / "other" / "checkpoints", 100, 1)
    code, _, err = call(capsys, f"--checkpoint={path}", '--env_kwargs={"size": 2}')
    assert code == 2 and "gives drawn_envs:counter spaces that the policy was not trained with" in err


@pytest.mark.parametrize("compared", [(), ("--compare=best",)])
def test_an_environment_that_has_changed_since_the_training_is_refused(tmp_path, capsys, compared):
    config = TrainConfig(env="Pendulum-v1", encoder_mlp_layers=[8])
    spec = read_spec(make_env(config.env, config.env_kwargs), config.env)
    then = dataclasses.replace(spec, action=dataclasses.replace(spec.action, low=(-1.0,), high=(1.0,)))
    state = {"config": config.model_dump(mode="json"), "spec": then.to_data()}
    content = Checkpoint(ActorCritic(then, config).state_dict(), {}, state)
    with RunFolder.create(str(tmp_path), "run", "resume") as folder:
        folder.write_config(config)
    for where in (folder.checkpoints, folder.checkpoints / "best"):
        checkpoints.save(where, content, 100, keep=1)
    code, _, err = call(capsys, f"--train_dir={tmp_path}", "--experiment=run", *compared)
    assert code == 2 and len(err.splitlines()) == 1
    assert err.startswith("error: Pendulum-v1 has spaces that the policy was not trained with: Pendulum-v1; obs")
    assert "actions: Box(-2.0, 2.0, (1,), float32) instead of" in err and "Box(-1.0, 1.0, (1,), float32)." in err


def save_policy(folder, env_steps, action):
    """A policy of `drawn_envs:counter` that always takes one action."""
    config = TrainConfig(
        env="drawn_envs:counter", encoder_mlp_layers=[], env_kwargs={"length": 4, "stat": "luck, in points"}
    )
    spec = read_spec(make_env(config.env, config.env_kwargs), config.env)
    model = ActorCritic(spec, config)
    with torch.no_grad():
        model.policy_head.weight.zero_()
        model.policy_head.bias.copy_(torch.tensor([-50.0, 50.0] if action else [50.0, -50.0]))
    state = {"config": config.model_dump(mode="json"), "spec": spec.to_data()}
    return checkpoints.save(folder, Checkpoint(model.state_dict(), {}, state), env_steps, keep=None)


def test_stable_baselines_reads_the_episodes_that_are_written(tmp_path, capsys):
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    path = save_policy(tmp_path / "run" / "checkpoints", 100, 1)
    file = tmp_path / "new" / "played.monitor.csv"
    flags = (f"--checkpoint={path}", "--episodes=7", "--num_envs=3", "--seed=5", "--json", f"--episodes_csv={file}")
    code, out, err = call(capsys, *flags)
    assert code == 0 and f"wrote {file}" in err
    result = json.loads(out)
    frame = monitor.load_results(str(tmp_path / "new"))
    luck = frame["luck, in points"]
    assert frame["r"].tolist() == [4.0 + points for points in luck]  # what the seed gives, and 1 for each step
    assert frame["l"].tolist() == [4] * 7 and frame["t"].is_monotonic_increasing
    assert frame["is_success"].tolist() == [float(points > 50) for points in luck]
    assert set(frame["seed"]) == {episode_seed(5, episode) for episode in range(7)}
    assert frame["r"].mean() == pytest.approx(result["mean_reward"])
    means = {"luck, in points": luck.mean(), "is_success": frame["is_success"].mean()}
    assert result["episode_extra_stats"] == pytest.approx(means)


def test_policies_are_compared_in_the_same_episodes(tmp_path, capsys):
    one, other = tmp_path / "one", tmp_path / "other"
    paths = [save_policy(run / "checkpoints", 100, action) for run, action in ((one, 0), (one / "best", 1), (other, 1))]
    file = tmp_path / "played.monitor.csv"
    compared = f"--compare={paths[1]},{other / 'checkpoints'},{paths[0]}"
    flags = (f"--checkpoint={paths[0]}", compared, "--episodes=6", "--json", f"--episodes_csv={file}")
    code, out, err = call(capsys, *flags)
    assert code == 0
    policies = json.loads(out)["policies"]
    assert [each["checkpoint"] for each in policies] == list(map(str, paths))  # the first is named twice, played once
    # The returns differ from episode to episode, but each episode is worth four points more, one for each step.
    assert "difference" not in policies[0]
    assert [(each["difference"], each["difference_ci95"]) for each in policies[1:]] == [(4.0, [4.0, 4.0])] * 2
    low, high = policies[0]["ci95"]
    assert high - low > 10.0
    assert err.splitlines()[-1].split()[-4:] == ["+4.00", "[+4.00,", "+4.00]", "4.0"]
    rows = list(csv.DictReader(file.read_text().splitlines()[1:]))
    by_seed = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append((row["policy"], float(row["r"])))
    assert len(by_seed) == 6
    for found in by_seed.values():
        (_, first), *others = found
        assert [(name, points - first) for name, points in others] == [(each["name"], 4.0) for each in policies[1:]]


def test_the_figures_of_a_comparison_are_those_of_the_pairs():
    results = [EvaluationResult((1.0, 2.0, 6.0), (1, 1, 1)), EvaluationResult((2.0, 2.0, 9.0), (1, 2, 3))]
    comparison = Comparison(("a", "b"), tuple(results))
    (_, row) = comparison.to_data()["policies"]
    half = 4.30265 * 1.527525 / 3**0.5  # Student's t with 2 degrees of freedom; standard deviation of 1, 0, 3
    assert row["difference"] == pytest.approx(4 / 3)
    assert row["difference_ci95"] == pytest.approx((4 / 3 - half, 4 / 3 + half), rel=1e-5)
    header, first, second = comparison.to_text().splitlines()
    assert header.startswith("policy  trained steps  return (95 %)")
    assert first.split()[-2:] == ["-", "1.0"] and "+1.33 [-2.46, +5.13]" in second and second.endswith("2.0")


def test_all_checkpoints_of_a_run_are_compared_by_name(trained, capsys):
    arguments = (f"--train_dir={trained.path.parent}", "--experiment=run", "--episodes=2", "--json")
    code, out, _ = call(capsys, *arguments, "--compare=all")
    assert code == 0
    names = [each["name"] for each in json.loads(out)["policies"]]
    assert names == [
        "run/checkpoint_000000000200",
        "run/checkpoint_000000000100",
        "run/best/checkpoint_000000000100",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--compare=missing",), "There is no run 'missing'"),
        (("--compare=best", "--video=videos"), "record or show one of them, without --compare"),
        (("--episodes_csv=/proc/a.csv",), "Cannot write /proc/a.csv"),
        (("--episodes_csv=/tmp",), "Cannot write /tmp: it is a folder"),
    ],
)
def test_what_cannot_be_compared_or_written_is_said_before_it_is_played(trained, capsys, arguments, problem):
    code, out, err = call(capsys, f"--train_dir={trained.path.parent}", "--experiment=run", *arguments)
    assert (code, out) == (2, "")
    assert problem in err and len(err.splitlines()) == 1
