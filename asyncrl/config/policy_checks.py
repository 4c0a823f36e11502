"""Rules about the settings of several policies, self-play and populations: what cannot be combined."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from asyncrl.config.errors import Problem, UsageError, make_problem
from asyncrl.config.flags import refused_value, unknown_name
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.config.settings import all_settings

_OF_ONE_POLICY = ("fixed_lag", "debug_forced_lag", "debug_skip_training", "checkpoint_resets")
"""Settings of runs that train one policy, alone."""
_OF_ALL_POLICIES = (
    *("use_rnn", "rnn_type", "rnn_size", "rnn_num_layers", "recurrence", "core", "image_channels"),
    *("action_unit", "squash_actions", "use_sde"),
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
    yield from _refused_with(config, plan, "num_policies", count, one, "each rank would train all of them")
    known = {
        name: setting
        for name, setting in all_settings(type(config)).items()
        if setting.section in ("learning", "model") and name not in _OF_ALL_POLICIES
    }
    for policy_idx, own in config.policies.items():
        where = f"policy.{policy_idx}."
        if policy_idx >= config.num_policies:
            last = config.num_policies - 1
            text = f"--{where}{next(iter(own), 'NAME')}: there is no policy {policy_idx}, they are 0 to {last}."
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


def _refused_with(
    config: TrainConfig, plan: ResourcePlan, name: str, given: str, off: str, of_ranks: str
) -> Iterator[Problem]:
    """What neither several policies nor self-play can be combined with; `of_ranks` says why not with several ranks."""
    if config.is_off_policy:
        yield make_problem(f"{name} algo", f"{given} cannot be used with --algo={config.algo}.", off, "--algo=ppo")
    if config.backend == "hogwild":
        yield make_problem(f"{name} backend", f"{given} cannot be used with --backend=hogwild.", off)
    if plan.steps_tensors:
        yield make_problem(f"{name} env_backend", f"{given} cannot be used with --env_backend=tensor.", off)
    if plan.num_ranks > 1:
        yield make_problem(name, f"{given} cannot be used with torchrun: {of_ranks}.", off)
    for other in _OF_ONE_POLICY:
        if getattr(config, other):
            default = f"--{other}={TrainConfig.model_fields[other].default}"
            yield make_problem(f"{other} {name}", f"--{other} is not available with {given}.", default)


def self_play_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What self-play cannot be combined with."""
    given, off = "--self_play=True", "--self_play=False"
    yield from _refused_with(config, plan, "self_play", given, off, "each rank would have a pool")
    if config.num_policies > 1:
        text = f"{given} trains one policy against its own earlier versions, not --num_policies={config.num_policies}."
        yield make_problem("self_play num_policies", text, "--num_policies=1", off)
    if config.with_pbt:
        text = f"{given} cannot be used with --with_pbt=True: returns against different opponents cannot be compared."
        yield make_problem("self_play with_pbt", text, "--with_pbt=False", off)
    if config.policy_mapping != "auto":
        text = f"{given} draws who plays an agent, so --policy_mapping={config.policy_mapping} has no effect."
        yield make_problem("self_play policy_mapping", text, "--policy_mapping=auto", off)
    if config.save_best_metric == "train":
        text = f"With {given} training returns depend on the opponents: --save_best_metric=train cannot compare them."
        yield make_problem("save_best_metric self_play", text, "--save_best_metric=auto", off)


def population_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What population-based training needs, and what it cannot be combined with."""
    off = "--with_pbt=False"
    if config.is_off_policy or config.backend == "hogwild":
        name, value = ("algo", config.algo) if config.is_off_policy else ("backend", config.backend)
        yield make_problem(
            f"with_pbt {name}", f"--with_pbt=True cannot be used with --{name}={value}.", off, "--algo=ppo"
        )
    if plan.num_policies == 1 and config.pbt_shared_dir is None:
        text = "--with_pbt=True needs several policies, or several runs with one --pbt_shared_dir."
        yield make_problem("with_pbt num_policies pbt_shared_dir", text, "--num_policies=4", "--pbt_shared_dir=FOLDER")
    if plan.num_policies > 1 and config.pbt_shared_dir is not None:
        text = f"--pbt_shared_dir is for runs with one policy each, not with --num_policies={plan.num_policies}."
        yield make_problem("pbt_shared_dir num_policies", text, "--num_policies=1", "--pbt_shared_dir=none")
    if plan.num_ranks > 1:
        yield make_problem("with_pbt", "--with_pbt=True cannot be used with torchrun.", off)
    for name in _OF_ONE_POLICY:
        if getattr(config, name) and plan.num_policies == 1:  # several policies refuse them anyway
            default = f"--{name}={TrainConfig.model_fields[name].default}"
            yield make_problem(f"{name} with_pbt", f"--{name} is not available with --with_pbt=True.", default)
    if config.pbt_perturb_min > config.pbt_perturb_max:
        text = (
            f"--pbt_perturb_min={config.pbt_perturb_min:g} is larger than --pbt_perturb_max={config.pbt_perturb_max:g}."
        )
        yield make_problem("pbt_perturb_min pbt_perturb_max", text, f"--pbt_perturb_max={config.pbt_perturb_min:g}")
    settings = all_settings(type(config))
    for policy_idx, own in config.policies.items():
        for name in own:
            if name in settings and (
                settings[name].section == "model" or name in ("normalize_input", "normalize_returns")
            ):
                text = (
                    f"--policy.{policy_idx}.{name} is not possible with --with_pbt=True: policies that take over one "
                    "another's weights have the same model."
                )
                yield make_problem("policies with_pbt", text, f"--{name} without a number")
