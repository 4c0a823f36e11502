"""What a run has come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from asyncrl.config.schema import TrainConfig
from asyncrl.monitoring.status import Record
from asyncrl.monitoring.summary import RunStatus, Summary

if TYPE_CHECKING:
    from asyncrl.policy import Policy


@dataclass(frozen=True)
class RunResult:
    """A run that has ended without an error.

    Attributes:
        summary: its figures.
        config: its settings, all of them.
        folder: its folder, with records, checkpoints and logs.
        stop_reason: why a callback stopped it, if one did.
        stop_signal: the signal that ended it, if one did (2 for Ctrl-C).
        nothing_to_do: why nothing was trained, where the run had reached its limit before.
    """

    summary: Summary
    config: TrainConfig
    folder: Path
    stop_reason: str | None = None
    stop_signal: int | None = None
    nothing_to_do: str | None = None

    @property
    def status(self) -> RunStatus:
        """`completed`, `stopped` by a callback, or `interrupted` by the user."""
        return self.summary.status

    @property
    def records(self) -> Sequence[Record]:
        """What `metrics.jsonl` holds; figures that are not finite are left out."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [
            Record(scalars.pop("env_steps"), {name: value for name, value in scalars.items() if value is not None})
            for scalars in found
        ]

    def policy(self, which: Literal["newest", "best"] = "newest", device: str = "cpu", seed: int = 0) -> Policy:
        """The trained policy.

        Args:
            which: the newest checkpoint, or the best one (`save_best_metric`).
            device: cpu, cuda or cuda:N.
            seed: seed of the sampled actions.

        Raises:
            UsageError: there is no such checkpoint.
        """
        from asyncrl.policy import load_policy

        return load_policy(self.folder, which, device, seed)
