"""Whole runs of several ranks: under torchrun, or started with its variables from a process that has loaded PyTorch."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from command import HELPERS, PROBE, Command, wait_until
from killing import pids
from quick_start import QuickProcess
from unavoidable import PREFIX

from asyncrl.storage import checkpoint

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("leaves_nothing")]

SAC = (
    "--env=Pendulum-v1",
    "--algo=sac",
    "--num_workers=1",
    "--num_envs_per_worker=2",
    "--warmup_env_steps=200",
    "--replay_size=2000",
    "--updates_per_env_step=0.5",
    "--batch_size=32",
    "--encoder_mlp_layers=[16]",
    "--learner_threads=1",
    "--save_replay=True",
)


STARTED: list[Command] = []


def torchrun(num_ranks: int, cwd: Path, *flags: str, max_restarts: int = 0) -> Command:
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    run = Command("asyncrl.train", *flags, cwd=cwd, launcher=[*launcher, f"--max-restarts={max_restarts}", "-m"])
    STARTED.append(run)
    return run


def variables_of(rank: int, port: int, num_ranks: int = 2) -> dict[str, str]:
    """What torchrun tells a rank if all are on this machine; rank 0 opens the store."""
    numbers = {"RANK": rank, "WORLD_SIZE": num_ranks, "MASTER_PORT": port}
    numbers |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": num_ranks}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}}


def quick_ranks(num_ranks: int, port: int, cwd: Path, *flags: str) -> list[Command]:
    """Ranks without torchrun. It, its ranks and their fork servers would each load PyTorch."""
    for rank in range(num_ranks):
        STARTED.append(Command("asyncrl.train", *flags, cwd=cwd, variables=variables_of(rank, port, num_ranks)))
    return STARTED[-num_ranks:]


def finish_all(runs: Sequence[Command]) -> str:
    """Waits for the end of all ranks, which is no failure; returns what rank 0 has written to standard error."""
    ends = [run.finish() for run in runs]
    assert all(code == 0 for code, _, _ in ends), ends
    return ends[0][2]


@pytest.fixture(autouse=True)
def nothing_goes_on(leaves_nothing: None) -> Iterator[None]:
    """Ends the runs of a test that has failed."""
    yield
    while STARTED:
        STARTED.pop().kill()


def summaries_of(run: Command) -> list[dict[str, Any]]:
    """What both ranks say at the end."""
    return [json.loads((path / "summary.json").read_text()) for path in (run.folder, run.folder / "ranks" / "1")]


def process_of(run: Command, rank: int) -> psutil.Process:
    """The process that torchrun has started for a rank."""
    folder = run.folder if rank == 0 else run.folder / "ranks" / str(rank)
    return psutil.Process(int((folder / ".lock").read_text()))


def assert_all_gone(run: Command) -> None:
    """No process of any rank lives; torchrun gives each its own session."""
    started = [pid for log in run.folder.glob("**/logs/*.log") for pid in pids(log)]
    assert len(started) > 2
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in started), 10.0, "all processes are gone")


def assert_same_weights_of_other_samples(first: Path, second: Path, column: str) -> None:
    """Checkpoints of two ranks have the same tensors, and replays of environments that were seeded differently."""
    contents = [checkpoint.load(path, with_replay=True) for path in (first, second)]
    tensors, others = ({**each.model, **each.optimizer} for each in contents)
    own = {"generator", "replay_generator"}
    assert all(torch.equal(tensors[name], others[name]) for name in tensors.keys() - own)
    rows, other_rows = (each.replay.columns[column][0][:50] for each in contents if each.replay is not None)
    assert not ((rows == other_rows) & (rows != 0.0)).any()  # the row after a truncation has the reward 0


@pytest.mark.long
def test_ranks_hold_the_same_weights_and_any_number_of_them_goes_on(tmp_path: Path, free_port: int) -> None:
    run, *others = quick_ranks(2, free_port, tmp_path, *SAC, "--train_for_env_steps=1000")
    finish_all([run, *others])
    (newest,) = checkpoint.newest_first(run.folder / "checkpoints")
    (of_other,) = checkpoint.newest_first(run.folder / "ranks" / "1" / "checkpoints")
    assert newest.name == of_other.name
    assert_same_weights_of_other_samples(newest, of_other, "reward.0")
    before = checkpoint.load(newest).state
    assert 1000 <= before["env_steps"] < 1100
    assert before["policy_version"] == pytest.approx(0.5 * (500 - 200), abs=4)  # of each rank's own steps

    for num_ranks, steps in ((3, 1600), (1, 2000)):
        resumed = quick_ranks(num_ranks, free_port, tmp_path, f"--train_for_env_steps={steps}")
        assert "Resuming from" in finish_all(resumed)
        after = checkpoint.load(checkpoint.newest_first(run.folder / "checkpoints")[0]).state
        assert steps <= after["env_steps"] < steps + 100
        assert after["policy_version"] > before["policy_version"]
        before = after


def test_a_rank_whose_learner_is_killed_ends_the_run_everywhere_by_name(tmp_path: Path, free_port: int) -> None:
    run, other = quick_ranks(2, free_port, tmp_path, *PROBE, "--env=CartPole-v1", "--train_for_env_steps=100000000")
    run.wait_until_trained(120.0)
    (pid,) = pids(run.folder / "ranks" / "1" / "logs" / "learner.log")
    os.kill(pid, signal.SIGKILL)
    killed_at = time.monotonic()
    code, _, errors = run.finish()
    assert code != 0 and other.finish()[0] != 0
    assert time.monotonic() - killed_at < 180.0
    assert re.search(r"error: rank 1 on \S+ failed: .*learner.*SIGKILL", errors), errors
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert_all_gone(run)


@pytest.mark.long
@pytest.mark.parametrize("flags", [("--env=CartPole-v1", *PROBE), SAC], ids=["ppo", "sac"])
def test_a_limit_of_time_ends_all_ranks_after_the_same_steps(
    tmp_path: Path, free_port: int, flags: tuple[str, ...]
) -> None:
    # Each rank has its own clock, which begins when it does: the first to reach the limit ends the run.
    limits = ("--train_for_seconds=3", "--train_for_env_steps=100000000")
    run, other = quick_ranks(2, free_port, tmp_path, *flags, *limits)
    finish_all([run, other])
    first, second = summaries_of(run)
    assert first["status"] == second["status"] == "completed"
    assert first["env_steps"] == second["env_steps"] > 0
    assert first["num_updates"] == second["num_updates"] > 0
    assert_all_gone(run)


def test_a_rank_that_is_asked_to_stop_stops_all_after_the_same_steps(tmp_path: Path, free_port: int) -> None:
    run, other = quick_ranks(2, free_port, tmp_path, *PROBE, "--env=CartPole-v1", "--train_for_env_steps=100000000")
    run.wait_until_trained(120.0)
    other.process.send_signal(signal.SIGTERM)
    assert [each.finish()[0] for each in (run, other)] == [0, 143]
    assert_all_interrupted_after_the_same_steps(run)
    assert_all_gone(run)


def assert_all_interrupted_after_the_same_steps(run: Command, at_least: int = 1) -> None:
    """Both ranks say so, and the checkpoint is of these steps."""
    first, second = summaries_of(run)
    assert first["status"] == second["status"] == "interrupted"
    assert first["env_steps"] == second["env_steps"] >= at_least
    path = run.folder.parents[1] / first["checkpoint"]
    assert checkpoint.load(path).state["env_steps"] == first["env_steps"]


@pytest.mark.long
def test_torchrun_restarts_all_ranks_after_one_was_killed_and_one_that_is_asked_to_stop_stops_all(
    tmp_path: Path,
) -> None:
    flags = (*PROBE, "--env=CartPole-v1", "--train_for_env_steps=100000000")
    run = torchrun(2, tmp_path, *flags, "--save_every_s=0.5", max_restarts=1)
    checkpoints = run.folder / "checkpoints"
    wait_until(lambda: bool(checkpoint.newest_first(checkpoints)), 120.0, "a checkpoint")
    before = [process_of(run, rank).pid for rank in range(2)]
    for log in run.folder.glob("**/logs/*.log"):
        children = [psutil.Process(pid) for pid in pids(log)]
        assert not any("RANK" in child.environ() for child in children), "it is none of torchrun's"
    os.kill(before[1], signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(before[0]), 60.0, "the other rank has ended")
    last = checkpoint.newest_first(checkpoints)[0]
    saved = checkpoint.saved_env_steps(last)
    wait_until(lambda: checkpoint.newest_first(checkpoints)[0] != last, 120.0, "the ranks have gone on")
    assert not {process_of(run, rank).pid for rank in range(2)} & set(before)
    process_of(run, 1).send_signal(signal.SIGTERM)
    _, _, errors = run.finish()
    assert "Resuming from" in errors
    assert_all_interrupted_after_the_same_steps(run, at_least=saved + 1)
    assert_all_gone(run)


TENSOR_FLAGS = ("--num_envs_per_worker=8", "--encoder_mlp_layers=[16]", "--learner_threads=1")
TENSOR_RUNS: dict[str, tuple[str, ...]] = {
    "ppo": (
        "--env=tensor_envs:TensorCartPole-v0",
        *("--rollout=16", "--batch_size=64", "--num_batches_per_epoch=2", "--num_epochs=2"),
    ),
    "sac": (
        "--env=tensor_envs:make_reach",
        '--env_kwargs={"autoreset_mode": "SameStep"}',
        *("--algo=sac", "--warmup_env_steps=200", "--replay_size=2000", "--updates_per_env_step=0.2"),
        *("--batch_size=32", "--save_replay=True"),
    ),
}


@pytest.mark.parametrize("algorithm", TENSOR_RUNS)
def test_ranks_that_step_tensors_collect_for_themselves_and_hold_the_same_weights(
    algorithm: str, tmp_path: Path, free_port: int
) -> None:
    flags = (*TENSOR_RUNS[algorithm], *TENSOR_FLAGS, "--train_for_env_steps=1000")
    run, other = quick_ranks(2, free_port, tmp_path, *flags)
    finish_all([run, other])
    first, second = summaries_of(run)
    assert first["status"] == second["status"] == "completed"
    assert 1000 <= first["env_steps"] == second["env_steps"] < 1300
    (newest,) = checkpoint.newest_first(run.folder / "checkpoints")
    if algorithm == "ppo":  # a dataset of each rank for each update
        assert checkpoint.load(newest).state["policy_version"] == 4 * -(-1000 // (2 * 128))
    else:
        (of_other,) = checkpoint.newest_first(run.folder / "ranks" / "1" / "checkpoints")
        assert_same_weights_of_other_samples(newest, of_other, "obs.0")


INTERFACE = "cable"


@dataclass(frozen=True)
class Host:
    """A network namespace with one interface; a process that sleeps keeps it."""

    keeper: subprocess.Popen[bytes]
    address: str

    @classmethod
    def create(cls, address: str, unshare: Sequence[str], first: Host | None = None) -> Host:
        """Makes a namespace, in the user namespace of the first where that is given."""
        keeper = subprocess.Popen([*(first.enter if first else ()), "unshare", *unshare, "sleep", "infinity"])
        host = cls(keeper, address)
        outside = {os.readlink("/proc/self/ns/net"), first.namespace if first else ""}
        wait_until(lambda: keeper.poll() is not None or host.namespace not in outside, 10.0, "a namespace is made")
        return host

    @property
    def namespace(self) -> str:
        """What the system calls it."""
        return os.readlink(f"/proc/{self.keeper.pid}/ns/net")

    @property
    def enter(self) -> tuple[str, ...]:
        """What a command begins with to run there."""
        return ("nsenter", f"--target={self.keeper.pid}", "--user", "--net", "--preserve-credentials")

    def ip(self, *words: str) -> None:
        """Runs the command of this name there."""
        subprocess.run([*self.enter, "ip", *words], check=True, capture_output=True, timeout=20.0)

    def train(self, meet_at: str, cwd: Path, *flags: str) -> Command:
        """Starts one of two nodes of a run, with one rank."""
        cwd.mkdir()
        nodes = ("torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=test", "--rdzv-backend=c10d")
        where = f"--rdzv-endpoint={meet_at}:29517", f"--rdzv-conf=is_host={self.address == meet_at}"
        launcher = (*nodes, *where, f"--local-addr={self.address}", "-m")
        STARTED.append(Command("impatient_train", *flags, cwd=cwd, launcher=launcher, prefix=self._prefix))
        return STARTED[-1]

    def train_as(self, rank: int, meet_at: str, cwd: Path, *flags: str) -> Command:
        """Starts one of two ranks without torchrun."""
        cwd.mkdir()
        variables = {**variables_of(rank, 29517), "MASTER_ADDR": meet_at, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        STARTED.append(Command("impatient_train", *flags, cwd=cwd, prefix=self._prefix, variables=variables))
        return STARTED[-1]

    @property
    def _prefix(self) -> tuple[str, ...]:
        return (*self.enter, "env", f"GLOO_SOCKET_IFNAME={INTERFACE}")


@pytest.fixture
def two_hosts() -> Iterator[list[Host]]:
    """Two network namespaces with a cable between them. In a user namespace anybody may make them."""
    if shutil.which("ip") is None:
        pytest.skip("there is no command `ip` (Debian's package iproute2)")
    hosts: list[Host] = []
    try:
        hosts.append(Host.create("10.213.57.1", ("--user", "--map-root-user", "--net")))
        if hosts[0].keeper.poll() is not None:
            pytest.skip(f"{PREFIX}this system allows no user namespaces")
        hosts.append(Host.create("10.213.57.2", ("--net",), hosts[0]))
        peer = ("peer", "name", INTERFACE, "netns", str(hosts[1].keeper.pid))
        hosts[0].ip("link", "add", INTERFACE, "type", "veth", *peer)
        for host in hosts:
            host.ip("address", "add", f"{host.address}/24", "dev", INTERFACE)
            host.ip("link", "set", INTERFACE, "up")
            host.ip("link", "set", "lo", "up")
        yield hosts
    finally:
        for host in hosts:
            host.keeper.kill()
            host.keeper.wait()


@pytest.mark.long
def test_two_hosts_train_one_policy_each_with_files_of_its_own(tmp_path: Path, two_hosts: list[Host]) -> None:
    meet_at = two_hosts[0].address
    runs = [
        host.train(meet_at, tmp_path / str(number), *PROBE, "--env=CartPole-v1", "--train_for_env_steps=3000")
        for number, host in enumerate(two_hosts)
    ]
    ends = [run.finish() for run in runs]
    assert [code for code, _, _ in ends] == [0, 0], ends
    # Which of the two is rank 0 is torchrun's choice.
    folders = {(run.folder / "summary.json").exists(): run.folder for run in runs}
    summaries = [
        json.loads((path / "summary.json").read_text()) for path in (folders[True], folders[False] / "ranks" / "1")
    ]
    assert summaries[0]["env_steps"] == summaries[1]["env_steps"] >= 3000
    assert (summaries[0]["status"], summaries[1]["status"]) == ("completed", "completed")
    assert not (folders[True] / "ranks").exists()
    for run in runs:
        assert_all_gone(run)


def test_a_host_that_is_cut_off_ends_the_run_on_both_sides(tmp_path: Path, two_hosts: list[Host]) -> None:
    flags = (*PROBE, "--env=CartPole-v1", "--train_for_env_steps=100000000")
    runs = [
        host.train_as(rank, two_hosts[0].address, tmp_path / str(rank), *flags) for rank, host in enumerate(two_hosts)
    ]
    wait_until(
        lambda: any("train/loss" in record for run in runs for record in run.records()),
        120.0,
        "training is reported",
    )
    cut = two_hosts[1]
    cut.ip("link", "set", INTERFACE, "down")
    wait_until(lambda: len(list(tmp_path.glob("**/summary.json"))) == 2, 60.0, "both ranks have ended")
    errors = [json.loads(path.read_text())["error"] for path in tmp_path.glob("**/summary.json")]
    assert sum("has not responded for" in error for error in errors) == 1, errors
    assert sum("the store of the run's ranks has not answered" in error for error in errors) == 1, errors
    for run in runs:
        assert_all_gone(run)


STEERED = """
from asyncrl import Hyperparameters, Observer, TrainConfig, Trainer
from told_env import Told

class Steers(Observer):
    def on_start(self, run):
        run.set_hyperparameters(Hyperparameters(learning_rate=1e-5))
        run.set_training_info({"reward": 2.0})

    def on_record(self, run, record):
        other = run.folder / "ranks" / "1" / "metrics.jsonl"
        if record.scalars.get("rollout/ep_rew_mean") == 10.0 and other.exists():
            if '"rollout/ep_rew_mean": 10.0' in other.read_text():
                run.stop("taught")

if __name__ == "__main__":
    config = TrainConfig(
        env=Told, train_dir="runs", experiment="run", num_workers=1, num_envs_per_worker=4, rollout=8, batch_size=32,
        num_batches_per_epoch=2, learner_threads=1, report_every_s=0.2, with_tensorboard=False,
    )
    result = Trainer(config, callbacks=[Steers()], preset="none").run()
    print(result.status, result.stop_reason, flush=True)
"""


def test_what_callbacks_of_rank_0_ask_reaches_all_ranks(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "steered.py").write_text(STEERED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")])}
    both = [QuickProcess("steered", (), tmp_path, environment | variables_of(rank, free_port)) for rank in range(2)]
    try:
        ends = [(process.communicate(), process.wait()) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [code for _, code in ends] == [0, 0], ends
    assert [stdout for (stdout, _), _ in ends] == ["stopped taught\n", "interrupted None\n"]
    folder = tmp_path / "runs" / "run"
    for metrics in (folder / "metrics.jsonl", folder / "ranks" / "1" / "metrics.jsonl"):
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
        last = {name: value for record in records for name, value in record.items()}
        assert last["rollout/ep_rew_mean"] == 10.0
        assert last["hyperparameters/learning_rate"] == last["train/learning_rate"] == 1e-5


def test_a_mistake_is_said_once_and_ends_all_ranks(tmp_path: Path, free_port: int) -> None:
    runs = quick_ranks(2, free_port, tmp_path, "--env=CartPole-v1", "--backend=hogwild")
    ends = [run.finish() for run in runs]
    assert all(code != 0 for code, _, _ in ends)
    errors = "".join(errors for _, _, errors in ends)
    assert errors.count("--backend=hogwild runs on one machine as one rank, not as 2 ranks") == 1
