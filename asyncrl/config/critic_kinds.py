"""Which networks and critics SAC has, and how it updates them: the plain ones, or those of a feature (hook `CRITICS`).

This module imports no torch. So a record names its functions and classes as text, `module:name`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncrl.config.hooks import hooks, load

if TYPE_CHECKING:
    from asyncrl.config.schema import TrainConfig


@dataclass(frozen=True)
class CriticKind:
    """Networks and critics of SAC; the defaults are the plain ones.

    Attributes:
        network: function of the number of networks, the widths of input, hidden layers and output, and the settings to
            networks with hidden layers in place of `asyncrl.models.stacked_mlp.StackedMlp`; None for those.
        network_name: how messages call one of these networks.
        block_weights: weights of a hidden layer of width 1, if they grow with the square of its width; None for those
            of perceptrons.
        critic: subclass of `asyncrl.models.sac.TwinCritic`.
        update: subclass of `asyncrl.algorithms.sac.Sac`; None for that of the learner.
        steps: subclass of `asyncrl.algorithms.off_policy.Steps`.
        has_target_critics: whether target critics give the targets.
        initial_ent_coef: value of `--initial_ent_coef=auto`.
        largest_return: magnitude of the largest return that critics can predict; None without a limit.
    """

    network: str | None = None
    network_name: str = "a perceptron"
    block_weights: int | None = None
    critic: str = "asyncrl.models.sac:TwinCritic"
    update: str | None = None
    steps: str = "asyncrl.algorithms.off_policy:Steps"
    has_target_critics: bool = True
    initial_ent_coef: float = 1.0
    largest_return: float | None = None


PLAIN = CriticKind()


def critic_kind(config: TrainConfig) -> CriticKind:
    """The networks and critics that the settings ask for."""
    found = (load(choose)(config) for choose in hooks("CRITICS").values())
    return next((kind for kind in found if kind is not None), PLAIN)
