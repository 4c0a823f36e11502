"""What `auto` becomes, and the numbers that follow from the settings."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest

from asyncrl.config.machine import Machine
from asyncrl.config.plan import MOST_PROCESSES, ReplayPlan, ResourcePlan, resolve
from asyncrl.config.schema import TrainConfig

CPU = Machine(cores=8)
GPU = Machine(cores=8, torch_has_cuda=True, num_cuda_devices=1)


def planned(machine: Machine = CPU, **settings: object) -> ResourcePlan:
    return resolve(TrainConfig(**settings), machine)  # type: ignore[arg-type]


LARGE = {"encoder_mlp_layers": [2048, 2048]}


def test_auto_is_local_on_a_cpu_and_central_with_two_splits_on_a_gpu() -> None:
    for machine, expected in ((CPU, ("cpu", "local", 1, 0)), (GPU, ("cuda", "central", 2, 1))):
        plan = planned(machine, **LARGE)
        assert (plan.device, plan.inference_mode, plan.worker_num_splits, plan.num_inference_workers) == expected
    for machine in (Machine(8, torch_has_cuda=False, num_cuda_devices=1), Machine(8, torch_has_cuda=True)):
        assert planned(machine, **LARGE).device == "cpu"
    assert planned(GPU, serial_mode=True, inference_mode="central").inference_mode == "local"


@pytest.mark.parametrize(
    ("settings", "observes_images", "learner", "inference"),
    [
        ({"encoder_mlp_layers": [64, 64], "batch_size": 64}, False, "cpu", "local"),
        ({"encoder_mlp_layers": [256, 256], "batch_size": 64}, False, "cuda", "local"),
        ({"encoder_mlp_layers": [64, 64], "algo": "sac", "critic_mlp_layers": [256, 256]}, False, "cuda", "local"),
        ({"encoder_mlp_layers": [512]}, True, "cuda", "central"),
        (LARGE, False, "cuda", "central"),
        ({"encoder": "own"}, False, "cuda", "central"),
        ({"encoder_mlp_layers": [64, 64], "batch_size": 64, "device": "cuda"}, False, "cuda", "central"),
        ({**LARGE, "device": "cpu"}, False, "cpu", "local"),
        ({**LARGE, "learner_device": "cpu"}, False, "cpu", "central"),
        ({**LARGE, "backend": "hogwild"}, False, "cpu", "local"),
    ],
)
def test_auto_takes_the_gpu_where_it_is_estimated_to_be_faster(
    settings: dict[str, Any], observes_images: bool, learner: str, inference: str
) -> None:
    plan = resolve(TrainConfig(**settings), GPU, observes_images)
    assert (plan.device, plan.inference_mode) == (learner, inference)


def test_a_plan_says_why_auto_chose_its_devices() -> None:
    reason = planned(GPU, encoder_mlp_layers=[64, 64], batch_size=64).device_reason
    assert reason is not None and "on a core and" in reason and "--device=cuda takes the GPU" in reason
    assert planned(GPU, device="cuda").device_reason is planned(CPU).device_reason is None


def test_roles_may_have_devices_of_their_own() -> None:
    two = Machine(cores=8, torch_has_cuda=True, num_cuda_devices=2)
    plan = planned(two, learner_device="cuda:1", inference_devices=["cuda:0", "cpu"])
    assert (plan.device, plan.inference_devices, plan.num_inference_workers) == ("cuda:1", ("cuda:0", "cpu"), 2)
    assert planned(two, **LARGE).inference_devices == ("cuda",)
    on_host = planned(two, **LARGE, inference_devices=["cpu"])
    assert (on_host.device, on_host.inference_mode, on_host.inference_devices) == ("cuda", "local", ())
    assert planned(two, inference_devices=["cuda:1"], num_inference_workers=3).num_inference_workers == 3
    rank = Machine(cores=8, torch_has_cuda=True, num_cuda_devices=2, num_ranks=2, num_local_ranks=2, local_rank=1)
    assert (planned(rank, **LARGE).device, planned(rank, **LARGE).inference_devices) == ("cuda:1", ("cuda:1",))
    assert planned(rank, device="cpu", learner_device="cuda").device == "cuda:1"
    assert planned(two, backend="hogwild", algo="a2c", device="cuda", learner_device="cuda:1").device == "cuda"


@pytest.mark.parametrize("cores", [1, 2, 3, 6, 16, 64, 1000])
@pytest.mark.parametrize("mode", ["local", "central"])
def test_auto_workers_and_environments_fill_exactly_one_dataset(cores: int, mode: str) -> None:
    plan = planned(Machine(cores), inference_mode=mode)
    assert plan.num_envs * plan.rollout == plan.dataset_size
    assert plan.num_workers <= cores
    assert plan.slots_per_dataset == plan.num_splits
    assert plan.num_envs_per_worker % plan.worker_num_splits == 0


def test_auto_takes_the_largest_number_of_equal_shares() -> None:
    assert planned(Machine(6)).num_workers == 4  # 64 trajectories: 5 and 6 do not divide them
    assert planned(Machine(2), rollout=64).num_envs_per_worker == 16
    central = planned(Machine(4), inference_mode="central", rollout=32, batch_size=384, num_batches_per_epoch=1)
    assert (central.num_workers, central.num_envs_per_worker) == (3, 4)  # 12: 4 x 3 could not be halved
    assert planned(Machine(8), serial_mode=True).num_workers == 1
    assert planned(Machine(8), num_envs_per_worker=16).num_workers == 4
    split = planned(Machine(64), inference_mode="central", worker_num_splits=2)
    assert (split.num_workers, split.num_envs_per_worker, split.worker_num_splits) == (32, 2, 2)
    assert planned(Machine(1000), backend="hogwild", algo="a2c").num_workers == MOST_PROCESSES


def test_explicit_values_are_kept() -> None:
    plan = planned(num_workers=3, num_envs_per_worker=5, learner_threads=7, device="cuda:1", inference_mode="local")
    assert (plan.num_workers, plan.num_envs_per_worker, plan.learner_threads, plan.device) == (3, 5, 7, "cuda:1")


def test_the_learner_has_all_cores_in_sync_and_what_is_left_in_async() -> None:
    large = {"encoder_mlp_layers": [512, 512], "batch_size": 512}
    assert planned(Machine(8), async_rl=False, **large).learner_threads == 5
    assert planned(Machine(8), num_workers=6, **large).learner_threads == 2
    assert planned(Machine(8), num_workers=8, **large).learner_threads == 1
    for little in ([64, 64], []):
        assert planned(Machine(8), async_rl=False, encoder_mlp_layers=little).learner_threads == 1
    for batch_size, threads in ((1024, 2), (8192, 8)):  # a learner with much work takes cores from the workers
        plan = planned(Machine(8), num_workers=8, encoder_mlp_layers=[512, 512], batch_size=batch_size)
        assert plan.learner_threads == threads


def test_convolutions_are_work_for_all_cores() -> None:
    config = TrainConfig(env="ALE/Pong-v5", batch_size=1024, async_rl=False)
    assert resolve(config, Machine(8)).learner_threads == 1
    assert resolve(config, Machine(8), observes_images=True).learner_threads == 8


def test_sync_has_exactly_a_dataset_of_slots_and_no_lag() -> None:
    plan = planned(async_rl=False, num_workers=2, num_envs_per_worker=32, batch_size=2048, num_batches_per_epoch=4)
    assert plan.slots_per_dataset == Fraction(8192, 32 * 32) == plan.num_slots
    assert plan.steady_lag_bound == plan.lag_bound == 0


def test_async_with_one_dataset_in_flight_lags_exactly_one_dataset() -> None:
    plan = planned(num_workers=2, num_envs_per_worker=32, num_batches_per_epoch=4, batch_size=512, num_epochs=2)
    assert plan.slots_per_dataset == plan.num_splits == 2
    assert plan.num_slots == 4
    assert plan.steady_lag_bound == plan.updates_per_dataset == 8
    assert plan.lag_bound == 1000


def test_async_slots_are_a_datasets_share_rounded_up_and_one_for_each_split() -> None:
    shape = {"rollout": 16, "batch_size": 64, "num_batches_per_epoch": 4}
    plan = planned(num_workers=3, num_envs_per_worker=5, num_batches_to_accumulate=2, **shape)
    assert plan.slots_per_dataset == Fraction(16, 5)
    assert plan.num_slots == 7 + 3
    assert plan.steady_lag_bound == 3 * plan.updates_per_dataset  # (10 - 3.2) / 3.2 = 2.1 datasets


def test_a_fixed_lag_is_one_dataset_whatever_the_shape() -> None:
    shape = {"num_workers": 2, "num_envs_per_worker": 4, "batch_size": 32, "num_batches_per_epoch": 4, "num_epochs": 2}
    plan = planned(fixed_lag=True, **shape)
    assert plan.num_slots == 2 * plan.slots_per_dataset
    assert plan.steady_lag_bound == plan.lag_bound == plan.updates_per_dataset == 8
    for other in ({"async_rl": False}, {"algo": "sac"}, {"algo": "a2c", "backend": "hogwild"}):
        assert not planned(fixed_lag=True, **{**shape, **other}).fixed_lag


def test_forced_lag_counts_whole_publications() -> None:
    shape = {"batch_size": 512, "num_batches_per_epoch": 4, "num_epochs": 2}
    assert planned(async_rl=False, debug_forced_lag=5, **shape).lag_bound == 8
    assert planned(debug_forced_lag=4, num_workers=2, num_envs_per_worker=32, **shape).steady_lag_bound == 8 + 4


def test_a_replay_takes_the_place_of_slots_and_learning_has_the_cores() -> None:
    many = Machine(cores=16)
    sac = {"algo": "sac", "batch_size": 256, "encoder_mlp_layers": [256, 256]}
    plan = planned(many, **sac, train_for_env_steps=25_000)
    assert (plan.num_workers, plan.num_envs_per_worker, plan.num_slots) == (4, 4, 0)
    assert plan.num_updates == 20_000
    assert plan.learner_threads == 5
    assert planned(many, **sac, updates_per_env_step=0.01).learner_threads == 1
    assert planned(many, **sac, async_rl=False).replay == ReplayPlan(1_000_000, 5_000, 1.0, tolerance=0.0)
    in_turn = planned(many, **sac, serial_mode=True).replay
    assert in_turn is not None and in_turn.tolerance == 0.0
    assert planned(many).replay is None


def test_the_warmup_holds_a_first_transition_of_each_environment() -> None:
    many = {"algo": "sac", "num_workers": 160, "num_envs_per_worker": 64, "warmup_env_steps": 10_000}
    for settings, steps in (({}, 2), ({"n_step": 3}, 4)):
        replay = planned(**many, **settings).replay
        assert replay is not None and replay.warmup_env_steps == 160 * 64 * steps
    few = planned(**{**many, "num_workers": 8}).replay
    assert few is not None and few.warmup_env_steps == 10_000


def test_impossible_settings_still_resolve() -> None:
    plan = planned(rollout=5000, num_envs_per_worker=2, worker_num_splits=7, inference_mode="central")
    assert plan.envs_per_split == 1
    assert plan.num_slots > 0 and plan.steady_lag_bound > 0


def test_the_plan_imports_neither_torch_nor_pydantic() -> None:
    code = "import sys, asyncrl.config.plan; assert not {'torch', 'pydantic'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(("num_policies", "each"), [(2, 3), (3, 4), (4, 6)])
def test_in_sync_one_iteration_collects_a_dataset_for_each_policy(num_policies: int, each: int) -> None:
    shape = {"num_workers": 2, "num_envs_per_worker": 3, "worker_num_splits": 1, "rollout": 4, "batch_size": 32}
    plan = dataclasses.replace(planned(async_rl=False, num_batches_per_epoch=1, **shape), num_policies=num_policies)
    assert plan.columns_per_dataset == 8
    assert plan.slots_per_split == each  # of 6 columns together
    assert plan.num_slots == 2 * each


def test_in_async_a_split_fills_one_slot_while_policies_copy_another() -> None:
    plan = dataclasses.replace(planned(num_workers=3, num_envs_per_worker=4, worker_num_splits=2), num_policies=2)
    assert (plan.slots_per_split, plan.num_slots) == (3, 18)


def test_networks_of_hogwild_workers_are_on_all_devices_in_turn_unless_one_is_named() -> None:
    three = Machine(cores=8, torch_has_cuda=True, num_cuda_devices=3)

    def devices(**settings: Any) -> list[str]:
        hogwild = resolve(TrainConfig(env="CartPole-v1", backend="hogwild", **settings), three).hogwild
        assert hogwild is not None
        return [hogwild.device_of(worker) for worker in range(4)]

    assert devices(device="cuda") == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert devices(device="cuda:1", algo="sac") == ["cuda:1"] * 4
    assert devices() == ["cpu"] * 4


def test_a_rollout_of_ppo_on_hogwild_gives_a_gradient_for_each_minibatch_of_each_pass() -> None:
    settings: dict[str, Any] = {"backend": "hogwild", "num_workers": 2, "num_envs_per_worker": 4, "rollout": 32}
    config = TrainConfig(env="CartPole-v1", **settings, batch_size=50, num_epochs=3, train_for_env_steps=1280)
    plan = resolve(config, Machine(cores=2))
    assert plan.hogwild is not None
    assert (plan.hogwild.num_epochs, plan.hogwild.num_batches_per_epoch) == (3, 2)  # 128 samples
    assert plan.num_updates == 10 * 6
    a2c = resolve(config.model_copy(update={"algo": "a2c"}), Machine(cores=2))
    assert a2c.num_updates == 10
