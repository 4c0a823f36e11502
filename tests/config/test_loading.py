"""Layers of settings, the many ways to write a flag, and what the user is told of mistakes."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml

from asyncrl.config.errors import ConfigError, UsageError
from asyncrl.config.flags import COMMON, REQUIRED, ExtraFlag, format_value
from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.config.other_names import other_names
from asyncrl.config.plan import resolve
from asyncrl.config.presets import preset_names, read_preset
from asyncrl.config.schema import TrainConfig
from asyncrl.config.settings import all_settings, dump_mapping, read_mapping, read_saved_values
from asyncrl.config.warnings import find_warnings
from asyncrl.modes.choice import find_problems

TEXTS = [
    "none",
    "None",
    "~",
    "",
    "12e5",
    "1e-4",
    "5E3",
    "inf",
    "+inf",
    "NaN",
    "08",
    "010",
    "1:30",
    "0x1f",
    "on",
    "=",
    "5",
]
"""Texts that YAML 1.1 or asyncrl's own reader takes for something else where they have no quotes."""
NUMBERS = [1, -3, 0.0001, -1e-05, 1e20, 1e16, 5e-324, 10**30, True, None]


def messages(argv: list[str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(argv)
    return str(caught.value).splitlines()


def test_each_layer_overrides_the_one_below_and_is_named_as_origin(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("learning_rate: 1e-4\nnum_epochs: 7\ngamma: 0.9\n")
    loaded = load(["--env=Humanoid-v5", f"--config={file}", "--gamma=0.8"])
    assert (loaded.config.gamma, loaded.origins["gamma"]) == (0.8, "flag")
    assert (loaded.config.learning_rate, loaded.origins["learning_rate"]) == (1e-4, f"file {file}")
    assert (loaded.config.rollout, loaded.origins["rollout"]) == (64, "preset mujoco")
    assert (loaded.config.seed, loaded.origins["seed"]) == (0, "default")


def test_the_file_of_settings_may_be_in_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.yaml").write_text("gamma: 0.9\n")
    loaded = load(["--env=Humanoid-v5", "--config=~/run.yaml"])
    assert (loaded.config.gamma, loaded.origins["gamma"]) == (0.9, "file ~/run.yaml")


def test_the_environment_picks_its_preset_and_none_turns_that_off(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("env: CartPole-v1\n")
    assert load([f"--config={file}"]).preset == "classic_control"
    assert load(["--env=Humanoid-v5"]).preset == "mujoco"
    assert load(["--env=Humanoid"]).preset == "mujoco"  # Gymnasium makes the newest version
    assert load(["--env=Humanoid-v2"]).preset is None
    assert load(["--env=Humanoid-v5", "--preset=none"]).preset is None
    assert load(["--env=Humanoid-v5", "--preset=classic_control"]).config.rollout == 32
    assert load(["--env=some.module:Id-v0"]).preset is None


@pytest.mark.parametrize(
    ("argv", "gamma"),
    [
        (["--env=Swimmer-v5"], 0.9999),
        (["--env=Swimmer"], 0.9999),
        (["--env=Swimmer-v4", "--algo=a2c"], 0.9999),
        (["--env=Swimmer-v5", "--gamma=0.9"], 0.9),
        (["--env=HalfCheetah-v5"], 0.99),
        (["--env=robots:Walker-v0", "--preset=mujoco"], 0.99),
        (["--env=Swimmer-v5", "--preset=none"], 0.99),
    ],
)
def test_a_preset_has_values_for_some_of_its_environments(argv: list[str], gamma: float) -> None:
    assert load(argv).config.gamma == gamma


@pytest.mark.parametrize("name", preset_names())
def test_every_shipped_preset_is_valid_for_every_algorithm(name: str) -> None:
    preset = read_preset(name)
    by_name_only = name in ("humanoid_hogwild", "throughput")
    assert by_name_only == (not preset.envs)
    for algo in preset.for_algo if by_name_only else ("ppo", "a2c", "sac"):
        load([f"--preset={name}", f"--algo={algo}"])


def test_a_preset_that_does_not_exist_or_has_other_algorithms_is_refused() -> None:
    (said,) = messages(["--env=HalfCheetah-v5", "--preset=throughput"])
    assert said == "--preset=throughput has no values for --algo=ppo. Would pass: --algo=sac, or --algo=td3."
    assert "mujoco" in messages(["--preset=mujocco"])[0]
    (said,) = messages(["--env=CartPole-v1", "--preset=benchmark"])
    assert "There is no preset 'benchmark'" in said and "Sample Factory" not in said


def test_an_algorithm_has_defaults_of_its_own_below_presets_and_flags() -> None:
    loaded = load(["--env=HalfCheetah-v5", "--algo=sac", "--nonlinearity=elu"])
    assert (loaded.config.batch_size, loaded.origins["batch_size"]) == (256, "default of sac")
    assert loaded.origins["warmup_env_steps"] == "preset mujoco"
    assert loaded.config.nonlinearity == "elu"
    # What the preset says for learning from trajectories is not for a replay.
    assert loaded.config.lr_schedule == TrainConfig().lr_schedule
    assert loaded.config.initial_stddev == 1.0
    assert load(["--env=HalfCheetah-v5"]).origins["batch_size"] == "preset mujoco"


def test_values_for_one_algorithm_lie_over_the_preset() -> None:
    assert load(["--env=CartPole-v1", "--algo=a2c"]).config.num_epochs == 1
    assert load(["--env=CartPole-v1"]).config.num_epochs > 1
    assert load(["--env=CartPole-v1", "--algo=a3c"]).config.rollout < load(["--env=CartPole-v1"]).config.rollout


@pytest.mark.parametrize(
    ("flags", "num_workers", "warmup_of_one"),
    [
        (["--env=Pendulum-v1", "--backend=hogwild", "--num_workers=2"], 2, 500),
        (["--env=HalfCheetah-v5", "--backend=hogwild", "--num_workers=2"], 2, 5000),
        (["--env=Humanoid-v5", "--preset=humanoid_hogwild"], 16, 1000),
    ],
)
def test_asynchronous_sac_has_values_for_small_and_large_bodies(
    flags: list[str], num_workers: int, warmup_of_one: int
) -> None:
    machine = Machine(cores=16)
    loaded = load([*flags, "--algo=sac"])
    config = loaded.config
    plan = resolve(config, machine)
    assert find_problems(config, plan, machine) == []
    assert find_warnings(config, plan, loaded.given) == []
    assert plan.hogwild is not None
    assert (plan.hogwild.mode, plan.num_workers) == ("shared", num_workers)
    own = plan.for_one_worker.replay
    assert own is not None
    assert own.warmup_env_steps == warmup_of_one
    assert own.size > 10 * own.warmup_env_steps
    if num_workers == 16:
        assert (config.train_for_env_steps, config.learning_rate) == (50_000_000, 5e-5)


def test_flags_of_one_policy_leave_what_else_was_saved_of_policies(tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text("num_policies: 3\npolicies: {1: {learning_rate: 0.001, gamma: 0.9}, 2: {gamma: 0.95}}\n")
    flags = ["--experiment=run", "--policy.1.learning_rate=0.0005"]
    found = load(flags, find_saved=lambda *_: saved).config.policies
    assert found == {1: {"learning_rate": 0.0005, "gamma": 0.9}, 2: {"gamma": 0.95}}
    given = [*flags, '--policies={"2": {"gamma": 0.8}}', "--policy.2.gae_lambda=0.7"]
    found = load(given, find_saved=lambda *_: saved).config.policies
    assert found == {1: {"learning_rate": 0.0005}, 2: {"gamma": 0.8, "gae_lambda": 0.7}}


def test_arguments_of_an_environment_are_what_its_files_will_say() -> None:
    assert load(["--env_kwargs={a: {0: 1.5}}"]).config.env_kwargs == {"a": {"0": 1.5}}
    assert TrainConfig(env_kwargs={"size": (3, 4)}).env_kwargs == {"size": [3, 4]}
    with pytest.raises(UsageError, match=r"env_kwargs=.* is not possible: expected a JSON object"):
        TrainConfig(env_kwargs={"size": object()})


def test_a_flag_replaces_all_that_a_short_name_in_a_file_stands_for(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("env: CartPole-v1\nalgo: a3c\nbatch_size: 64\n")
    config = load([f"--config={tmp_path}/own.yaml", "--algo=ppo"]).config
    assert (config.algo, config.backend, config.batch_size) == ("ppo", "actor_learner", 64)


def test_a3c_is_short_for_a_backend_an_algorithm_and_a_mode() -> None:
    config = load(["--env=CartPole-v1", "--algo=a3c"]).config
    assert (config.algo, config.backend, config.hogwild_mode) == ("a2c", "hogwild", "synced")
    said = "--algo=a3c means --hogwild_mode=synced, but --hogwild_mode=shared was given."
    assert messages(["--env=CartPole-v1", "--algo=a3c", "--hogwild_mode=shared"]) == [said]
    config = TrainConfig(env="CartPole-v1", algo="a3c")
    assert (config.algo, config.backend, config.hogwild_mode) == ("a2c", "hogwild", "synced")
    with pytest.raises(ConfigError, match=said):
        TrainConfig(algo="a3c", hogwild_mode="shared")


def test_a_file_may_write_names_with_dashes(tmp_path: Path) -> None:
    saved, file = tmp_path / "saved.yaml", tmp_path / "run.yaml"
    saved.write_text("env: CartPole-v1\ngamma: 0.5\n")
    file.write_text(f"experiment: mine\ntrain-dir: {tmp_path}\n")
    loaded = load([f"--config={file}"], find_saved=lambda train_dir, _: saved if train_dir == str(tmp_path) else None)
    assert (loaded.config.train_dir, loaded.config.gamma) == (str(tmp_path), 0.5)
    assert loaded.origins["gamma"] == "saved run"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--serial_mode=True"], True),
        (["--serial_mode=true"], True),
        (["--serial_mode", "True"], True),
        (["--serial_mode"], True),
        (["--serial-mode"], True),
        (["--serial_mode", "--quiet"], True),
        (["--serial_mode", "false"], False),
        (["--serial_mode=True", "--no-serial-mode"], False),
    ],
)
def test_a_switch_can_be_written_in_every_common_way(argv: list[str], expected: bool) -> None:
    assert load(argv).config.serial_mode is expected


def test_numbers_mean_what_python_takes_them_for(tmp_path: Path) -> None:
    config = load(["--learning_rate", "1e-4", "--train_for_env_steps=1e6", "--seed=010", "--reward_clip=None"]).config
    assert config.learning_rate == 1e-4
    assert config.train_for_env_steps == 1_000_000
    assert config.seed == 10
    assert config.reward_clip is None
    file = tmp_path / "run.yaml"
    file.write_text("learning_rate: 1e-4\nenv_kwargs: {weight: 5e-2, name: on}\nnum_workers: auto\n")
    config = load([f"--config={file}"]).config
    assert config.learning_rate == 1e-4
    assert config.env_kwargs == {"weight": 0.05, "name": True}
    assert messages(["--gamma=."])[0].startswith("--gamma=. is not possible")
    config = load(['--env_kwargs={"a": ., "b": .5, "c": 5., "d": -1.5e3, "names": ["a"], "flag": true}']).config
    assert config.env_kwargs == {"a": ".", "b": 0.5, "c": 5.0, "d": -1500.0, "names": ["a"], "flag": True}


def test_text_settings_keep_the_text_as_it_was_written(tmp_path: Path) -> None:
    assert load(["--experiment=1e5"]).config.experiment == "1e5"
    assert load(["--experiment", "123"]).config.experiment == "123"
    file = tmp_path / "run.yaml"
    file.write_text("experiment: 0123\ntrain_dir: true\n")
    config = load([f"--config={file}"]).config
    assert (config.experiment, config.train_dir) == ("0123", "true")


@pytest.mark.parametrize("argv", [["=128,64"], ["=[128, 64]"], ["", "128", "64"], ["", "128,64"]])
def test_a_list_can_be_written_in_every_common_way(argv: list[str]) -> None:
    first, *rest = argv
    assert load([f"--encoder_mlp_layers{first}", *rest, "--quiet"]).config.encoder_mlp_layers == [128, 64]


def test_all_mistakes_are_reported_at_once_and_each_in_one_line() -> None:
    found = messages(["--gamma=2", "--bathc_size=8", "stray", "--algo=pp0", "--num_workers=0", "--seed", "--quiet=2x"])
    assert len(found) == 7
    text = "\n".join(found)
    assert "--gamma=2" in text and "at least 0 and at most 1" in text
    assert "--bathc_size; the nearest is --batch_size" in text
    assert "'stray'" in text
    assert "--algo=pp0" in text and "one of ppo, a2c" in text
    assert "--num_workers=0" in text and "greater than 0 or auto" in text
    assert "--seed needs a value" in text
    assert "--quiet=2x" in text and "True or False" in text


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--lr=1e-4", "PyTorch's lr is --learning_rate"),
        ("--vf_coef=0.5", "Stable-Baselines3's vf_coef is --value_loss_coeff"),
        ("--clip-range=0.2", "Stable-Baselines3's clip_range is --ppo_clip_ratio"),
        ("--exploration_loss_coeff=0.1", "Sample Factory's exploration_loss_coeff is --entropy_loss_coeff"),
        ("--save_every_sec=60", "Sample Factory's save_every_sec is --save_every_s"),
        ("--policy=MlpPolicy", "There is no flag --policy: policy has no counterpart here: the networks follow from"),
        ("--resume", "There is no flag --resume: resume is --experiment"),
        ("--render", "asyncrl enjoy"),
        ("--max_episode_steps=9", "gymnasium.wrappers.TimeLimit"),
        ("--optimizer=lamb", "Sample Factory's optimizer has no counterpart here: the optimizer is Adam"),
        ("--encoder_conv_architecture=convnet_atari", "Sample Factory's convnet_atari is nature"),
        ("--recurrence=-1", "Sample Factory's -1 is auto"),
        ("--algo=PPOO", "expected one of ppo, a2c, sac, td3, dqn"),
    ],
)
def test_flags_and_values_of_other_libraries_are_answered_with_what_they_are_called_here(flag: str, said: str) -> None:
    (found,) = messages([flag])
    assert said in found


def test_the_entropy_coefficients_of_ppo_and_sac_are_told_apart() -> None:
    for algo, given, meant in (("ppo", "ent_coef", "entropy_loss_coeff"), ("sac", "entropy_loss_coeff", "ent_coef")):
        loaded = load(["--env=Pendulum-v1", f"--algo={algo}", f"--{given}=0.2"])
        found = find_warnings(loaded.config, resolve(loaded.config, Machine(cores=4)), loaded.given)
        (warning,) = [each for each in found if given in each.settings]
        assert warning.suggestions == (f"--{meant}",)


def test_the_tables_of_other_libraries_name_settings_that_exist_and_are_those_of_the_document() -> None:
    settings = all_settings()
    names = other_names()
    assert {other.setting for other in names.values()} - {""} <= set(settings)
    assert not set(names) & set(settings), "an alias of a setting would never be shown"
    text = (Path(__file__).resolve().parents[2] / "docs" / "other_libraries.md").read_text()
    libraries = {other.library for other in names.values()}
    assert len(libraries) == 6
    for library in libraries:
        section = text.split(f"\n## {library}\n")[1].split("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (?:`--(\w+)`|none)(?:; (.*?))? \|$", section, re.MULTILINE)
        expected = {(name, other.setting, other.note) for name, other in names.items() if other.library == library}
        assert expected <= set(rows)
        others = {setting for _, setting, _ in set(rows) - expected}
        assert not others & {"", *settings}, "other rows are of features that are deleted"


def test_the_document_shows_the_defaults_of_settings_that_have_sample_factorys_name() -> None:
    settings = all_settings()
    text = (Path(__file__).resolve().parents[2] / "docs" / "other_libraries.md").read_text()
    section = text.split("\n## Sample Factory\n")[1].split("\n## ")[0]
    unchanged = re.findall(r"`(\w+)`", section.split("\n\n")[1])
    shown = dict(re.findall(r"^\| `(\w+)` \| [^|`]+ \| ([^|`]+) \|", section, re.MULTILINE))
    assert not set(unchanged) & set(shown)
    assert set(unchanged) <= set(settings)
    for name, default in shown.items():
        assert default == ("required" if name in REQUIRED else format_value(settings[name].default)), name
    assert len(unchanged) + len(shown) == 59


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("Humanoid-v5", "--env=Humanoid-v5"),
        ("ALE/Pong-v5", "--env=ALE/Pong-v5"),
        ("seed=5", "--seed=5"),
    ],
)
def test_an_unexpected_argument_is_answered_with_the_flag_that_was_meant(argument: str, meant: str) -> None:
    assert messages([argument]) == [f"Unexpected argument {argument!r}. Did you mean {meant}?"]


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("gamma: 2\nlerning_rate: 1\n")
    found = messages([f"--config={file}"])
    assert len(found) == 2 and all(str(file) in line for line in found)
    assert any("nearest is learning_rate" in line for line in found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- 1", "name: value"),
        ("seed: 1\nseed: 2", "twice"),
        ("train-dir: a\ntrain_dir: b", "train_dir twice"),
        ("env: !!null subprocess:getoutput", "tag:yaml.org,2002:null in line 1"),
        ("!!null env: subprocess:getoutput", "tag:yaml.org,2002:null in line 1"),
    ],
)
def test_a_broken_file_is_refused_with_the_reason(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content)
    assert words in messages([f"--config={file}"])[0]
    assert "Cannot read" in messages([f"--config={tmp_path / 'missing.yaml'}"])[0]


def test_a_lenient_load_keeps_the_mistakes_and_goes_on() -> None:
    loaded = load(["--gamma=2", "--rollout=16"], lenient=True)
    assert [problem.settings for problem in loaded.problems] == [("gamma",)]
    assert (loaded.config.gamma, loaded.config.rollout) == (0.99, 16)


def test_extra_flags_do_not_become_settings() -> None:
    extra = [ExtraFlag("json", "as JSON"), ExtraFlag("where", "a path", is_bool=False)]
    assert load(["--json", "--where", "here"], extra).cli == {"json": True, "where": "here"}
    assert load([], extra).cli == {"json": False, "where": None}
    with pytest.raises(UsageError):
        load(["--json"])


def test_help_shows_every_setting_with_its_description_examples_and_one_word_for_no_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        load(["--help=all"], [ExtraFlag("json", "as JSON")], examples=("asyncrl train --env=CartPole-v1",))
    assert stopped.value.code == 0
    lines = capsys.readouterr().out
    assert "example:\n  asyncrl train --env=CartPole-v1\n" in lines
    text = " ".join(lines.split())
    assert "[text; required for a new run]" in text and "None" not in text
    assert "default ]" not in text and "default ()" not in text and "default []" in text
    for setting in all_settings().values():
        assert f"--{setting.name} " in text
        assert setting.description in text
    assert "--json" in text


def test_the_short_page_of_help_shows_common_settings_and_names_the_sections(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        load(["--env=CartPole-v1", "--help"])
    assert stopped.value.code == 0
    short = capsys.readouterr().out
    assert set(COMMON) <= set(all_settings())
    assert all(f"--{name} " in short for name in COMMON)
    assert "--vtrace_rho" not in short and len(short.splitlines()) < 100
    assert "--help=all" in short and "roles" in " ".join(short.splitlines()[-2:])
    with pytest.raises(SystemExit):
        load(["--help=replay"])
    section = capsys.readouterr().out
    shown = {name for name in all_settings() if f"  --{name} " in section}
    assert shown == {name for name, setting in all_settings().items() if setting.section == "replay"}


def test_a_written_file_means_the_same_to_every_reader(tmp_path: Path) -> None:
    values = {"env_kwargs": {"texts": TEXTS, "numbers": [*NUMBERS, math.inf, -math.inf], **dict.fromkeys(TEXTS, True)}}
    file = tmp_path / "config.yaml"
    file.write_text(dump_mapping(values))
    assert read_mapping(file) == read_saved_values(file) == yaml.safe_load(file.read_text()) == values
    file.write_text(yaml.safe_dump(values))  # as earlier versions wrote the settings of a run
    assert read_saved_values(file) == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("[1]", "must hold `name: value` lines"),
        ("env: a\nenv: b", "has env twice, the second time in line 2"),
        ("env: !!null a", "has the tag"),
        ("env: 2020-13-45", "is not valid YAML: month must be in 1..12"),
        ("env: &a [*a]", "is not valid YAML"),
        ("a: 1\nseed: 2\nb: 3", "Unknown settings, which a feature that is not installed may have written: a, b."),
    ],
)
def test_saved_settings_that_no_run_has_written_are_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        TrainConfig.from_saved(read_saved_values(file))
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("given", "expected"), [("SAC", "sac"), ("Ppo", "ppo"), ("A3C", "a2c")])
def test_an_algorithm_may_be_given_in_any_case_and_a_gpu_by_its_usual_name(given: str, expected: str) -> None:
    loaded = load(["--env=Hopper-v5", f"--algo={given}", "--device=gpu", "--inference_devices=GPU:1,cpu"])
    config = TrainConfig(algo=given, device="gpu", inference_devices=["GPU:1", "cpu"])
    for each in (loaded.config, config):
        assert (each.algo, each.device, each.inference_devices) == (expected, "cuda", ("cuda:1", "cpu"))
    assert config.backend == ("hogwild" if given == "A3C" else "actor_learner")
    assert (
        loaded.config
        == load(
            ["--env=Hopper-v5", f"--algo={given.lower()}", "--device=cuda", "--inference_devices=cuda:1,cpu"]
        ).config
    )
