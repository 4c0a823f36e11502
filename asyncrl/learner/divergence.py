"""Optimizer steps whose loss or gradient is not finite: they are left out and counted, until they are too many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from asyncrl.runtime.processes import RunFailed


def is_bad(figures: Tensor) -> Tensor:
    """1.0 if one of the figures is not finite and 0.0 otherwise, as a float32 scalar that stays on its device.

    An optimizer that is given it as `found_inf` leaves the step out, without anybody having to wait for the device.
    """
    return torch.isfinite(figures).all().logical_not().float()


class SkippedSteps:
    """Counts the steps that were left out.

    Attributes:
        total: how many there were.
    """

    def __init__(self, most_in_a_row: int) -> None:
        """Allows fewer than `most_in_a_row` without one that was taken between them."""
        self.total = 0
        self._most_in_a_row = most_in_a_row
        self._in_a_row = 0

    def note(self, were_taken: Sequence[bool]) -> None:
        """Adds steps in their order; True for those that were taken."""
        for was_taken in were_taken:
            self._in_a_row = 0 if was_taken else self._in_a_row + 1
            self.total += not was_taken

    @property
    def are_too_many(self) -> bool:
        """Whether training does not recover."""
        return self._in_a_row >= self._most_in_a_row

    def diagnosis(self, figures: Mapping[str, float], samples: Mapping[str, Tensor]) -> RunFailed:
        """What to end the run with.

        Args:
            figures: losses and norms of the last step that was skipped.
            samples: what it was computed from, and the weights.
        """
        listed = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        return RunFailed(
            f"training has diverged: {self._in_a_row} optimizer steps in a row were skipped because loss or gradient "
            "were not finite. Lower --learning_rate, or check the ranges of the training data below; the "
            "newest checkpoint is not affected",
            "\n".join([f"the last of these steps: {listed}", *(_describe(*item) for item in samples.items())]),
            is_final=True,
        )


def _describe(name: str, values: Tensor) -> str:
    values = values.detach().float().flatten()
    finite = values[torch.isfinite(values)]
    span = f"{finite.min():.4g} to {finite.max():.4g}" if len(finite) > 0 else "none is finite"
    lost = len(values) - len(finite)
    return f"{name}: {span}" + (f", and {lost} of {len(values)} are not finite" if lost else "")
