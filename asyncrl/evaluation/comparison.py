"""Policies compared by the same episodes, and the table and the file of episodes that `asyncrl evaluate` writes."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.evaluation.episodes import EvaluationResult, mean_ci95
from asyncrl.observers.writers import monitor_header


@dataclass(frozen=True)
class Comparison:
    """Evaluations of several policies. Episode i has the same seed for each, so their returns are compared by pairs.

    The interval of a mean difference is then narrower than the difference of two intervals, because an easy start is
    easy for all of them.

    Attributes:
        names: of the policies.
        results: of the policies, each with its checkpoint.
    """

    names: tuple[str, ...]
    results: tuple[EvaluationResult, ...]

    def differences(self, idx: int) -> tuple[float, ...]:
        """The return of policy `idx` minus that of the first, in each episode."""
        first, own = self.results[0].returns, self.results[idx].returns
        return tuple(mine - other for mine, other in zip(own, first, strict=True))

    def to_data(self) -> dict[str, Any]:
        """JSON values of the comparison."""
        rows = []
        for idx, (name, result) in enumerate(zip(self.names, self.results, strict=True)):
            differences = self.differences(idx)
            paired = {"difference": statistics.fmean(differences), "difference_ci95": mean_ci95(differences)}
            rows.append({"name": name, **result.to_data(), **(paired if idx > 0 else {})})
        return {"policies": rows}

    def to_text(self) -> str:
        rows = [["policy", "trained steps", "return (95 %)", "against the first (95 %)", "steps an episode"]]
        for idx, (name, result) in enumerate(zip(self.names, self.results, strict=True)):
            differences = self.differences(idx)
            paired = _with_interval(statistics.fmean(differences), mean_ci95(differences), "+.2f") if idx > 0 else "-"
            own = _with_interval(result.mean_reward, result.ci95, ".2f")
            rows.append([name, f"{result.env_steps or 0:,}", own, paired, f"{result.mean_ep_length:.1f}"])
        return aligned(rows)


def _with_interval(mean: float, interval: tuple[float, float] | None, form: str) -> str:
    ends = "" if interval is None else f" [{interval[0]:{form}}, {interval[1]:{form}}]"
    return f"{mean:{form}}{ends}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


@dataclass(frozen=True)
class PlayedEpisodes:
    """The episodes of one policy for a file; the evaluation began `started_s` seconds after the command."""

    name: str
    result: EvaluationResult
    started_s: float = 0.0


def write_episodes(path: Path, env_id: str, t_start: float, played: Sequence[PlayedEpisodes]) -> None:
    """Writes episodes, in the order in which they ended, to a CSV file that Stable-Baselines3's Monitor readers take.

    The columns are return, length, seconds since `t_start`, the seed of the environment, the policy of several, the
    return of each of several agents, and the environment's own numbers.

    Args:
        path: the file; replaced if it exists.
        env_id: the environment.
        t_start: seconds since 1970.
        played: of each policy.
    """
    names: dict[str, None] = {}
    rows: list[tuple[float, list[Any], dict[str, float]]] = []
    for policy in played:
        result = policy.result
        for episode, (episode_return, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
            numbers = {f"{agent}_return": returns[episode] for agent, returns in result.returns_by_agent.items()}
            numbers |= result.extra_stats[episode]
            names |= dict.fromkeys(numbers)
            ended_s = policy.started_s + result.ended_at_s[episode]
            cells = [
                f"{episode_return:.6f}",
                length,
                f"{ended_s:.6f}",
                result.seeds[episode],
            ]
            rows.append((ended_s, [*cells, policy.name] if len(played) > 1 else cells, numbers))
    columns = ("r", "l", "t", "seed", *(("policy",) if len(played) > 1 else ()), *names)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write("\n".join(monitor_header(t_start, env_id, columns)) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        for _, cells, numbers in sorted(rows, key=lambda row: row[0]):
            writer.writerow([*cells, *(numbers.get(name, "") for name in names)])
