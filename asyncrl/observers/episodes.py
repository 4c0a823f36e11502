"""The last training episodes, over which returns and lengths are averaged, and the file that keeps them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from asyncrl.observers.reports import EPISODE_WINDOW, EpisodeRecord, mean_extra_stats


class EpisodeStatistics:
    """The last 100 training episodes of all workers or of one, with the environment's own rewards.

    Attributes:
        env_steps: collected environment steps, including an earlier part of the run.
        num_episodes: episodes that ended in this part of the run.
        recent: the last 100 episodes, including an earlier part of the run.
    """

    def __init__(self, env_steps: int = 0, recent: Iterable[EpisodeRecord] = ()) -> None:
        self.env_steps = env_steps
        self.num_episodes = 0
        self.recent: deque[EpisodeRecord] = deque(recent, maxlen=EPISODE_WINDOW)

    def add(self, episodes: Sequence[EpisodeRecord], env_steps: int = 0) -> None:
        """Adds the steps and episodes of a report, in their order."""
        self.env_steps += env_steps
        self.num_episodes += len(episodes)
        self.recent.extend(episodes)

    @property
    def mean_return(self) -> float | None:
        """Mean return; None before the first episode has ended."""
        return sum(each.episode_return for each in self.recent) / len(self.recent) if self.recent else None

    @property
    def mean_length(self) -> float | None:
        """Mean number of steps; None before the first episode has ended."""
        return sum(each.length for each in self.recent) / len(self.recent) if self.recent else None

    def scalars(self) -> dict[str, float | None]:
        """The means of returns, lengths and the environment's own numbers, by their names in a record."""
        extra_stats = mean_extra_stats(episode.extra_stats for episode in self.recent)
        return {
            "rollout/ep_rew_mean": self.mean_return,
            "rollout/ep_len_mean": self.mean_length,
            **{f"episode_extra_stats/{name}": value for name, value in sorted(extra_stats.items())},
        }


def saved_text(run: EpisodeStatistics, policies: Sequence[EpisodeStatistics]) -> str:
    """The text from which `read_episodes` reads the windows of a run and of each of several policies."""
    windows = [
        [[each.episode_return, each.length, each.extra_stats, each.policy_idx] for each in statistics.recent]
        for statistics in (run, *policies)
    ]
    return json.dumps({"run": windows[0], "policies": windows[1:]} if len(policies) > 1 else windows[0])


def read_episodes(path: Path) -> list[list[EpisodeRecord]]:
    """The saved windows of the run, and of each policy if there are several.

    A missing or damaged file gives none: it only smooths a curve.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        windows = [content] if isinstance(content, list) else [content["run"], *content["policies"]]
        return [[EpisodeRecord(*fields) for fields in window] for window in windows]
    except (OSError, ValueError, TypeError, KeyError):
        return [[]]
