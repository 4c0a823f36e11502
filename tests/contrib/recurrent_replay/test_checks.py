"""Settings of recurrent replay: what they need, and what they cannot be combined with."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import rules

from asyncrl.config.errors import Problem
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig


def problems(**settings: Any) -> list[Problem]:
    return rules.problems(**{"algo": "sac", "use_rnn": True, "num_workers": 1, **settings})


@pytest.mark.parametrize(
    ("settings", "words", "fitting"),
    [
        ({"n_step": 3}, "--use_rnn=True with --algo=sac cannot be used with --n_step=3", "--n_step=1"),
        ({"backend": "hogwild"}, "--backend=hogwild", "--backend=actor_learner"),
        ({"num_critics": 3}, "--num_critics=3", "--num_critics=2"),
        ({"batch_size": 40}, "--recurrence=16 must divide --batch_size=40", "--batch_size=48"),
        ({"recurrence": 7, "algo": "td3"}, "--recurrence=7 must divide --batch_size=128", "--batch_size=126"),
        (
            {"env_backend": "tensor", "serial_mode": True, "async_rl": False},
            "cannot be used with --env_backend=tensor",
            "--use_rnn=False",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence(settings: dict[str, Any], words: str, fitting: str) -> None:
    (problem,) = problems(**settings)
    assert words in problem.text and fitting in problem.suggestions
    assert problems() == problems(algo="td3") == problems(**{**settings, "use_rnn": False}) == []


def test_the_warmup_holds_a_first_sequence_of_each_environment() -> None:
    many = {"num_workers": 160, "num_envs_per_worker": 64, "warmup_env_steps": 10_000}
    replay = resolve(TrainConfig(algo="sac", use_rnn=True, burn_in=8, recurrence=16, **many), rules.CPU).replay
    assert replay is not None and replay.warmup_env_steps == 160 * 64 * 25


@pytest.mark.parametrize(
    ("settings", "needed"), [({"algo": "sac"}, "use_rnn=True"), ({"algo": "ppo", "use_rnn": True}, "algo=sac or td3")]
)
def test_only_sequences_have_rows_that_warm_up(settings: dict[str, Any], needed: str) -> None:
    texts = [warning.text for warning in rules.warnings(burn_in=64, **settings)]
    assert any(f"--burn_in (needs {needed})" in text for text in texts), texts
