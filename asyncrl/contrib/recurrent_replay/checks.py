"""What sequences from a replay need, and what they cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.flags import format_value, multiples_as_flags
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.recurrent_replay.kind import choose, recurrence


def find_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """The rules of runs that draw sequences."""
    if choose(config) is None:
        return
    given, off = "--use_rnn=True", "--use_rnn=False"
    length = recurrence(config)
    if config.batch_size % length:
        text = f"--recurrence={length} must divide --batch_size={config.batch_size}."
        fitting = multiples_as_flags("batch_size", config.batch_size, length)
        yield make_problem("recurrence batch_size", text, *fitting)
    fields = TrainConfig.model_fields
    for name in ("n_step", "backend", "env_backend", "num_critics"):
        value, default = getattr(config, name), fields[name].default
        if value != default and (name != "env_backend" or plan.steps_tensors):
            text = f"{given} with --algo={config.algo} cannot be used with --{name}={value}."
            yield make_problem(f"use_rnn {name}", text, f"--{name}={format_value(default)}", off)
