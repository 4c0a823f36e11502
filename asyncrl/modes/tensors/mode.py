"""Environments of tensors, stepped on the learner's device in its process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from asyncrl.buffers.arena import ArraySpec, arena_size
from asyncrl.buffers.layout import SharedSizes
from asyncrl.buffers.replay import replay_limit_specs, replay_specs
from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import NEEDED_BY_TENSORS, TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.modes.replay.mode import REPLAY
from asyncrl.modes.trajectories.mode import TRAJECTORIES


def _problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    wrong = {name: value for name, value in NEEDED_BY_TENSORS.items() if getattr(config, name) not in (value, "auto")}
    if wrong:
        text = "--env_backend=tensor steps environments and trains in turn, in one process on one device."
        flags = " ".join(f"--{name}={value}" for name, value in wrong.items())
        yield Problem((*wrong, "env_backend"), text, (flags, "without these flags"))
    if plan.replay is not None and plan.replay.is_prioritized:
        text = "--prioritized_replay=True needs a replay in shared memory; one on the device has no priorities."
        yield make_problem("prioritized_replay env_backend", text, "--prioritized_replay=False")


def _arrays(
    spec: EnvSpec, plan: ResourcePlan, num_weights: Sequence[int], shared: SharedSizes | None
) -> list[ArraySpec]:
    return [] if plan.replay is None else replay_limit_specs(plan.num_splits)


def _replay_bytes(spec: EnvSpec, plan: ResourcePlan) -> int:
    assert plan.replay is not None
    return arena_size(replay_specs(spec, 1, plan.num_envs, plan.replay.size)) if plan.device == "cpu" else 0


TENSORS = dataclasses.replace(
    TRAJECTORIES,
    applies=lambda plan: plan.steps_tensors,
    find_problems=lambda config, plan: [*_problems(config, plan), *TRAJECTORIES.find_problems(config, plan)],
    arrays=_arrays,
    roles="asyncrl.modes.tensors.roles:TensorRoles",
)
TENSORS_WITH_REPLAY = dataclasses.replace(
    REPLAY,
    applies=lambda plan: plan.steps_tensors and plan.replay is not None,
    find_problems=lambda config, plan: [*_problems(config, plan), *REPLAY.find_problems(config, plan)],
    arrays=_arrays,
    private_bytes=_replay_bytes,
    roles=TENSORS.roles,
)
