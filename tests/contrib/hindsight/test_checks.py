"""What hindsight experience replay cannot be combined with, and which environments it needs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from helpers import rules
from layouts import vector_observation

from asyncrl.config import loading
from asyncrl.config.machine import Machine
from asyncrl.envs.spec import DiscreteAction, EnvSpec, ObservationLayout, ObservationPart
from asyncrl.run import preflight


@pytest.mark.parametrize(
    ("settings", "words", "fitting"),
    [
        ({"n_step": 3}, "--n_step=3 has several", "--n_step=1"),
        ({"algo": "dqn", "prioritized_replay": True}, "not of their goals", "--prioritized_replay=False"),
        ({"normalize_rewards": True}, "rewards of other goals", "--normalize_rewards=False"),
        ({"backend": "hogwild"}, "--backend=hogwild", "--her_goals=0"),
        ({"use_rnn": True}, "--use_rnn=True with --algo=sac cannot be used with --her_goals=4", "--her_goals=0"),
    ],
)
def test_other_goals_have_rules(settings: dict[str, Any], words: str, fitting: str) -> None:
    settings = {"algo": "sac", "num_workers": 1, **settings}
    (problem,) = rules.problems(her_goals=4, **settings)
    assert words in problem.text and fitting in problem.suggestions
    assert rules.problems(**settings) == []


def test_other_goals_have_no_effect_without_a_replay() -> None:
    assert rules.problems(algo="sac", her_goals=4) == []
    assert rules.problems(her_goals=4, use_rnn=True) == []
    assert any("--her_goals" in warning.text for warning in rules.warnings(her_goals=4, use_rnn=True))


def test_the_name_of_another_library_is_explained() -> None:
    loaded = loading.load(["--env=CartPole-v1", "--n_sampled_goal=4"], lenient=True)
    (problem,) = loaded.problems
    assert "Stable-Baselines3's n_sampled_goal is --her_goals (the strategy is future)" in problem.text


def test_other_goals_need_single_environments_with_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [ObservationPart((name,), "numbers", (3,), "float64") for name in ("achieved_goal", "desired_goal")]
    goals = EnvSpec("Goals-v0", ObservationLayout(tuple(parts)), DiscreteAction(2, 0), None, computes_reward=True)
    other = dataclasses.replace(parts[1], shape=(4,))
    kinds = {
        "": goals,
        "needs observations with arrays of numbers achieved_goal": dataclasses.replace(
            goals, observation=vector_observation(4)
        ),
        "of the same shape, not (3,) and (4,)": dataclasses.replace(
            goals, observation=ObservationLayout((parts[0], other))
        ),
        "a method compute_reward(achieved_goal": dataclasses.replace(goals, computes_reward=False),
        "needs single environments": dataclasses.replace(goals, is_vectorized=True),
    }
    for words, spec in kinds.items():
        monkeypatch.setattr(preflight, "probe", lambda *_, spec=spec, **__: spec)
        for algo in ("dqn", "sac"):
            flags = ("--env=Goals-v0", f"--algo={algo}", "--her_goals=2")
            found = preflight.run(loading.load(flags, lenient=True), Machine(cores=2)).problems
            assert [words in problem.text for problem in found] == [True] * bool(words)
