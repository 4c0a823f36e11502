"""Rules about the settings of population-based training: what it needs, and what it cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.policy_checks import OF_ONE_POLICY
from asyncrl.config.schema import TrainConfig
from asyncrl.config.settings import all_settings
from asyncrl.contrib.population.settings import PopulationSettings
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.policy_mapping import needs_same_spaces

_OFF = "--with_pbt=False"


def find_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What population-based training needs, and what it cannot be combined with."""
    own = PopulationSettings.of(config)
    if not own.with_pbt:
        return
    if config.is_off_policy or config.backend == "hogwild":
        name, value = ("algo", config.algo) if config.is_off_policy else ("backend", config.backend)
        yield make_problem(
            f"with_pbt {name}", f"--with_pbt=True cannot be used with --{name}={value}.", _OFF, "--algo=ppo"
        )
    if (opponents := config.opponents) is not None:
        text = (
            f"--{opponents.setting}=True cannot be used with --with_pbt=True: returns against different opponents "
            "cannot be compared."
        )
        yield make_problem(f"{opponents.setting} with_pbt", text, _OFF, f"--{opponents.setting}=False")
    if plan.num_policies == 1 and own.pbt_shared_dir is None:
        text = "--with_pbt=True needs several policies, or several runs with one --pbt_shared_dir."
        yield make_problem("with_pbt num_policies pbt_shared_dir", text, "--num_policies=4", "--pbt_shared_dir=FOLDER")
    if plan.num_policies > 1 and own.pbt_shared_dir is not None:
        text = f"--pbt_shared_dir is for runs with one policy each, not with --num_policies={plan.num_policies}."
        yield make_problem("pbt_shared_dir num_policies", text, "--num_policies=1", "--pbt_shared_dir=none")
    if plan.num_ranks > 1:
        yield make_problem("with_pbt", "--with_pbt=True cannot be used with torchrun.", _OFF)
    for name in OF_ONE_POLICY:
        if getattr(config, name) and plan.num_policies == 1:  # several policies refuse them anyway
            default = f"--{name}={TrainConfig.model_fields[name].default}"
            yield make_problem(f"{name} with_pbt", f"--{name} is not available with --with_pbt=True.", default)
    if own.pbt_perturb_min > own.pbt_perturb_max:
        text = f"--pbt_perturb_min={own.pbt_perturb_min:g} is larger than --pbt_perturb_max={own.pbt_perturb_max:g}."
        yield make_problem("pbt_perturb_min pbt_perturb_max", text, f"--pbt_perturb_max={own.pbt_perturb_min:g}")
    yield from _own_models(config)


def _own_models(config: TrainConfig) -> Iterator[Problem]:
    settings = all_settings(type(config))
    for policy_idx, given in config.policies.items():
        for name in given:
            if name in settings and (
                settings[name].section == "model" or name in ("normalize_input", "normalize_returns")
            ):
                text = (
                    f"--policy.{policy_idx}.{name} is not possible with --with_pbt=True: policies that take over one "
                    "another's weights have the same model."
                )
                yield make_problem("policies with_pbt", text, f"--{name} without a number")


def find_warnings(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """Turns that the run ends before."""
    own = PopulationSettings.of(config)
    if own.with_pbt and own.pbt_start_mutation >= plan.train_for_env_steps / plan.num_policies:
        text = (
            f"--pbt_start_mutation={own.pbt_start_mutation} is not reached: {plan.train_for_env_steps} environment "
            f"steps are about {plan.train_for_env_steps // plan.num_policies} for each of {plan.num_policies} policies."
        )
        if plan.num_policies == 1:
            text = f"--pbt_start_mutation={own.pbt_start_mutation} is not reached in {plan.train_for_env_steps} steps."
        yield make_problem("pbt_start_mutation train_for_env_steps", text)


def find_spec_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    """Policies of agents with different spaces cannot take over one another's weights."""
    if PopulationSettings.of(config).with_pbt and spec.spaces:
        yield needs_same_spaces("with_pbt", spec)


def warn_about_shaped_returns(config: TrainConfig, spec: EnvSpec) -> Problem | None:
    """A population changes the factors of the reward, and returns with different factors cannot be compared."""
    if not (PopulationSettings.of(config).with_pbt and spec.reward_shaping):
        return None
    text = (
        f"{spec.env_id} has reward shaping, which population-based training changes, so returns in training cannot "
        "be compared, and no best checkpoint is chosen by them."
    )
    return Problem(("with_pbt", "save_best_metric"), text, ("--eval_every_env_steps=100000",))
