"""What `torchrun` says of this process: which of the ranks it is that train one policy together."""

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
    """One of the ranks of a run, and where they meet.

    Attributes:
        rank: number of this one, from 0.
        num_ranks: how many there are.
        local_rank: its number among those of this machine.
        num_local_ranks: how many there are on this machine.
        host, port: of the store over which they find one another.
        has_store: whether rank 0 has to open that store itself; torchrun's agent does otherwise.
        meeting: a name that no other run, and no earlier attempt of this one, has in the store.
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
    """Reads the variables of torchrun and removes them, for the processes that a run starts are no ranks.

    Args:
        environment: usually `os.environ`.

    Returns:
        None for a process that trains alone: it was not started by torchrun, or as the only rank.
    """
    if not all(name in environment for name in _NEEDED):
        return None
    rank, num_ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    address = RankAddress(
        rank=rank,
        num_ranks=num_ranks,
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        num_local_ranks=int(environment.get("LOCAL_WORLD_SIZE", "1")),
        host=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        meeting=f"asyncrl/{run}/{attempt}",
    )
    for name in [*_NEEDED, *_OTHERS, *(name for name in environment if name.startswith(_PREFIX))]:
        environment.pop(name, None)
    return address if num_ranks > 1 else None


_own: list[RankAddress] = []
"""The address of this process for each run that it has started."""


def next_rank() -> RankAddress | None:
    """The address of this process for its next run, which meets under a name of its own; None if it trains alone."""
    address = dataclasses.replace(_own[0], meeting=f"{_own[0].meeting}/{len(_own)}") if _own else take_rank(os.environ)
    if address is not None:
        _own.append(address)
    return address
