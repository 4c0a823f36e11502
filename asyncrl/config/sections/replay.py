"""Settings: learning from a replay: SAC, TD3 and DQN."""

from __future__ import annotations

from typing import Literal

from asyncrl.config.sections.section import ACTOR_CRITICS, OFF_POLICY, Section, section
from asyncrl.config.value_types import NonNegativeFloat, PositiveFloat, PositiveFraction, PositiveInt

_replay = section("replay")


class ReplaySettings(Section):
    """Learning from a replay: SAC, TD3 and DQN."""

    replay_size: PositiveInt = _replay(1_000_000, "environment steps that the replay holds", algo=OFF_POLICY)
    save_replay: bool = _replay(
        False, "save the replay in the newest checkpoints; else a resumed run starts with none", algo=OFF_POLICY
    )
    warmup_env_steps: PositiveInt = _replay(
        5_000,
        "environment steps with random actions before the first update; more, where environments need more for a "
        "first transition or sequence each",
        algo=OFF_POLICY,
    )
    updates_per_env_step: PositiveFloat = _replay(
        1.0,
        "updates for each environment step after the warm-up; the learner or the workers wait to keep this ratio",
        algo=OFF_POLICY,
    )
    replay_ratio_tolerance: NonNegativeFloat = _replay(
        64.0,
        "async: how many updates the learner may fall behind, in addition to two steps of every environment",
        algo=OFF_POLICY,
        backend=("actor_learner",),
        async_rl=(True,),
        serial_mode=(False,),
    )
    n_step: PositiveInt = _replay(
        1, "number of rewards in a target before the bootstrap; fewer at an episode's end", algo=OFF_POLICY
    )
    tau: PositiveFraction = _replay(0.005, "target critics move by this fraction at each update", algo=OFF_POLICY)
    policy_delay: PositiveInt = _replay(1, "updates of the critics for each update of the policy", algo=ACTOR_CRITICS)
    critic_layer_norm: bool = _replay(
        False,
        "layer normalization in the critics",
        algo=ACTOR_CRITICS,
        fixed="networks",
    )
    exploration_noise: Literal["white", "pink", "ou"] = _replay(
        "white",
        "noise of continuous actions in one environment from step to step: independent (white), or correlated over a "
        "few steps (ou, Ornstein-Uhlenbeck) or over all times up to a thousand steps (pink)",
        algo=ACTOR_CRITICS,
        backend=("actor_learner",),
    )
    critic_mlp_layers: list[PositiveInt] | None = _replay(
        None,
        "widths of the critics' hidden layers, or of their residual blocks; none is encoder_mlp_layers. Behind an "
        "encoder (images, masks, use_rnn) there is one layer, of the last width",
        algo=ACTOR_CRITICS,
        fixed="networks",
    )
    normalize_rewards: bool = _replay(
        False,
        "divide rewards by the running standard deviation of the discounted return; by more if a return would leave "
        "the range that critics can predict",
        algo=OFF_POLICY,
        fixed="networks",
    )
    weight_decay: NonNegativeFloat = _replay(
        0.0,
        "share of the parameters, times the learning rate, that each optimizer step removes (AdamW)",
        algo=OFF_POLICY,
    )
