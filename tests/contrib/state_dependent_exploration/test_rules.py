"""What state-dependent exploration cannot be combined with, and which actions it needs."""

from __future__ import annotations

import pytest

from asyncrl.config.errors import Problem
from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.modes.choice import find_problems
from asyncrl.run import preflight

MACHINE = Machine(cores=2)


def problems(*flags: str) -> list[Problem]:
    config = load(["--env=Pendulum-v1", *flags], lenient=True).config
    return find_problems(config, resolve(config, MACHINE), MACHINE)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--algo=td3"], "--use_sde=True cannot be used with --algo=td3."),
        (["--algo=sac", "--critic=simba"], "--use_sde=True cannot be used with networks of blocks."),
        (["--adaptive_stddev=True"], "--use_sde=True cannot be used with --adaptive_stddev=True."),
        (["--algo=sac", "--exploration_noise=pink"], "--use_sde=True cannot be used with --exploration_noise=pink."),
        (["--num_policies=2"], "--use_sde=True cannot be used with --num_policies=2."),
        (["--env_backend=tensor"], "--use_sde=True cannot be used with --env_backend=tensor."),
        (["--model=own"], "--use_sde=True cannot be used with --model=own."),
        (["--algo=sac", "--use_rnn=True"], "--use_rnn=True with --algo=sac cannot be used with --use_sde=True."),
        (
            ["--sde_sample_freq=0"],
            "--sde_sample_freq=0 is not possible: expected a number of steps, or -1 for noise that lasts an episode.",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence(flags: list[str], text: str) -> None:
    (problem,) = [each for each in problems("--use_sde=True", *flags) if each.text == text]
    is_about_itself = text.startswith("--sde_sample_freq")
    assert problem.suggestions[0] == ("--sde_sample_freq=1" if is_about_itself else "--use_sde=False")


def test_self_play_is_refused() -> None:
    pytest.importorskip("asyncrl.contrib.self_play")
    found = {each.text: each.suggestions for each in problems("--use_sde=True", "--self_play=True")}
    assert found["--use_sde=True cannot be used with --self_play=True."] == ("--use_sde=False", "--self_play=False")


def test_a_policy_cannot_have_it_for_itself() -> None:
    (problem,) = problems("--num_policies=2", "--policy.1.use_sde=True")
    assert problem.text == "--policy.1.use_sde is not possible: it is the same for all policies."
    assert problem.suggestions == ("--use_sde without a number",)


@pytest.mark.parametrize("env", ["CartPole-v1", "space_envs:SeeAndTell-v0"])
def test_choices_are_refused(env: str) -> None:
    found = preflight.run(load([f"--env={env}", "--use_sde=True"], lenient=True), MACHINE)
    (problem,) = found.problems
    assert problem.text.startswith("--use_sde=True needs actions that are one Box; ")
