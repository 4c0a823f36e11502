"""The rank of this process among the ranks that `torchrun` has started to train one policy together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import MutableMapping
from dataclasses import dataclass

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_OTHERS = tuple(f"{group}_{what}" for group in ("LOCAL", "GROUP", "ROLE") for what in ("RANK", "WORLD_SIZE", "NAME"))
_PREFIX = "TORCHELASTIC_"


@dataclass(frozen=True)
class RankAddress:
    """A rank of a run, and the store of its ranks.

    Attributes:
        rank, num_ranks: number of this rank, from 0, of how many.
        local_rank, num_local_ranks: the same among the ranks of this machine.
        host, port: address of the store.
        has_store: whether rank 0 has to open the store; otherwise torchrun's agent has.
        meeting: a name in the store that differs from those of other runs. torchrun's count of restarts is not in it,
            because each machine has its own: `asyncrl.processes.peers` tells attempts apart.
    """

    rank: int
    num_ranks: int
    local_rank: int
    num_local_ranks: int
    host: str
    port: int
    has_store: bool
    meeting: str


def take_rank(environment: MutableMapping[str, str]) -> RankAddress | None:
    """Reads the variables of torchrun and removes them, because the processes that a run starts are not ranks.

    `environment` is usually `os.environ`. Returns None for a process that trains alone: it was not started by torchrun,
    or it is the only rank.
    """
    if not all(name in environment for name in _NEEDED):
        return None
    rank, num_ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    address = RankAddress(
        rank=rank,
        num_ranks=num_ranks,
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        num_local_ranks=int(environment.get("LOCAL_WORLD_SIZE", "1")),
        host=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        meeting=f"asyncrl/{run}",
    )
    for name in [*_NEEDED, *_OTHERS, *(name for name in environment if name.startswith(_PREFIX))]:
        environment.pop(name, None)
    return address if num_ranks > 1 else None


_own: list[RankAddress] = []
"""The address of this process in each run that it has started."""


def next_rank() -> RankAddress | None:
    """Returns the address of this process for its next run, with a new `meeting`; None if it trains alone."""
    address = dataclasses.replace(_own[0], meeting=f"{_own[0].meeting}/{len(_own)}") if _own else take_rank(os.environ)
    if address is not None:
        _own.append(address)
    return address
