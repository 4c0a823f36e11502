"""Chooses networks, critics and update of SAC by the settings."""

from __future__ import annotations

from asyncrl.config.critic_kinds import CriticKind
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.critics.settings import CriticSettings

_FOLDER = "asyncrl.contrib.critics"
_WEIGHTS_OF_A_BLOCK = 8
"""Of a residual block of width 1: two layers, between its width and four times that."""
_SMALL_ENT_COEF = 0.01
"""With bins: returns of more entropy would leave their range."""


def choose(config: TrainConfig) -> CriticKind | None:
    """The networks and critics that the settings ask for; None for the plain ones."""
    own = CriticSettings.of(config)
    has_bins, has_targets = own.value_bins is not None, own.use_target_critics
    if not config.is_off_policy or not (own.has_blocks or has_bins or not has_targets):
        return None
    plain, is_joint = CriticKind(), own.batch_renorm or not has_targets
    return CriticKind(
        network=f"{_FOLDER}.block_network:BlockNetwork" if own.has_blocks else None,
        network_name="networks of blocks" if own.has_blocks else plain.network_name,
        block_weights=_WEIGHTS_OF_A_BLOCK if own.residual_blocks else None,
        critic=f"{_FOLDER}.distributional:DistributionalCritic" if has_bins else plain.critic,
        update=f"{_FOLDER}.distributional:DistributionalSac" if has_bins else None,
        steps=f"{_FOLDER}.batch_steps:BatchSteps" if is_joint else plain.steps,
        has_target_critics=has_targets,
        initial_ent_coef=_SMALL_ENT_COEF if has_bins else plain.initial_ent_coef,
        largest_return=own.value_limit if has_bins else None,
    )
