"""Measures speed and lag with pools behind a slow network, beside what `asyncrl validate` predicts (Linux, as root).

    python scripts/cluster_delay.py --envs=HalfCheetah-v5,Humanoid-v5 --delays_ms=0,1,10,100 --rounds=1

The learner and the pools run in network namespaces with addresses of their own, each with a node of Ray. What one
sends is an IP packet, which a process holds back for the delay before the other one gets it; so a round trip takes
twice the delay, and Ray and TCP are the real ones. All shares this machine's cores, that process included: with the
delay 0 the pools are already slower than in `cluster_overhead.py`.

Training has learning rate 0, so that the bodies always move as under random actions. Prints a line of JSON for each
run, then a table. Needs the extras ray and mujoco, `ip` and /dev/net/tun.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import fcntl
import json
import multiprocessing
import os
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster_overhead import SETTINGS

from asyncrl.analysis.benchmark.tasks import Workshop
from asyncrl.analysis.benchmark.variants import Task
from asyncrl.analysis.tables import table
from asyncrl.config.loading import load
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools.traffic import Traffic
from asyncrl.run import preflight

NAMESPACES = "asyncrl_learner", "asyncrl_pools"
ADDRESSES = "10.99.0.1", "10.99.0.2"
PORT = 6379
MTU = 9000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000


def forward(devices: tuple[int, int], delay_s: Any) -> None:
    """Passes packets between two TUN devices, each after the delay; never returns.

    It looks at most once in a millisecond, or four times in a delay: it shares the cores with what is measured.
    """
    waiting = tuple(collections.deque[tuple[float, bytes]]() for _ in devices)
    while True:
        tick_s = min(0.001, delay_s.value / 4.0)
        due = min((packets[0][0] for packets in waiting if packets), default=None)
        timeout_s = None if due is None else max(0.0, due - time.monotonic())
        readable = select.select(devices, [], [], timeout_s)[0]
        if tick_s > 0.0:
            time.sleep(tick_s)
            readable = devices
        at = time.monotonic() + delay_s.value - tick_s
        for device, packets in zip(devices, waiting, strict=True):
            with contextlib.suppress(BlockingIOError):
                while device in readable:
                    packets.append((at, os.read(device, MTU)))
        now = time.monotonic()
        for device, packets in zip(reversed(devices), waiting, strict=True):
            while packets and packets[0][0] <= now:
                os.write(device, packets.popleft()[1])


@contextlib.contextmanager
def two_namespaces(delay_s: Any, keeps_window: bool) -> Iterator[None]:
    """Network namespaces that reach each other, until the context ends."""
    devices = []
    try:
        for namespace, address in zip(NAMESPACES, ADDRESSES, strict=True):
            name = f"tun_{namespace[8:]}"
            subprocess.run(["ip", "netns", "add", namespace], check=True)
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            devices.append(device)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
            subprocess.run(["ip", "link", "set", name, "netns", namespace], check=True)
            for command in (
                "link set lo up",
                f"addr add {address}/24 dev {name}",
                f"link set {name} mtu {MTU} txqueuelen 10000 up",
            ):
                subprocess.run(["ip", "-n", namespace, *command.split()], check=True)
            if keeps_window:
                setting = ["sysctl", "--quiet", "net.ipv4.tcp_slow_start_after_idle=0"]
                subprocess.run(["ip", "netns", "exec", namespace, *setting], check=True)
        forwarder = multiprocessing.get_context("fork").Process(target=forward, args=(tuple(devices), delay_s))
        forwarder.start()
        try:
            yield
        finally:
            forwarder.kill()
            forwarder.join()
    finally:
        for device in devices:
            os.close(device)
        for namespace in NAMESPACES:
            subprocess.run(["ip", "netns", "delete", namespace], check=False)


@contextlib.contextmanager
def ray_nodes(num_pools: int) -> Iterator[str]:
    """A head in the learner's namespace and a node in that of the pools, until the context ends; yields the address."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray = str(Path(sys.executable).parent / "ray")
    address = f"{ADDRESSES[0]}:{PORT}"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        starts = (
            ["--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={folder}"],
            [f"--address={address}", f"--num-cpus={num_pools}"],
        )
        nodes: list[subprocess.Popen[bytes]] = []
        try:
            for namespace, own_address, flags in zip(NAMESPACES, ADDRESSES, starts, strict=True):
                command = [
                    "ip",
                    "netns",
                    "exec",
                    namespace,
                    ray,
                    "start",
                    "--block",
                    f"--node-ip-address={own_address}",
                ]
                with (Path(folder) / f"{namespace}.log").open("wb") as log:
                    nodes.append(subprocess.Popen([*command, *flags], env=environment, stdout=log, stderr=log))
                time.sleep(10.0)
                if nodes[-1].poll() is not None:
                    sys.exit((Path(folder) / f"{namespace}.log").read_text())
            yield address
        finally:
            for node in reversed(nodes):
                node.terminate()
            for node in nodes:
                node.wait(30.0)


def enter(namespace: str) -> None:
    """Moves this process, and those that it starts, to a network namespace."""
    with open(f"/run/netns/{namespace}") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"the namespace {namespace} cannot be entered")


def measure(env: str, flags: list[str], options: argparse.Namespace, folder: Path) -> tuple[float, float, float]:
    """Trains; returns environment steps a second, and the mean lag and age of the samples."""
    workshop = Workshop(folder, TrainConfig(env=env), options.warm_up_s, options.measure_s)
    # Pools start slowly behind a slow network.
    end = f"--train_for_seconds={options.warm_up_s + options.measure_s + 15.0:g}"
    run = (f"--env={env}", *SETTINGS, *flags, "--report_every_s=1", "--with_tensorboard=False", end)
    figures = workshop.carry_out(Task("throughput", "delayed", 0, run, ()))
    return figures["env_steps_per_s"], figures["lag"]["lag/mean"], figures["lag"]["lag/age_ms"]


def traffic_of(env: str, flags: list[str]) -> Traffic:
    """What `asyncrl validate` knows of the run."""
    traffic = preflight.run(load((f"--env={env}", *SETTINGS, *flags))).traffic
    assert traffic is not None
    return traffic


def report(env: str, delays: list[float], traffic: Traffic, results: dict[float, list[tuple[float, ...]]]) -> None:
    """Prints one table: medians of the rounds, and the added lag beside the predicted one."""
    medians = {delay: [statistics.median(each) for each in zip(*results[delay], strict=True)] for delay in delays}
    lines, (base_speed, base_lag, _) = [], medians[delays[0]]
    for delay in delays:
        speed, lag, age = medians[delay]
        trip_s = 2.0 * (delay - delays[0]) / 1e3
        predicted = base_lag + traffic.added_lag(speed, trip_s)
        share = traffic.share_of_speed(base_speed / traffic.num_hosts, trip_s)
        cells = (f"{delay:g} ms", f"{speed:,.0f}", f"{speed / base_speed:.3f}", f"{share:.2f}", f"{lag:.2f}")
        lines.append([*cells, f"{predicted:.2f}", f"{age:,.0f} ms"])
    header = ["delay each way", "steps/s", "of the first", "predicted share", "mean lag", "predicted lag", "age"]
    print(f"{env}, {traffic.num_permits} slots in flight\n\n{table(header, lines)}\n", flush=True)


def main() -> None:
    """Runs all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", default="HalfCheetah-v5,Humanoid-v5")
    parser.add_argument("--delays_ms", default="0,1,10,100", help="the first one is what the others are compared with")
    parser.add_argument("--pools", type=int, default=2, help="of one worker")
    parser.add_argument("--slots", type=int, default=4, help="--remote_slots_in_flight of all runs")
    parser.add_argument("--keep_window", action="store_true", help="net.ipv4.tcp_slow_start_after_idle=0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm_up_s", type=float, default=10.0)
    parser.add_argument("--measure_s", type=float, default=30.0)
    parser.add_argument("more", nargs="*", help="flags of training, behind --")
    options = parser.parse_args()
    delays = [float(delay) for delay in options.delays_ms.split(",")]
    delay_s = multiprocessing.get_context("fork").Value("d", 0.0, lock=False)
    with (
        two_namespaces(delay_s, options.keep_window),
        ray_nodes(options.pools) as address,
        tempfile.TemporaryDirectory() as folder,
    ):
        enter(NAMESPACES[0])
        pools = ["--cluster=ray", f"--ray_address={address}", f"--num_remote_hosts={options.pools}"]
        flags = [*pools, f"--remote_slots_in_flight={options.slots}", *options.more]
        for env in options.envs.split(","):
            traffic = traffic_of(env, flags)
            results: dict[float, list[tuple[float, ...]]] = {delay: [] for delay in delays}
            for number in range(options.rounds):
                for delay in sorted(delays, reverse=bool(number % 2)):
                    delay_s.value = delay / 1e3
                    found = measure(env, flags, options, Path(folder))
                    results[delay].append(found)
                    line = dict(zip(("steps_per_s", "lag_mean", "lag_age_ms"), found, strict=True))
                    print(json.dumps({"env": env, "round": number, "delay_ms": delay, **line}), flush=True)
            report(env, delays, traffic, results)


if __name__ == "__main__":
    main()
