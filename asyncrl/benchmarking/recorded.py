"""Episodes of a trained policy as seeds and actions: all that is needed to play them again without the policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Recording:
    """What N environments were given for K steps each.

    Attributes:
        actions: [N, K, ...] as the environment got them.
        ended: [N, K] bool; the episode ended with this step.
        seeds: [N, K + 1] int64; entry 0 is the seed of the first reset, entry k + 1 that of the reset after step k.
    """

    actions: npt.NDArray[Any]
    ended: npt.NDArray[np.bool_]
    seeds: npt.NDArray[np.int64]

    @property
    def num_envs(self) -> int:
        """N."""
        return len(self.ended)

    @property
    def num_steps(self) -> int:
        """K."""
        return int(self.ended.shape[1])

    def part(self, first: int, count: int) -> Recording:
        """Returns the rows of some environments.

        Raises:
            ValueError: there are not so many.
        """
        end = first + count
        if end > self.num_envs:
            raise ValueError(f"the recording holds {self.num_envs} environments, asked for {first} to {end - 1}")
        return Recording(self.actions[first:end], self.ended[first:end], self.seeds[first:end])

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        temporary = path.with_name(f".tmp_{path.name}")
        with temporary.open("wb") as file:
            np.savez(file, actions=self.actions, ended=self.ended, seeds=self.seeds)
        temporary.replace(path)

    @staticmethod
    def load(path: Path) -> Recording:
        """Reads a file that `save` wrote."""
        with np.load(path, allow_pickle=False) as content:
            return Recording(content["actions"], content["ended"], content["seeds"])
