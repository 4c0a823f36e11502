"""Settings: PPO."""

from __future__ import annotations

from typing import Literal

from asyncrl.config.sections.section import Section, section
from asyncrl.config.value_types import AtLeastOne, PositiveFloat

_learning = section("learning", algo=("ppo",))


class PpoSettings(Section):
    """PPO."""

    ppo_objective: Literal["clip", "decoupled"] = _learning(
        "decoupled",
        "PPO's probability ratio and all KL divergences are from the policy that acted (clip), or from the policy "
        "before training on the dataset, and each sample is weighted by the probability of its action under that "
        "policy, divided by the one when acting (decoupled)",
        backend=("actor_learner",),
    )
    behaviour_weight_cap: AtLeastOne = _learning(
        5.0, "decoupled objective: largest weight of a sample", backend=("actor_learner",), ppo_objective=("decoupled",)
    )
    ppo_clip_ratio: PositiveFloat = _learning(0.2, "clip range of PPO's probability ratio")
    final_ppo_clip_ratio: PositiveFloat | None = _learning(
        None, "ppo_clip_ratio at the end of the run, to which it changes linearly; none means that it stays"
    )
    ppo_clip_mode: Literal["symmetric", "reciprocal"] = _learning(
        "symmetric", "clip the ratio to [1-c, 1+c] or to [1/(1+c), 1+c]"
    )
