"""Who plays which row: an episode keeps its policy up to its final row, and the next one begins with the reset row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import agent_envs
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from policy_envs import MarkingPolicies
from probe_envs import Sentinel
from small_runs import BOX, ScriptedEnv, SlotFiller, new_control, new_recovery, planned, small_arena

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.agents import as_agents_env
from asyncrl.envs.spaces import read_spec
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.agents_env_group import AgentsEnvGroup
from asyncrl.rollout.build_env_group import build_env_group
from asyncrl.rollout.env_group import EnvGroup, HostEnvGroup
from asyncrl.rollout.failures import FailureLog, Recovery
from asyncrl.rollout.policy_mapping import SINGLE_AGENT, PolicyMapping, choose_by_name, specs_of_policies
from asyncrl.rollout.vector_env_group import VectorEnvGroup
from asyncrl.rollout.worker import LocalActions

NUM_POLICIES = 5
GO, TERMINATED, TRUNCATED = (False, False), (True, False), (False, True)


def next_policy(agent: str, env_idx: int, episode: int) -> int:
    """1, 2, 3, ... in each column; 0 is what it has before its first episode."""
    return (1 + episode) % NUM_POLICIES


class Filled:
    """Slots filled one after the other by a group whose columns are played by policies 1, 2, ... in turn."""

    def __init__(
        self,
        make_group: Callable[[EnvSpec], HostEnvGroup],
        spec: EnvSpec,
        num_envs: int,
        rollout: int,
        num_slots: int = 1,
    ) -> None:
        sizes = {"num_workers": 1, "num_envs_per_worker": num_envs, "batch_size": 4 * rollout * num_envs}
        plan = planned(rollout=rollout, async_rl=False, **sizes)
        plan = dataclasses.replace(plan, num_agents=spec.num_agents, num_policies=NUM_POLICIES)
        _, self.slots = small_arena(plan, spec)
        group = make_group(spec)
        group.policies = PolicyMapping(next_policy, NUM_POLICIES, spec.agents or [SINGLE_AGENT], num_envs, 0)
        filler = SlotFiller(group, self.slots, LocalActions(MarkingPolicies(self.slots)))  # type: ignore[arg-type]
        for slot in range(num_slots):
            self.slots.refill(slot, 0)
            filler.fill(slot)
        assert self.slots.policy_idx is not None
        np.testing.assert_array_equal(self.slots.value[:num_slots], self.slots.policy_idx[:num_slots])

    def policies(self, column: int, slot: int = 0) -> str:
        assert self.slots.policy_idx is not None
        return "".join(map(str, self.slots.policy_idx[slot, :, column]))


def scripted(*ends: tuple[bool, bool]) -> ScriptedEnv:
    return ScriptedEnv([(float(step), 1.0, *end) for step, end in enumerate(ends, start=1)])


def of_scripted(*envs: ScriptedEnv, rollout: int, num_slots: int = 1) -> Filled:
    return Filled(lambda spec: EnvGroup(envs, range(9), 0, spec, "raw"), BOX, len(envs), rollout, num_slots)


def test_a_final_row_has_the_policy_of_its_episode_and_the_reset_row_the_next() -> None:
    terminated = scripted(GO, TERMINATED, GO, GO, GO)
    truncated = scripted(GO, TRUNCATED, GO, GO, GO)
    filled = of_scripted(terminated, truncated, rollout=5)
    assert filled.policies(0) == "112222"
    assert filled.policies(1) == "111222"


def test_the_policy_goes_on_across_slots_and_changes_where_one_begins_with_an_episode() -> None:
    ends = [scripted(*ends, GO, GO) for ends in ((GO, GO), (GO, TRUNCATED), (GO, TERMINATED))]
    filled = of_scripted(*ends, rollout=2, num_slots=2)
    assert [filled.policies(column, 0) for column in range(3)] == ["111", "111", "112"]
    assert [filled.policies(column, 1) for column in range(3)] == ["111", "222", "222"]


def test_an_environment_that_fails_begins_another_episode_with_the_row_after_the_lost_step() -> None:
    failing, renewed = scripted(GO, GO), scripted(GO, GO, GO)
    failing.steps[1] = ZeroDivisionError()
    recovery = new_recovery(lambda: renewed)
    filled = Filled(lambda spec: EnvGroup([failing], [0], 0, spec, "raw", recovery), BOX, 1, 4)
    assert filled.slots.valid[0, :, 0].tolist() == [False, False, True, True]
    assert filled.policies(0) == "11222"


class NumberedSentinel(Sentinel):
    """Observes [number, episode, step]; every kind of end occurs."""

    def __init__(self, number: int) -> None:
        super().__init__(run_seed=0)
        self._number = number

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset()

    def _end(self, reward: float) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._observe(), reward, True, False, {}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_in_a_vectorized_environment_the_policy_changes_with_the_episode_in_the_row(mode: AutoresetMode) -> None:
    num_envs, rollout, num_slots = 4, 9, 12
    env = SyncVectorEnv(
        [lambda number=number: NumberedSentinel(number) for number in range(num_envs)], autoreset_mode=mode
    )
    spec = read_spec(NumberedSentinel(0), "Sentinels")
    filled = Filled(lambda spec: VectorEnvGroup(env, 7, 0, spec, "raw"), spec, num_envs, rollout, num_slots)
    slots, num_changes = filled.slots, 0
    for column in range(num_envs):
        episodes = np.concatenate([slots.obs[slot, :, column, 1] for slot in range(num_slots)])
        played = np.concatenate([slots.policy_idx[slot, :, column] for slot in range(num_slots)])
        assert played[0] == 1
        begins = np.diff(episodes) != 0
        np.testing.assert_array_equal((np.diff(played) % NUM_POLICIES), begins.astype(int))
        num_changes += int(begins.sum())
    assert num_changes > 40 and slots.truncated[:num_slots, -1].any() and slots.terminated[:num_slots, -1].any()


def test_when_a_vectorized_environment_fails_all_columns_begin_an_episode() -> None:
    class Failing(SyncVectorEnv):
        num_calls = 0

        def step(self, actions: Any) -> Any:
            type(self).num_calls += 1
            if self.num_calls == 3:
                raise ZeroDivisionError
            return super().step(actions)

    def make() -> SyncVectorEnv:
        return Failing([lambda: NumberedSentinel(3)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)

    spec = read_spec(NumberedSentinel(0), "Sentinels")
    filled = Filled(lambda spec: VectorEnvGroup(make(), 7, 0, spec, "raw", new_recovery(make)), spec, 2, 4)
    before, after = filled.slots.policy_idx[0, 2], filled.slots.policy_idx[0, 3]
    assert not filled.slots.valid[0, 2].any()
    np.testing.assert_array_equal(after, before + 1)


def of_games(games: Sequence[Any], rollout: int, num_slots: int = 1, recovery: Recovery | None = None) -> Filled:
    envs = [as_agents_env(game, "game") for game in games]
    spec = read_spec(envs[0], "game")
    seeds = range(len(envs))
    return Filled(
        lambda spec: AgentsEnvGroup(envs, seeds, 0, spec, "raw", recovery), spec, len(envs), rollout, num_slots
    )


@pytest.mark.parametrize(
    ("game", "rollout", "expected"),
    [
        (agent_envs.OwnBits(2), 8, ["111111222", "111111222"]),
        (agent_envs.ComeAndGo(), 12, ["1111112222223", "0011111122222", "1111112222223"]),
        (agent_envs.TakeTurns(), 8, ["111111222", "111111222"]),
        (agent_envs.Listed(), 9, ["1111112222", "1111112222"]),
        (agent_envs.Listed(ends_by_truncation=True), 8, ["111111222", "111111222"]),
    ],
    ids=["truncated", "come_and_go", "turns", "resets_itself", "resets_itself_truncated"],
)
def test_every_agents_episodes_have_policies_of_their_own(game: Any, rollout: int, expected: list[str]) -> None:
    filled = of_games([game], rollout)
    assert [filled.policies(column) for column in range(len(expected))] == expected


def test_agents_change_their_policy_where_a_slot_begins_with_the_reset_observations() -> None:
    filled = of_games([agent_envs.OwnBits(2), agent_envs.TakeTurns()], rollout=5, num_slots=2)
    assert [filled.policies(column, 0) for column in range(4)] == ["111111"] * 4
    assert [filled.policies(column, 1) for column in range(4)] == ["222222", "222222", "122222", "122222"]


def test_random_draws_each_policy_equally_often_and_the_same_again_for_the_same_seed() -> None:
    def drawn(seed: int, mapping: str = "random") -> list[int]:
        choose = choose_by_name(mapping, 4, BOX, seed)
        return [choose(SINGLE_AGENT, 0, episode) for episode in range(8000)]

    first = drawn(1)
    counts = np.bincount(first)
    assert len(counts) == 4
    assert (((counts - 2000) ** 2) / 2000).sum() < 16.3  # chi-square with 3 degrees of freedom: p = 0.001
    pairs = np.bincount(4 * np.array(first[:-1]) + np.array(first[1:]))
    assert (((pairs - 7999 / 16) ** 2) / (7999 / 16)).sum() < 37.7  # 15 degrees of freedom
    assert drawn(1) == first != drawn(2)
    assert drawn(1, "by_space") == first, "all agents have the same spaces"


def test_shared_is_policy_0_and_independent_the_agents_own() -> None:
    agents = ("first", "second", "third")
    spec = dataclasses.replace(BOX, agents=agents)
    assert {choose_by_name("shared", 3, spec, 0)(agent, 1, 2) for agent in agents} == {0}
    independent = choose_by_name("independent", 3, spec, 0)
    assert [independent(agent, 1, 2) for agent in agents] == [0, 1, 2]
    with pytest.raises(
        UsageError, match=r"the environment has 3 agents and the run has 2 policies: set --num_policies=3"
    ):
        choose_by_name("independent", 2, spec, 0)


def test_a_function_is_asked_with_agent_environment_and_episode() -> None:
    mapping = PolicyMapping(choose_by_name("policy_envs:sum_of_all", 9, BOX, 0), 9, ("a", "bb"), 2, 3)
    mapping.begin(range(4))
    assert mapping.policy_idx.tolist() == [1 + 3, 2 + 3, 1 + 4, 2 + 4]
    mapping.begin([1])
    assert mapping.policy_idx.tolist() == [4, 6, 5, 6]


def test_by_space_draws_among_the_block_of_the_agents_spaces() -> None:
    spec = read_spec(as_agents_env(agent_envs.Unlike(), "game"), "game")
    assert [own.observation.row_size for own in specs_of_policies(spec, "by_space", 6)] == [1, 1, 1, 3, 3, 3]
    assert [own.observation.row_size for own in specs_of_policies(spec, "independent", 3)] == [1, 3, 1]
    choose = choose_by_name("by_space", 6, spec, 0)
    drawn = {agent: [choose(agent, 0, episode) for episode in range(3000)] for agent in spec.agents}
    assert np.bincount(drawn["narrow_1"]).min() > 900 and max(drawn["narrow_1"]) == 2
    assert np.bincount(drawn["wide"])[3:].min() > 900 and min(drawn["wide"]) == 3


@pytest.mark.parametrize("wrong", [7, -1, "1", None, 1.0])
def test_a_function_must_return_the_number_of_a_policy(wrong: Any) -> None:
    mapping = PolicyMapping(lambda agent, env_idx, episode: wrong, 2, ["hare"], 1, 5)
    with pytest.raises(UsageError, match=r"agent 'hare' in environment 5, episode 0; expected .* from 0 to 1"):
        mapping.begin([0])


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ("randomly", "is not shared, by_space, independent, random or module:function"),
        ("policy_envs:", "is not shared"),
        ("policy_envs:nothing", "has no function 'nothing'"),
        ("no_such_module_here:f", "no module"),
    ],
)
def test_what_names_no_mapping_is_refused(mapping: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        choose_by_name(mapping, 2, BOX, 0)


def test_groups_of_a_run_draw_from_streams_of_their_own() -> None:
    config = TrainConfig(
        env="CartPole-v1", env_backend="gym", num_workers=1, num_envs_per_worker=64, worker_num_splits=2
    )
    plan = dataclasses.replace(planned(num_workers=1, num_envs_per_worker=64, worker_num_splits=2), num_policies=3)
    log = FailureLog(0, config, new_control())

    def begun(split_idx: int, env_steps: int = 0, mapping: str = "random") -> list[int]:
        spec = read_spec(gymnasium.make("CartPole-v1"), "CartPole-v1")
        group = build_env_group(config, plan, spec, split_idx, 0, env_steps, log, mapping)
        group.reset(np.zeros((32, 4), spec.observation.row_dtype))
        assert group.policies is not None
        group.close()
        return group.policies.policy_idx.tolist()

    assert begun(0) == begun(0) and set(begun(0)) == {0, 1, 2}
    assert begun(0) != begun(1) and begun(0) != begun(0, env_steps=100)
    assert set(begun(0, mapping="shared")) == {0}
