"""What stands in which row of an agent's column: slots filled through a split, from games that end in every way."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import agent_envs
import numpy as np
import pytest
import torch
from small_runs import FakeActions, Remembering, SlotFiller, planned, small_arena

from asyncrl.algorithms.losses import gae
from asyncrl.buffers.control import RunControl
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.agents import AgentsEnv, as_agents_env
from asyncrl.envs.spaces import read_spec
from asyncrl.rollout.agents_env_group import AgentsEnvGroup
from asyncrl.rollout.failures import EnvironmentCallFailed, FailureLog, NotFinite, Recovery

MAKERS: dict[str, Callable[[], Any]] = {
    "come_and_go": agent_envs.ComeAndGo,
    "take_turns": agent_envs.TakeTurns,
    "listed": agent_envs.Listed,
    "listed_cut": lambda: agent_envs.Listed(ends_by_truncation=True),
}


def adapted(env: Any) -> AgentsEnv:
    found = as_agents_env(env, "game")
    assert found is not None
    return found


class Filled:
    """Slots filled by one split of these games; `marks` shows what each row of a column is."""

    def __init__(
        self,
        games: Sequence[Any],
        rollout: int,
        num_slots: int = 1,
        renewed: Sequence[Any] = (),
        make_actions: type[FakeActions] = FakeActions,
        **settings: Any,
    ) -> None:
        envs = [adapted(game) for game in games]
        spec = read_spec(envs[0], "game")
        sizes = {"num_workers": 1, "num_envs_per_worker": len(envs), "batch_size": 4 * rollout * len(envs)}
        plan = dataclasses.replace(planned(rollout=rollout, **sizes, **settings), num_agents=spec.num_agents)
        arena, self.slots = small_arena(plan, spec)
        self.control = RunControl(arena, 1)
        left = list(renewed)
        log = FailureLog(0, TrainConfig(), self.control)
        recovery = Recovery(log, lambda: adapted(left.pop(0)), lambda env, steps: 100 + steps) if renewed else None
        self.group = AgentsEnvGroup(envs, range(len(envs)), 0, spec, "raw", recovery)
        self.filler = SlotFiller(self.group, self.slots, make_actions(self.slots))
        self.num_steps = [self.fill(slot) for slot in range(num_slots)]

    def fill(self, slot: int) -> int:
        self.slots.grant(slot, 0)
        return self.filler.fill(slot)

    def marks(self, column: int, slot: int = 0) -> str:
        """For each row: a sample is `a`, waiting `w`, anything else `.`; then `!` for terminated, `|` for truncated."""
        text = ""
        for row in range(self.slots.rollout):
            at = (slot, row, column)
            assert self.slots.idle is not None
            text += "a" if self.slots.valid[at] else "w" if self.slots.idle[at] else "."
            text += "!" if self.slots.terminated[at] else ""
            text += "|" if self.slots.truncated[at] else ""
        return text

    def env_steps(self, slot: int = 0) -> list[list[int]]:
        """Columns whose row counts a step of an environment, by row."""
        assert self.slots.is_env_step is not None
        return [np.flatnonzero(row).tolist() for row in self.slots.is_env_step[slot]]


def test_agents_come_late_leave_early_and_are_cut_off() -> None:
    filled = Filled([agent_envs.ComeAndGo()], rollout=8)
    assert filled.marks(0) == "aaaaa|.aa"
    assert filled.marks(1) == "..aa!...."
    assert filled.marks(2) == "aaaaa|.aa"
    assert filled.num_steps == [7]
    assert filled.env_steps() == [[0], [0], [0], [0], [0], [], [0], [0]]


def test_final_observations_have_their_row_and_the_reset_ones_the_next() -> None:
    game = agent_envs.OwnBits(2)
    shown: list[dict[str, Any]] = []
    draw = game._show
    game._show = lambda: shown.append(draw()) or shown[-1]  # type: ignore[method-assign,func-returns-value]
    filled = Filled([game], rollout=8)
    expected = [[float(bits[agent][0]) for agent in ("agent_0", "agent_1")] for bits in shown]
    np.testing.assert_array_equal(filled.slots.obs[0, :, :, 0], expected[:9])


def test_a_slot_that_ends_after_a_truncation_is_followed_by_one_with_the_reset_observations() -> None:
    filled = Filled([agent_envs.OwnBits(2), agent_envs.ComeAndGo(2)], rollout=5, num_slots=2)
    assert [filled.marks(column, 0) for column in range(4)] == ["aaaaa|", "aaaaa|", "aaaaa|", "..aa!."]
    assert [filled.marks(column, 1) for column in range(4)] == ["aaaaa|", "aaaaa|", "aaaaa|", "..aa!."]
    assert filled.num_steps == [10, 10]


def test_a_recurrent_state_is_zero_where_a_slot_begins_with_a_reset() -> None:
    games = [agent_envs.OwnBits(2), agent_envs.TakeTurns()]  # truncated after five steps, and over after six
    filled = Filled(games, rollout=5, num_slots=2, make_actions=Remembering, use_rnn=True, rnn_size=3)
    states = filled.slots.rnn_state[:2, :, :, 0].transpose(0, 2, 1).tolist()
    assert states[0] == [[0, 1, 2, 3, 4, 5]] * 4
    assert states[1][:2] == [[0, 1, 2, 3, 4, 5]] * 2, "the last step of the first slot truncates"
    assert states[1][2:] == [[5, 0, 1, 2, 3, 4]] * 2, "of the other game the first step of the second one ends it"


def test_players_wait_in_turn_and_the_last_action_without_an_outcome_is_no_sample() -> None:
    filled = Filled([agent_envs.TakeTurns()], rollout=8)
    assert filled.marks(0) == "awawaw!aw"
    assert filled.marks(1) == "wawawa!w|."
    rewards = filled.slots.reward[0]
    assert (rewards[[0, 2, 4, 6], 0] == 0).all() and (rewards[[1, 3], 1] == 0).all()
    assert filled.num_steps == [8]
    assert [len(columns) for columns in filled.env_steps()] == [1] * 8


def test_the_slot_after_it_begins_in_the_middle_of_the_game() -> None:
    filled = Filled([agent_envs.TakeTurns()], rollout=3, num_slots=3)
    assert [filled.marks(0, slot) for slot in range(3)] == ["aw|.", "waw!", "aw|."]
    assert [filled.marks(1, slot) for slot in range(3)] == ["waw", "awa!", "waw"]


def test_an_agent_in_lists_that_is_not_active_waits() -> None:
    filled = Filled([agent_envs.Listed()], rollout=9)
    assert filled.marks(0) == "aaaaaa!aaa"
    assert filled.marks(1) == "awawaw!aw|."  # its last action has no outcome yet: it waits after the slot


def test_without_a_final_observation_the_last_step_before_a_truncation_is_lost() -> None:
    filled = Filled([agent_envs.Listed(ends_by_truncation=True)], rollout=8)
    assert filled.marks(0) == "aaaaa|.aa"
    assert filled.marks(1) == "awaw|..aw"  # it waits at the cut


class LosesAStep(agent_envs.PaidTurns):
    """Its sixth move of a game pays an amount that is not a number, so that step is dropped and the game is reset."""

    def step(self, action: int | None) -> None:
        super().step(action)
        if self.num_moves == 6:
            self.rewards["agent_1"] = float("nan")


PAID_TURNS: dict[str, Callable[[], Any]] = {
    "turns": agent_envs.PaidTurns,
    "turns_and_the_last_mover_stays_selected": lambda: agent_envs.PaidTurns("mover"),
    "turns_and_the_first_that_ended_is_selected": lambda: agent_envs.PaidTurns("first"),
    "at_once_and_without_observations": agent_envs.PaidTurnsAtOnce,
    "lists_with_is_active": agent_envs.PaidTurnsInLists,
    "a_dropped_step": LosesAStep,
}


@pytest.mark.parametrize("kind", PAID_TURNS)
@pytest.mark.parametrize("rollout", [11, 24])
def test_an_agent_that_waits_when_its_episode_is_truncated_leaves_its_exact_values_alone(
    kind: str, rollout: int
) -> None:
    filled = Filled([PAID_TURNS[kind]()], rollout=rollout, num_slots=3, renewed=[PAID_TURNS[kind]()])
    gamma, num_samples = 0.9, np.zeros(3)
    exact = np.append(agent_envs.PaidTurns.pay.sum(1) / (1.0 - gamma), 1e6)  # the last is of what one sees that waits
    for slot in range(3):
        fields = (filled.slots.reward, filled.slots.terminated, filled.slots.truncated, filled.slots.valid)
        reward, terminated, truncated, valid = (torch.tensor(field[slot]) for field in fields)
        values = torch.tensor(exact[filled.slots.obs[slot].argmax(-1)], dtype=torch.float32)
        idle = torch.tensor(filled.slots.idle[slot])
        estimates = gae(reward, values, terminated, truncated, valid, gamma, 0.95, idle)
        torch.testing.assert_close(estimates.returns[valid], values[:-1][valid], rtol=1e-4, atol=1e-4)
        num_samples += valid.sum(0).numpy()
    assert (num_samples > rollout // 4).all()


def test_the_agent_whose_turn_it_is_when_the_game_is_truncated_keeps_its_last_action() -> None:
    filled = Filled([agent_envs.PaidTurns()], rollout=8)
    assert [filled.marks(column) for column in range(3)] == ["awwaww|..", "wawwaww|.", "wwaww|.w."]


@pytest.mark.parametrize("kind", MAKERS)
def test_every_agents_episodes_are_its_own(kind: str) -> None:
    filled = Filled([MAKERS[kind]()], rollout=24)
    slots, episodes = filled.slots, filled.group.take_episodes()
    ends = int((slots.terminated[0] | slots.truncated[0])[:-1].sum())
    assert len(episodes) >= ends > 3
    named = {name for episode in episodes for name in episode.extra_stats}
    assert named == {f"{name}_return" for name in filled.group._names}


def successes(filled: Filled) -> list[tuple[float | None, float | None]]:
    episodes = filled.group.take_episodes()
    return [(episode.extra_stats.get("is_success"), episode.extra_stats.get("goals")) for episode in episodes]


def test_each_agent_tells_its_own_numbers_and_success_at_its_end() -> None:
    class Parallel(agent_envs.OwnBits):
        def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
            *rest, infos = super().step(actions)
            told = {"is_success": True, "episode_extra_stats": {"goals": 2}}
            return (
                *rest,
                {**infos, "agent_0": told, "agent_1": {"is_success": False}, "agent_2": {"is_success": None}},
            )

    class Turns(agent_envs.TakeTurns):
        def step(self, action: int | None) -> None:
            super().step(action)
            self.infos = {agent: {"is_success": agent == "first"} for agent in self.possible_agents}

    class Listed(agent_envs.Listed):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            return (*rest, [{**info, "is_success": place == 1} for place, info in enumerate(infos)])

    assert successes(Filled([Parallel()], rollout=5)) == [(1.0, 2.0), (0.0, None), (None, None)]
    assert successes(Filled([Turns()], rollout=8))[:2] == [(1.0, None), (0.0, None)]
    assert successes(Filled([Listed()], rollout=9))[:2] == [(0.0, None), (1.0, None)]


class Failing(agent_envs.OwnBits):
    """Fails in its third step: raises, or gives a reward that is not a number."""

    def __init__(self, reward: float | None = None) -> None:
        super().__init__(2)
        self._reward = reward

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        obs, reward, *rest = super().step(actions)
        if self.num_steps == 3 and self._reward is None:
            sys.exit("the board fell over")
        if self.num_steps == 3:
            reward["agent_1"] = self._reward
        return (obs, reward, *rest)


def test_an_environment_that_raises_is_recreated_and_its_episode_dropped() -> None:
    filled = Filled([Failing(), agent_envs.OwnBits(2)], rollout=6, num_slots=0, renewed=[agent_envs.OwnBits(2)])
    filled.control.has_finished_episode = True
    filled.fill(0)
    assert [filled.marks(column) for column in range(4)] == [
        "..|.aaa",
        "..|.aaa",
        "aaaaa|.",
        "aaaaa|.",
    ]
    assert filled.group.failures.take().num_failures == 1


def test_a_reward_that_is_no_number_drops_the_step() -> None:
    filled = Filled([Failing(float("nan"))], rollout=6, num_slots=0, renewed=[agent_envs.OwnBits(2)])
    filled.fill(0)
    assert [filled.marks(column) for column in range(2)] == ["aa|.aa|.", "aa|.aa|."]
    assert filled.group.failures.take().num_not_finite == 2


def test_an_observation_that_ends_an_episode_need_not_be_finite() -> None:
    class EndsWithNan(agent_envs.ComeAndGo):
        def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
            results = super().step(actions)
            if results[2].get("agent_1"):
                results[0]["agent_1"] = np.full(1, np.nan, np.float32)
            return results

    wanted, filled = Filled([agent_envs.ComeAndGo()], rollout=8), Filled([EndsWithNan()], rollout=8)
    assert [filled.marks(column) for column in range(3)] == [wanted.marks(column) for column in range(3)]
    assert "!" in filled.marks(1) and np.isfinite(filled.slots.obs[0]).all()


def test_a_player_that_waits_at_the_beginning_sees_nothing_of_the_game_before() -> None:
    class Numbered(agent_envs.TakeTurns):
        def _draw(self) -> np.ndarray:
            self.number = getattr(self, "number", 0.0) + 1.0
            return np.full(1, self.number, np.float32)

    filled = Filled([Numbered()], rollout=14)
    second, marks = filled.slots.obs[0][:, 1, 0], filled.marks(1).replace("!", "")
    assert marks[0] == marks[6] == "w", "the first row of each game"
    assert second[0] == second[6] == 0.0 < second[5]


def test_without_recovery_a_failure_is_raised() -> None:
    with pytest.raises(EnvironmentCallFailed, match="environment 0 failed in step at its step 2"):
        Filled([Failing()], rollout=6)
    with pytest.raises(NotFinite, match="reward that is not finite"):
        Filled([Failing(float("inf"))], rollout=6)


class PaysNothing(agent_envs.Unlike):
    """Any number is an action."""

    def _is_right(self, agent: str, action: int) -> bool:
        return False


class UnlikeUntilNan(PaysNothing):
    """The wide agent's second number is not finite after two steps."""

    def _show(self) -> dict[str, Any]:
        shown = super()._show()
        if getattr(self, "num_steps", 0) == 2:
            shown["wide"][1] = np.nan
        return shown


def test_agents_with_different_spaces_use_the_beginnings_of_rows() -> None:
    filled = Filled([PaysNothing(), PaysNothing()], rollout=4)
    slots = filled.slots
    assert slots.obs.shape[-1] == 3 and slots.action_parameters.shape[-1] == 4
    narrow, wide = slots.obs[0][:, [0, 2, 3, 5]], slots.obs[0][:, [1, 4]]
    assert (np.abs(narrow[..., 0]) == 1.0).all() and (narrow[..., 1:] == 0.0).all()
    assert (wide[..., :2] == [0.5, -0.5]).all() and (np.abs(wide[..., 2]) == 1.0).all()


def test_a_number_that_is_not_finite_is_found_in_the_rows_of_its_own_agent() -> None:
    with pytest.raises(NotFinite, match="element 1 is nan"):
        Filled([UnlikeUntilNan()], rollout=4)
