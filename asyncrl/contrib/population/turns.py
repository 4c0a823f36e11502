"""The rules of population-based training, those of Sample Factory: pure functions of objectives and hyperparameters."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from asyncrl.config.dependencies import missing_for
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.population.settings import PopulationSettings

_TUNED = (
    "learning_rate",
    "entropy_loss_coeff",
    "value_loss_coeff",
    "max_grad_norm",
    "ppo_clip_ratio",
    "ppo_clip_value",
)
_SHARE_OF_DEFAULTS = 0.01
_GAMMA_FACTORS = 1.01, 1.2
_EPS = 1e-8

Values = Mapping[str, float]
"""Hyperparameters by name; those of the reward shaping begin with `SHAPING`."""

SHAPING = "reward_shaping."


class Member(NamedTuple):
    """A member of the population as the rules see it: the mean of its objective, and its hyperparameters."""

    objective: float
    values: Values


class Turn(NamedTuple):
    """What becomes of a member in its turn.

    Attributes:
        action: `kept`: it is one of the best; `mutated`: it keeps its weights; `replaced`: it continues with those of
            `source`; `started`: its values at the start.
        source: name of the member that it takes over; None unless it was replaced.
        values: its hyperparameters from now on.
    """

    action: Literal["started", "kept", "mutated", "replaced"]
    source: str | None
    values: dict[str, float]


class PopulationRules:
    """Who takes over whose weights, and which hyperparameters change; without state.

    Attributes:
        defaults: the values of the run's settings, by the names of the hyperparameters that are changed: those that
            the algorithm reads and that are not 0, and likewise those of the environment's reward shaping.
    """

    def __init__(self, config: TrainConfig, reward_shaping: Iterable[tuple[str, float]] = ()) -> None:
        self._config, self._settings = config, PopulationSettings.of(config)
        names = (*_TUNED, *(("gamma",) if self._settings.pbt_optimize_gamma else ()))
        found = {name: getattr(config, name) for name in names if missing_for(name, config) is None}
        found |= {SHAPING + name: value for name, value in reward_shaping}
        self.defaults: dict[str, float] = {name: value for name, value in found.items() if value}

    def values_of(self, config: TrainConfig, last: Values) -> dict[str, float]:
        """The values of a member with these settings; those of its reward shaping are in its `last` values."""
        values = {
            name: last.get(name, default) if name.startswith(SHAPING) else getattr(config, name)
            for name, default in self.defaults.items()
        }
        return {name: value for name, value in values.items() if value is not None}

    def decide_turn(
        self, name: str, members: Mapping[str, Member], draw: random.Random, *, is_reference: bool = False
    ) -> Turn:
        """Decides what becomes of a member.

        With k = `pbt_replace_fraction` of all members, rounded up, the best k are left alone. One of the worst k
        continues with weights and values of one of the best k, drawn at random, if that one is better by more than both
        gaps. All except the best then mutate.

        Args:
            name: the member.
            members: all members, this one among them.
            draw: random numbers.
            is_reference: never mutate it; it may be replaced.
        """
        settings = self._settings
        ranked = sorted(members, key=lambda each: (-members[each].objective, each))
        count = math.ceil(settings.pbt_replace_fraction * len(ranked))
        best, worst = ranked[:count], ranked[len(ranked) - count :]
        own = members[name]
        if name in best:
            return Turn("kept", None, dict(own.values))
        source, values = None, dict(own.values)
        if name in worst:
            candidate = draw.choice(best)
            objective = members[candidate].objective
            gap = objective - own.objective
            is_relative = gap / (abs(objective) + _EPS) > settings.pbt_replace_reward_gap
            if gap > settings.pbt_replace_reward_gap_absolute and is_relative:
                source, theirs = candidate, members[candidate].values
                values |= {name: value for name, value in theirs.items() if name in self.defaults}
        new_values = values if is_reference else self.mutate(values, draw)
        return Turn("mutated" if source is None else "replaced", source, new_values)

    def mutate(self, values: Values, draw: random.Random, fixed: Iterable[str] = ()) -> dict[str, float]:
        """Returns values of which each was changed with probability `pbt_mutation_rate`, except the `fixed` ones.

        A value is multiplied or divided by a random factor, and sometimes set to its default. Of gamma, 1 - gamma is
        changed, by small factors. All values remain in the ranges of their settings.
        """
        config, settings, mutated = self._config, self._settings, dict(values)
        for name, value in values.items():
            if name in fixed or draw.random() >= settings.pbt_mutation_rate:
                continue
            if value != self.defaults[name] and draw.random() < _SHARE_OF_DEFAULTS:
                mutated[name] = self.defaults[name]
            elif name == "gamma":
                mutated[name] = max(_EPS, 1.0 - _multiplied(1.0 - value, draw, *_GAMMA_FACTORS))
            else:
                mutated[name] = _multiplied(value, draw, settings.pbt_perturb_min, settings.pbt_perturb_max)
        if "learning_rate" in mutated and config.lr_schedule.startswith("kl_adaptive"):
            within = min(max(mutated["learning_rate"], config.lr_adaptive_min), config.lr_adaptive_max)
            mutated["learning_rate"] = within
        return mutated


def _multiplied(value: float, draw: random.Random, low: float, high: float) -> float:
    factor = draw.uniform(low, high)
    return value / factor if draw.random() < 0.5 else value * factor
