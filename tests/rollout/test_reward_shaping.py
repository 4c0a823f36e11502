"""Reward shaping: each episode has that of the policy that plays it, from the episode's beginning on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from agent_envs import ComeAndGo, Shaped
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from policy_envs import MarkingPolicies
from small_runs import SlotFiller, new_recovery, planned, small_arena

from asyncrl.buffers.control import TrainingInfo
from asyncrl.buffers.replay import StepRows
from asyncrl.config.errors import UsageError
from asyncrl.envs.agents import as_agents_env
from asyncrl.envs.interface import default_reward_shaping, give_training_info
from asyncrl.envs.spaces import read_spec
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.agents_env_group import AgentsEnvGroup
from asyncrl.rollout.env_group import EnvGroup, HostEnvGroup
from asyncrl.rollout.failures import EnvironmentCallFailed
from asyncrl.rollout.policy_mapping import SINGLE_AGENT, PolicyMapping
from asyncrl.rollout.vector_env_group import VectorEnvGroup
from asyncrl.rollout.worker import LocalActions

ROLLOUT = 20
OF_POLICIES = ({"bonus": 10.0}, {"bonus": 20.0})


class Bonus(gymnasium.Env[Any, Any]):
    """Pays its bonus in each of the three steps of an episode."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def __init__(self) -> None:
        self.bonus, self.agents, self.steps = 1.0, set[int](), 0

    def get_default_reward_shaping(self) -> dict[str, float]:
        return {"bonus": 1.0}

    def set_reward_shaping(self, shaping: Mapping[str, float], agent: int) -> None:
        self.bonus = shaping["bonus"]
        self.agents.add(agent)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**arguments)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(2, np.float32), self.bonus, self.steps == 3, False, {}


class BonusVector(SyncVectorEnv):
    """Two of them, vectorized."""

    def __init__(self) -> None:
        super().__init__([Bonus, Bonus], autoreset_mode=AutoresetMode.SAME_STEP)

    def set_reward_shaping(self, shaping: Mapping[str, float], agent: int) -> None:
        self.envs[agent].unwrapped.set_reward_shaping(shaping, 0)


def single() -> tuple[HostEnvGroup, EnvSpec]:
    envs = [Bonus(), Bonus()]
    spec = read_spec(envs[0], "Bonus")
    return EnvGroup(envs, range(2), 0, spec, "raw"), spec


def vectorized() -> tuple[HostEnvGroup, EnvSpec]:
    spec = dataclasses.replace(read_spec(Bonus(), "Bonus"), is_vectorized=True)
    return VectorEnvGroup(BonusVector(), 0, 0, spec, "raw"), spec


def of_agents() -> tuple[HostEnvGroup, EnvSpec]:
    env = as_agents_env(Shaped(num_agents=2), "Shaped")
    assert env is not None
    spec = read_spec(env, "Shaped")
    return AgentsEnvGroup([env], [0], 0, spec, "raw"), spec


@pytest.mark.parametrize("make", [single, vectorized, of_agents])
def test_an_episode_has_the_shaping_of_its_policy_from_its_beginning_on(make: Any) -> None:
    group, spec = make()
    num_envs = 2 // spec.num_agents
    sizes = {"num_workers": 1, "num_envs_per_worker": num_envs, "batch_size": 2 * ROLLOUT}
    plan = planned(rollout=ROLLOUT, async_rl=False, **sizes)
    plan = dataclasses.replace(plan, num_agents=spec.num_agents, num_policies=2)
    _, slots = small_arena(plan, spec)
    agents = spec.agents or (SINGLE_AGENT,)
    group.policies = PolicyMapping(lambda agent, env_idx, episode: episode % 2, 2, agents, num_envs, 0)
    filler = SlotFiller(group, slots, LocalActions(MarkingPolicies(slots)))  # type: ignore[arg-type]
    slots.refill(0, 0)
    filler.begin(0)
    filler.split.advance()  # the first episode has begun with the default
    group.set_training_info(TrainingInfo(reward_shaping=OF_POLICIES))
    filler.finish()
    assert slots.policy_idx is not None
    for column in range(2):
        valid = slots.valid[0, :, column]
        paid = slots.reward[0, valid, column].tolist()
        played_by = slots.policy_idx[0, :-1, column][valid]
        first = paid.index(20.0)  # the second episode is that of policy 1
        assert paid[:first] == [1.0] * (5 if spec.agents else 3)
        expected = [OF_POLICIES[policy]["bonus"] for policy in played_by[first:].tolist()]
        assert paid[first:] == expected and {10.0, 20.0} <= set(expected)


def test_a_vectorized_implementation_that_cannot_take_it_is_a_failure_and_not_ignored() -> None:
    spec = dataclasses.replace(read_spec(Bonus(), "Bonus"), is_vectorized=True)
    envs = SyncVectorEnv([Bonus, Bonus], autoreset_mode=AutoresetMode.SAME_STEP)
    group = VectorEnvGroup(envs, 0, 0, spec, "raw")
    group.set_training_info(TrainingInfo(reward_shaping=OF_POLICIES))
    with pytest.raises(EnvironmentCallFailed, match="set_reward_shaping") as raised:
        group.reset(np.zeros((2, 2), np.float32))
    assert "has no set_reward_shaping()" in str(raised.value.__cause__)


class ThirdTellingFails:
    """Tells environments their reward shaping, but for the third time, which is in the middle of a run."""

    def __init__(self) -> None:
        self.count = 0

    def set_reward_shaping(self, shaping: Mapping[str, float], agent: int) -> None:
        self.count += 1
        if self.count == 3:
            raise RuntimeError("broken")


@pytest.mark.parametrize("is_vectorized", [True, False])
def test_an_environment_that_fails_to_take_it_later_is_recreated(is_vectorized: bool) -> None:
    told, made = ThirdTellingFails(), []

    def make() -> Any:
        env = BonusVector() if is_vectorized else as_agents_env(ComeAndGo(), "ComeAndGo")
        made.append(env)
        inner: Any = env if is_vectorized else env.env  # type: ignore[union-attr]
        inner.set_reward_shaping = told.set_reward_shaping
        return env

    recovery, env = new_recovery(make), make()
    group: HostEnvGroup
    if is_vectorized:
        spec = dataclasses.replace(read_spec(Bonus(), "Bonus"), is_vectorized=True)
        group = VectorEnvGroup(env, 0, 0, spec, "raw", recovery)
        actions: Any = np.zeros((2, 2), np.float32)
    else:
        spec = read_spec(env, "ComeAndGo")
        group = AgentsEnvGroup([env], [0], 0, spec, "raw", recovery)
        actions = np.zeros(spec.num_agents, np.int64)
    group.set_training_info(TrainingInfo(reward_shaping=({"bonus": 5.0},)))
    num_columns = max(2, spec.num_agents)
    obs = np.zeros((num_columns, spec.observation.row_size), np.float32)
    group.reset(obs)
    rows_of_failure = []
    for row in range(12):
        flags = [np.zeros(num_columns, dtype) for dtype in (np.float32, bool, bool, bool, bool, bool)]
        rows = StepRows(*flags[:4], obs, *flags[4:])
        group.step(actions, rows)
        if [step for step in group.take_lost() if step.has_failed]:
            rows_of_failure.append(row)
            assert not rows.valid.any()
    assert rows_of_failure == ([3] if is_vectorized else [2])  # the step after the one that began the episode
    assert len(made) == 2 and told.count > 5


def test_one_policy_has_the_first_shaping_and_a_recreated_environment_gets_it_again() -> None:
    group, _ = single()
    group.set_training_info(TrainingInfo(reward_shaping=({"bonus": 5.0},)))
    group.reset(np.zeros((2, 2), np.float32))
    assert [env.bonus for env in group._envs] == [5.0, 5.0]
    assert group._envs[0].agents == {0}


def test_a_dict_of_an_observer_is_given_once_and_reaches_environments_with_several_agents() -> None:
    given: list[Any] = []
    env = as_agents_env(Shaped(num_agents=2), "Shaped")
    assert env is not None
    env.env.set_training_info = given.append
    group = AgentsEnvGroup([env], [0], 0, read_spec(env, "Shaped"), "raw")
    group.set_training_info(TrainingInfo({"stage": 1}, 1))
    group.set_training_info(TrainingInfo({"stage": 1}, 1, OF_POLICIES))
    assert given == [{"stage": 1}]
    give_training_info(env, {"stage": 2})
    assert given[1:] == [{"stage": 2}]


def test_what_an_environment_offers_is_read_and_what_are_no_numbers_refused() -> None:
    env = Bonus()
    assert default_reward_shaping(env, "Bonus") == (("bonus", 1.0),)
    assert default_reward_shaping(gymnasium.make("CartPole-v1"), "CartPole-v1") == ()
    env.get_default_reward_shaping = lambda: {"bonus": "much"}  # type: ignore[assignment, return-value]
    with pytest.raises(UsageError, match="expected a dict of numbers by name"):
        default_reward_shaping(env, "Bonus")
