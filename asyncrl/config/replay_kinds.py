"""How a run stores steps in a replay and samples them: the plain way, or that of a feature (hook `REPLAYS`).

This module imports no torch. So a record names its functions and classes as text, `module:name`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asyncrl.config.hooks import hooks, load

if TYPE_CHECKING:
    from asyncrl.config.schema import TrainConfig


@dataclass(frozen=True)
class ReplayKind:
    """What is stored with each step, what writes it and what samples it; the defaults are the plain replay.

    Attributes:
        num_values: how many values of its own it stores with each step.
        arrays: function of `num_values`, the environment's spec and the shape `(splits, rows, envs)` to the arrays in
            addition to those of the plain replay; None for no others.
        stripes: subclass of `asyncrl.buffers.replay.ReplayStripes`, which has these arrays.
        env_group: subclass of `asyncrl.rollout.env_group.EnvGroup`, the single environments of a split.
        sink: subclass of `asyncrl.rollout.sinks.StripeSink`, which writes rows of such a group.
        rows_of_sample: consecutive rows that a sample needs; None for a transition of `n_step`.
        sampler: function of the stripes, the layout of observations, `sampler_arguments` and the other arguments of
            `asyncrl.learner.replay_sampler.ReplaySampler` to the sampler; None for a sampler of the core.
        sampler_arguments: numbers that only this sampler takes, by name.
        learner: makes the learner in place of the algorithm's, from the arguments of `Algorithm.make_learner`.
        find_problems: function of settings and the environment's spec to the problems of a run.
        examine: function of the environment, its spec, its id and a function that is told which method is called next,
            to sentences for the user; it may step the environment.
    """

    num_values: int = 0
    arrays: str | None = None
    stripes: str = "asyncrl.buffers.replay:ReplayStripes"
    env_group: str = "asyncrl.rollout.env_group:EnvGroup"
    sink: str = "asyncrl.rollout.sinks:StripeSink"
    rows_of_sample: int | None = None
    sampler: str | None = None
    sampler_arguments: Mapping[str, int] = field(default_factory=dict)
    learner: str | None = None
    find_problems: str | None = None
    examine: str | None = None


PLAIN = ReplayKind()


def replay_kind(config: TrainConfig) -> ReplayKind:
    """The kind of replay that the settings ask for."""
    found = (load(choose)(config) for choose in hooks("REPLAYS").values())
    return next((kind for kind in found if kind is not None), PLAIN)
