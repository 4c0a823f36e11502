"""Slots that several policies fill, without processes and shared memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

T = 8


def empty_slots(num_slots: int, num_columns: int, agents: bool = False, rnn_state_size: int = 0) -> Any:
    """Slots as shared memory holds them: one observation number, one action number."""
    shape = (num_slots, T, num_columns)
    with_last = (num_slots, T + 1, num_columns)
    flags = {name: np.zeros(shape, dtype=np.bool_) for name in ("terminated", "truncated", "valid")}
    of_agents = {name: np.zeros(shape, dtype=np.bool_) if agents else None for name in ("idle", "is_env_step")}
    return SimpleNamespace(
        obs=np.zeros((*with_last, 3), dtype=np.float32),
        rnn_state=np.zeros((*with_last, rnn_state_size), dtype=np.float32),
        value=np.zeros(with_last, dtype=np.float32),
        action=np.zeros((*shape, 2), dtype=np.float32),
        action_parameters=np.zeros((*shape, 4), dtype=np.float32),
        log_prob=np.zeros(shape, dtype=np.float32),
        reward=np.zeros(shape, dtype=np.float32),
        policy_idx=np.zeros(with_last, dtype=np.int16),
        policy_version=np.zeros(with_last, dtype=np.int64),
        chosen_at=np.zeros((num_slots, T + 1)),
        require_written=lambda slot: None,
        **flags,
        **of_agents,
    )


def draw_episodes(slots: Any, random: np.random.Generator, num_policies: int, end: float) -> None:
    """Episodes by the rule of rows, each played by a policy that is drawn for it; some agents wait or are absent."""
    num_slots, _, num_columns = slots.reward.shape
    ended = np.zeros(slots.policy_idx.shape, dtype=np.bool_)  # before the row
    for slot, column in np.ndindex(num_slots, num_columns):
        policy, is_final, absent, first = int(random.integers(num_policies)), False, 0, 0
        for row in range(T):
            slots.policy_idx[slot, row, column] = policy
            place = (slot, row, column)
            if absent > 0 or is_final:
                absent, is_final = max(0, absent - 1), False
                is_over = True
            else:
                waits = slots.idle is not None and random.random() < 0.4
                (slots.idle if waits else slots.valid)[place] = True
                slots.terminated[place] = random.random() < end
                slots.truncated[place] = is_final = not slots.terminated[place] and random.random() < end
                is_over = bool(slots.terminated[place])
                if is_over and slots.idle is not None:
                    absent = int(random.integers(3))
            ended[slot, row + 1, column] = is_over
            if is_over:
                policy, first = int(random.integers(num_policies)), row + 1
        slots.policy_idx[slot, T, column] = policy
        if slots.idle is not None and slots.idle[slot, T - 1, column] and not (is_over or is_final):
            acted = np.flatnonzero(slots.valid[slot, first:, column]) + first
            if len(acted) > 0:  # as `AgentsEnvGroup.end_slot`
                slots.valid[slot, acted[-1], column] = False
                if acted[-1] > first:
                    slots.truncated[slot, acted[-1] - 1, column] = True
    if slots.is_env_step is not None:
        slots.is_env_step[:] = random.random(slots.is_env_step.shape) < 0.5
    numbers = np.arange(slots.policy_idx.size).reshape(slots.policy_idx.shape)
    slots.obs[..., 0] = numbers
    slots.rnn_state[:] = np.where(ended, 0, 1 + numbers)[..., None]
    for name in ("value", "action", "action_parameters", "log_prob", "reward", "chosen_at"):
        field = getattr(slots, name)
        field[:] = random.normal(size=field.shape)
    slots.policy_version[:] = random.integers(1, 9, size=slots.policy_version.shape)
