"""What children of tests do: a child imports its target by name, so it stands in a module that both can import."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.rings import IndexRing
from asyncrl.buffers.wake import Waker
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.monitoring.reports import EpisodeRecord, RolloutReport
from asyncrl.runtime.processes import ChildProcess, RunFailed, process_context
from asyncrl.runtime.reporting import ReportSender


def add_one(arena: Arena, consumer: Waker, done: Waker) -> None:
    """Adds one to every number as soon as it is woken."""
    assert consumer.wait(30.0)
    arena.array("numbers")[:] += 1
    done.wake()


def produce(arena: Arena, count: int) -> None:
    """Pushes 0, 1, ... into the ring, as fast as there is room."""
    ring = IndexRing(arena, "ring")
    for item in range(count):
        while True:
            try:
                ring.push(item)
                break
            except OverflowError:
                time.sleep(0)


def hammer_weights(arena: Arena, stop: Waker) -> None:
    """Publishes blocks that hold nothing but their version, until stopped."""
    channel = WeightsChannel(arena)
    size = arena.array("weights.buffers").shape[1]
    version = 0
    while not stop.wait(0.0):
        version += 1
        channel.publish(np.full(size, version, np.float32), version)


def return_pid(reports: ReportSender) -> int:
    return os.getpid()


def report_and_return(count: int, reports: ReportSender) -> str:
    for number in range(count):
        reports.send(_report(number))
    return "done"


def raise_value_error(reports: ReportSender) -> None:
    raise ValueError("the number is odd")


def raise_run_failed(reports: ReportSender) -> None:
    raise RunFailed("environment 7 failed", "only what matters")


def sleep(reports: ReportSender) -> None:
    time.sleep(300.0)


def report_for_ever(reports: ReportSender) -> None:
    """Reports without a pause, so that a kill hits it in the middle of emitting."""
    while True:
        reports.send(_report(1))


def parent_of_sleepers(folder: str, count: int) -> None:
    """Starts children, writes their process ids, and sleeps; runs as the main program of a process."""
    context = process_context()
    children = [ChildProcess(context, f"child {i}", Path(folder, f"{i}.log"), sleep, (None,)) for i in range(count)]
    pids = " ".join(str(child.process.pid) for child in children)
    temporary = Path(folder, "pids.tmp")
    temporary.write_text(pids)
    temporary.rename(Path(folder, "pids"))
    time.sleep(300.0)


def _report(number: int) -> Any:
    return RolloutReport(number, 1.0, 0.5, 10, tuple(EpisodeRecord(1.0, 5, {"x": 2.0}) for _ in range(20)))
