"""Settings that do not go together, and the values that are offered instead."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from asyncrl.config import algorithms
from asyncrl.config.algorithms import Algorithm
from asyncrl.config.errors import Problem
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.config.warnings import find_warnings
from asyncrl.modes.choice import find_problems

CPU = Machine(cores=16)
SYNC: dict[str, Any] = {"async_rl": False, "num_workers": 16, "num_envs_per_worker": 8, "rollout": 32}


def problems(machine: Machine = CPU, **settings: Any) -> list[Problem]:
    config = TrainConfig(**{"env": "CartPole-v1", **settings})
    return find_problems(config, resolve(config, machine), machine)


def warned(**settings: Any) -> set[str]:
    config = TrainConfig(**{"env": "CartPole-v1", **settings})
    return {name for warning in find_warnings(config, resolve(config, CPU), settings) for name in warning.settings}


def only(found: list[Problem]) -> Problem:
    assert len(found) == 1, found
    return found[0]


def test_a_run_that_never_ends_its_warm_up_is_told() -> None:
    settings: dict[str, Any] = {"algo": "sac", "warmup_env_steps": 5000, "train_for_env_steps": 30_000}
    assert warned(**settings) == set()
    ranks = dataclasses.replace(CPU, num_ranks=8)
    config = TrainConfig(env="CartPole-v1", **settings)
    (warning,) = find_warnings(config, resolve(config, ranks), settings)
    assert "30000 / 8 ranks = 3750 is within" in warning.text
    assert "warmup_env_steps" in warned(**{**settings, "train_for_env_steps": 5000})


def test_the_defaults_pass_in_every_mode() -> None:
    for async_rl, serial, mode in itertools.product((True, False), (True, False), ("local", "central")):
        assert problems(async_rl=async_rl, serial_mode=serial, inference_mode=mode) == []


@pytest.mark.parametrize(("batch_size", "num_batches"), [(4096, 1), (2048, 2), (512, 8), (4096, 3)])
def test_sync_takes_datasets_that_are_whole_rounds_of_all_environments(batch_size: int, num_batches: int) -> None:
    assert problems(**SYNC, batch_size=batch_size, num_batches_per_epoch=num_batches) == []


def test_tensors_are_stepped_and_trained_in_turn_in_one_process() -> None:
    tensors = {"env_backend": "tensor", "rollout": 32, "batch_size": 1024}
    in_turn = {**tensors, "serial_mode": True, "async_rl": False}
    assert problems(**in_turn) == []
    assert only(problems(**tensors)).suggestions == ("--serial_mode=True --async_rl=False", "without these flags")
    assert only(problems(**in_turn, debug_forced_lag=4)).suggestions[0] == "--debug_forced_lag=0"
    assert resolve(TrainConfig(**in_turn), CPU).num_slots == 0


def test_a_processor_on_which_words_cannot_be_shared_allows_one_process() -> None:
    weak = Machine(cores=16, shares_words=False)
    for settings in ({}, {"algo": "sac"}, {"backend": "hogwild", "algo": "a2c"}):
        assert only(problems(weak, **settings)).suggestions == ("--serial_mode=True",)
        assert problems(weak, **settings, serial_mode=True) == []


def test_sync_refuses_a_partial_round_with_its_arithmetic_and_the_nearest_values() -> None:
    problem = only(problems(**SYNC, batch_size=512, num_batches_per_epoch=3))
    assert "512 x 3 = 1536" in problem.text
    assert "16 x 8 x 32 = 4096" in problem.text
    assert problem.suggestions == ("--batch_size=4096", "--num_batches_per_epoch=8")


LATE: dict[str, Any] = {"async_rl": False, "rollout": 64}
CENTRAL: dict[str, Any] = {"inference_mode": "central", "num_workers": 2}
GRAPH: dict[str, Any] = {"compile": "cuda_graph", "device": "cuda"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {**SYNC, "batch_size": 5000, "num_batches_per_epoch": 1},
            ("--batch_size=4096", "--batch_size=8192", "--num_batches_per_epoch=512"),
        ),
        (
            {**SYNC, "batch_size": 1024, "num_batches_per_epoch": 6},
            ("--batch_size=2048", "--num_batches_per_epoch=4", "--num_batches_per_epoch=8"),
        ),
        (
            {**LATE, "batch_size": 1000, "num_batches_per_epoch": 4},
            ("--batch_size=992", "--batch_size=1008", "--num_batches_per_epoch=8"),
        ),
        (
            {**LATE, "num_workers": 3, "batch_size": 1024, "num_batches_per_epoch": 4},
            ("--batch_size=1008", "--batch_size=1056", "--num_batches_per_epoch=3", "--num_batches_per_epoch=6"),
        ),
        (
            {**LATE, "num_envs_per_worker": 9, "batch_size": 600, "num_batches_per_epoch": 2},
            ("--batch_size=576", "--batch_size=864", "--num_batches_per_epoch=24"),
        ),
        ({"rollout": 32, "batch_size": 100}, ("--batch_size=96", "--batch_size=128", "--rollout=25")),
        ({"rollout": 32, "batch_size": 8}, ("--batch_size=32", "--rollout=8")),
        (
            {**CENTRAL, "num_envs_per_worker": 7, "worker_num_splits": 3},
            ("--num_envs_per_worker=6", "--num_envs_per_worker=9", "--worker_num_splits=1"),
        ),
        ({**CENTRAL, "num_inference_workers": 3}, ("--num_inference_workers=2",)),
        (
            {**CENTRAL, "inference_devices": ["cpu", "cpu"], "num_inference_workers": 1},
            ("--num_inference_workers=auto",),
        ),
        ({**GRAPH, "final_ppo_clip_ratio": 0.1}, ("--compile=auto", "--final_ppo_clip_ratio=none")),
    ],
)
def test_every_value_that_is_offered_passes(settings: dict[str, Any], expected: tuple[str, ...]) -> None:
    machine = Machine(cores=16, torch_has_cuda=True, num_cuda_devices=1) if settings.get("device") == "cuda" else CPU
    suggestions = only(problems(machine, **settings)).suggestions
    assert suggestions == expected
    for suggestion in suggestions:
        name, _, value = suggestion[2:].partition("=")
        assert problems(machine, **{**settings, name: None if value == "none" else value}) == []


def test_async_needs_only_whole_trajectories() -> None:
    assert problems(num_workers=16, num_envs_per_worker=8, rollout=32, batch_size=512, num_batches_per_epoch=3) == []


def test_local_inference_and_serial_mode_have_one_split() -> None:
    settings: dict[str, Any] = {"num_workers": 2, "num_envs_per_worker": 64, "worker_num_splits": 2}
    assert "--inference_mode=central" in only(problems(**settings)).suggestions
    assert only(problems(**settings, serial_mode=True)).suggestions == ("--worker_num_splits=1",)
    assert problems(**settings, inference_mode="central") == []


@pytest.mark.parametrize(
    ("device", "machine", "words"),
    [
        ("tpu", CPU, "expected one of"),
        ("gpu", CPU, "--device=cuda: the installed torch was built without CUDA"),
        ("cuda", Machine(4, True, 0), "finds 0 devices"),
        ("GPU:2", Machine(4, True, 2), "--device=cuda:2: the CUDA driver finds 2 devices"),
    ],
)
def test_a_device_that_is_not_there_is_refused(device: str, machine: Machine, words: str) -> None:
    assert words in only(problems(machine, device=device)).text


def test_each_setting_of_a_device_is_looked_at() -> None:
    two = Machine(4, True, 2)
    for settings in ({"learner_device": "cuda:2"}, {"inference_devices": ["cuda:1", "cuda:2"], "num_workers": 2}):
        problem = only(problems(two, **settings))
        assert problem.settings == (next(iter(settings)),) and "cuda:2" in problem.text
    assert "one of cpu, cuda, cuda:N" in only(problems(two, inference_devices=["auto"])).text
    assert problems(two, learner_device="cuda:0", inference_devices=["cuda:1"]) == []
    for device in ("cuda", "cuda:1", "cpu", "auto"):
        assert problems(two, device=device) == []


@pytest.mark.parametrize("algo", ["ppo", "a2c", "sac"])
def test_cuda_graphs_need_a_cuda_device(algo: str) -> None:
    assert "needs a CUDA device" in only(problems(algo=algo, compile="cuda_graph")).text


def test_rules_on_learning_and_lag() -> None:
    assert "lr_adaptive_min" in only(problems(lr_adaptive_min=1e-2, lr_adaptive_max=1e-3)).settings
    assert "final_stddev" in only(problems(initial_stddev=0.5, final_stddev=0.6)).settings
    assert only(problems(lr_schedule="kl_adaptive_epoch", learning_rate=0.1)).suggestions == ("--learning_rate=0.01",)
    assert problems(lr_schedule="linear_decay", learning_rate=0.1) == []
    assert "nothing would be trained" in only(problems(debug_forced_lag=50, max_policy_lag=40)).text
    fixed: dict[str, Any] = {"fixed_lag": True, "num_batches_per_epoch": 4, "num_epochs": 3}
    assert problems(**fixed, max_policy_lag=12) == []
    assert only(problems(**fixed, max_policy_lag=11)).suggestions == ("--max_policy_lag=12",)
    assert only(problems(**fixed, debug_forced_lag=4)).settings == ("fixed_lag", "debug_forced_lag")
    assert "--fixed_lag=True needs" in only(problems(**fixed, num_workers=3, num_envs_per_worker=8)).text
    assert only(problems(env="")).settings == ("env",)


def test_a_batch_of_one_sample_cannot_be_normalized() -> None:
    settings: dict[str, Any] = {"batch_size": 1, "num_batches_per_epoch": 8, "rollout": 1}
    assert "normalize_advantage" in only(problems(**settings)).settings
    assert problems(**settings, normalize_advantage=False) == []
    assert problems(**settings, normalize_advantage_over="dataset") == []


def test_all_problems_are_found_at_once() -> None:
    found = problems(env="", device="tpu", rollout=7, lr_adaptive_min=1.0)
    assert len(found) == 4


SAC: dict[str, Any] = {"algo": "sac", "num_workers": 2, "num_envs_per_worker": 4}


@pytest.mark.parametrize(
    ("settings", "words", "fitting"),
    [
        ({"warmup_env_steps": 30, "n_step": 3, "replay_size": 31}, "the warm-up of 32 steps", "--replay_size=32"),
        ({"replay_size": 4999}, "is smaller than the warm-up of 5000 steps", "--replay_size=5000"),
        ({"lr_schedule": "kl_adaptive_epoch"}, "needs on-policy data", "--lr_schedule=constant"),
        ({"compile": "cuda_graph"}, "needs a CUDA device", "--compile=auto"),
        (
            {"serial_mode": True, "checkpoint_resets": True, "save_every_env_steps": 1000},
            "needs the replay in each checkpoint",
            "--save_replay=True",
        ),
    ],
)
def test_learning_from_a_replay_has_rules_of_its_own(settings: dict[str, Any], words: str, fitting: str) -> None:
    problem = only(problems(**SAC, **settings))
    assert words in problem.text
    assert fitting in problem.suggestions
    name, _, value = fitting.removeprefix("--").partition("=")
    assert problems(**SAC, **{**settings, name: value}) == []


@pytest.mark.parametrize(
    ("settings", "words", "fitting"),
    [
        (
            {"normalize_rewards": True, "backend": "hogwild"},
            "--normalize_rewards: Hogwild",
            "--normalize_rewards=False",
        ),
        ({"num_critics": 3, "algo": "td3"}, "--num_critics: only SAC", "--algo=sac"),
        ({"num_critics": 3, "backend": "hogwild"}, "--num_critics: Hogwild", "--num_critics=2"),
    ],
)
def test_settings_of_critics_have_rules(settings: dict[str, Any], words: str, fitting: str) -> None:
    problem = only(problems(**{"algo": "sac", **settings}))
    assert words in problem.text and fitting in problem.suggestions
    assert problems(algo="dqn", normalize_rewards=True) == []


def test_records_of_others_that_use_the_learner_of_td3_have_none_of_the_settings_of_sac(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learners = {"plain": "asyncrl.learner.td3:Td3Learner", "soft": "asyncrl.learner.sac:SacLearner", "own": "toy:Own"}
    records = {name: Algorithm(name, collects="replay", make_learner=learner) for name, learner in learners.items()}
    monkeypatch.setattr(algorithms, "_algorithms", {**algorithms._algorithms, **records})
    assert "only SAC has these" in only(problems(algo="plain", num_critics=3)).text
    assert problems(algo="plain") == problems(algo="soft", num_critics=3) == problems(algo="own", num_critics=3) == []
    assert "prioritized_replay" in warned(algo="own", prioritized_replay=True)


def test_learning_from_a_replay_knows_no_trajectories() -> None:
    assert problems(**SAC, async_rl=False, rollout=7, batch_size=10) == []
    assert problems(Machine(4, True, 1), **SAC, compile="cuda_graph") == []
    for name, value in (("debug_forced_lag", 3), ("debug_skip_training", True), ("with_vtrace", True)):
        assert name in only(problems(**SAC, **{name: value})).settings
    assert "warmup_env_steps" in warned(**SAC, train_for_env_steps=5000)
    assert "initial_stddev" in warned(**{**SAC, "algo": "td3"}, initial_stddev=0.3)
    config = TrainConfig(env="CartPole-v1", **SAC, max_policy_lag=1)
    assert find_warnings(config, resolve(config, CPU), given=()) == []


HOGWILD: dict[str, Any] = {"algo": "a2c", "backend": "hogwild", "num_workers": 3}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"algo": "dqn"}, "algo"),
        ({"algo": "ppo", "batch_size": 1}, "batch_size"),
        ({"algo": "sac", "save_replay": True}, "save_replay"),
        ({"lr_schedule": "kl_adaptive_epoch"}, "lr_schedule"),
        ({"hogwild_mode": "gradients", "num_gradients_to_combine": 5}, "num_gradients_to_combine"),
        ({"rollout": 1, "num_envs_per_worker": 1}, "rollout"),
        ({"algo": "sac", "hogwild_mode": "gradients"}, "hogwild_mode"),
        ({"inference_mode": "central"}, "inference_mode"),
        ({"with_vtrace": True}, "with_vtrace"),
    ],
)
def test_the_hogwild_backend_has_rules_of_its_own(settings: dict[str, Any], name: str) -> None:
    assert name in only(problems(**{**HOGWILD, **settings})).settings


def test_the_hogwild_backend_takes_what_means_nothing_to_it_and_the_cpu_where_there_is_a_gpu() -> None:
    gpu = Machine(cores=16, torch_has_cuda=True, num_cuda_devices=1)
    assert problems(gpu, **HOGWILD) == problems(gpu, **HOGWILD, device="cuda") == []
    assert resolve(TrainConfig(**{**HOGWILD, "env": "CartPole-v1"}), gpu).device == "cpu"
    assert problems(**HOGWILD, batch_size=1) == []
    assert problems(**HOGWILD, hogwild_mode="gradients", num_gradients_to_combine=4) == []
    assert "hogwild_mode" in warned(algo="a2c", num_epochs=1, hogwild_mode="shared")


def test_what_has_no_effect_or_is_probably_not_meant_is_only_warned_of() -> None:
    assert warned(num_workers=16, num_envs_per_worker=8) == set()
    assert "serial_mode" in warned(serial_mode=True)
    assert warned(serial_mode=True, async_rl=False) == set()
    assert "num_inference_workers" in warned(num_inference_workers=2)
    assert "num_batches_to_accumulate" in warned(async_rl=False, num_batches_to_accumulate=2)
    assert "num_workers" in warned(num_workers=32)
    assert "max_policy_lag" in warned(max_policy_lag=3)
    assert "train_for_env_steps" in warned(train_for_env_steps=100)
    assert "num_epochs" in warned(algo="a2c", num_epochs=2)
    assert "target_kl" not in warned(num_epochs=1)  # its default
    for settings in ({"target_kl": 0.02}, {"recompute_advantages": True}):
        assert {"num_epochs", *settings} <= warned(num_epochs=1, **settings)
        assert "num_epochs" not in warned(num_epochs=2, **settings)
    assert "learning_rate" in warned(learning_rate=0.0)


def test_the_recurrence_must_divide_the_rollout() -> None:
    assert problems(use_rnn=True, rollout=32, recurrence=8) == []
    assert problems(rollout=32, recurrence=12) == []  # nothing is recurrent
    uneven = only(problems(use_rnn=True, rollout=32, recurrence=12))
    assert uneven.settings == ("recurrence", "rollout")
    assert "--recurrence=8" in uneven.suggestions


def test_keys_of_the_critic_need_an_actor_of_its_own() -> None:
    assert problems(algo="td3", critic_only_keys=["hidden"]) == []
    assert "--algo=sac" in only(problems(critic_only_keys=["hidden"], algo="dqn")).suggestions


def test_keys_of_the_critic_of_one_policy_need_an_actor_of_its_own() -> None:
    keys, shared = {"critic_only_keys": ["hidden"]}, {"actor_critic_share_weights": True}
    assert problems(num_policies=2, policies={0: shared, 1: keys}) == []
    problem = only(problems(num_policies=2, policies={1: keys}, **shared))
    assert problem.text.startswith("Policy 1: --critic_only_keys needs separate networks")
    problem = only(problems(num_policies=2, policies={1: shared}, **keys))
    assert problem.text.startswith("Policy 1: ")
    assert problem.suggestions == ("--policy.1.actor_critic_share_weights=False",)


def test_ranks_do_not_begin_anew_at_checkpoints() -> None:
    settings: dict[str, Any] = {"env_backend": "tensor", "serial_mode": True, "async_rl": False, "num_workers": 1}
    settings |= {"checkpoint_resets": True, "save_every_env_steps": 1000}
    assert problems(**settings) == []
    problem = only(problems(Machine(cores=16, num_ranks=2), **settings))
    assert problem.settings == ("checkpoint_resets",) and "not 2 ranks" in problem.text


def test_priorities_are_those_of_one_learner() -> None:
    settings: dict[str, Any] = {"algo": "dqn", "prioritized_replay": True, "num_workers": 1, "num_envs_per_worker": 2}
    assert problems(**settings) == []
    problem = only(problems(Machine(cores=16, num_ranks=2), **settings))
    assert problem.settings == ("prioritized_replay",) and "not those of 2 ranks" in problem.text
    on_device: dict[str, Any] = {**settings, "env_backend": "tensor", "serial_mode": True, "async_rl": False}
    assert "one on the device has no priorities" in only(problems(**on_device)).text
    assert problems(**{**on_device, "algo": "sac"}) == []


@pytest.mark.parametrize(
    "settings",
    [{"encoder_mlp_layers": [2048, 2048]}, {"device": "cuda"}, {"inference_devices": ["cuda"], "device": "cpu"}],
)
def test_each_rank_of_a_machine_needs_a_gpu_of_its_own(settings: dict[str, Any]) -> None:
    for local_rank in range(2):
        ranks = {"torch_has_cuda": True, "num_ranks": 2, "num_local_ranks": 2, "local_rank": local_rank}
        assert problems(Machine(cores=8, num_cuda_devices=2, **ranks), **settings) == []
        problem = only(problems(Machine(cores=8, num_cuda_devices=1, **ranks), **settings))
        assert problem.text.startswith("Each of 2 ranks on this machine needs a CUDA device, and the driver shows 1.")
    on_cpu = Machine(cores=8, torch_has_cuda=True, num_cuda_devices=1, num_ranks=2, num_local_ranks=2)
    assert problems(on_cpu, device="cpu") == []


def test_more_inference_devices_than_workers_are_refused_with_what_fits() -> None:
    machine = Machine(cores=4, torch_has_cuda=True, num_cuda_devices=2)
    given: dict[str, Any] = {"algo": "sac", "inference_devices": ["cuda:0", "cuda:1"]}
    problem = only(problems(machine, **given))
    assert problem.suggestions == ("--num_workers=2", "--inference_devices=cuda:0")
    assert problems(machine, **given, num_workers=2) == []
    assert problems(machine, algo="sac", inference_devices=["cuda:0"]) == []
