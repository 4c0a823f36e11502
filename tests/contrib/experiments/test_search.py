"""Search spaces and objectives: what is drawn, what it means, and what a run is worth."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from asyncrl.config.errors import UsageError
from asyncrl.config.loading import load
from asyncrl.config.settings import read_mapping
from asyncrl.contrib.experiments.objective import Evaluated, Objective, read_evaluations
from asyncrl.contrib.experiments.search_space import find_space, read_space, space_names

optuna = pytest.importorskip("optuna")

SPACE = {
    "settings": {"algo": "ppo"},
    "space": {
        "learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
        "gamma": {"low": 0.9, "high": 0.999, "scale": "log_to_one"},
        "num_epochs": {"low": 1, "high": 20},
        "ppo_clip_ratio": {"low": 0.1, "high": 0.4},
        "batch_size": {"values": [64, 128, 256]},
        "lr_schedule": {"values": ["constant", "linear_decay"]},
        "encoder_mlp_layers": {"values": [[64, 64], [256]]},
        "use_rnn": {"values": [False, True]},
    },
}


def test_what_is_drawn_becomes_flags_of_training_and_back() -> None:
    space = read_space(SPACE, "space")
    names = [each.parameter for each in space.searched]
    assert names[1] == "1 - gamma" and names[4] == "index of batch_size" and names[5] == "lr_schedule"
    drawn = [0.00123456, 0.0123456, 7, 0.25, 2, "linear_decay", "[256]", "True"]
    flags = space.flags(dict(zip(names, drawn, strict=True)))
    config = load(flags).config
    assert (config.learning_rate, config.gamma, config.num_epochs) == (0.001235, 0.98765, 7)
    assert (config.batch_size, config.lr_schedule, config.encoder_mlp_layers) == (256, "linear_decay", [256])
    assert config.use_rnn
    back = space.drawn(config)
    assert back.pop("1 - gamma") == pytest.approx(0.01235)
    assert list(back.values()) == [0.001235, 7, 0.25, 2, "linear_decay", "[256]", "True"]


def test_settings_outside_the_space_are_left_to_the_sampler() -> None:
    config = load(["--learning_rate=0.1", "--batch_size=100", "--num_epochs=3"]).config
    drawn = read_space(SPACE, "space").drawn(config)
    assert "learning_rate" not in drawn and "index of batch_size" not in drawn
    assert drawn["num_epochs"] == 3


def test_every_draw_is_inside_the_space() -> None:
    space = read_space(SPACE, "space")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    for _ in range(20):
        trial = study.ask({each.parameter: each.distribution for each in space.searched})
        config = load(space.flags(trial.params)).config
        assert set(space.drawn(config)) == set(trial.params)
    assert isinstance(trial.params["num_epochs"], int)


def test_the_ends_of_whole_numbers_may_be_written_as_decimals() -> None:
    space = read_space({"space": {"batch_size": {"low": 1e2, "high": 1e3}, "gamma": {"low": 0, "high": 1}}}, "space")
    assert [each.is_whole for each in space.searched] == [True, False]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("learning_rat", {"low": 0, "high": 1}, "there is no setting learning_rat; the nearest is learning_rate"),
        ("seed", {"low": 0, "high": 1}, "seed cannot be searched"),
        ("num_policies", {"values": [1, 2]}, "num_policies cannot be searched"),
        ("gamma", [1, 2], "expected {low: A, high: B"),
        ("gamma", {"low": 1, "high": 1}, "must be less than"),
        ("gamma", {"low": 0, "high": 1, "scale": "log"}, "needs low > 0"),
        ("gamma", {"low": 0, "high": 1, "scale": "log_to_one"}, "needs high < 1"),
        ("gamma", {"low": 0, "high": 1, "scale": "cubic"}, "scale=cubic is not possible"),
        ("gamma", {"values": []}, "values must be a list"),
        ("gamma", {"low": "a", "high": 1}, "low and high must be numbers"),
    ],
)
def test_a_mistake_in_the_space_is_one_sentence(name, values, said) -> None:
    with pytest.raises(UsageError, match=said.replace("{", r"\{")):
        read_space({"space": {name: values}}, "space.yaml")


@pytest.mark.parametrize(("name", "env"), [("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_the_shipped_spaces_hold_the_presets_settings(name, env) -> None:
    assert space_names() == ["ppo", "sac"]
    path = find_space(name)
    space = read_space(read_mapping(path), str(path))
    config = load([f"--env={env}", f"--algo={space.settings['algo']}"]).config
    outside = {each.name for each in space.searched} - {
        each.name for each in space.searched if each.parameter in space.drawn(config)
    }
    assert outside <= {"gamma"}, "the first trial would not be the default"
    with pytest.raises(UsageError, match="--space=pppo is neither a file nor"):
        find_space("pppo")


CURVE = [Evaluated(100, 2.0, -10.0), Evaluated(200, 4.0, 60.0), Evaluated(300, 5.0, 50.0)]


@pytest.mark.parametrize(
    ("objective", "value", "so_far"),
    [
        (Objective("return"), 50.0, 60.0),
        (Objective("steps_to_threshold", 55.0), 200.0, -60.0),
        (Objective("seconds_to_threshold", 55.0), 4.0, -60.0),
        (Objective("steps_to_threshold", 100.0), 1000 * (1 + 40 / 140), -60.0),
        (Objective("seconds_to_threshold", 100.0), 1e6 * (1 + 40 / 140), -60.0),
        (Objective("return_per_second", baseline=20.0), 6.0, 10.0),
        (Objective("return_per_second", baseline=80.0), -30.0, -20.0),
    ],
)
def test_what_a_run_is_worth(objective, value, so_far) -> None:
    assert objective.value(CURVE, 1000) == pytest.approx(value)
    assert objective.so_far(CURVE[:2]) == pytest.approx(so_far)
    assert objective.is_decided(CURVE) == (objective.threshold == 55.0)


def test_a_run_that_comes_closer_to_the_threshold_is_better_and_never_as_good_as_one_that_reaches_it() -> None:
    objective = Objective("steps_to_threshold", 475.0)
    values = [objective.value([Evaluated(1000, 1.0, best)], 1000) for best in (475.0, 474.0, 100.0, -1e9)]
    assert values == sorted(values) and values[0] == 1000.0 < values[1] and values[-1] < 2000.0
    objective = Objective("seconds_to_threshold", 475.0)  # a quick run that learns nothing is not the best one
    reached, near, far = ((12.0, 475.0), (20.0, 474.0), (8.0, 30.0))
    values = [objective.value([Evaluated(1000, seconds, best)], 1000) for seconds, best in (reached, near, far)]
    assert values == sorted(values) and values[0] == 12.0


def test_evaluations_are_read_by_steps_with_the_seconds_of_other_records(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_evaluations(path) == []
    path.write_text(
        '{"env_steps": 100, "time/time_elapsed": 10.0}\n'
        '{"env_steps": 200, "time/time_elapsed": 20.0}\n'
        '{"env_steps": 150, "eval/mean_reward": 7.0}\n'
        '{"env_steps": 120, "eval/mean_reward": 5.0}\n'
        '{"env_steps": 300, "eval/mean_'
    )
    found = read_evaluations(path)
    assert [(each.env_steps, each.seconds, each.mean_return) for each in found] == [(120, 12.0, 5.0), (150, 15.0, 7.0)]
    assert all(math.isfinite(each.seconds) for each in found)
