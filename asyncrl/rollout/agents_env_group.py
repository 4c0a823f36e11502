"""Environments of several agents: each agent of each environment has its own column.

Columns follow the rule of rows (`asyncrl.buffers.layout`). What several agents add:

waits     An agent that is present and not to move has an idle row. It is not a sample. Its reward, and its episode's
end,
          belong to the agent's last action (`asyncrl.algorithms.losses`).
absent    Before an agent appears and after its episode has ended, its rows are neither valid nor idle.
truncated The next row of this agent holds its final observation. If the whole environment is over then, no agent of it
          is stepped in that row, and it is reset in the row after it.
last      An agent that waits at the end of a slot, or when its episode is truncated, has an action whose outcome is not
          known. This sample is dropped: the value of its observation is bootstrapped for the action before.

An environment that resets itself gives no final observation, so the last step before a truncation is lost, and its
observation is bootstrapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.replay import StepRows
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.config.errors import UsageError
from asyncrl.config.value_types import ActionMapping
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.agents import AgentsEnv, AgentsState
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS
from asyncrl.envs.interface import numbers_among
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch
from asyncrl.envs.spec import EnvSpec, stored_action
from asyncrl.rollout.env_group import HostEnvGroup, ObsArray, is_surely_finite
from asyncrl.rollout.failures import EnvironmentTrouble, LostStep, NotFinite, Recovery, WrongAgents

_MOST_NAMED_AGENTS = 32


class _Kind:
    """The agents with the same spaces: how their observations and actions are converted.

    Attributes:
        agents: their numbers, or all.
        row_size: size of their rows of observations, which are the beginnings of the rows of the slots.
        codec: writes their observations.
    """

    def __init__(self, spec: EnvSpec, kind: int, mapping: ActionMapping, num_envs: int) -> None:
        own = spec.kinds[kind]
        agents = own.own_agents
        self.agents: Any = agents if spec.spaces else slice(None)
        self.row_size = own.observation.row_size
        self.codec = ObservationCodec(own.observation)
        self._adapter = ActionAdapter(own, mapping)
        columns = [env * spec.num_agents + agent for env in range(num_envs) for agent in agents]
        self._actions = (columns if spec.spaces else slice(None), *map(slice, stored_action(own.action)[1]))

    def to_env(self, actions: npt.NDArray[Any]) -> Any:
        """The environment's actions of these agents, from those of all columns."""
        return self._adapter.to_env_batch(actions[self._actions])


class AgentsEnvGroup(HostEnvGroup):
    """Steps the environments of a split, each with the N agents of the spec. Owns them.

    Columns are those of the first environment's agents, then of the second's. All arrays are `[E * N]`.
    """

    def __init__(
        self,
        envs: Sequence[AgentsEnv],
        seeds: Sequence[int],
        first_env_idx: int,
        spec: EnvSpec,
        mapping: ActionMapping,
        recovery: Recovery | None = None,
    ) -> None:
        super().__init__(envs, seeds, first_env_idx, recovery)
        self._names = spec.agents
        self.columns_of_one = len(self._names)
        num_columns = len(envs) * self.columns_of_one
        self._kinds = [_Kind(spec, kind, mapping, len(envs)) for kind in range(len(spec.kinds))]
        self._kind_of = len(envs) * [spec.kind_of(agent) for agent in range(len(self._names))]  # of each column
        row_size = max(kind.row_size for kind in self._kinds)
        self._obs = np.zeros((num_columns, row_size), dtype=spec.observation.row_dtype)
        self._own_rows = [row[: self._kinds[kind].row_size] for row, kind in zip(self._obs, self._kind_of, strict=True)]
        self._is_present = np.zeros(num_columns, dtype=np.bool_)
        self._moves = np.zeros(num_columns, dtype=np.bool_)
        self._is_over = [False] * len(envs)  # the present row holds final observations, and the environment is over
        self._returns = np.zeros(num_columns)
        self._lengths = np.zeros(num_columns, dtype=np.int64)  # actions in the episode
        self._num_rows = np.zeros(num_columns, dtype=np.int64)  # rows of the episode
        self._steps = [0] * len(envs)
        self._row = 0  # of the slot
        self._unfinished: list[tuple[int, int, int]] = []  # column, row after the episode, rows of the episode

    def reset(self, obs: ObsArray) -> None:
        for env in range(len(self._envs)):
            self._is_over[env] = False
            self._start(env, obs)
        obs[:] = self._obs

    def step(self, actions: npt.NDArray[Any], rows: StepRows) -> int:
        assert rows.idle is not None and rows.is_env_step is not None
        rows.reward[:] = 0.0
        rows.terminated[:] = rows.truncated[:] = rows.is_env_step[:] = False
        np.logical_and(self._is_present, self._moves, out=rows.valid)
        np.logical_and(self._is_present, ~self._moves, out=rows.idle)
        is_counted = self._is_present if self.policies is None else self._is_present & self.policies.is_trained
        env_actions = self._to_env(actions)
        num_agents, num_steps = len(self._names), 0
        self._row += 1
        for env_idx, env in enumerate(self._envs):
            first = env_idx * num_agents
            columns = slice(first, first + num_agents)
            if self._is_over[env_idx]:
                self._is_over[env_idx] = False
                self._start(env_idx, rows.next_obs)
                continue
            try:
                state = self._advance(env_idx, env, env_actions[columns])
            except EnvironmentTrouble as trouble:
                self._lose_step(env_idx, columns, rows, trouble)
                continue
            num_steps += 1
            self._steps[env_idx] += 1
            rows.is_env_step[first + int(is_counted[columns].argmax())] = True
            self._write_step(env_idx, env, state, rows)
            if state.is_over:
                if rows.truncated[columns].any():
                    self._is_over[env_idx] = True
                else:
                    self._start(env_idx, rows.next_obs)
        rows.next_obs[:] = self._obs
        return num_steps

    def start_slot(self, last_obs: ObsArray, first_obs: ObsArray) -> list[int]:
        self._row = 0
        restarted: list[int] = []
        for env in [env for env, is_over in enumerate(self._is_over) if is_over]:
            self._is_over[env] = False
            self._start(env, first_obs)
            restarted += range(env * len(self._names), (env + 1) * len(self._names))
        np.copyto(first_obs, self._obs)
        return restarted

    def end_slot(self, slots: TrajectorySlots, slot: int) -> None:
        """Drops the last action of each agent that waits, now or when its episode was truncated in the slot."""
        for column in np.flatnonzero(self._is_present & ~self._moves).tolist():
            self._unfinished.append((column, slots.rollout, int(self._num_rows[column])))
        for column, stop, num_rows in self._unfinished:
            first = max(0, stop - num_rows)
            acted = np.flatnonzero(slots.valid[slot, first:stop, column])
            if len(acted) == 0:
                continue
            last = first + int(acted[-1])
            slots.valid[slot, last, column] = False
            slots.truncated[slot, last:stop, column] = False
            if last > first:  # the action before it ends with the value of this row
                slots.truncated[slot, last - 1, column] = True
        self._unfinished.clear()

    def _to_env(self, actions: npt.NDArray[Any]) -> Any:
        """The environments' actions, by column."""
        of_kinds = [kind.to_env(actions) for kind in self._kinds]
        if len(of_kinds) == 1:
            return of_kinds[0]
        each = list(map(iter, of_kinds))
        return [next(each[kind]) for kind in self._kind_of]

    def _advance(self, env_idx: int, env: AgentsEnv, actions: Sequence[Any]) -> AgentsState:
        if env_idx in self._begin_failures:
            raise self._begin_failures.pop(env_idx)
        try:
            state = env.step(actions)[0]
        except UsageError as error:
            raise self._wrong_agents(env_idx, "step", error) from None
        except ENVIRONMENT_EXCEPTIONS as error:
            raise self._call_failed(env_idx, "step", error) from error
        self._store(env_idx, state, "step")
        return state

    def _write_step(self, env_idx: int, env: AgentsEnv, state: AgentsState, rows: StepRows) -> None:
        """Writes what a step led to for each agent, and the agents' places in the next row."""
        begun = []
        for place, name in enumerate(self._names):
            column = env_idx * len(self._names) + place
            has_ended = state.terminated[place] or state.truncated[place]
            if self._is_present[column]:
                rows.reward[column] = state.reward[place]
                self._returns[column] += state.reward[place]
                self._lengths[column] += self._moves[column]
                self._num_rows[column] += 1
                if has_ended:
                    self._end_episode(env_idx, column, name, state.extra_stats[place])
                    rows.terminated[column] = state.terminated[place]
                    rows.truncated[column] = state.truncated[place] and not env.resets_itself
                    self._record_cut(column, place, env, state)
                    if state.truncated[place] and env.resets_itself:
                        rows.valid[column] = False
                        if rows.idle is not None:
                            rows.idle[column] = False
                        self.lost.append(LostStep(column, int(self._num_rows[column]) - 1, has_failed=False))
            if has_ended or not self._is_present[column]:
                self._returns[column] = self._lengths[column] = self._num_rows[column] = 0
                if state.is_present[place]:
                    begun.append(column)
            self._is_present[column] = state.is_present[place]
            self._moves[column] = state.moves[place]
        if begun and (self.policies is not None or self._training_info.reward_shaping):
            self._begin_next_episodes(begun)

    def _record_cut(self, column: int, place: int, env: AgentsEnv, state: AgentsState) -> None:
        """Notes a truncated agent that waits: it has no final observation, or in lists no action in this row."""
        if state.truncated[place]:
            num_rows, is_lost = int(self._num_rows[column]), int(env.resets_itself)
            if (not self._moves[column]) if is_lost else state.obs[place] is None:
                self._unfinished.append((column, self._row - is_lost, num_rows - is_lost))

    def _end_episode(self, env_idx: int, column: int, name: str, extra_stats: Any) -> None:
        numbers = numbers_among(extra_stats)
        if len(self._names) <= _MOST_NAMED_AGENTS:
            numbers[f"{name}_return"] = float(self._returns[column])
        self._record_episode(env_idx, float(self._returns[column]), int(self._lengths[column]), numbers, column)

    def _lose_step(self, env_idx: int, columns: slice, rows: StepRows, trouble: EnvironmentTrouble) -> None:
        """Ends the episodes of all agents of an environment before this row, and starts new ones in the next row."""
        assert rows.idle is not None
        is_dropped = False
        if isinstance(trouble, NotFinite) and self.failures is not None:
            steps = int(self._num_rows[columns].max())
            is_dropped = not self.failures.record_not_finite(trouble, steps)
        for column in np.flatnonzero(self._is_present[columns]) + columns.start:
            num_rows = int(self._num_rows[column])
            self.lost.append(LostStep(int(column), num_rows, has_failed=not is_dropped))
            if is_dropped and not self._moves[column]:
                self._unfinished.append((int(column), self._row - 1, num_rows))
        rows.valid[columns] = rows.idle[columns] = False
        self._start(env_idx, rows.next_obs, None if is_dropped else trouble)

    def _reset(self, position: int, obs_rows: ObsArray) -> None:
        seed, self._seeds[position] = self._seeds[position], None
        try:
            state = self._envs[position].reset(seed=seed)[0]
        except UsageError as error:
            raise self._wrong_agents(position, "reset", error) from None
        except ENVIRONMENT_EXCEPTIONS as error:
            raise self._call_failed(position, "reset", error) from error
        self._store(position, state, "reset")
        first = position * len(self._names)
        columns = slice(first, first + len(self._names))
        self._is_present[columns] = state.is_present
        self._moves[columns] = state.moves
        self._returns[columns] = self._lengths[columns] = self._num_rows[columns] = 0
        if self.policies is not None:
            self.policies.record_reset(position)
        if self.policies is not None or self._training_info.reward_shaping:
            self._begin_episodes(first + place for place, is_present in enumerate(state.is_present) if is_present)

    def _store(self, env_idx: int, state: AgentsState, call: str) -> None:
        """Writes the observations that there are; raises if one of them or a reward cannot be used."""
        first = env_idx * len(self._names)
        rows = self._obs[first : first + len(self._names)]
        try:
            for place, obs in enumerate(state.obs):
                if obs is None:
                    if call == "reset":  # it waits for its turn: nothing of the episode before is left
                        rows[place] = 0
                elif state.is_present[place] or not state.terminated[place]:  # what ends an episode is not used
                    self._kinds[self._kind_of[place]].codec.write(obs, self._own_rows[first + place])
        except ObservationMismatch as error:
            raise self._wrong_observation(env_idx, call, error) from None
        rewards = np.asarray(state.reward, dtype=np.float32)
        floats = [kind.codec.floats(rows[kind.agents]) for kind in self._kinds]
        if is_surely_finite(rewards) and all(map(is_surely_finite, floats)):
            return
        is_finite = np.isfinite(rewards)
        for kind, numbers in zip(self._kinds, floats, strict=True):
            is_finite[kind.agents] &= np.isfinite(numbers).all(1)
        if not is_finite.all():
            place = int(np.argmin(is_finite))
            numbers = self._kinds[self._kind_of[place]].codec.floats(rows[place, np.newaxis])[0]
            trouble = self._not_finite(env_idx, numbers.copy(), state.reward[place])
            rows[~is_finite] = 0
            raise trouble

    def _wrong_agents(self, position: int, call: str, error: UsageError) -> WrongAgents:
        steps = self._steps_made(position)
        text = f"returned something wrong from {call}"
        return WrongAgents(self._first_env_idx + position, steps, text, str(error).rstrip("."))

    def _steps_made(self, position: int) -> int:
        return self._steps[position]
