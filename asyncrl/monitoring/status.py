"""What is shown and recorded of a run while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from asyncrl.monitoring.summary import UNKNOWN, duration


@dataclass(frozen=True)
class Record:
    """Figures of one moment, by the names that `metrics.jsonl` and TensorBoard have them under.

    Attributes:
        env_steps: environment steps trained on.
        scalars: the figures.
    """

    env_steps: int
    scalars: Mapping[str, float]


@dataclass(frozen=True)
class Status:
    """Where a run stands. What is not known yet is None.

    Attributes:
        env_steps: environment steps trained on.
        target_env_steps: steps at which the run ends.
        elapsed_s: seconds since the command was given.
        fps: environment steps trained a second.
        episode_return: mean return of the last episodes.
        lag_mean, lag_max: policy lag in versions.
        remaining_s: seconds until the run ends.
        activity: what the run is doing, where the figures do not show it.
        is_of_record: whether a record is due, every `report_every_s` and at the end.
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
    is_of_record: bool = False

    @property
    def share(self) -> float:
        """Share of the steps that are done, at most 1."""
        return min(1.0, self.env_steps / self.target_env_steps)

    @property
    def text(self) -> str:
        """One line with every figure."""
        return _join(self._parts)

    def text_within(self, width: int) -> str:
        """One line of at most `width` characters: what is least needed is left out until it fits."""
        parts = dict(self._parts)
        for name in ("lag", "elapsed", "fps", "return", "left"):
            if len(_join(parts.items())) <= width:
                break
            parts.pop(name, None)
        return _join(parts.items())[:width]

    @property
    def _parts(self) -> list[tuple[str, str]]:
        lag = UNKNOWN if self.lag_mean is None else f"{self.lag_mean:.1f} (max {self.lag_max})"
        parts = [
            ("steps", f"{self.env_steps:,} of {self.target_env_steps:,} steps ({100 * self.share:.1f} %)"),
            ("fps", f"{_number(self.fps, ',.0f')} steps/s"),
            ("return", f"return {_number(self.episode_return, ',.1f')}"),
            ("lag", f"lag {lag}"),
            ("elapsed", f"{duration(self.elapsed_s)} elapsed"),
            ("left", f"{duration(self.remaining_s)} left"),
        ]
        if self.activity is None:
            return parts
        known = [part for part in parts if UNKNOWN not in part[1].split()]  # the activity says why others are not
        return [known[0], ("activity", self.activity), *known[1:]]


def _join(parts: Iterable[tuple[str, str]]) -> str:
    return " | ".join(text for _, text in parts)


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
