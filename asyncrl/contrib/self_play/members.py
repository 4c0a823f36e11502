"""The members of a run's pool as opponents of a finished policy."""

from __future__ import annotations

from pathlib import Path

from asyncrl.config.errors import UsageError
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.locating import run_of

POOL = "self_play"
"""Folder of the pool, in the run's folder."""


def find_members(checkpoint: Path) -> dict[str, Path]:
    """Returns the members of the pool of the run that has this checkpoint, the newest first, by their names in tables.

    Raises:
        UsageError: no run has it, or the run has no pool.
    """
    run = run_of(checkpoint)
    if run is None:
        raise UsageError(f"{checkpoint} is in no run's folder, so there is no pool of self-play.")
    found = checkpoints.newest_first(run / POOL)
    if not found:
        raise UsageError(f"{run} has no pool of self-play: it needs --self_play=True and time for a first member.")
    return {f"pool {checkpoints.saved_env_steps(member):,}": member for member in found}
