"""Rules about the settings of several policies: what cannot be combined."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from asyncrl.config.errors import Problem, UsageError, make_problem
from asyncrl.config.flags import refused_value, unknown_name
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.config.settings import all_settings

OF_ONE_POLICY = ("fixed_lag", "debug_forced_lag", "debug_skip_training", "checkpoint_resets")
"""Settings of runs that train one policy, alone."""
_OF_ALL_POLICIES = (
    *("use_rnn", "rnn_type", "rnn_size", "rnn_num_layers", "recurrence", "core", "image_channels", "image_keys"),
    *("action_unit", "squash_actions"),
)
"""Settings of learning and of the model that a policy cannot have for itself: all share rows, and how workers act."""


def policy_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What a run with several policies cannot be combined with, and settings of its policies."""
    if config.num_policies == 1:
        if config.policies:
            yield make_problem("policies num_policies", "--policies is for several policies.", "--num_policies=2")
        return
    count = f"--num_policies={config.num_policies}"
    one = "--num_policies=1"
    yield from refused_with(config, plan, "num_policies", count, one, "each rank would train all of them")
    known = {
        name: setting
        for name, setting in all_settings(type(config)).items()
        if setting.section in ("learning", "model") and name not in _OF_ALL_POLICIES
    }
    for policy_idx, own in config.policies.items():
        where = f"policy.{policy_idx}."
        if policy_idx >= config.num_policies:
            last = config.num_policies - 1
            text = f"--{where}{next(iter(own), 'NAME')}: policy {policy_idx} does not exist (policies are 0 to {last})."
            yield make_problem("policies num_policies", text, f"--num_policies={policy_idx + 1}")
        for name, value in own.items():
            if name in _OF_ALL_POLICIES:
                text = f"--{where}{name} is not possible: it is the same for all policies."
                yield make_problem("policies", text, f"--{name} without a number")
                continue
            if name not in known:
                text = f"--{where}{name} is not possible: only settings of learning and of the model may differ"
                yield dataclasses.replace(unknown_name(name, known, text, f"--{where}"), settings=("policies",))
                continue
            try:
                type(config).model_validate({name: value})
            except UsageError:
                problem = refused_value(f"{where}{name}", value, known[name].expected)
                yield dataclasses.replace(problem, settings=("policies",))


def refused_with(
    config: TrainConfig, plan: ResourcePlan, name: str, given: str, off: str, of_ranks: str
) -> Iterator[Problem]:
    """What runs whose columns are played by several policies cannot be combined with.

    Args:
        config: the settings.
        plan: the resources resolved from them.
        name: the setting of which the policies are several.
        given: its flag.
        off: the flag that gives one policy.
        of_ranks: why it is refused with several ranks.
    """
    if config.is_off_policy:
        yield make_problem(f"{name} algo", f"{given} cannot be used with --algo={config.algo}.", off, "--algo=ppo")
    if config.backend == "hogwild":
        yield make_problem(f"{name} backend", f"{given} cannot be used with --backend=hogwild.", off)
    if plan.steps_tensors:
        yield make_problem(f"{name} env_backend", f"{given} cannot be used with --env_backend=tensor.", off)
    if plan.num_ranks > 1:
        yield make_problem(name, f"{given} cannot be used with torchrun: {of_ranks}.", off)
    for other in OF_ONE_POLICY:
        if getattr(config, other):
            default = f"--{other}={TrainConfig.model_fields[other].default}"
            yield make_problem(f"{other} {name}", f"--{other} is not available with {given}.", default)
