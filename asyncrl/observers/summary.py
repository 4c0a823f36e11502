"""Totals of a run: those with which it resumes, and those with which it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

UNKNOWN = "-"
RunStatus = Literal["completed", "stopped", "interrupted", "failed"]


@dataclass(frozen=True)
class ResumedTotals:
    """Totals of a run at the checkpoint from which it resumes.

    Attributes:
        env_steps: environment steps trained on.
        elapsed_s: seconds of training.
        shown_s: elapsed seconds in the newest record, which include every start-up.
        best_returns: mean return of the best checkpoint of each policy; None without one.
        worker_env_steps: environment steps of each Hogwild worker.
    """

    env_steps: int = 0
    elapsed_s: float = 0.0
    shown_s: float = 0.0
    best_returns: tuple[float | None, ...] = (None,)
    worker_env_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Summary:
    """How a run ended. A value that never became known is None.

    Attributes:
        status: `completed`: a limit was reached; `stopped`: a callback ended the run; `interrupted`: the user did;
            `failed`: an error did.
        num_workers: rollout workers.
        env_steps: environment steps trained on.
        num_updates: optimizer steps.
        num_episodes: episodes that ended.
        wall_s: seconds from the command to the end.
        elapsed_s: seconds from the command to the end, with those before the run was resumed.
        startup_s: seconds from the command to the first environment step.
        fps: environment steps trained per second, between the ends of the first and the last dataset.
        ep_rew_mean, ep_len_mean: means over the last 100 episodes.
        eval_mean_reward: mean return of the last evaluation during training.
        best_return: mean return of the best checkpoint, by `save_best_metric`.
        lag_mean, lag_p95: policy lag at first use, mean and 95th percentile of a dataset; means over all datasets.
        lag_max: largest policy lag of any sample at its first use.
        lag_bound: largest policy lag that the plan allows.
        lag_over_bound: share of samples with a larger policy lag than the plan expects while the workers keep pace.
        lag_age_ms: mean age of the samples at first use, in milliseconds.
        dropped_samples: samples that were not trained on: too old, or their environment or worker failed.
        env_failures: environments that failed and were recreated.
        skipped_steps: optimizer steps that were skipped because loss or gradient was not finite.
        failed_saves: checkpoints that could not be written.
        restarts: processes that were started again.
        checkpoint: the last checkpoint.
        error: why the run failed.
    """

    status: RunStatus
    num_workers: int = 0
    env_steps: int = 0
    num_updates: int = 0
    num_episodes: int = 0
    wall_s: float = 0.0
    elapsed_s: float = 0.0
    startup_s: float | None = None
    fps: float | None = None
    ep_rew_mean: float | None = None
    ep_rew_mean_of_policies: list[float | None] = field(default_factory=list)
    ep_len_mean: float | None = None
    eval_mean_reward: float | None = None
    best_return: float | None = None
    lag_mean: float | None = None
    lag_p95: float | None = None
    lag_max: int | None = None
    lag_bound: int = 0
    lag_over_bound: float | None = None
    lag_age_ms: float | None = None
    dropped_samples: int = 0
    env_failures: int = 0
    skipped_steps: int = 0
    failed_saves: int = 0
    restarts: int = 0
    checkpoint: str | None = None
    error: str | None = None

    def to_text(self, target_env_steps: int, places: Mapping[str, str], commands: Mapping[str, str]) -> str:
        """Returns lines for a person: how the run ended, where its files are, and useful commands.

        Args:
            target_env_steps: the setting `train_for_env_steps`.
            places: paths by their descriptions.
            commands: commands by what they do.
        """
        metrics = (
            ("last 100 episodes", self.ep_rew_mean),
            ("last evaluation", self.eval_mean_reward),
        )
        returns = [f"{value:,.1f} ({what})" for what, value in metrics if value is not None]
        rows = {"return": ", ".join(returns) or "no episode has ended"}
        if self.ep_rew_mean_of_policies:
            each = ("-" if value is None else f"{value:,.1f}" for value in self.ep_rew_mean_of_policies)
            rows["by policy"] = ", ".join(each)
        rows |= places
        lines = [
            f"{self.status}: {self.env_steps:,} of {target_env_steps:,} environment steps, "
            f"{self.num_updates:,} updates, {duration(self.elapsed_s)} elapsed"
        ]
        lines += [f"  {name + ':':<18} {text}" for name, text in rows.items()]
        lines += [f"to {name}:\n  {command}" for name, command in commands.items()]
        return "\n".join(lines)


def duration(seconds: float | None) -> str:
    """Returns a duration as text: `45 s`, `3:07 min`, `2:03:07 h`; `-` for None."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d} h"
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"
