"""A trained policy, loaded from a checkpoint without its environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.config.algorithms import imported
from asyncrl.config.errors import ConfigError, UsageError
from asyncrl.config.hooks import hooks
from asyncrl.config.schema import TrainConfig
from asyncrl.config.value_types import read_device
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.observations import ObservationCodec, space_text, split_rows
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.distributions import Deterministic
from asyncrl.models.factory import ActingModel, make_acting_model
from asyncrl.processes.forks import use_one_thread_in_a_fork
from asyncrl.processes.own_settings import own_settings, with_own_settings
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.locating import find_checkpoint

Which = Literal["newest", "best"]
WritePolicy = Callable[[ActingModel, EnvSpec, TrainConfig, Path, str], float]
"""Writes a policy to a file of the named format, and returns and raises what `Policy.export` does."""


class ExportDiffers(Exception):
    """A file was written, but does not compute what the policy computes."""


class Policy:
    """A trained policy: from observations to actions in the form that `env.step` takes. `load_policy` makes it.

    Attributes:
        spec: spaces of the environment that it was trained on.
        config: settings that it was trained with.
        env_steps: environment steps that it was trained on; None if they are unknown.
    """

    def __init__(
        self, model: ActingModel, spec: EnvSpec, config: TrainConfig, seed: int = 0, env_steps: int | None = None
    ) -> None:
        """Takes a model with its statistics, on its device; `seed` is for sampled actions."""
        self.spec = spec
        self.config = config
        self.env_steps = env_steps
        self._model = model
        self._device = model.statistics.device
        self._adapter = ActionAdapter(spec, config.action_mapping)
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._codec = ObservationCodec(spec.observation, unread=config.critic_only_keys)
        self._state: npt.NDArray[np.float32] | None = None

    def __repr__(self) -> str:
        steps = "" if self.env_steps is None else f", {self.env_steps:,} steps"
        return (
            f"Policy({self.spec.env_id}, {self.config.algorithm.name}{steps}, "
            f"observations {space_text(self.spec.observation)}, actions {space_text(self.spec.action)})"
        )

    @property
    def is_stochastic(self) -> bool:
        """Whether sampled actions may differ from the deterministic ones."""
        return not isinstance(self._model.distribution, Deterministic)

    def act(self, obs: Any, deterministic: bool = False) -> Any:
        """Chooses actions. A recurrent policy keeps its state between calls: call `reset` where an episode begins.

        Args:
            obs: one observation, or B observations as a vectorized environment returns them (B is the first axis of
                every part). The parts that only the critic has seen in training (`critic_only_keys`) are not read.
            deterministic: take the deterministic action instead of sampling one.

        Returns:
            What the environment's `step` takes: one action for one observation; for B observations an array whose first
            axis is B, or a list of B actions if they are Dict or Tuple.

        Raises:
            ValueError: the observations have the wrong shape or numbers that are not finite, or their number differs
                from the previous call's.
        """
        with own_settings():
            rows = self._rows_of(obs)
        batch = np.atleast_2d(rows)
        if not np.isfinite(split_rows(self.spec.observation, batch)[0]).all():
            raise ValueError("the observation has a number that is not finite")
        state = self.initial_state(len(batch)) if self._state is None else self._state
        if len(state) != len(batch):
            raise ValueError(
                f"the policy acts in {len(state)} environments, got {len(batch)} observations: call reset() first"
            )
        actions, after = self.step(batch, state, deterministic)
        if self._model.rnn_state_size > 0:
            self._state = after
        return actions[0] if rows.ndim == 1 else actions

    def predict(
        self,
        observation: Any,
        state: npt.NDArray[np.float32] | None = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, npt.NDArray[np.float32] | None]:
        """Chooses actions, with the arguments and the result of Stable-Baselines3's `predict`.

        Args:
            observation: see `act`.
            state: recurrent states that `predict` has returned; None continues from the previous call, as `act` does.
            episode_start: [B] bool, the environments whose observation begins an episode: their states are reset.
            deterministic: see `act`.

        Returns:
            The actions, as `act` returns them, and the recurrent states `[B, S] float32`, None without recurrence.

        Raises:
            ValueError: see `act`; or the states have the wrong shape.
        """
        size = self._model.rnn_state_size
        if state is not None and size > 0:
            given = np.array(state, dtype=np.float32)
            if given.ndim != 2 or given.shape[1] != size:
                raise ValueError(f"expected the states that predict returned, of shape (B, {size}), got {given.shape}")
            self._state = given
        if episode_start is not None:
            self.reset(None if np.all(episode_start) else np.atleast_1d(episode_start))
        actions = self.act(observation, deterministic)
        return actions, None if self._state is None else self._state.copy()

    def reset(self, which: npt.ArrayLike | None = None) -> None:
        """Starts new episodes, in all environments or in those where the mask `which: [B] bool` is true.

        Only recurrent policies need this.
        """
        if which is None:
            self._state = None
        elif self._state is not None:
            self._state[np.asarray(which, dtype=np.bool_)] = 0.0

    def initial_state(self, num_envs: int) -> npt.NDArray[np.float32]:
        """Returns the recurrent states `[num_envs, S]` at the start of episodes, for `step`."""
        return np.zeros((num_envs, self._model.rnn_state_size), dtype=np.float32)

    def step(
        self, rows: npt.NDArray[Any], state: npt.NDArray[np.float32], deterministic: bool
    ) -> tuple[Any, npt.NDArray[np.float32]]:
        """Chooses actions for encoded observations, with recurrent states that the caller keeps.

        Args:
            rows: [B, row_size], see `asyncrl.envs.observations.ObservationCodec`.
            state: [B, S], recurrent states before these observations.
            deterministic: see `act`.

        Returns:
            The actions, as `act` returns them, and the recurrent states `[B, S]` after the observations.
        """
        with own_settings():
            before = torch.from_numpy(state).to(self._device)
            result = self._model.act(torch.from_numpy(rows).to(self._device), self._generator, before, deterministic)
        return self._adapter.to_env_batch(result.action.cpu().numpy()), np.array(result.rnn_state.cpu().numpy())

    def export(self, path: str | Path, format: str = "onnx") -> float:
        """Writes the policy to one file that runs without asyncrl (`docs/export.md`), and checks the file.

        Args:
            path: the file; an existing one is replaced.
            format: `onnx`, or `torch_export` for `torch.export.load`.

        Returns:
            The largest difference of a parameter of the action distributions, on random observations.

        Raises:
            UsageError: the format is unknown, a package is missing, the file cannot be written, or the model cannot be
                exported.
            asyncrl.inference.policy.ExportDiffers: the file computes something else.
        """
        formats = hooks("FORMATS")
        if format not in formats:
            expected = f"expected one of {', '.join(formats)}" if formats else "no format is installed"
            raise UsageError(f"There is no format {format!r}: {expected}.")
        write: WritePolicy = imported(formats[format][0])
        with own_settings():
            return write(self._model, self.spec, self.config, Path(path), format)

    def _rows_of(self, obs: Any) -> npt.NDArray[Any]:
        """Encodes one observation as `[row_size]`, or several as `[B, row_size]`."""
        layout = self.spec.observation
        has_tuples = any(part.path and isinstance(part.path[0], int) for part in layout.parts)
        if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict) and not has_tuples:
            raise ValueError("expected observations, got (observation, info) of env.reset(): pass its first element")
        if layout.is_vector:
            rows = np.asarray(obs, dtype=np.float32)
            size = layout.row_size
            if rows.ndim not in (1, 2) or rows.shape[-1] != size:
                raise ValueError(f"expected observations of shape ({size},) or (B, {size}), got {rows.shape}")
            return rows
        if isinstance(obs, list) and obs and isinstance(obs[0], dict):
            raise ValueError("expected one dict of arrays whose first axis is B, got a list of dicts")
        num_envs = self._codec.batch_size(obs)
        shape = (layout.row_size,) if num_envs is None else (num_envs, layout.row_size)
        rows = np.zeros(shape, dtype=layout.row_dtype)
        if num_envs is None:
            self._codec.write(obs, rows)
        else:
            self._codec.write_batch(obs, rows)
        return rows


@with_own_settings
def load_policy(
    path: str | Path, which: Which = "newest", device: str = "cpu", seed: int = 0, policy: int = 0
) -> Policy:
    """See `asyncrl.load_policy`."""
    device = read_device(device)
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise UsageError(f"Device {device} is not possible: expected cpu, cuda or cuda:N.")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"Device {device} is not possible: PyTorch finds no CUDA device. Use cpu.")
    use_one_thread_in_a_fork()
    found = find_checkpoint(path, which, policy_idx=policy)
    content = checkpoints.load(found)
    try:
        config = TrainConfig.from_saved(content.state["config"])
        spec = EnvSpec.from_data(content.state["spec"])
        model = make_acting_model(spec, config)
        model.load_state_dict(dict(content.model))
    except (KeyError, TypeError, ConfigError, RuntimeError) as error:
        raise UsageError(f"Checkpoint {found} holds no usable policy: {str(error).rstrip('.')}.") from error
    return Policy(model.to(device).eval(), spec, config, seed, checkpoints.saved_env_steps(found))
