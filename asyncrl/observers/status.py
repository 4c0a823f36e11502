"""The metrics that a run shows and records while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asyncrl.observers.summary import UNKNOWN, duration


@dataclass(frozen=True)
class Record:
    """Published metrics of one moment.

    Attributes:
        env_steps: environment steps trained on.
        scalars: metrics by their names in `metrics.jsonl` and TensorBoard.
    """

    env_steps: int
    scalars: Mapping[str, float]


@dataclass(frozen=True)
class Status:
    """Progress of a run. A value that is not known yet is None.

    Attributes:
        env_steps: environment steps trained on.
        target_env_steps: steps at which the run ends.
        elapsed_s: seconds since the command, earlier parts of a resumed run included.
        fps: environment steps trained per second.
        episode_return: mean return of the last 100 training episodes.
        lag_mean, lag_max: policy lag in versions.
        remaining_s: seconds until the run ends.
        activity: what the run is doing, if the numbers do not show it.
        is_line: whether a log of the run should show it: every 5 s, or every `report_every_s`, and at the end.
    """

    env_steps: int
    target_env_steps: int
    elapsed_s: float
    fps: float | None = None
    episode_return: float | None = None
    lag_mean: float | None = None
    lag_max: int | None = None
    remaining_s: float | None = None
    activity: str | None = None
    is_line: bool = False

    @property
    def share(self) -> float:
        """Share of the steps that are done, at most 1."""
        return min(1.0, self.env_steps / self.target_env_steps)

    @property
    def text(self) -> str:
        """One line with every number."""
        return " | ".join(self._parts().values())

    def text_within(self, width: int) -> str:
        """One line of at most `width` characters; numbers are left out, the least important first, until it fits."""
        parts = self._parts()
        for name in ("lag", "elapsed", "fps", "return", "left"):
            if len(" | ".join(parts.values())) <= width:
                break
            parts.pop(name, None)
        return " | ".join(parts.values())[:width]

    def _parts(self) -> dict[str, str]:
        steps = f"{self.env_steps:,} of {self.target_env_steps:,} steps ({100 * self.share:.1f} %)"
        parts = {
            "fps": f"{UNKNOWN if self.fps is None else format(self.fps, ',.0f')} steps/s",
            "return": f"return {UNKNOWN if self.episode_return is None else format(self.episode_return, ',.1f')}",
            "lag": f"lag {UNKNOWN if self.lag_mean is None else f'{self.lag_mean:.1f} (max {self.lag_max})'}",
            "elapsed": f"{duration(self.elapsed_s)} elapsed",
            "left": f"{duration(self.remaining_s)} left",
        }
        if self.activity is None:
            return {"steps": steps, **parts}
        known = {name: text for name, text in parts.items() if UNKNOWN not in text.split()}
        return {"steps": steps, "activity": self.activity, **known}  # the activity says why others are unknown
