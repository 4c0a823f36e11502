"""What stands in which row: slots are filled through a split, from environments whose every step is written down."""

from __future__ import annotations

import bdb
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import BOX, CHOICE, FakeActions, Remembering, ScriptedEnv, SlotFiller, planned, small_arena

import asyncrl
from asyncrl.algorithms.losses import gae
from asyncrl.buffers.control import RunControl, TrainingInfo
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.probe import probe
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.observers.reports import EpisodeRecord
from asyncrl.rollout.env_group import EnvGroup, StepRows
from asyncrl.rollout.failures import (
    EnvironmentCallFailed,
    EnvironmentsKeepFailing,
    FailureLog,
    NotFinite,
    Recovery,
    WrongObservation,
)

GO, TERMINATED, TRUNCATED, BOTH = (False, False), (True, False), (False, True), (True, True)


def test_an_episode_in_which_a_message_came_has_an_older_number() -> None:
    run = Filled([ScriptedEnv(script(GO, GO, TERMINATED) * 4)], rollout=2)
    for slot in range(1, 5):
        if slot == 2:  # in the middle of the second episode
            run.group.set_training_info(TrainingInfo({"level": 1}, 7))
        run.fill(slot)
    assert [(episode.length, episode.training_info) for episode in run.group.take_episodes()] == [
        (3, 0),
        (3, 6),
        (3, 7),
    ]


@pytest.mark.parametrize("end", [TRUNCATED, None])
def test_an_episode_that_begins_after_a_message_has_its_number_however_the_one_before_ended(end: Any) -> None:
    renewed = [ScriptedEnv(script(GO, GO, TERMINATED) * 2)]
    steps = script(GO, GO if end is None else end) + script(GO, GO, TERMINATED)
    run = Filled([ScriptedEnv(steps[:2] if end is None else steps)], rollout=2, renewed=renewed)
    run.control.has_finished_episode = True
    run.group.set_training_info(TrainingInfo({"level": 1}, 7))  # after the last step of the first episode
    for slot in (1, 2):
        run.fill(slot)
    told = [(episode.length, episode.training_info) for episode in run.group.take_episodes()]
    assert told[-1] == (3, 7)


def script(*ends: tuple[bool, bool]) -> list[Any]:
    """Steps whose observations and rewards are 1, 2, ... and 10, 20, ..."""
    return [(float(step), 10.0 * step, *end) for step, end in enumerate(ends, start=1)]


class Filled:
    """Slots 0, 1, ... of `rollout` rows, filled one after the other by one split of these environments."""

    def __init__(
        self,
        envs: list[ScriptedEnv],
        rollout: int,
        num_filled: int = 1,
        spec: EnvSpec = BOX,
        make_actions: type[FakeActions] = FakeActions,
        renewed: list[Any] | None = None,
        **settings: Any,
    ) -> None:
        """Environments that fail are replaced by those of `renewed`, where that is given."""
        sizes = {"batch_size": 4 * rollout * len(envs), "num_workers": 1, "num_envs_per_worker": len(envs)}
        plan = planned(rollout=rollout, **sizes, **settings)
        arena, self.slots = small_arena(plan, spec)
        self.control = RunControl(arena, plan.num_workers)
        self.now = 0.0
        log = FailureLog(0, TrainConfig(**settings), self.control, clock=lambda: self.now)

        def make() -> ScriptedEnv:
            assert renewed is not None
            return renewed.pop(0)

        def seed(env_idx: int, steps: int) -> int:
            return 1000 * env_idx + steps

        recovery = None if renewed is None else Recovery(log, make, seed)
        self.group = EnvGroup(envs, range(50, 50 + len(envs)), 40, spec, mapping="raw", recovery=recovery)
        self.filler = SlotFiller(self.group, self.slots, make_actions(self.slots))
        self.num_steps = [self.fill(slot) for slot in range(num_filled)]

    def fill(self, slot: int) -> int:
        self.slots.grant(slot, 0)
        num_steps = self.filler.fill(slot)
        self.slots.take(slot)
        return num_steps

    def obs(self, slot: int, env: int = 0) -> list[float]:
        assert (self.slots.obs[slot, :, env, 0] == self.slots.obs[slot, :, env, 1]).all()
        return self.slots.obs[slot, :, env, 0].tolist()

    def column(self, name: str, slot: int = 0, env: int = 0) -> list[Any]:
        return getattr(self.slots, name)[slot, :, env].tolist()


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
def test_after_a_termination_stands_the_reset_observation(dtype: str) -> None:
    env = ScriptedEnv(script(GO, TERMINATED, GO), dtype)
    run = Filled([env], rollout=3)
    assert run.obs(0) == [-1.0, 1.0, -2.0, 3.0]
    assert run.column("terminated") == [False, True, False]
    assert run.column("truncated") == [False, False, False]
    assert run.column("valid") == [True, True, True]
    assert run.column("reward") == [10.0, 20.0, 30.0]
    assert run.num_steps == [3]


def test_after_a_truncation_stands_the_final_observation_which_is_not_stepped() -> None:
    env = ScriptedEnv(script(GO, TRUNCATED, GO, GO))
    run = Filled([env], rollout=5)
    assert run.obs(0) == [-1.0, 1.0, 2.0, -2.0, 3.0, 4.0]
    assert run.column("truncated") == [False, True, False, False, False]
    assert run.column("terminated") == [False] * 5
    assert run.column("valid") == [True, True, False, True, True]
    assert run.column("reward") == [10.0, 20.0, 0.0, 30.0, 40.0]
    assert len(env.taken) == run.num_steps[0] == 4


def test_a_final_row_says_nothing_of_the_use_of_the_slot_before() -> None:
    run = Filled([ScriptedEnv(script(GO, TRUNCATED, GO, GO))], rollout=4, num_filled=0)
    run.slots.terminated[0] = run.slots.truncated[0] = run.slots.valid[0] = True
    run.fill(0)
    assert run.column("terminated") == [False] * 4
    assert run.column("truncated") == [False, True, False, False]
    assert run.column("valid") == [True, True, False, True]


@pytest.mark.parametrize(
    ("ends", "first", "second", "valid", "num_steps"),
    [
        ((GO, GO, GO, GO), [-1.0, 1.0, 2.0], [2.0, 3.0, 4.0], [True, True], [2, 2]),
        ((GO, TERMINATED, GO, GO), [-1.0, 1.0, -2.0], [-2.0, 3.0, 4.0], [True, True], [2, 2]),
        ((GO, TRUNCATED, GO, GO), [-1.0, 1.0, 2.0], [-2.0, 3.0, 4.0], [True, True], [2, 2]),
        ((TRUNCATED, GO, GO), [-1.0, 1.0, -2.0], [-2.0, 2.0, 3.0], [True, False], [1, 2]),
    ],
    ids=["no end", "terminated in the last row", "truncated in the last row", "truncated in the row before"],
)
def test_a_slot_begins_with_the_last_row_of_the_one_before_or_with_a_reset(
    ends: Any, first: list[float], second: list[float], valid: list[bool], num_steps: list[int]
) -> None:
    env = ScriptedEnv(script(*ends))
    run = Filled([env], rollout=2, num_filled=2)
    assert (run.obs(0), run.obs(1)) == (first, second)
    assert (run.column("valid", 0), run.column("valid", 1)) == (valid, [True, True])
    assert run.num_steps == num_steps
    assert len(env.seeds) == (1 if ends[0] == ends[1] else 2)


def test_what_is_both_terminated_and_truncated_is_terminated() -> None:
    run = Filled([ScriptedEnv(script(GO, BOTH, GO))], rollout=3)
    assert run.obs(0) == [-1.0, 1.0, -2.0, 3.0]
    assert run.column("terminated") == [False, True, False]
    assert run.column("truncated") == [False, False, False]
    assert run.column("valid") == [True, True, True]
    assert [episode.length for episode in run.group.take_episodes()] == [2]


def test_environments_of_a_split_end_their_episodes_apart() -> None:
    first, second = ScriptedEnv(script(GO, GO, GO, GO)), ScriptedEnv(script(TRUNCATED, TERMINATED, GO))
    run = Filled([first, second], rollout=4)
    assert run.obs(0, env=0) == [-1.0, 1.0, 2.0, 3.0, 4.0]
    assert run.obs(0, env=1) == [-1.0, 1.0, -2.0, -3.0, 3.0]
    assert run.column("valid", env=1) == [True, False, True, True]
    assert run.num_steps == [7]


def test_seeds_are_used_at_the_first_reset_only() -> None:
    envs = [ScriptedEnv(script(TERMINATED, TERMINATED)), ScriptedEnv(script(GO, GO))]
    run = Filled(envs, rollout=2)
    assert [env.seeds for env in envs] == [[50, None, None], [51]]
    run.group.close()
    assert all(env.is_closed for env in envs)


def test_the_slot_keeps_the_action_as_produced_and_the_environment_gets_it_clipped() -> None:
    env = ScriptedEnv(script(GO, GO))
    run = Filled([env], rollout=2, num_filled=0)
    for slot, produced in ((0, [[0.0], [1.0]]), (1, [[10.0], [11.0]])):
        env.steps = script(GO, GO)
        run.fill(slot)
        assert run.column("action", slot) == produced
    assert [taken.tolist() for taken in env.taken] == [[0.0], [0.5], [0.5], [0.5]]
    assert env.taken[0].dtype == np.float32


def test_an_environment_that_writes_into_its_action_does_not_reach_the_slot() -> None:
    class Overwriting(ScriptedEnv):
        def step(self, action: Any) -> Any:
            outcome = super().step(action)
            action[...] = 99.0
            return outcome

    run = Filled([Overwriting(script(GO, GO))], rollout=2)
    assert run.column("action") == [[0.0], [1.0]]


def test_discrete_choices_reach_the_environment_as_integers() -> None:
    env = ScriptedEnv(script(GO, GO))
    run = Filled([env], rollout=2, spec=CHOICE)
    assert run.column("action") == [0, 1]
    assert [(int(taken), taken.dtype) for taken in env.taken] == [(0, np.int64), (1, np.int64)]


def test_episodes_are_counted_in_the_environments_own_rewards_and_steps() -> None:
    extra_stats = {"score": np.float32(1.5), "goals": 2, "map": "east", "won": np.True_}
    infos = [{}, {"episode_extra_stats": extra_stats, "is_success": False}]
    env = ScriptedEnv(script(GO, TRUNCATED, GO, GO, TERMINATED, GO), infos=infos)
    run = Filled([env], rollout=7)
    assert run.group.take_episodes() == (
        EpisodeRecord(30.0, 2, {"score": 1.5, "goals": 2.0, "won": 1.0, "is_success": 0.0}),
        EpisodeRecord(120.0, 3, {}),
    )
    assert run.group.take_episodes() == ()


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (np.zeros(3), "shape (3,) and dtype float64"),
        (np.zeros(1), "shape (1,) and dtype float64"),  # NumPy would spread one number over the whole row
        (np.zeros((1, 2)), "shape (1, 2) and dtype float64"),  # and take this one as it is
        (np.zeros(2, complex), "shape (2,) and dtype complex128"),
        (np.array(["a", "b"]), "shape (2,) and dtype <U1"),
        ([[0.0], [1.0, 2.0]], "a list that is not an array"),
    ],
)
@pytest.mark.parametrize("tolerates_failures", [False, True])
def test_an_observation_of_another_kind_is_refused_where_it_came_from(
    wrong: Any, found: str, tolerates_failures: bool
) -> None:
    env = ScriptedEnv(script(TERMINATED, GO, GO))
    run = Filled([env], rollout=3, num_filled=0, renewed=[] if tolerates_failures else None)
    run.control.has_finished_episode = True
    env.wrong = wrong
    with pytest.raises(WrongObservation) as caught:
        run.fill(0)
    assert "environment 40 returned an observation from reset that does not match its space at its step 1" in str(
        caught.value
    )
    assert found in str(caught.value)
    if found.startswith("shape"):
        assert "promises shape (2,) and dtype float64" in str(caught.value)


def test_a_dict_of_one_box_is_stored_as_its_numbers() -> None:
    class Nested(ScriptedEnv):
        observation_space = gymnasium.spaces.Dict({"joint": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)})
        action_space = gymnasium.spaces.Box(-0.5, 0.5, (1,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            obs, info = super().reset(seed=seed)
            return {"joint": obs}, info

        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return {"joint": obs}, *rest

    spec = spec_of_spaces(Nested.observation_space, Nested.action_space, "Nested", None)
    run = Filled([Nested(script(GO, TERMINATED, GO))], rollout=3, spec=spec)
    assert run.obs(0) == [-1.0, 1.0, -2.0, 3.0]


def test_an_observation_of_another_dtype_is_converted_and_said_once() -> None:
    env = ScriptedEnv(script(GO, GO, TERMINATED, GO), dtype="int16")
    run = Filled([env], rollout=4, renewed=[])
    assert run.obs(0) == [-1.0, 1.0, 2.0, -2.0, 4.0]
    (warning,) = run.group.failures.take().warnings
    assert "environment 40 gives observations of int16, but its observation_space says float64" in warning


def test_the_next_slot_starts_right_though_the_slot_before_was_used_again_meanwhile() -> None:
    run = Filled([ScriptedEnv(script(GO, GO, GO, GO))], rollout=2, num_filled=1)
    slots: TrajectorySlots = run.slots
    slots.obs[0] = 77.0
    run.fill(1)
    assert run.obs(1) == [2.0, 3.0, 4.0]


def test_a_recurrent_state_continues_from_slot_to_slot_and_is_zero_where_an_episode_begins() -> None:
    steps = [GO, TERMINATED, GO, GO, GO, TRUNCATED, GO, GO, GO, GO, TRUNCATED, GO, GO, GO, TERMINATED]
    run = Filled([ScriptedEnv(script(*steps))], 4, 4, make_actions=Remembering, use_rnn=True, rnn_size=3)
    states = run.slots.rnn_state[:4, :, 0]
    assert (states == states[:, :, :1]).all() and states.shape == (4, 5, 6)
    seen_before = states[:, :, 0].tolist()
    assert seen_before[0] == [0, 1, 0, 1, 2]  # the second step terminates
    assert seen_before[1] == [2, 3, 4, 0, 1]  # truncated; the final observation is still of the episode
    assert seen_before[2] == [1, 2, 3, 4, 5]  # truncated by the last step
    assert seen_before[3] == [0, 1, 2, 3, 0]  # terminated by the last step


@pytest.mark.parametrize("rollout", [4, 5])
def test_gymnasiums_time_limit_truncates_where_it_would(rollout: int) -> None:
    limit, kwargs = 5, {"max_episode_steps": 5, "disable_env_checker": True}
    spec = probe("Pendulum-v1")
    group = EnvGroup([gymnasium.make("Pendulum-v1", **kwargs)], [7], 0, spec, "raw")
    plain = gymnasium.make("Pendulum-v1", **kwargs)
    expected, _ = plain.reset(seed=7)
    last = np.empty((1, 3), np.float32)
    group.reset(last)
    length = 0
    for _ in range(4):
        obs = np.empty((rollout + 1, 1, 3), np.float32)
        reward = np.empty((rollout, 1), np.float32)
        terminated, truncated, valid = (np.zeros((rollout, 1), bool) for _ in range(3))
        starts_anew = length == limit
        group.start_slot(last, obs[0])
        for row in range(rollout):
            if starts_anew and row == 0:
                (expected, _), length = plain.reset(), 0
            np.testing.assert_allclose(obs[row, 0], expected, atol=1e-6)
            action = np.array([[0.5]], np.float32)
            group.step(action, StepRows(reward[row], terminated[row], truncated[row], valid[row], obs[row + 1]))
            if length == limit:
                assert not valid[row, 0]
                (expected, _), length = plain.reset(), 0
                continue
            expected, expected_reward, _, expected_truncated, _ = plain.step(action[0])
            length += 1
            assert valid[row, 0]
            assert reward[row, 0] == pytest.approx(expected_reward, rel=1e-5)
            assert truncated[row, 0] == expected_truncated == (length == limit)
        last = obs[-1]
    assert {episode.length for episode in group.take_episodes()} == {limit}


BROKEN = RuntimeError("a joint has come off")


def test_an_environment_that_fails_is_made_anew_and_nothing_of_its_episode_in_the_slot_is_trained_on() -> None:
    first = ScriptedEnv([*script(TERMINATED, GO, GO), BROKEN])
    other = ScriptedEnv(script(GO, GO, GO, GO, GO))
    run = Filled([first, other], rollout=5, renewed=[ScriptedEnv([(9.0, 90.0, *GO)] * 3)])
    # The step from row 3 failed. Row 0 is of an episode that had ended; rows 1 and 2 are taken back.
    assert run.column("valid") == [True, False, False, False, True]
    assert run.column("terminated") == [True, False, False, False, False]
    assert run.column("truncated") == [False, False, True, False, False]
    assert run.column("reward") == [10.0, 20.0, 30.0, 0.0, 90.0]
    assert run.obs(0) == [-1.0, -2.0, 2.0, 3.0, -1.0, 9.0]
    assert run.column("valid", env=1) == [True] * 5
    assert run.num_steps == [9]
    assert first.is_closed
    failures = run.group.failures.take()
    assert (failures.num_failures, failures.num_not_finite, failures.num_dropped) == (1, 0, 2)
    (warning,) = failures.warnings
    assert "rollout worker 0: environment 40 failed in step at its step 3" in warning
    assert "RuntimeError: a joint has come off" in warning
    assert "small_runs.py" in warning
    assert f'"{Path(asyncrl.__file__).parent}{os.sep}' not in warning
    assert run.group.take_episodes() == (EpisodeRecord(10.0, 1),)


@pytest.mark.parametrize(
    ("result", "what"),
    [
        ((1.0, None, *GO), "reward = 'None'; Gymnasium expects a number"),
        ((1.0, "much", *TRUNCATED), "reward = 'much'; Gymnasium expects a number"),
        ((1.0, 1.0, np.zeros(2, bool), False), "terminated = '[False False]'; Gymnasium expects True or False"),
        ((1.0, 1.0, *TERMINATED, None), "info = 'None'; Gymnasium expects a dict"),
        (
            (1.0, 1.0, *TRUNCATED, {"episode_extra_stats": [3]}),
            "info[\"episode_extra_stats\"] = '[3]'; it must be a dict of numbers",
        ),
        (
            (1.0, 1.0, *TERMINATED, {"is_success": "yes"}),
            "info[\"is_success\"] = 'yes'; it must be True, False or a number",
        ),
        ((1.0, 1.0, False, {}, 6, 7), "6 values (ndarray, float, bool, dict, int, int); Gymnasium expects 5 values: "),
    ],
)
def test_a_result_that_cannot_be_read_is_a_failure_of_that_step_and_is_named(result: Any, what: str) -> None:
    class Wrong(ScriptedEnv):
        def step(self, action: Any) -> Any:
            if isinstance(self.steps[0][0], str):
                self.obs[:] = result[0]
                return (self.obs, *result[1:], {})[: max(5, len(result))]
            return super().step(action)

    steps = [*script(TERMINATED, GO, GO), ("wrong", 0.0, *GO)]
    run = Filled([Wrong(steps), ScriptedEnv(script(*[GO] * 5))], rollout=5, renewed=[ScriptedEnv([(9.0, 90.0, *GO)])])
    # As after an exception: the step from row 3 failed, and rows 1 and 2 are taken back.
    assert run.column("valid") == [True, False, False, False, True]
    assert run.column("reward") == [10.0, 20.0, 30.0, 0.0, 90.0]
    assert run.obs(0) == [-1.0, -2.0, 2.0, 3.0, -1.0, 9.0]
    assert run.column("valid", env=1) == [True] * 5
    assert run.num_steps == [9]
    failures = run.group.failures.take()
    assert (failures.num_failures, failures.num_dropped) == (1, 2)
    (warning,) = failures.warnings
    assert f"environment 40 returned a wrong value at its step 3: step() returned {what}" in warning
    assert run.group.take_episodes() == (EpisodeRecord(10.0, 1),)


def test_what_is_read_at_an_end_is_not_compared_before_it() -> None:
    env = ScriptedEnv(script(GO, TERMINATED), infos=[{"is_success": "not yet"}, {"is_success": True}])
    run = Filled([env], rollout=2)
    assert run.group.take_episodes() == (EpisodeRecord(30.0, 2, {"is_success": 1.0}),)


def test_no_advantage_goes_across_a_failure() -> None:
    first = ScriptedEnv([*script(GO, TERMINATED, GO), BROKEN])
    run = Filled([first], rollout=6, renewed=[ScriptedEnv([(9.0, 1e6, *GO)] * 9)])
    run.slots.value[0] = np.arange(7.0)[:, np.newaxis]
    slots = run.slots
    fields = (slots.reward, slots.value, slots.terminated, slots.truncated, slots.valid)
    advantages, _ = gae(*(torch.from_numpy(field[0].copy()) for field in fields), gamma=0.5, gae_lambda=1.0)
    assert advantages[:2, 0].tolist() == [10.0 + 0.5 * 20.0 - 0.0, 20.0 - 1.0]
    assert advantages[2:4, 0].abs().max() < 100.0  # not trained on, and free of the million that came after


def test_rows_of_slots_that_were_handed_over_stay() -> None:
    renewed = [ScriptedEnv([(9.0, 1.0, *GO)] * 3)]
    run = Filled([ScriptedEnv([*script(GO, GO, GO), BROKEN])], rollout=3, num_filled=0, renewed=renewed)
    run.control.has_finished_episode = True
    run.fill(0)
    run.fill(1)
    assert run.column("valid", slot=0) == [True, True, True]
    assert run.column("truncated", slot=0) == [False, False, False]
    assert run.obs(0) == [-1.0, 1.0, 2.0, 3.0]
    assert run.column("valid", slot=1) == [False, True, True]
    assert run.obs(1) == [3.0, -1.0, 9.0, 9.0]


def test_seeds_of_environments_made_anew_follow_from_environment_and_steps() -> None:
    renewed = [ScriptedEnv([BROKEN]), ScriptedEnv([(1.0, 1.0, *GO)] * 3)]
    run = Filled([ScriptedEnv([*script(TERMINATED, GO), BROKEN])], rollout=5, renewed=list(renewed))
    assert [env.seeds for env in renewed] == [[40_003], [40_004]]
    assert run.num_steps == [3]


@pytest.mark.parametrize("fails_in", ["step", "reset"])
def test_an_environment_that_exits_has_failed(fails_in: str) -> None:
    class Exits(ScriptedEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if fails_in == "reset" and self.seeds:
                sys.exit()
            return super().reset(seed=seed)

    ending = [SystemExit()] if fails_in == "step" else []
    run = Filled([Exits([*script(TERMINATED), *ending])], rollout=2, renewed=[ScriptedEnv(script(GO))])
    failures = run.group.failures.take()
    assert failures.num_failures == 1
    assert f"environment 40 failed in {fails_in} at its step 1;" in failures.warnings[0]
    assert failures.warnings[0].count("SystemExit") == 1


def test_an_interrupt_is_no_failure_of_the_environment() -> None:
    with pytest.raises(KeyboardInterrupt):
        Filled([ScriptedEnv([*script(TERMINATED), KeyboardInterrupt()])], rollout=2, renewed=[ScriptedEnv([])])


@pytest.mark.parametrize("num_renewed", [0, 2])
def test_what_fails_in_the_same_way_at_once_ends_the_run_before_the_first_finished_episode(num_renewed: int) -> None:
    renewed = [ScriptedEnv([*script(GO), BROKEN]) for _ in range(num_renewed)] or None
    with pytest.raises(EnvironmentCallFailed, match="environment 40 failed in step at its step") as caught:
        Filled([ScriptedEnv([*script(GO), BROKEN])], rollout=8, renewed=renewed)
    assert caught.value.__cause__ is BROKEN and caught.value.env_idx == 40


def test_a_debugger_without_a_terminal_ends_the_run_with_the_remedy() -> None:
    with pytest.raises(EnvironmentCallFailed) as caught:
        Filled([ScriptedEnv([*script(TERMINATED), bdb.BdbQuit()])], rollout=3, renewed=[ScriptedEnv([])])
    assert "--serial_mode=True" in caught.value.traceback


class CannotReset(ScriptedEnv):
    def reset(self, **_: Any) -> Any:
        raise KeyError("simulator")


class CannotBeMade:
    def pop(self, _: int) -> Any:
        raise KeyError("simulator")


@pytest.mark.parametrize("fails_in", ["reset", "being recreated"])
def test_what_fails_again_is_tried_again_until_the_failures_are_too_many(fails_in: str) -> None:
    renewed: Any = CannotBeMade() if fails_in == "being recreated" else [CannotReset([]) for _ in range(9)]
    with pytest.raises(EnvironmentsKeepFailing) as caught:
        Filled([ScriptedEnv([*script(TERMINATED), BROKEN])], rollout=3, renewed=renewed, max_env_failures=3)
    expected = "environments of rollout worker 0 failed 4 times within 600 s, --max_env_failures=3 allows 3"
    assert expected in str(caught.value)
    assert f"failed in {fails_in}" in str(caught.value)
    first, last = caught.value.tracebacks.split("the last failure: ")
    assert "a joint has come off" in first
    assert "KeyError: 'simulator'" in last


def test_failures_that_are_long_past_do_not_count() -> None:
    renewed = [ScriptedEnv([BROKEN]) for _ in range(9)]
    first = ScriptedEnv([*script(TERMINATED), BROKEN])
    run = Filled([first], rollout=1, renewed=renewed, max_env_failures=1, restart_window_s=10.0)
    for slot in range(1, 4):
        run.fill(slot)
        run.now += 10.5
    assert run.group.failures.take().num_failures == 3
    run.slots.free(0)
    run.fill(0)
    run.now += 9.5
    with pytest.raises(EnvironmentsKeepFailing):
        run.fill(4)


def test_a_reset_that_fails_costs_no_sample() -> None:
    class FailsToReset(ScriptedEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if self.seeds:
                raise BROKEN
            return super().reset(seed=seed)

    run = Filled([FailsToReset(script(GO, TERMINATED))], rollout=3, renewed=[ScriptedEnv([(9.0, 1.0, *GO)])])
    assert run.column("valid") == [True] * 3
    assert run.obs(0) == [-1.0, 1.0, -1.0, 9.0]
    failures = run.group.failures.take()
    assert (failures.num_failures, failures.num_dropped) == (1, 0)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ((7.0, NAN, *GO), "a reward that is not finite at its step 2: nan"),
        ((7.0, -INF, *GO), "a reward that is not finite at its step 2: -inf"),
        ((7.0, 1e39, *GO), "a reward that is not finite at its step 2: inf"),  # in the float32 of the slots
        ((7.0, NAN, *TERMINATED), "a reward that is not finite at its step 2: nan"),
        ((7.0, NAN, *TRUNCATED), "a reward that is not finite at its step 2: nan"),
        ((NAN, 1.0, *GO), "an observation that is not finite at its step 2: element 0 is nan"),
        ((INF, 1.0, *TRUNCATED), "an observation that is not finite at its step 2: element 0 is inf"),
    ],
)
def test_a_step_that_is_not_finite_is_left_out_and_its_environment_reset(bad: Any, what: str) -> None:
    env = ScriptedEnv([*script(GO, GO), bad, *script(GO, TERMINATED)])
    run = Filled([env, ScriptedEnv([(1.0, 1.0, *GO)] * 5)], rollout=5, renewed=[])
    assert run.column("valid") == [True, True, False, True, True]
    assert run.column("truncated") == [False, True, False, False, False]
    assert run.column("terminated") == [False, False, False, False, True]
    assert run.column("reward") == [10.0, 20.0, 0.0, 10.0, 20.0]
    assert run.obs(0) == [-1.0, 1.0, 2.0, -2.0, 1.0, -3.0]
    assert run.column("valid", env=1) == [True] * 5
    assert run.num_steps == [9]
    assert run.group.take_episodes() == (EpisodeRecord(30.0, 2),)
    failures = run.group.failures.take()
    assert (failures.num_failures, failures.num_not_finite, failures.num_dropped) == (0, 1, 1)
    assert f"environment 40 gave {what}" in failures.warnings[0]


def test_neither_a_terminal_observation_that_is_not_finite_nor_a_large_number_costs_a_sample() -> None:
    steps = [*script(GO), (NAN, 5.0, *TERMINATED), (1e30, 1e30, *GO)]
    run = Filled([ScriptedEnv(steps)], rollout=3, renewed=[])
    assert run.column("valid") == [True] * 3
    np.testing.assert_allclose(run.obs(0), [-1.0, 1.0, -2.0, 1e30])


def test_what_is_not_finite_ends_the_run_if_the_user_wants_that() -> None:
    env = ScriptedEnv([*script(TERMINATED, GO), (1.0, NAN, *GO)])
    with pytest.raises(NotFinite, match="environment 40 gave a reward that is not finite at its step 2: nan"):
        Filled([env], rollout=5, renewed=[], nan_policy="fail")


def test_a_first_observation_that_is_not_finite_is_a_failure() -> None:
    class ResetsToNan(ScriptedEnv):
        def reset(self, **_: Any) -> Any:
            return np.array([0.0, NAN]), {}

    renewed = [ResetsToNan([]), ScriptedEnv([(9.0, 1.0, *GO)])]
    run = Filled([ScriptedEnv([*script(TERMINATED), BROKEN])], rollout=3, renewed=renewed)
    assert run.obs(0) == [-1.0, -2.0, -1.0, 9.0]
    failures = run.group.failures.take()
    assert failures.num_failures == 2
    assert "gave a first observation that is not finite at its step 1: element 1 is nan" in failures.warnings[1]


def test_an_environment_that_fails_to_close_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise BrokenPipeError("the simulator is gone")

    envs = [ScriptedEnv(script(GO)) for _ in range(2)]
    envs[0].close = fail  # type: ignore[method-assign]
    run = Filled(envs, rollout=1)
    run.group.close()
    assert envs[1].is_closed
    assert "failed in close" in caplog.text and "the simulator is gone" in caplog.text


def test_making_and_resetting_environments_is_no_hang() -> None:
    run = Filled([ScriptedEnv(script(GO)) for _ in range(3)], rollout=1, renewed=[])
    assert run.control.progress(0) - run.control.collected_steps(0) >= 3, "one turn for each"


def test_an_environment_that_gives_nothing_that_is_finite_has_failed() -> None:
    renewed = [ScriptedEnv([(NAN, 1.0, *GO)] * 99) for _ in range(3)]
    env = ScriptedEnv([*script(TERMINATED), *[(NAN, 1.0, *GO)] * 99])
    with pytest.raises(EnvironmentsKeepFailing, match="failed 3 times"):
        Filled([env], rollout=99, renewed=renewed, max_env_failures=2)
    # One that gives something now and then has not, however short its episodes are.
    now_and_then = ScriptedEnv([(1.0, 1.0, *TERMINATED), (NAN, 1.0, *GO)] * 49)
    run = Filled([now_and_then], rollout=98, renewed=[])
    failures = run.group.failures.take()
    assert (failures.num_failures, failures.num_not_finite, len(failures.warnings)) == (0, 49, 1)
    assert run.num_steps == [49]
