"""Settings without effect: which of those that the user named are said to have none, in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asyncrl.config import algorithms, dependencies
from asyncrl.config.algorithms import Algorithm
from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.presets import preset_names, read_preset
from asyncrl.config.schema import TrainConfig
from asyncrl.config.settings import all_settings
from asyncrl.config.warnings import find_warnings

CPU = Machine(cores=4)


def unread(*flags: str, machine: Machine = CPU) -> list[str]:
    """The sentences that say so."""
    loaded = load(["--env=Pendulum-v1", *flags])
    found = find_warnings(loaded.config, resolve(loaded.config, machine), loaded.given)
    return [warning.text for warning in found if "No effect" in warning.text]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--algo=sac", "--ppo_clip_ratio=0.3"], "--ppo_clip_ratio (needs algo=ppo)"),
        (["--tau=0.1", "--n_step=3"], "--n_step, --tau (needs algo=sac or td3 or dqn)"),
        (["--algo=sac", "--target_policy_noise=0.1"], "--target_policy_noise (needs algo=td3)"),
        (["--algo=dqn", "--exploration_noise=pink"], "--exploration_noise (needs algo=sac or td3)"),
        (["--hogwild_optimizer=rmsprop"], "--hogwild_optimizer (needs backend=hogwild)"),
        (["--algo=a3c", "--batch_size=64"], "--batch_size (needs algo=ppo or a2c or sac or td3 or dqn)"),
        (["--algo=a3c", "--combine_gradients=sum"], "--combine_gradients (needs hogwild_mode=gradients)"),
        (["--num_inference_workers=2"], "--num_inference_workers (needs inference_mode=central)"),
        (["--eval_episodes=3"], "--eval_episodes (needs eval_every_env_steps)"),
        (["--async_rl=False", "--num_batches_to_accumulate=2"], "--num_batches_to_accumulate (needs async_rl=True)"),
        (
            ["--fixed_lag=True", "--num_batches_to_accumulate=2"],
            "--num_batches_to_accumulate (needs fixed_lag=False)",
        ),
        (["--fixed_lag=True", "--async_rl=False"], "--fixed_lag (needs async_rl=True)"),
        (
            ["--serial_mode=True", "--max_restarts=3", "--env_step_timeout=20"],
            "--env_step_timeout, --max_restarts (needs serial_mode=False)",
        ),
        (
            ["--env_backend=tensor", "--nan_policy=fail"],
            "--nan_policy (needs env_backend=auto or gym or gym_vector or envpool)",
        ),
        (["--with_vtrace=True", "--recompute_values=False"], "--recompute_values (needs with_vtrace=False)"),
        (["--inference_devices=cpu"], "--inference_devices (needs inference_mode=central)"),
        (["--rnn_size=64", "--core=own"], "--core, --rnn_size (needs use_rnn=True)"),
        (["--algo=sac", "--adaptive_stddev=True"], "--adaptive_stddev (needs algo=ppo or a2c or a3c)"),
        (["--algo=a2c", "--ppo_objective=clip"], "--ppo_objective (needs algo=ppo)"),
        (
            ["--ppo_objective=clip", "--behaviour_weight_cap=2"],
            "--behaviour_weight_cap (needs ppo_objective=decoupled)",
        ),
        (
            ["--algo=sac", "--target_kl=0.02", "--recompute_advantages=True"],
            "--recompute_advantages, --target_kl (needs algo=ppo or a2c)",
        ),
        (
            ["--normalize_advantage=False", "--normalize_advantage_over=dataset"],
            "--normalize_advantage_over (needs normalize_advantage=True)",
        ),
        (["--algo=sac", "--backend=hogwild", "--compile=off"], "--compile (needs backend=actor_learner)"),
        (
            ["--backend=hogwild", "--num_batches_per_epoch=3", "--max_policy_lag=5", "--ppo_objective=clip"],
            "--max_policy_lag, --num_batches_per_epoch, --ppo_objective (needs backend=actor_learner)",
        ),
        (
            ["--algo=sac", "--gae_lambda=0.5", "--hogwild_mode=shared"],
            "--gae_lambda (needs algo=ppo or a2c or a3c); --hogwild_mode (needs backend=hogwild)",
        ),
    ],
)
def test_what_nothing_reads_is_said_in_one_line(flags: list[str], said: str) -> None:
    assert unread(*flags) == [f"No effect in this run: {said}."]


@pytest.mark.parametrize(
    "flags",
    [
        ["--algo=sac", "--tau=0.1", "--compile=off", "--batch_size=64"],
        ["--algo=sac", "--encoder=own", "--encoder_conv_mlp_layers=64"],
        ["--algo=a3c", "--hogwild_optimizer=rmsprop", "--rollout=8", "--initial_stddev=0.3"],
        ["--backend=hogwild", "--num_epochs=3", "--batch_size=32", "--target_kl=0.1", "--ppo_clip_ratio=0.1"],
        ["--ppo_clip_ratio=0.3", "--eval_episodes=3", "--eval_every_env_steps=1000"],
        ["--inference_mode=central", "--num_inference_workers=2", "--num_workers=2"],
        ["--algo=sac", "--ppo_clip_ratio=0.2"],  # the default
    ],
)
def test_no_warning_for_used_or_default_settings(flags: list[str]) -> None:
    assert unread(*flags) == []
    gpu = Machine(cores=4, torch_has_cuda=True, num_cuda_devices=1)  # the plan chooses central inference
    assert unread("--num_inference_workers=2", "--encoder_mlp_layers=[2048,2048]", machine=gpu) == []


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_never_blamed(name: str) -> None:
    preset = read_preset(name)
    for algo in ["ppo", "a2c", "a3c", "sac", "td3", "dqn"] if preset.envs else preset.for_algo:
        assert unread(f"--preset={name}", f"--algo={algo}") == []


def test_settings_in_the_users_own_file_count_as_named(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("tau: 0.5\n")
    assert unread(f"--config={file}") == ["No effect in this run: --tau (needs algo=sac or td3 or dqn)."]


def test_every_condition_is_of_settings_and_values_that_there_are() -> None:
    known: dict[str, Any] = {name: setting.default for name, setting in all_settings().items()}
    conditions = {name: dependencies.conditions_of(name) for name in known}
    assert sum(map(bool, conditions.values())) > 100
    for condition in conditions.values():
        assert condition.keys() <= known.keys()
        for other, values in condition.items():
            for value in set(values) - {"a3c", "anything"}:
                TrainConfig(**{other: value})


def test_an_algorithm_of_a_feature_is_known_by_its_name_and_says_what_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Algorithm("own", make_learner=print, ignores=frozenset({"gae_lambda"}))
    monkeypatch.setattr(algorithms, "hooks", {"ALGORITHMS": {"own": "somewhere:OWN"}}.get)
    monkeypatch.setattr(algorithms, "load", {"somewhere:OWN": own}.get)
    assert algorithms.find_algorithm("Own") is own and "own" in algorithms.known_names()
    assert unread("--algo=OWN", "--value_loss_coeff=1") == []
    (text,) = unread("--algo=OWN", "--gae_lambda=0.5")
    assert "--gae_lambda (needs algo=ppo or a2c or a3c)" in text
    with pytest.raises(ValueError, match="cannot have the name own"):
        algorithms.register_algorithm(own)
