"""What hindsight experience replay needs, of other settings and of the environment."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.hindsight.goals import goal_problem
from asyncrl.contrib.hindsight.settings import HindsightSettings
from asyncrl.envs.spec import EnvSpec


def find_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """What hindsight experience replay cannot be combined with."""
    num_goals = HindsightSettings.of(config).her_goals
    if num_goals == 0 or plan.replay is None:
        return
    given, off = f"--her_goals={num_goals}", "--her_goals=0"
    if config.n_step > 1:
        text = f"{given} stores other goals for single steps, but a target of --n_step={config.n_step} has several."
        yield make_problem("her_goals n_step", text, "--n_step=1", off)
    if plan.replay.is_prioritized:
        text = f"{given} cannot be used with --prioritized_replay=True: priorities are of steps, not of their goals."
        yield make_problem("her_goals prioritized_replay", text, "--prioritized_replay=False", off)
    if config.normalize_rewards:
        text = f"{given} cannot be used with --normalize_rewards=True, whose statistics lack rewards of other goals."
        yield make_problem("her_goals normalize_rewards", text, "--normalize_rewards=False", off)
    if config.backend == "hogwild":
        yield make_problem("her_goals backend", f"{given} cannot be used with --backend=hogwild.", off)
    if config.use_rnn:
        text = f"--use_rnn=True with --algo={config.algo} cannot be used with {given}."
        yield make_problem("use_rnn her_goals", text, off, "--use_rnn=False")


def env_problems(config: TrainConfig, spec: EnvSpec) -> Iterator[Problem]:
    """What the environment lacks."""
    given, off = f"--her_goals={HindsightSettings.of(config).her_goals}", "--her_goals=0"
    if (needed := goal_problem(spec)) is not None:
        yield Problem(("her_goals", "env"), f"{given} needs {needed}; {spec.env_id} has {spec.observation}.", (off,))
    elif spec.is_vectorized or spec.gives_tensors:
        text = f"{given} needs single environments, whose compute_reward it calls; {spec.env_id} is vectorized."
        yield Problem(("her_goals", "env_backend"), text, ("--env_backend=gym", off))
