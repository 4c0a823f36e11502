"""The complete schema of the shared memory, from the spaces and the plan: every array, its dtype and its shape.

A slot holds one trajectory of one split: T rows of steps. `obs` and `value` have one row more, for the state after
the last step. Row rules: `obs[t + 1]` is the true next observation of `obs[t]` unless `terminated[t]`. After a
truncation the next row is the episode's final observation: it gets a value, has no action, is not stepped, and is not
`valid`; the row after it is the reset observation. After a termination the next row is the reset observation.

With several agents a column belongs to one agent of one environment, and has two more fields: `idle` rows are steps in
which the agent waits; `is_env_step` marks one agent's row of each step that an environment makes.

With several policies each column is played by one of them for a whole episode. `policy_idx` names it in each row, and
`policy_version` is that policy's, so it differs between columns. The row with the final observation of a truncated
episode still belongs to that episode's policy. Slots are owned by their split (`asyncrl.buffers.slot_pool`), and each
policy has its own weights and control words, named "policy.0.weights.buffers" and so on (`Arena.scoped`); the common
control words concern workers and the run as a whole.

In self-play one policy trains and frozen ones play against it: columns with a `policy_idx` from 1 on, which no learner
copies. Each of them has weights, named "opponent.0.weights.buffers" and so on, which the runner publishes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from asyncrl.buffers.arena import ArraySpec, arena_size
from asyncrl.buffers.control import control_specs, worker_death_specs
from asyncrl.buffers.gradients import gradient_specs
from asyncrl.buffers.messages import ring_specs
from asyncrl.buffers.replay import replay_limit_specs, replay_specs
from asyncrl.buffers.shared_tensors import shared_tensor_specs
from asyncrl.buffers.weights import weights_specs
from asyncrl.config.plan import ResourcePlan
from asyncrl.envs.spec import EnvSpec, stored_action


@dataclass(frozen=True)
class FieldSpec:
    """One field of a slot: dtype, shape of one column's row, and whether it has the extra row."""

    name: str
    dtype: str
    row_shape: tuple[int, ...]
    has_extra_row: bool = False


def trajectory_fields(spec: EnvSpec, rnn_state_size: int = 0) -> tuple[FieldSpec, ...]:
    """Fields with a row for every column of a policy of this spec: `[slots, T or T+1, columns, *row_shape]`."""
    fields = (
        FieldSpec("obs", spec.observation.row_dtype, (spec.observation.row_size,), has_extra_row=True),
        FieldSpec("rnn_state", "float32", (rnn_state_size,), has_extra_row=True),
        FieldSpec("value", "float32", (), has_extra_row=True),
        FieldSpec("action", *stored_action(spec.action)),
        FieldSpec("action_parameters", "float32", (spec.action.num_parameters,)),
        FieldSpec("log_prob", "float32", ()),
        FieldSpec("reward", "float32", ()),
        FieldSpec("terminated", "bool", ()),
        FieldSpec("truncated", "bool", ()),
        FieldSpec("valid", "bool", ()),
    )
    if not spec.agents:
        return fields
    return (*fields, FieldSpec("idle", "bool", ()), FieldSpec("is_env_step", "bool", ()))


def slot_specs(spec: EnvSpec, plan: ResourcePlan) -> list[ArraySpec]:
    """Arrays of all slots: the trajectory fields, the policy version and time of each row, the words of each slot.

    If agents have different spaces, rows have the widest of their fields, and each policy uses the beginning.
    """
    of_kinds = [trajectory_fields(kind, plan.rnn_state_size) for kind in spec.kinds]
    num_slots, rollout, num_columns = plan.num_slots, plan.rollout, plan.columns_per_split
    specs = [
        ArraySpec(
            f"slots.{field.name}",
            field.dtype,
            (num_slots, rollout + int(field.has_extra_row), num_columns, *field.row_shape),
        )
        for field in (max(fields, key=lambda field: field.row_shape) for fields in zip(*of_kinds, strict=True))
    ]
    versions: tuple[int, ...] = (num_slots, rollout + 1)
    if plan.has_slot_pools:
        versions = (*versions, num_columns)
        specs.append(ArraySpec("slots.policy_idx", "int16", versions))
        specs.append(ArraySpec("slots.filled", "int64", (num_slots,)))
    specs.append(ArraySpec("slots.policy_version", "int64", versions))
    specs.append(ArraySpec("slots.chosen_at", "float64", (num_slots, rollout + 1)))
    specs.extend(ArraySpec(f"slots.{word}", "int64", (num_slots,)) for word in ("state", "owner"))
    return specs


@dataclass(frozen=True)
class SharedSizes:
    """Number of elements of the tensors that Hogwild workers train together, and of their running moments, by name."""

    tensors: Mapping[str, int]
    moments: Mapping[str, int]

    @property
    def num_in_gradient(self) -> int:
        """Elements of a worker's gradient: of all tensors but target critics, which have none."""
        return sum(self.tensors.values()) - self.tensors.get("target_critic", 0)


def slot_pool_specs(plan: ResourcePlan) -> list[ArraySpec]:
    """Arrays of one learner where splits own their slots.

    `taken` [slots] is written by this learner: the number in `slots.filled` of the contents that it needs no more. The
    rings `ready` announce complete slots to it; after a worker's death an item may be in a ring twice.
    """
    specs = [ArraySpec("taken", "int64", (plan.num_slots,))]
    for worker_idx in range(plan.num_workers):
        specs.extend(ring_specs(f"ready.{worker_idx}", 2 * plan.worker_num_splits * plan.slots_per_split))
    return specs


def policy_specs(plan: ResourcePlan, num_weights: Sequence[int]) -> list[ArraySpec]:
    """Arrays of each of several policies, under `policy_prefix`."""
    specs: list[ArraySpec] = []
    for policy_idx, num_values in enumerate(num_weights):
        steps = [ArraySpec(f"trained_{unit}_steps", "int64", (1,)) for unit in ("env", "agent")]
        own = [*slot_pool_specs(plan), *steps, *control_specs(), *weights_specs(num_values)]
        specs.extend(_prefixed(policy_prefix(policy_idx), own))
    return specs


def _prefixed(prefix: str, specs: Iterable[ArraySpec]) -> Iterator[ArraySpec]:
    return (dataclasses.replace(spec, name=prefix + spec.name) for spec in specs)


def policy_prefix(policy_idx: int) -> str:
    """Prefix of the names of one policy's arrays, for `Arena.scoped`."""
    return f"policy.{policy_idx}."


def opponent_prefix(number: int) -> str:
    """Prefix of the names of the arrays of one opponent in self-play, for `Arena.scoped`."""
    return f"opponent.{number}."


def arena_specs(
    spec: EnvSpec, plan: ResourcePlan, num_weights: int | Sequence[int], shared: SharedSizes | None = None
) -> list[ArraySpec]:
    """Every array of a run.

    Args:
        spec: the environment's spaces.
        plan: the plan.
        num_weights: elements of a block of published weights; of each policy, where there are several.
        shared: for the Hogwild backend.

    Raises:
        ValueError: `num_weights` are not of as many policies as the plan has.
    """
    sizes = [num_weights] if isinstance(num_weights, int) else list(num_weights)
    if len(sizes) != plan.num_policies:
        raise ValueError(f"weights of {len(sizes)} policies, but the plan has {plan.num_policies}")
    if plan.hogwild is not None:
        assert shared is not None
        specs = shared_tensor_specs(shared.tensors, shared.moments, plan.num_workers)
        if plan.hogwild.mode == "gradients":
            specs.extend(gradient_specs(shared.num_in_gradient, plan.num_workers))
    elif plan.replay is None:
        specs = slot_specs(spec, plan)
    elif plan.steps_tensors:
        specs = replay_limit_specs(plan.num_splits)
    else:
        replay = plan.replay
        layout = (plan.num_splits, plan.envs_per_split, replay.size)
        specs = replay_specs(spec, *layout, replay.is_prioritized, replay.her_goals, plan.rnn_state_size)
    specs.extend(
        ArraySpec(f"splits.{word}", "int64", (plan.num_splits,))
        for word in ("request_seq", "response_seq", "request_slot", "request_row")
    )
    for worker_idx in range(plan.num_workers):
        if not plan.has_slot_pools:
            specs.extend(ring_specs(f"granted.{worker_idx}", plan.num_slots))
            specs.extend(ring_specs(f"ready.{worker_idx}", plan.num_slots))
        # After an inference worker's death, a request may be answered from the table while it is still in the ring.
        specs.extend(ring_specs(f"requests.{worker_idx}", 2 * plan.worker_num_splits))
        specs.append(ArraySpec(f"progress.{worker_idx}", "int64", (3,)))
    specs.extend(control_specs())
    specs.extend(worker_death_specs(plan.num_workers))
    if plan.num_policies > 1:
        specs.extend(policy_specs(plan, sizes))
        return specs
    specs.extend(weights_specs(sizes[0]))
    if plan.num_opponents > 0:
        specs.extend(slot_pool_specs(plan))
        for number in range(plan.num_opponents):
            specs.extend(_prefixed(opponent_prefix(number), weights_specs(sizes[0])))
    return specs


def arena_bytes(
    spec: EnvSpec, plan: ResourcePlan, num_weights: int | Sequence[int], shared: SharedSizes | None = None
) -> int:
    """Bytes of a run's arena, of the private arenas of Hogwild workers, and of a replay that only this process uses."""
    own = plan.num_workers * arena_bytes(spec, plan.of_one_worker, 1) if plan.hogwild is not None else 0
    if plan.steps_tensors and plan.replay is not None and plan.device == "cpu":
        own = arena_size(replay_specs(spec, 1, plan.num_envs, plan.replay.size))
    return own + arena_size(arena_specs(spec, plan, num_weights, shared))
