"""Rules about the settings of state-dependent exploration: what it cannot be combined with, and its actions."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.checks import not_together
from asyncrl.config.critic_kinds import critic_kind
from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.state_dependent_exploration.settings import StateDependentSettings
from asyncrl.envs.spec import EnvSpec

_GIVEN, _OFF = "--use_sde=True", "--use_sde=False"


def settings_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What state-dependent exploration cannot be combined with."""
    for policy_idx, own in config.policies.items():
        if "use_sde" in own:
            text = f"--policy.{policy_idx}.use_sde is not possible: it is the same for all policies."
            yield make_problem("policies", text, "--use_sde without a number")
    settings = StateDependentSettings.of(config)
    if not settings.use_sde:
        return
    others = {
        "algo": (config.algorithm.make_model is not None, f"--algo={config.algo}", "--algo=sac"),
        "model": (config.model != "default", f"--model={config.model}", "--model=default"),
        "adaptive_stddev": (config.adaptive_stddev, "--adaptive_stddev=True", "--adaptive_stddev=False"),
        "exploration_noise": (
            config.exploration_noise != "white",
            f"--exploration_noise={config.exploration_noise}",
            "--exploration_noise=white",
        ),
        "env_backend": (plan.steps_tensors, "--env_backend=tensor", "--env_backend=gym_vector"),
        "num_policies": (config.num_policies > 1, f"--num_policies={config.num_policies}", "--num_policies=1"),
        "self_play": (config.opponents is not None, "--self_play=True", "--self_play=False"),
    }
    yield from not_together("use_sde", _GIVEN, _OFF, others)
    if (kind := critic_kind(config)).network is not None:
        yield make_problem("use_sde", f"{_GIVEN} cannot be used with {kind.network_name}.", _OFF)
    if config.is_off_policy and config.use_rnn:
        text = f"--use_rnn=True with --algo={config.algo} cannot be used with {_GIVEN}."
        yield make_problem("use_rnn use_sde", text, _OFF, "--use_rnn=False")
    if settings.sde_sample_freq == 0:
        text = "--sde_sample_freq=0 is not possible: expected a number of steps, or -1 for noise that lasts an episode."
        yield make_problem("sde_sample_freq", text, "--sde_sample_freq=1", "--sde_sample_freq=-1")


def spec_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    """What state-dependent exploration needs of actions."""
    if not StateDependentSettings.of(config).use_sde:
        return
    for kind in spec.kinds:
        if kind.action.num_logits > 0 or len(kind.action.leaves) != 1:
            text = f"{_GIVEN} needs actions that are one Box; {kind.env_id} has {kind.action}."
            yield Problem(("use_sde", "env"), text, (_OFF,))
