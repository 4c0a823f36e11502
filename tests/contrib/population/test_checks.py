"""What population-based training needs, what it cannot be combined with, and what is warned of."""

from __future__ import annotations

import dataclasses

import pytest
from layouts import vector_observation

from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.run import preflight
from asyncrl.run.spec_warnings import training_returns_mislead
from asyncrl.validate import main as validate


@pytest.fixture(autouse=True)
def probed(monkeypatch: pytest.MonkeyPatch) -> dict[str, EnvSpec]:
    """Environments as the probe would find them, by id."""
    specs = {"Choice-v0": EnvSpec("Choice-v0", vector_observation(4), DiscreteAction(2, 0), None)}
    monkeypatch.setattr(preflight, "probe", lambda env_id, *_, **__: specs[env_id])
    return specs


def checked(*argv: str) -> preflight.Preflight:
    return preflight.run(load(argv, lenient=True), Machine(cores=2))


def test_shaped_returns_are_warned_of_and_decide_no_best_checkpoint(probed: dict[str, EnvSpec]) -> None:
    probed["Shaped-v0"] = dataclasses.replace(probed["Choice-v0"], reward_shaping=(("bonus", 1.0),))
    population = ("--with_pbt=True", "--num_policies=2", "--policy_mapping=random", "--pbt_start_mutation=0")
    for flags in (("--env=Shaped-v0",), ("--env=Choice-v0", *population)):
        result = checked(*flags)
        assert not result.warnings and not training_returns_mislead(result.config, result.spec)
    result = checked("--env=Shaped-v0", *population)
    assert training_returns_mislead(result.config, result.spec)
    (warning,) = result.warnings
    assert "no best checkpoint is chosen" in str(warning) and "--eval_every_env_steps=" in str(warning)
    assert not checked("--env=Shaped-v0", *population, "--eval_every_env_steps=1000").warnings


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "--with_pbt=True needs several policies, or several runs with one --pbt_shared_dir."),
        (("--num_policies=2", "--pbt_shared_dir=x"), "--pbt_shared_dir is for runs with one policy each, not with"),
        (("--pbt_shared_dir=x", "--algo=sac"), "--with_pbt=True cannot be used with --algo=sac."),
        (("--pbt_shared_dir=x", "--backend=hogwild"), "--with_pbt=True cannot be used with --backend=hogwild."),
        (("--pbt_shared_dir=x", "--fixed_lag"), "--fixed_lag is not available with --with_pbt=True."),
        (("--num_policies=2", "--pbt_perturb_min=2"), "--pbt_perturb_min=2 is larger than --pbt_perturb_max=1.5."),
        (
            ("--num_policies=2", "--policy.1.encoder_mlp_layers=8"),
            "--policy.1.encoder_mlp_layers is not possible with --with_pbt=True",
        ),
    ],
)
def test_what_is_needed_and_what_is_refused(flags: tuple[str, ...], text: str) -> None:
    problems = [str(problem) for problem in checked("--env=Choice-v0", "--with_pbt=True", *flags).problems]
    assert any(text in problem for problem in problems), problems


def test_a_run_of_self_play_is_refused() -> None:
    pytest.importorskip("asyncrl.contrib.self_play")
    problems = list(map(str, checked("--env=Choice-v0", "--with_pbt=True", "--self_play=True").problems))
    text = (
        "--self_play=True cannot be used with --with_pbt=True: returns against different opponents cannot be compared."
    )
    assert any(problem.startswith(text) for problem in problems), problems


def test_turns_that_the_run_ends_before_are_warned_of() -> None:
    flags = ("--env=Choice-v0", "--with_pbt=True", "--train_for_env_steps=10000", "--pbt_start_mutation=5000")
    (warning,) = checked(*flags, "--num_policies=2", "--policy_mapping=random").warnings
    assert str(warning).startswith("--pbt_start_mutation=5000 is not reached: 10000 environment steps are about 5000 ")
    assert not checked(*flags, "--pbt_shared_dir=x").warnings


def test_agents_with_different_spaces_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    mapped = ["--env=agent_envs:unlike", "--num_policies=2", "--policy_mapping=shared"]
    assert validate(mapped) == 2
    of_mapping = "so set --policy_mapping=by_space"
    assert of_mapping in capsys.readouterr().err
    assert validate([*mapped, "--with_pbt=True"]) == 2
    error = capsys.readouterr().err
    assert of_mapping not in error
    assert "--with_pbt=True needs agents with the same spaces" in error
    assert "--with_pbt=False --num_policies=2 --policy_mapping=by_space" in error
    assert "Traceback" not in error
