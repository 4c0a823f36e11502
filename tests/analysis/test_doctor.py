"""What doctor says of machines, one sentence for each thing to change, and that it trains for real."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest

from asyncrl import doctor
from asyncrl.analysis.doctor import MachineFacts, Speeds, advise, find_facts, format_facts, measure_speeds
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.observers.status import Record

GIB = 1 << 30
GOOD = MachineFacts(
    versions={"python": "3.11.7", "torch": "2.13.0"},
    platform="Linux",
    processor="A processor",
    machine=Machine(cores=8),
    system_cores=8,
    container_cores=None,
    governor=None,
    other_load=0.02,
    free_bytes=30 * GIB,
    shared_bytes=16 * GIB,
    descriptors=(1024, 524_288),
    gpus=(),
    instruction_set="avx2",
)
BALANCED = Speeds(9000.0, 5000.0, 20_000.0, 12_000.0, rollout_busy=0.95, learner_busy=0.8, num_workers=2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"descriptors": (-1, -1)}, None),
        ({"machine": Machine(cores=1)}, "Use --serial_mode=True or a machine with more cores"),
        ({"machine": Machine(cores=8, shares_words=False)}, "processes that share memory need the native core"),
        ({"container_cores": 2, "machine": Machine(cores=2)}, "more than 2 of 8 cores"),
        ({"instruction_set": None}, "Install a C compiler"),
        ({"other_load": 0.6}, "which use 60% of the processors"),
        ({"governor": "powersave"}, "governor performance"),
        ({"free_bytes": GIB}, "1.0 GiB are free"),
        ({"shared_bytes": 4 << 20}, "it has 4 MiB"),
        ({"descriptors": (256, 524_288)}, "ulimit -n 4096"),
        ({"gpus": ("H100",)}, "Install a CUDA build"),
        ({"gpus": ("H100",), "machine": Machine(8, torch_has_cuda=True)}, "CUDA shows none to PyTorch"),
        ({"gpus": ("H100",), "machine": Machine(8, torch_has_cuda=True, num_cuda_devices=1)}, None),
    ],
)
def test_each_thing_to_change_is_one_sentence(changed: dict[str, Any], said: str | None) -> None:
    found = list(advise(dataclasses.replace(GOOD, **changed), BALANCED))
    if said is None:
        assert found == []
    else:
        (sentence,) = found
        assert said in sentence and sentence.endswith(".") and "\n" not in sentence


@pytest.mark.parametrize(
    ("rollout", "learner", "said"),
    [(0.99, 0.3, "Simulation limits"), (0.4, 0.98, "The learner limits"), (0.8, 0.8, "")],
)
def test_the_slower_role_is_named(rollout: float, learner: float, said: str) -> None:
    speeds = dataclasses.replace(BALANCED, rollout_busy=rollout, learner_busy=learner)
    found = list(advise(GOOD, speeds))
    assert [sentence.startswith(said) for sentence in found] == ([True] if said else [])


def test_advice_is_about_what_the_training_did_not_use() -> None:
    slow_learner = dataclasses.replace(BALANCED, rollout_busy=0.4, learner_busy=0.98)
    with_gpu = dataclasses.replace(GOOD, machine=Machine(8, torch_has_cuda=True, num_cuda_devices=1))
    assert "--device=cuda" in only(advise(with_gpu, slow_learner))
    assert "--device=cuda" not in only(advise(with_gpu, dataclasses.replace(slow_learner, device="cuda")))
    slow_simulation = dataclasses.replace(BALANCED, rollout_busy=0.99, learner_busy=0.3)
    assert "with 2 workers on 8 cores: more --num_workers" in only(advise(GOOD, slow_simulation))
    on_all_cores = dataclasses.replace(slow_simulation, num_workers=8)
    assert "more cores, for more --num_workers" in only(advise(GOOD, on_all_cores))


def only(sentences: Iterable[str]) -> str:
    (sentence,) = sentences
    return sentence


def test_the_speed_of_a_role_is_that_of_the_run_over_its_share_of_the_time() -> None:
    plan = resolve(TrainConfig(env="CartPole-v1", num_workers=2, inference_mode="local"), Machine(cores=2))
    shares = {"profile/rollout/step": 0.5, "profile/rollout/forward": 0.25, "profile/learner/train": 0.4}
    busy = {"perf/rollout_busy": 0.8, "perf/learner_busy": 0.4}
    records = [Record(1, {**shares, **busy}), Record(2, {**shares, **busy, "profile/learner/train": 0.6})]
    found = measure_speeds(records, plan, 1000.0)
    assert found == Speeds(1000.0, 1000.0, 2000.0, 2000.0, rollout_busy=0.8, learner_busy=0.4, num_workers=2)
    assert measure_speeds([], plan, None) == Speeds(None, None, None, None, None, None, 2)
    central = resolve(TrainConfig(env="CartPole-v1", num_workers=2, inference_mode="central"), Machine(cores=2))
    assert measure_speeds([Record(1, {"profile/inference/forward": 0.5})], central, 1000.0).inference == 2000.0


def test_it_looks_at_this_machine() -> None:
    text = format_facts(find_facts())
    assert "torch" in text and "GiB free" in text and len(text.splitlines()) == 7


@pytest.mark.usefixtures("leaves_nothing")
def test_it_trains_and_leaves_no_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seconds in (1.5, 6.0, 24.0):  # on a busy machine workers start late
        exit_code, shown = doctor.main([f"--seconds={seconds}", "--json"]), capsys.readouterr()
        if exit_code == 0 and json.loads(shown.out)["speeds"]["trained"] is not None:
            break
    assert exit_code == 0, shown.err
    speeds = json.loads(shown.out)["speeds"]
    assert all(speeds[name] > 0 for name in ("trained", "simulation", "inference", "learner"))
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_is_too_short_is_told_to_be_longer(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--env=Humanoid-v5", "--seconds=0.01"]) == 1
    shown = capsys.readouterr()
    assert "nothing to change" not in shown.out
    assert "Nothing was trained in 0.01 s: give it more time, such as --seconds=0.06." in shown.err


def test_a_training_that_cannot_start_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--env=Nowhere-v0"]) == 2
    assert "The training failed" in capsys.readouterr().err
    assert doctor.main(["--seconds=-1"]) == doctor.main(["--secnds=1"]) == 2
