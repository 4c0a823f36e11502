"""Who takes over whose weights, and which hyperparameters change."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.population.turns import Member, PopulationRules, Turn


def rules(**settings: Any) -> PopulationRules:
    return PopulationRules(TrainConfig(env="CartPole-v1", entropy_loss_coeff=0.01, **settings))


def members(*objectives: float) -> dict[str, Member]:
    """Members a, b, c... whose learning rate is 1, 2, 3...; all other values are the defaults."""
    defaults = rules().defaults
    return {
        "abcdefgh"[idx]: Member(objective, {**defaults, "learning_rate": idx + 1.0})
        for idx, objective in enumerate(objectives)
    }


def decide_turn(name: str, population: dict[str, Member], seed: int = 0, **more: Any) -> Turn:
    is_reference = more.pop("is_reference", False)
    found = rules(**{"pbt_mutation_rate": 0.0, **more})
    return found.decide_turn(name, population, random.Random(seed), is_reference=is_reference)


def test_the_best_share_keeps_all_and_the_worst_share_takes_over_one_of_the_best() -> None:
    # A fraction of 0.3 of 5 are 2, rounded up.
    population = members(10.0, 1.0, 50.0, 2.0, 40.0)
    turns = {name: decide_turn(name, population) for name in population}
    assert {name: turn.action for name, turn in turns.items()} == {
        "a": "mutated", "b": "replaced", "c": "kept", "d": "replaced", "e": "kept",
    }  # fmt: skip
    assert {decide_turn("b", population, seed).source for seed in range(20)} == {"c", "e"}
    turn = turns["b"]
    assert turn.source is not None and turn.values == population[turn.source].values
    assert turns["a"].values == population["a"].values and turns["a"].source is None
    assert [decide_turn(name, population, pbt_replace_fraction=0.0).action for name in "abc"] == ["mutated"] * 3


@pytest.mark.parametrize(
    ("better", "gaps", "action"),
    [
        (100.0, {}, "mutated"),  # better by 9 %, and 10 % are needed
        (102.0, {}, "replaced"),
        (102.0, {"pbt_replace_reward_gap": 0.2}, "mutated"),
        (102.0, {"pbt_replace_reward_gap_absolute": 11.5}, "mutated"),
        (102.0, {"pbt_replace_reward_gap_absolute": 10.5}, "replaced"),
    ],
)
def test_a_bad_member_is_replaced_if_the_other_is_better_by_both_gaps(
    better: float, gaps: dict[str, float], action: str
) -> None:
    assert decide_turn("a", members(91.0, better), **gaps).action == action


def test_negative_objectives_are_compared_by_their_size() -> None:
    assert decide_turn("a", members(-200.0, -100.0)).action == "replaced"
    assert decide_turn("a", members(-105.0, -100.0)).action == "mutated"
    assert decide_turn("a", members(-1.0, 0.0)).action == "replaced"


def test_the_reference_is_replaced_but_never_mutated() -> None:
    population = members(1.0, 50.0, 20.0, 20.0)
    turn = decide_turn("a", population, is_reference=True, pbt_mutation_rate=1.0)
    assert turn.source in ("b", "c") and turn.values == population[turn.source].values
    alone = decide_turn("d", population, is_reference=True, pbt_mutation_rate=1.0, pbt_replace_fraction=0.0)
    assert alone.values == population["d"].values


def test_each_value_changes_with_the_mutation_rate_by_a_factor_within_its_limits() -> None:
    found, start = rules(pbt_mutation_rate=0.15, pbt_perturb_min=1.2, pbt_perturb_max=2.0), members(0.0)["a"].values
    draw, changed = random.Random(0), []
    for _ in range(4000):
        for name, value in found.mutate(start, draw).items():
            if value != start[name] and not (name == "learning_rate" and value == found.defaults[name]):
                changed.append(value / start[name])
    assert len(changed) / (4000 * len(start)) == pytest.approx(0.15, abs=0.01)
    sizes = [max(ratio, 1 / ratio) for ratio in changed]
    assert 1.2 <= min(sizes) < 1.21 and 1.99 < max(sizes) <= 2.0
    assert sum(ratio > 1 for ratio in changed) / len(changed) == pytest.approx(0.5, abs=0.03)


def test_a_value_rarely_returns_to_its_default_and_a_given_one_is_fixed() -> None:
    found, start, draw = rules(pbt_mutation_rate=1.0), members(0.0)["a"].values, random.Random(0)
    rates = [found.mutate(start, draw)["learning_rate"] for _ in range(4000)]
    assert rates.count(found.defaults["learning_rate"]) / 4000 == pytest.approx(0.01, abs=0.005)
    assert found.mutate(start, draw, fixed=["learning_rate"])["learning_rate"] == 1.0


def test_values_that_are_tuned_are_those_that_have_an_effect() -> None:
    names = {"learning_rate", "entropy_loss_coeff", "value_loss_coeff", "max_grad_norm", "ppo_clip_ratio"}
    assert set(rules().defaults) == names
    assert set(rules(ppo_clip_value=1.0, pbt_optimize_gamma=True).defaults) == names | {"ppo_clip_value", "gamma"}
    assert set(rules(algo="a2c").defaults) == names - {"ppo_clip_ratio"}


def test_gamma_and_adaptive_rates_stay_in_their_ranges() -> None:
    found = rules(pbt_mutation_rate=1.0, pbt_optimize_gamma=True, lr_schedule="kl_adaptive_epoch", lr_adaptive_max=0.01)
    values, draw = {**found.defaults, "learning_rate": 0.009}, random.Random(0)
    for _ in range(3000):
        before, values = values["gamma"], found.mutate(values, draw)
        assert 0.0 < values["gamma"] < 1.0 and values["learning_rate"] <= 0.01
        change = (1.0 - values["gamma"]) / (1.0 - before)
        assert values["gamma"] == 0.99 or 1.0 < max(change, 1.0 / change) < 1.201
        if not 0.5 < values["gamma"] < 0.9999:
            values["gamma"] = 0.99


def test_the_same_numbers_give_the_same_turn() -> None:
    population = members(10.0, 1.0, 50.0, 2.0)
    first, second, other = (decide_turn("b", population, seed, pbt_mutation_rate=0.5) for seed in (1, 1, 2))
    assert first == second != other


def test_a_population_finds_the_best_learning_rate() -> None:
    # The objective falls with the distance to the best rate, as the return of an ideal learner would.
    best = 3e-4
    found = rules(pbt_mutation_rate=0.5, pbt_replace_reward_gap=0.0)
    rates = {"a": 1e-1, "b": 1e-2, "c": 1e-6, "d": 1e-5}
    draw = random.Random(0)
    for _ in range(150):
        for name in rates:
            population = {
                each: Member(-abs(math.log(rate / best)), {**found.defaults, "learning_rate": rate})
                for each, rate in rates.items()
            }
            rates[name] = found.decide_turn(name, population, draw).values["learning_rate"]
    assert all(best / 2.0 < rate < best * 2.0 for rate in rates.values()), rates
