"""Environments of several agents that break their interface: one sentence, in the check and at any later step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import Command
from wrong_agent_envs import FIELDS

from asyncrl import validate
from asyncrl.config.errors import UsageError
from asyncrl.envs.agents import AgentsState
from asyncrl.envs.factory import make_env
from asyncrl.envs.interface import try_out
from asyncrl.envs.spaces import read_spec


def check(name: str, **env_kwargs: Any) -> None:
    env = make_env(f"wrong_agent_envs:{name}", env_kwargs)
    try_out(env, read_spec(env, name), lambda method: None)


def sentence_of_check(name: str, **env_kwargs: Any) -> str:
    """What the check of an environment says of it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        check(name, **env_kwargs)
    assert type(caught.value) is UsageError, repr(caught.value)
    (line,) = str(caught.value).splitlines()
    assert line.endswith(".") and name in line
    return line


def test_rewards_of_names_that_are_not_agents_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = '--env_kwargs={"field": "rewards", "how": "renamed"}'
    assert validate.main(["--env=wrong_agent_envs:wrong_parallel", kwargs]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == (
        "error: wrong_agent_envs:wrong_parallel: the rewards after step() contain 'player_agent_0', which is not one "
        "of possible_agents: 'agent_0', 'agent_1', 'agent_2'."
    )


@pytest.mark.parametrize("since", [0, 4])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", ["wrong_parallel", "wrong_turns"])
def test_keys_that_are_not_agents_are_refused_in_every_dict(kind: str, field: str, since: int) -> None:
    if (kind, field) == ("wrong_turns", "observations"):
        assert "is None" in sentence_of_check(kind, field=field, how="none", since=since)
        return
    call = "reset()" if since == 0 and (kind == "wrong_turns" or field in ("observations", "infos")) else "step()"
    for how, key in (("renamed", "player_"), ("stranger", "'__all__'")):
        said = sentence_of_check(kind, field=field, how=how, since=since)
        assert f"the {field} after {call} contain" in said and key in said


@pytest.mark.parametrize("field", ["rewards", "terminations", "truncations"])
@pytest.mark.parametrize(("kind", "agent"), [("wrong_parallel", "agent_1"), ("wrong_turns", "second")])
def test_an_agent_without_a_value_is_refused(kind: str, agent: str, field: str) -> None:
    assert f"the {field} after step() lack '{agent}'" in sentence_of_check(kind, field=field, how="missing", since=3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AgentsOfOthers", "the agents after step() contain 'latecomer'"),
        ("SelectsNobody", "agent_selection after step() is 'third'"),
        ("TwiceTheSame", "names an agent twice in possible_agents"),
    ],
)
def test_agents_that_are_not_possible_agents_are_refused(name: str, said: str) -> None:
    assert said in sentence_of_check(name)


def test_a_dict_in_the_place_of_a_list_of_agents_is_refused() -> None:
    for field in ("rewards", "terminations", "truncations"):
        assert "returned one dict as" in sentence_of_check("wrong_lists", field=field, how="dict")
    said = sentence_of_check("wrong_lists", field="observations", how="value_none")
    assert "agent_0 is to move after step(), but its observation is None" in said


@pytest.mark.parametrize("kind", ["wrong_parallel", "wrong_turns", "wrong_lists"])
def test_rewards_and_ends_that_are_none_or_arrays_are_refused(kind: str) -> None:
    for how in ("value_none", "value_array"):
        assert "a number is expected" in sentence_of_check(kind, field="rewards", how=how)
        for field in ("terminations", "truncations"):
            assert "True or False is expected" in sentence_of_check(kind, field=field, how=how)
    assert "a dict is expected" in sentence_of_check(kind, field="infos", how="value_array")


@pytest.mark.parametrize("kind", ["wrong_parallel", "wrong_turns"])
def test_infos_of_agents_may_be_missing(kind: str) -> None:
    def states(how: str, since: int) -> list[AgentsState]:
        env = make_env(f"wrong_agent_envs:{kind}", {"field": "infos", "how": how, "since": since})
        return [env.reset(seed=0)[0], *(env.step([0] * 3)[0] for _ in range(3))]

    for how in ("missing", "value_none"):
        check(kind, field="infos", how=how)
        assert repr(states(how, since=0)) == repr(states(how, since=100)), "the episode is the same without infos"


@pytest.mark.parametrize("mode", ["--serial_mode=True --async_rl=False", "--num_workers=1"])
@pytest.mark.usefixtures("leaves_nothing")
def test_keys_that_are_wrong_late_end_the_run_in_one_sentence(tmp_path: Path, mode: str) -> None:
    """Many episodes have ended before, and in a new environment the keys would be right again."""
    command = Command(
        "asyncrl.train",
        "--env=wrong_agent_envs:wrong_turns",
        '--env_kwargs={"field": "rewards", "how": "missing", "since": 90}',
        "--train_for_env_steps=3000",
        "--num_envs_per_worker=2",
        "--rollout=8",
        "--batch_size=32",
        "--learner_threads=1",
        *mode.split(),
        cwd=tmp_path,
    )
    code, _, stderr = command.finish()
    assert code == 1 and "Traceback" not in stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert "the rewards after step() lack '" in line and "but a value for each agent of the step is expected" in line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ResetWithoutInfos", "reset() returned one dict; PettingZoo expects two dicts by agent, observations and"),
        ("ResetWithoutSeed", "reset() does not take a seed; PettingZoo calls reset(seed=..., options=...)"),
        ("TurnsWithoutSeed", "reset() does not take a seed; PettingZoo calls reset(seed=..., options=...)"),
        ("FourValues", "step() returned 4 values (dict, dict, dict, dict); PettingZoo expects 5 values"),
        ("SpacesInDicts", "has no method observation_space(agent)"),
        ("SpacesAsDicts", "has observation_space as one dict, not as a method observation_space(agent)"),
        ("SpaceOfOneAgent", "raised KeyError 'b': each of possible_agents needs both spaces"),
        ("NoneRewards", "the reward of a is None, but a number is expected"),
        ("ArrayRewards", "the reward of a is array([0.]), but a number is expected"),
        ("NoAgents", "has no attribute agents after reset()"),
        ("OldTurns", "has no attribute terminations after reset(), which PettingZoo expects; dones is of an older"),
        ("TurnsWithoutObserve", "has no method observe(agent)"),
    ],
)
def test_older_or_incomplete_interfaces_of_pettingzoo_get_one_sentence(name: str, said: str) -> None:
    assert said in sentence_of_check(name)


@pytest.mark.parametrize("name", ["OfRllib", "OfRllibBeforeItsReset", "OfRllibWithSpaces", "wrapped_of_rllib"])
def test_an_environment_of_rllib_is_named_as_one(name: str) -> None:
    assert "is a MultiAgentEnv of RLlib, which is not supported" in sentence_of_check(name)


def test_a_parallel_env_without_possible_agents_is_told_to_set_them() -> None:
    said = sentence_of_check("OnlyDeclared")
    assert "has no possible_agents" in said and "set in `__init__`" in said


@pytest.mark.timeout(30)
def test_agents_that_never_leave_do_not_stop_the_check() -> None:
    env = make_env("wrong_agent_envs:NeverLeave")
    env.reset(seed=1)
    states = [env.step([1, 1])[0] for _ in range(6)]
    assert [state.is_over for state in states] == [False] * 5 + [True]
