"""Settings: population-based training."""

from __future__ import annotations

from asyncrl.config.sections.section import Section, section
from asyncrl.config.value_types import AtLeastOne, Fraction, NonNegativeFloat, NonNegativeInt, PathText, PositiveInt

_policies = section("policies")


class PopulationSettings(Section):
    """Population-based training."""

    with_pbt: bool = _policies(
        False,
        "population-based training: bad policies continue with weights and hyperparameters of good ones, which are "
        "changed at random; needs several policies, or runs with pbt_shared_dir",
    )
    pbt_period_env_steps: PositiveInt = _policies(
        5_000_000, "environment steps of a policy between two of its turns", with_pbt=(True,)
    )
    pbt_start_mutation: NonNegativeInt = _policies(
        20_000_000, "environment steps of a policy before its first turn", with_pbt=(True,)
    )
    pbt_replace_fraction: Fraction = _policies(
        0.3, "share of the policies that are good, and of those that are bad, rounded up", with_pbt=(True,)
    )
    pbt_mutation_rate: Fraction = _policies(
        0.15, "probability with which a hyperparameter is changed in a turn", with_pbt=(True,)
    )
    pbt_perturb_min: AtLeastOne = _policies(
        1.1, "smallest factor by which a hyperparameter is multiplied or divided", with_pbt=(True,)
    )
    pbt_perturb_max: AtLeastOne = _policies(
        1.5, "largest factor by which a hyperparameter is multiplied or divided", with_pbt=(True,)
    )
    pbt_replace_reward_gap: NonNegativeFloat = _policies(
        0.1,
        "a bad policy is replaced if the good one is better by more than this share of its objective",
        with_pbt=(True,),
    )
    pbt_replace_reward_gap_absolute: NonNegativeFloat = _policies(
        1e-6, "a bad policy is replaced if the good one is better by more than this", with_pbt=(True,)
    )
    pbt_optimize_gamma: bool = _policies(False, "change gamma, too", with_pbt=(True,))
    pbt_target_objective: str = _policies(
        "true_objective",
        'name in info["episode_extra_stats"] of the number that is to become large, as a mean over 100 episodes; '
        "true_objective is the return if episodes do not have it",
        with_pbt=(True,),
    )
    pbt_shared_dir: PathText | None = _policies(
        None,
        "folder through which runs with one policy each, perhaps on several machines, are one population",
        with_pbt=(True,),
    )
