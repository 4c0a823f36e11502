"""The kind of replay that stores other goals with each step."""

from __future__ import annotations

from asyncrl.config.replay_kinds import ReplayKind
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.hindsight.settings import HindsightSettings

_FOLDER = "asyncrl.contrib.hindsight"


def choose(config: TrainConfig) -> ReplayKind | None:
    """The replay with goals, if the settings ask for it and the algorithm learns from single steps of a replay."""
    num_goals = HindsightSettings.of(config).her_goals
    if num_goals == 0 or not config.is_off_policy or config.use_rnn:
        return None
    return ReplayKind(
        num_values=num_goals,
        arrays=f"{_FOLDER}.stripes:goal_specs",
        stripes=f"{_FOLDER}.stripes:GoalStripes",
        env_group=f"{_FOLDER}.writing:GoalEnvGroup",
        sink=f"{_FOLDER}.writing:HindsightSink",
        sampler=f"{_FOLDER}.sampler:HindsightSampler",
        find_problems=f"{_FOLDER}.checks:env_problems",
        examine=f"{_FOLDER}.goal_rewards:goal_reward_findings",
    )
