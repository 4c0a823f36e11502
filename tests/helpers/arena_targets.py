"""What children of tests do with an arena or in a process group; `child_targets` has what needs no torch."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import torch

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.learner.ranks import ProcessGroupRanks
from asyncrl.processes.peers import Peers
from asyncrl.processes.torchrun import RankAddress


def add_one(arena: Arena, consumer: Waker, done: Waker) -> None:
    """Adds one to every number as soon as it is woken."""
    assert consumer.wait(30.0)
    arena.array("numbers")[:] += 1
    done.wake()


def fill_slots(arena: Arena, count: int, granted: Waker, filled: Waker) -> None:
    """Writes 0, 1, ... into the slots that it is granted, all over a slot, and hands the slots over."""
    grants, ready, payload = IndexRing(arena, "granted"), IndexRing(arena, "ready"), arena.array("payload")
    number = 0
    while number < count and _parent_lives():
        granted.wait(1.0)
        for slot in grants.pop_all():
            payload[slot] = number
            ready.push(slot)
            filled.wake()
            number += 1


def hammer_weights(arena: Arena, stop: Waker) -> None:
    """Publishes blocks that hold nothing but their version, until stopped."""
    channel = WeightsChannel(arena)
    size = arena.array("weights.buffers").shape[1]
    version = 0
    while not stop.wait(0.0) and _parent_lives():
        version += 1
        channel.publish(np.full(size, version, np.float32), version, version)


def publish_on_device(arena: Arena, ready: Waker, done: Waker) -> None:
    """Publishes versions 10, 20 and 30 on a CUDA device, and keeps its memory until it is told."""
    channel, device = WeightsChannel(arena), torch.device("cuda")
    channel.allocate_on_device(device)
    size = arena.array("weights.buffers").shape[1]
    for version in (10, 20, 30):
        block = torch.full((size,), float(version), device=device)
        channel.publish(block.cpu().numpy(), version, 10 * version, on_device=block)
    ready.wake()
    assert done.wait(60.0)


def _parent_lives() -> bool:
    """For endless loops: a test run that was ended by its time limit takes no leave of its children."""
    parent = multiprocessing.parent_process()
    return parent is not None and parent.is_alive()


def exchange_once(rank: int, num_ranks: int, port: int, results: Any) -> None:
    """One rank of a process group: adds up, gathers, and takes over what rank 0 has."""
    address = RankAddress(rank, num_ranks, rank, num_ranks, "127.0.0.1", port, has_store=True, meeting="test")
    with Peers(address):
        ranks = ProcessGroupRanks(address, torch.device("cpu"))
        own = torch.tensor([1.0, 2.0]) * (rank + 1)
        total = ranks.sum(own.clone())
        gathered = ranks.gather([rank, 5])
        results.put((rank, total.tolist(), gathered, ranks.take_from_first(own).tolist()))
        ranks.gather([0])  # nobody goes before all have their answers
