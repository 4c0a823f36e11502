"""The settings that may change while a run trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from asyncrl.config.dependencies import missing_for
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.config.settings import all_settings


@dataclass(frozen=True)
class Hyperparameters:
    """New values of settings, by the names that they have in `TrainConfig`; None leaves a setting as it is.

    With `lr_schedule=linear_decay` a new learning rate decreases from there on as if the run had begun with it; the
    adaptive schedules continue from it.
    """

    learning_rate: float | None = None
    gamma: float | None = None
    gae_lambda: float | None = None
    ppo_clip_ratio: float | None = None
    value_loss_coeff: float | None = None
    entropy_loss_coeff: float | None = None
    kl_loss_coeff: float | None = None
    tau: float | None = None

    def changes(self) -> dict[str, float]:
        """The new values by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def apply_to(self, config: TrainConfig) -> TrainConfig:
        """The settings with the new values."""
        return config.model_copy(update=self.changes())

    def updated_by(self, later: Hyperparameters) -> Hyperparameters:
        """These values with `later` ones in their place."""
        return dataclasses.replace(self, **later.changes())

    def check(self, config: TrainConfig) -> None:
        """Checks that a run with these settings can take the new values.

        Raises:
            UsageError: a value is not possible, or the run does not read the setting.
        """
        if config.backend == "hogwild":
            raise UsageError("Hyperparameters cannot change in the Hogwild backend: its workers train themselves.")
        for name, value in self.changes().items():
            if (missing := missing_for(name, config)) is not None:
                raise UsageError(f"A new {name} would have no effect: only {missing} reads it.")
            try:
                TrainConfig.model_validate({name: value})
            except ValidationError:
                expected = all_settings()[name].expected
                raise UsageError(f"{name}={value} is not possible: expected {expected}.") from None

    def to_numbers(self) -> list[float]:
        """The values in the order of the fields, NaN for None: what shared memory and ranks exchange."""
        return [float("nan") if value is None else float(value) for value in dataclasses.astuple(self)]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Hyperparameters:
        """What `to_numbers` wrote."""
        return cls(*(None if number != number else float(number) for number in numbers))


def saved_hyperparameters(state: Mapping[str, Any], config: TrainConfig) -> Hyperparameters:
    """The changes that were in effect when a checkpoint was saved, without settings that have other values now.

    Args:
        state: the checkpoint's; its `config` has the settings with which the run was started.
        config: settings with which the run is resumed: what the user changes there overrides an observer's change.
    """
    before = state["config"]
    names = {each.name for each in dataclasses.fields(Hyperparameters)}
    saved = {name: value for name, value in state.get("hyperparameters", {}).items() if name in names}
    return Hyperparameters(**{name: value for name, value in saved.items() if before[name] == getattr(config, name)})


NO_CHANGES = Hyperparameters()
NUM_HYPERPARAMETERS = len(dataclasses.fields(Hyperparameters))
