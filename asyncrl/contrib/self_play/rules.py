"""Rules about the settings of self-play: what it cannot be combined with, and what it needs of the environment."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.policy_checks import refused_with
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.self_play.settings import SelfPlaySettings
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.policy_mapping import needs_same_spaces

_GIVEN, _OFF = "--self_play=True", "--self_play=False"


def settings_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What self-play cannot be combined with."""
    if not SelfPlaySettings.of(config).self_play:
        return
    yield from refused_with(config, plan, "self_play", _GIVEN, _OFF, "each rank would have a pool")
    if config.num_policies > 1:
        text = f"{_GIVEN} trains one policy against its own earlier versions, not --num_policies={config.num_policies}."
        yield make_problem("self_play num_policies", text, "--num_policies=1", _OFF)
    if config.policy_mapping != "auto":
        text = f"{_GIVEN} draws who plays an agent, so --policy_mapping={config.policy_mapping} has no effect."
        yield make_problem("self_play policy_mapping", text, "--policy_mapping=auto", _OFF)
    if config.save_best_metric == "train":
        text = f"With {_GIVEN} training returns depend on the opponents: --save_best_metric=train cannot compare them."
        yield make_problem("save_best_metric self_play", text, "--save_best_metric=auto", _OFF)


def spec_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    """What self-play needs of the agents."""
    if not SelfPlaySettings.of(config).self_play:
        return
    if not spec.agents:
        text = f"{_GIVEN} needs an environment of several agents, and {spec.env_id} has one."
        yield Problem(("self_play", "env"), text, (_OFF,))
    elif spec.spaces:
        yield needs_same_spaces("self_play", spec)
