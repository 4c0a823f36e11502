"""The schema of trajectories, and of the arrays that every run has, from the spaces and the plan.

Each mode adds its own arrays (`asyncrl.modes`).

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

With opponents, one policy trains and frozen ones play against it: columns with a `policy_idx` from 1 on, which no
learner copies. Each has weights, named "opponent.0.weights.buffers" and so on, which the runner publishes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from asyncrl.buffers.arena import ArraySpec
from asyncrl.buffers.control import control_specs, worker_death_specs
from asyncrl.buffers.messages import ring_specs
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


def prefixed_specs(prefix: str, specs: Iterable[ArraySpec]) -> Iterator[ArraySpec]:
    """The same arrays with names that begin with a prefix, for `Arena.scoped`."""
    return (dataclasses.replace(spec, name=prefix + spec.name) for spec in specs)


def policy_prefix(policy_idx: int) -> str:
    """Prefix of the names of one policy's arrays, for `Arena.scoped`."""
    return f"policy.{policy_idx}."


def opponent_prefix(number: int) -> str:
    """Prefix of the names of the arrays of one opponent, for `Arena.scoped`."""
    return f"opponent.{number}."


def run_specs(plan: ResourcePlan, num_weights: Sequence[int]) -> list[ArraySpec]:
    """Arrays that a run has in every mode: requests for actions, words of workers and of the run, weights.

    Several policies have their weights under `policy_prefix`.
    """
    specs = [
        ArraySpec(f"splits.{word}", "int64", (plan.num_splits,))
        for word in ("request_seq", "response_seq", "request_slot", "request_row")
    ]
    for worker_idx in range(plan.num_workers):
        # After an inference worker's death, a request may be answered from the table while it is still in the ring.
        specs.extend(ring_specs(f"requests.{worker_idx}", 2 * plan.worker_num_splits))
        specs.append(ArraySpec(f"progress.{worker_idx}", "int64", (3,)))
    specs.extend(control_specs())
    specs.extend(worker_death_specs(plan.num_workers))
    if len(num_weights) == 1:
        specs.extend(weights_specs(num_weights[0]))
    return specs
