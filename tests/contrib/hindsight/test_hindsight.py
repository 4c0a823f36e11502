"""Steps get goals that their episode achieved later, with the rewards that the environment computes for them (HER)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contrib.hindsight.goal_envs import BitFlip, ReusedInfo, ScriptedGoals

from asyncrl import train, validate
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.replay import replay_specs, rows_per_stripe
from asyncrl.contrib.hindsight.goals import goal_problem
from asyncrl.contrib.hindsight.sampler import HindsightSampler
from asyncrl.contrib.hindsight.stripes import GoalStripes, goal_specs
from asyncrl.contrib.hindsight.writing import GoalEnvGroup, HindsightSink
from asyncrl.envs.spaces import read_spec
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.failures import EnvironmentCallFailed
from asyncrl.rollout.worker import Split

Steps = Sequence[float | Exception | None]


def goal_stripes(spec: EnvSpec, num_splits: int, num_envs: int, size: int, num_goals: int) -> GoalStripes:
    """An empty replay of `size` environment steps."""
    rows = (num_splits, rows_per_stripe(num_splits, num_envs, size), num_envs)
    arrays = [*replay_specs(spec, num_splits, num_envs, size), *goal_specs(num_goals, spec, rows)]
    return GoalStripes(Arena.create(arrays))


class NoActions:
    """An action source: action 0 at once."""

    def request(self, split_idx: int, slot: int, row: int) -> bool:
        return True

    def is_answered(self, split_idx: int) -> bool:
        return True


class NoLimits:
    """Limits that allow every step."""

    def may_step(self, split_idx: int, num_rows: int, num_steps: int) -> bool:
        return True


class Run:
    """A split of environments and its replay, of which `capacity` rows can be read."""

    def __init__(self, envs: Sequence[Any], her_goals: int = 4, capacity: int = 50) -> None:
        self.spec, num_envs = read_spec(envs[0], "Goals"), len(envs)
        self.stripes = goal_stripes(self.spec, 1, num_envs, capacity * num_envs, her_goals)
        group = GoalEnvGroup(envs, [0] * num_envs, 0, self.spec, "raw")
        self.sink = HindsightSink(0, group, self.stripes, NoLimits())  # type: ignore[arg-type]
        self.split = Split(0, group, self.sink, NoActions())

    def advance(self, count: int) -> int:
        num_steps = 0
        for _ in range(count):
            assert self.split.begin()
            num_steps += self.split.advance()
        return num_steps

    def sampler(self, **settings: Any) -> HindsightSampler:
        usual = {"n_step": 1, "gamma": 0.9, "reward_scale": 1.0, "reward_clip": None, "seed": 0}
        return HindsightSampler(self.stripes, self.spec.observation, **{**usual, **settings})


def scripted(*episodes: tuple[Steps, bool], size: int = 1, **options: int) -> Run:
    """A run of an environment for each list of episodes."""
    return Run([ScriptedGoals(steps, terminates, size) for steps, terminates in episodes], **options)


def test_goals_are_those_achieved_by_the_step_or_later_and_rewards_are_the_environments() -> None:
    run = scripted(
        ([1.0, 2.0, 3.0, None, 8.0, 9.0, None], False), ([4.0, 5.0, None, 6.0, 6.5, 6.6, 6.7], True), her_goals=60
    )
    stripes = run.stripes
    assert run.advance(2) == 4
    assert np.isnan(stripes.goal_reward[0, :2, 0]).all(), "the episode continues"
    assert run.advance(2) == 3, "one row holds a final observation: goals are no steps"
    for env, first, episode in ((0, 0, [1.0, 2.0, 3.0]), (1, 0, [4.0, 5.0])):
        for number, achieved in enumerate(episode):
            goals = stripes.goal[0, first + number, env, :, 0]
            later = episode[number:]
            assert set(goals) == set(later)
            assert min(np.count_nonzero(goals == goal) for goal in later) > 30 / len(later), "each equally likely"
            expected = 10_000.0 * (number + 1) + 100.0 * achieved + goals
            assert np.array_equal(stripes.goal_reward[0, first + number, env], expected)
    # It has no compute_terminated, so only the step that ended its episode ends it for every goal.
    assert stripes.goal_terminated[0, :4].all(-1).tolist() == [
        [False, False],
        [False, True],
        [False, False],
        [False] * 2,
    ]
    assert not stripes.goal_terminated[0, :, 0].any()
    assert np.isnan(stripes.goal_reward[0, 3]).all()


def test_a_goal_that_is_achieved_ends_the_episode_if_the_environment_says_so() -> None:
    env = BitFlip(3)
    run = Run([env], her_goals=8, capacity=20)
    stripes = run.stripes
    assert goal_problem(run.spec) is None
    env._goal[:] = env._bits
    env._goal[0] ^= 1  # the first flip of bit 0 succeeds
    run.advance(1)
    assert stripes.terminated[0, 0, 0] and stripes.goal_terminated[0, 0, 0].all()
    assert (stripes.goal_reward[0, 0, 0] == 0.0).all()
    env._goal[1] ^= 1 ^ env._bits[1] ^ env._goal[1]  # bit 1 never flips: the goal cannot be reached
    run.advance(3)
    run.sink._store_goals(0, 3, has_terminated=False)
    ends, goals = stripes.goal_terminated[0, 1:4, 0], stripes.goal[0, 1:4, 0]
    achieved = np.stack([step.achieved_goal for step in run.sink._episodes[0]])
    assert np.array_equal(ends, (goals == achieved[:, None]).all(-1))
    assert np.array_equal(stripes.goal_reward[0, 1:4, 0], ends - 1.0)
    assert ends.any() and not ends.all()
    batch = run.sampler().sample(1, 500)[0]
    assert torch.equal(batch.discount == 0.0, batch.reward == 0.0)


def test_rows_that_were_overwritten_get_no_goals_and_steps_that_failed_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Any] = []
    judge = GoalEnvGroup.judge
    monkeypatch.setattr(GoalEnvGroup, "judge", lambda *args: (judged.append(args), judge(*args))[1])
    run = scripted(([float(number) for number in range(12)] + [None, 1.0], False), capacity=6)
    run.advance(12)
    assert len(judged) == 4 * 7, "of rows that the worker may be overwriting there is nothing to read"
    stripes = run.stripes
    oldest = stripes.first_whole_row(0)
    assert oldest == 6
    for row in range(oldest, 12):
        goals = stripes.goal[0, row % stripes.capacity, 0, :, 0]
        assert ((goals >= row) & (goals < 12)).all()
    run.advance(1)
    assert np.isnan(stripes.goal_reward[0, 12 % stripes.capacity, 0]).all(), "a row that is written again has none"

    run = scripted(([float(number) for number in range(100)] + [None, 1.0], False), capacity=6)
    lengths = []
    for _ in range(100):
        run.advance(1)
        lengths.append(len(run.sink._episodes[0]))
    assert max(lengths) < 2 * run.stripes.capacity, "steps of rows that are overwritten are not kept"
    stripes = run.stripes
    for row in range(stripes.first_whole_row(0), 100):
        goals = stripes.goal[0, row % stripes.capacity, 0, :, 0]
        assert ((goals >= row) & (goals < 100)).all()

    run = scripted(([1.0, RuntimeError("broken"), 2.0, None], False))
    run.advance(1)
    with pytest.raises(EnvironmentCallFailed):
        run.advance(1)


def test_an_error_in_compute_reward_names_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedGoals, "compute_reward", lambda *_: {}["missing"])
    run = scripted(([1.0, None], False))
    with pytest.raises(EnvironmentCallFailed, match="environment 0 failed in compute_reward"):
        run.advance(1)


@pytest.mark.parametrize("settings", [{}, {"reward_scale": 0.5, "reward_clip": 6000.0}])
def test_a_share_of_what_is_drawn_has_another_goal_before_and_after_the_step(settings: dict[str, Any]) -> None:
    # Two episodes of two steps, which terminate, and the first step of a third one.
    run = scripted(([1.0, 2.0, None, 4.0, 5.0, None, 6.0, 6.0], True), her_goals=3, size=2)
    run.advance(5)
    layout, batch = run.spec.observation, run.sampler(**settings).sample(1, 4000)[0]
    places = {part.path[0]: place for part, place in zip(layout.parts, layout.places, strict=True)}
    before, after = (rows[:, : 4 * layout.num_floats].contiguous().view(torch.float32) for rows in batch[0:4:3])
    goals = before[:, places["desired_goal"]]
    assert torch.equal(goals, after[:, places["desired_goal"]])
    pictures = batch.obs[:, 4 * layout.num_floats :]
    assert torch.equal(pictures, pictures[:, :1].expand(-1, 64)), "they are as they were"
    is_own = (goals == 7.0).all(1)
    # Four of five steps have three other goals, the fifth has none yet.
    assert is_own.float().mean().item() == pytest.approx((4 * 0.25 + 1) / 5, abs=0.04)
    scale, clip = settings.get("reward_scale", 1.0), settings.get("reward_clip", 1e9)
    found = {(float(goal[0]), round(float(reward), 1)) for goal, reward in zip(goals, batch.reward, strict=True)}
    others = [(1, 1, 1), (1, 1, 2), (2, 2, 2), (1, 4, 4), (1, 4, 5), (2, 5, 5)]  # step, achieved, desired
    expected = {(goal, min(clip, scale * (10_000.0 * step + 100.0 * now + goal))) for step, now, goal in others}
    assert found == {(7.0, round(0.5 * scale, 1)), *expected}
    assert torch.equal(batch.discount == 0.0, pictures[:, 0] == 1), "the second step of an episode ends it"


@pytest.mark.parametrize(("num_splits", "num_envs", "her_goals"), [(1, 2, 4), (3, 1, 4), (1, 2, 5), (3, 1, 5)])
def test_goals_go_through_a_checkpoint_with_their_steps(num_splits: int, num_envs: int, her_goals: int) -> None:
    run = scripted(([1.0, 2.0, 3.0, None, 8.0, 9.0, None], False), ([4.0, 5.0, None, 6.0, 6.5, 6.6, 6.7], True))
    run.advance(4)
    restored = goal_stripes(run.spec, num_splits, num_envs, 300, her_goals)
    restored.restore(run.stripes.content())

    def goals_of(stripes: GoalStripes) -> set[tuple[float, ...]]:
        """Observation, goals and rewards of each step that has some."""
        found = stripes.valid & np.isfinite(stripes.goal_reward).all(-1)
        fields = (stripes.obs[found], stripes.goal[found][..., 0], stripes.goal_reward[found])
        return {tuple(map(float, np.concatenate(each))) for each in zip(*fields, strict=True)}

    kept = goals_of(run.stripes)
    assert len(kept) == 5
    assert goals_of(restored) == (kept if her_goals == 4 else set())


DIFFERENT = "step() and compute_reward() give a step different rewards"
HER = ["--algo=sac", "--env=contrib.hindsight.goal_envs:wrapped"]


@pytest.mark.parametrize(
    ("how", "rewards"),
    [
        ("scaled", "-0.01 and -1,"),
        ("rarely scaled", "10 and 1,"),
        ("clipped", "-0.5 and -1,"),
        ("normalized", ""),
        ("other unit", "0 and -1,"),
        ("smaller unit", "-1 and 0,"),
    ],
)
def test_rewards_of_step_that_differ_from_those_of_compute_reward_are_warned_of(
    how: str, rewards: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate.main([*HER, "--her_goals=4", f'--env_kwargs={{"how": "{how}"}}']) == 0
    printed = capsys.readouterr().err
    assert DIFFERENT in printed and rewards in printed


def test_a_run_warns_of_rewards_that_differ_and_equal_ones_are_not_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [
        *HER,
        "--her_goals=4",
        "--serial_mode=True",
        "--async_rl=False",
        "--num_workers=1",
        "--num_envs_per_worker=2",
    ]
    run += ["--train_for_env_steps=60", "--warmup_env_steps=40", "--batch_size=8", f"--train_dir={tmp_path}"]
    assert train.main([*run, '--env_kwargs={"how": "scaled"}']) == 0
    printed = capsys.readouterr()
    assert DIFFERENT in printed.out + printed.err
    for her_goals, how in ((4, "converted unit"), (4, "not clipped"), (4, "float32"), (0, "scaled")):
        flags = [*HER, f"--her_goals={her_goals}", "--reward_scale=0.1", f'--env_kwargs={{"how": "{how}"}}']
        assert validate.main(flags) == 0
        assert DIFFERENT not in capsys.readouterr().err, how


@pytest.mark.parametrize("place", ["array", "dict", "list", "object", "lock"])
def test_rewards_for_other_goals_use_the_info_of_their_own_step(place: str) -> None:
    run = Run([ReusedInfo(place)])
    run.advance(5)
    rewards, others = run.stripes.reward[0, :5, 0], run.stripes.goal_reward[0, :5, 0]
    assert rewards.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert (others == rewards[:, np.newaxis]).all()
