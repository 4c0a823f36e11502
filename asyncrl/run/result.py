"""The result of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from asyncrl.config.schema import TrainConfig
from asyncrl.observers.status import Record
from asyncrl.observers.summary import RunStatus, Summary

if TYPE_CHECKING:
    from asyncrl.inference.policy import Policy


@dataclass(frozen=True)
class RunResult:
    """A run that has ended without an error.

    Attributes:
        summary: totals of the run: steps, returns, speed, policy lag, restarts.
        config: all settings, with the hyperparameters that are in effect at the end.
        folder: the run's folder, with records, checkpoints and logs.
        stop_reason: the reason that a callback gave when it stopped the run; None if no callback did.
        stop_signal: number of the signal that ended the run (2 for Ctrl-C); None without one.
        nothing_to_do: the limit that the run had reached before, so that nothing was trained; None otherwise.
    """

    summary: Summary
    config: TrainConfig
    folder: Path
    stop_reason: str | None = None
    stop_signal: int | None = None
    nothing_to_do: str | None = None

    def __repr__(self) -> str:
        mean = self.summary.ep_rew_mean
        episode_return = "unknown" if mean is None else f"{mean:,.1f}"
        return f"RunResult({self.status}, {self.folder}, {self.summary.env_steps:,} steps, return {episode_return})"

    @property
    def status(self) -> RunStatus:
        """`completed`, `stopped` by a callback, or `interrupted` by the user."""
        return self.summary.status

    @property
    def records(self) -> Sequence[Record]:
        """The records of `metrics.jsonl`, without metrics that are not finite."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [
            Record(scalars.pop("env_steps"), {name: value for name, value in scalars.items() if value is not None})
            for scalars in map(json.loads, lines)
        ]

    def policy(
        self, which: Literal["newest", "best"] = "newest", device: str = "cpu", seed: int = 0, policy: int = 0
    ) -> Policy:
        """Loads the trained policy.

        Args:
            which: the newest checkpoint, or the one with the best mean return (`save_best_metric`).
            device: cpu, cuda or cuda:N.
            seed: seed of the sampled actions.
            policy: which policy, if the run has several.

        Raises:
            UsageError: there is no such checkpoint.
        """
        from asyncrl.inference.policy import load_policy

        return load_policy(self.folder, which, device, seed, policy)
