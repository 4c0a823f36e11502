"""The settings that may change while a run trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.config.dependencies import missing_for
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig


@dataclass(frozen=True)
class Hyperparameters:
    """New values of settings, under their names in `TrainConfig`; None does not change a setting.

    With `lr_schedule=linear_decay` a new learning rate decreases as if the run had begun with it; the adaptive
    schedules continue from it.
    """

    learning_rate: float | None = None
    gamma: float | None = None
    gae_lambda: float | None = None
    ppo_clip_ratio: float | None = None
    value_loss_coeff: float | None = None
    entropy_loss_coeff: float | None = None
    kl_loss_coeff: float | None = None
    max_grad_norm: float | None = None
    ppo_clip_value: float | None = None
    tau: float | None = None

    def changes(self) -> dict[str, float]:
        """The new values by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def apply_to(self, config: TrainConfig) -> TrainConfig:
        """The settings with the new values."""
        return config.model_copy(update=self.changes())

    def updated_by(self, later: Hyperparameters) -> Hyperparameters:
        """These values, replaced by `later` ones where both change a setting."""
        return dataclasses.replace(self, **later.changes())

    def check(self, config: TrainConfig) -> None:
        """Checks that a run with these settings can take the new values.

        Raises:
            UsageError: a value is not possible, or the run does not read the setting.
        """
        if config.backend == "hogwild":
            raise UsageError("Hyperparameters cannot change in the Hogwild backend: its workers train themselves.")
        for name in self.changes():
            if (missing := missing_for(name, config)) is not None:
                raise UsageError(f"A new {name} would have no effect: only {missing} reads it.")
        TrainConfig.model_validate(self.changes())

    def to_numbers(self) -> list[float]:
        """The values in the order of the fields, NaN for None, as shared memory and ranks exchange them."""
        return [float("nan") if value is None else float(value) for value in dataclasses.astuple(self)]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Hyperparameters:
        return cls(*(None if number != number else float(number) for number in numbers))


def saved_hyperparameters(state: Mapping[str, Any], config: TrainConfig) -> Hyperparameters:
    """The changes that were in effect when a checkpoint was saved, except for settings that have other values now.

    Args:
        state: the checkpoint's state; its `config` has the settings with which the run was started.
        config: settings with which the run is resumed: a setting changed there overrides an observer's change.
    """
    before, saved = state["config"], state.get("hyperparameters", {})
    names = (field.name for field in dataclasses.fields(Hyperparameters) if field.name in saved)
    return Hyperparameters(**{name: saved[name] for name in names if before[name] == getattr(config, name)})


NO_CHANGES = Hyperparameters()
NUM_HYPERPARAMETERS = len(dataclasses.fields(Hyperparameters))
