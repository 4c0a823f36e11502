"""Environments of several agents: which are recognized, their common form, and what cannot be trained."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import agent_envs
import gymnasium
import numpy as np
import pytest

from asyncrl.config.errors import UsageError
from asyncrl.envs import factory
from asyncrl.envs.agents import ListedAgents, ParallelAgents, TurnAgents, as_agents_env
from asyncrl.envs.factory import make_env
from asyncrl.envs.probe import probe

pytestmark = pytest.mark.usefixtures("probes_here")


def test_each_interface_is_recognized() -> None:
    assert isinstance(make_env("agent_envs:own_bits"), ParallelAgents)
    assert isinstance(make_env("agent_envs:take_turns"), TurnAgents)
    assert isinstance(make_env("agent_envs:listed"), ListedAgents)
    assert as_agents_env(gymnasium.make("CartPole-v1"), "CartPole-v1") is None


def test_the_probe_finds_agents_and_their_spaces() -> None:
    spec = probe("agent_envs:take_turns")
    assert spec.agents == ("first", "second")
    assert spec.num_agents == 2
    assert "of 2 agents" in str(spec)
    assert probe("agent_envs:listed").num_agents == 2, "the probe steps lists of agents with an action for each"
    assert type(spec).from_data(spec.to_data()) == spec


def test_a_state_of_turns() -> None:
    env = make_env("agent_envs:take_turns")
    state, _ = env.reset(seed=1)
    assert (state.moves, state.is_present) == ([True, False], [True, True])
    assert state.obs[1] is None
    for move in range(6):
        assert not state.is_over and state.moves == [move % 2 == 0, move % 2 == 1]
        state, reward, is_over, _, _ = env.step([1, 1])
        assert (reward, is_over) == (sum(state.reward), state.is_over)
    assert state.is_over and state.terminated == [True, True] and state.is_present == [False, False]


def test_the_probe_finds_the_spaces_of_agents_that_differ() -> None:
    spec = probe("agent_envs:unlike")
    assert spec.of_agents == (0, 1, 0)
    assert [kind.own_agents for kind in spec.kinds] == [[0, 2], [1]]
    assert [(kind.observation.row_size, str(kind.action)) for kind in spec.kinds] == [
        (1, "Discrete(2)"),
        (3, "Discrete(4)"),
    ]
    assert "; narrow_0, narrow_1: observations" in str(spec) and "; wide: observations" in str(spec)
    for each in (spec, *spec.kinds):
        assert type(spec).from_data(json.loads(json.dumps(each.to_data()))) == each
    assert probe("agent_envs:own_bits").kinds == (probe("agent_envs:own_bits"),)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("agent_envs:mixed_actions", r"narrow_0 has Discrete\(2\), wide has Box"),
        ("agent_envs:mixed_observations", "narrow_0 has Box.* wide has Box.* as image"),
    ],
)
def test_spaces_that_cannot_be_in_one_row_are_refused(env: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"which is not supported: {text}"):
        probe(env)


def test_agents_must_be_known_beforehand() -> None:
    class Unknown(agent_envs.OwnBits):
        def __init__(self) -> None:
            super().__init__()
            del self.possible_agents

    with pytest.raises(UsageError, match="has no possible_agents"):
        as_agents_env(Unknown(), "Unknown")


class Doubled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Rewards of lists of agents, doubled."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, [2.0 * each for each in reward], *rest


def test_wrappers_of_lists_of_agents_stay_and_gymnasiums_go() -> None:
    gymnasium.register("Lists-v0", agent_envs.Listed)
    env = as_agents_env(Doubled(gymnasium.make("Lists-v0", disable_env_checker=True)), "Lists-v0")
    assert env is not None
    env.reset(seed=1)
    assert {reward for _ in range(20) for reward in env.step([1, 1])[0].reward} == {0.0, 2.0}
    bare = as_agents_env(gymnasium.make("Lists-v0", disable_env_checker=True), "Lists-v0")
    assert type(bare.env) is agent_envs.Listed
    gymnasium.registry.pop("Lists-v0")


class Alone(gymnasium.Env[Any, Any]):
    """One agent, and the number of others in the attribute `num_agents`."""

    observation_space, action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,)), gymnasium.spaces.Discrete(2)

    def __init__(self, num_agents: Any = 3, has_lists: bool = False) -> None:
        self.num_agents, self._has_lists = num_agents, has_lists

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.low, [{}] * 3 if self._has_lists else {}

    def step(self, action: Any) -> Any:
        return self.observation_space.low, 1.0, False, False, {}


def test_num_agents_must_be_a_number() -> None:
    for other in (lambda: 3, "3", 3.0, None, [1, 2], True, 1):
        assert as_agents_env(Alone(other), "Alone") is None
    assert isinstance(as_agents_env(Alone(np.int64(3)), "Alone"), ListedAgents)


def test_one_agent_with_an_attribute_num_agents_is_told_to_rename_it() -> None:
    hint = (
        "It counts as an environment of several agents because it has the attribute num_agents: rename it if there is "
        "one agent."
    )
    gymnasium.register("Alone-v0", Alone, max_episode_steps=5)
    try:
        with pytest.raises(UsageError, match="max_episode_steps=5 is for one agent") as caught:
            make_env("Alone-v0")
    finally:
        gymnasium.registry.pop("Alone-v0")
    assert str(caught.value).endswith(hint)
    env = as_agents_env(Alone(), "Alone")
    assert env is not None
    with pytest.raises(UsageError) as caught:
        env.reset(seed=1)
    assert str(caught.value) == f"Alone returned 0 infos, but its num_agents is 3. {hint}"
    env = as_agents_env(Alone(has_lists=True), "Alone")
    assert env is not None
    env.reset(seed=1)
    with pytest.raises(UsageError) as caught:
        env.step([0, 0, 0])
    assert str(caught.value) == f"Alone returned one float as rewards, but its num_agents is 3. {hint}"


class StillListed(agent_envs.OwnBits):
    """Agents stay in `agents` after the end of the episode."""

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        result = super().step(actions)
        self.agents = list(self.possible_agents)
        return result


def test_an_environment_is_over_when_all_of_its_agents_have_ended() -> None:
    env = as_agents_env(StillListed(), "Still")
    assert env is not None
    env.reset(seed=1)
    states = [env.step([0] * len(env.agents))[0] for _ in range(5)]
    assert [state.is_over for state in states] == [False] * 4 + [True]
    assert not any(states[-1].is_present)


class EndsEmpty(agent_envs.TakeTurns):
    """All agents are removed in the step that ends the game, before the steps without an action."""

    def step(self, action: Any) -> None:
        super().step(action)
        if any(self.terminations.values()):
            self.agents, self.rewards = [], dict.fromkeys(self.possible_agents, 1.0)


class Leaves(agent_envs.OwnBits):
    """Its first agent leaves after two steps without an end."""

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        result = super().step(actions)
        self.agents = self.agents[1:] if self.num_steps == 2 else self.agents
        return result


def test_agents_that_are_removed_at_once_have_ended() -> None:
    env = as_agents_env(EndsEmpty(), "Empty")
    assert env is not None
    env.reset(seed=1)
    state = [env.step([1, 1])[0] for _ in range(6)][-1]
    assert state.is_over and state.terminated == [True, True] and not any(state.is_present)
    assert state.reward == [1.0, 1.0]


def test_an_agent_that_leaves_without_an_end_is_refused() -> None:
    env = as_agents_env(Leaves(), "Leaves")
    assert env is not None
    env.reset(seed=1)
    env.step([0, 0, 0])
    with pytest.raises(UsageError, match=r"agent_0 is no longer among the agents .* neither terminated nor truncated"):
        env.step([0, 0, 0])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package in PettingZoo's form: a module for each environment, some of which need what is not installed."""
    folder = tmp_path / "board_games"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "bits_v1.py").write_text("from agent_envs import OwnBits as parallel_env, TakeTurns as env\n")
    (folder / "turns_v0.py").write_text("from agent_envs import TakeTurns as env\n")
    (folder / "drawn_v0.py").write_text("import no_such_package_of_pictures\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("board_games")]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_an_environment_of_a_package_is_made_by_its_module() -> None:
    assert isinstance(make_env("board_games:bits_v1"), ParallelAgents)
    assert isinstance(make_env("board_games:turns_v0"), TurnAgents)
    with pytest.raises(UsageError, match=r"needs a package that is not installed .*: pip install no_such_package"):
        make_env("board_games:drawn_v0")


def test_pettingzoo_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise UsageError(f"There is no module {name!r}.")

    monkeypatch.setattr(factory, "import_user_module", missing)
    with pytest.raises(UsageError, match=r'pip install "pettingzoo\[classic\]"'):
        make_env("pettingzoo:connect_four_v3")


@pytest.mark.usefixtures("package")
def test_another_version_of_a_name_gets_the_nearest() -> None:
    for given, near in (
        ("board_games:bits_v0", "board_games:bits_v1"),
        ("board_games:turns_v3", "board_games:turns_v0"),
        ("board_games:turns", "board_games:turns_v0"),
        ("board_games.bits_v0:env", "board_games.bits_v1:env"),
    ):
        with pytest.raises(UsageError, match=f"[Tt]he nearest is --env={near}\\.$"):
            make_env(given)
