"""A trained policy to take away: from a checkpoint alone, without its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.making import ActingModel, make_acting_model
from asyncrl.runtime import checkpoint as checkpoints

Which = Literal["newest", "best"]


class Policy:
    """What a run learned, as a function from observations to what its environment takes.

    Attributes:
        spec: spaces of the environment that it was trained on.
        config: settings that it was trained with.
    """

    def __init__(self, model: ActingModel, spec: EnvSpec, config: TrainConfig, seed: int = 0) -> None:
        """Takes a model with its statistics, on the device where it is to run; nothing in it changes."""
        self.spec = spec
        self.config = config
        self._model = model
        self._device = model.statistics.device
        self._adapter = ActionAdapter(spec, config.squashes)
        self._generator = torch.Generator(self._device).manual_seed(seed)

    def act(self, obs: npt.ArrayLike, deterministic: bool = False) -> Any:
        """Chooses actions.

        Args:
            obs: one observation `[D]` or several `[B, D]`, as the environment gives them.
            deterministic: take the most likely action instead of drawing one.

        Returns:
            What the environment's `step` takes: for one observation one action, for several an array of them with B
            as its first axis.

        Raises:
            ValueError: the observations have another shape.
        """
        batch = np.asarray(obs, dtype=np.float32)
        size = self.spec.observation_size
        if batch.ndim not in (1, 2) or batch.shape[-1] != size:
            raise ValueError(f"expected observations of shape ({size},) or (B, {size}), got {batch.shape}")
        actions = self._act(np.atleast_2d(batch), deterministic)
        return actions[0] if batch.ndim == 1 else actions

    def reset(self) -> None:
        """Begins an episode. A policy without memory, as all are now, has nothing to forget."""

    def _act(self, obs: npt.NDArray[np.float32], deterministic: bool) -> Any:
        tensor = torch.from_numpy(obs).to(self._device)
        if deterministic:
            action = self._model.act_deterministic(tensor)
        else:
            action = self._model.act(tensor, self._generator).action
        return self._adapter.to_env_batch(action.cpu().numpy())


def find_checkpoint(path: Path, which: Which = "newest") -> Path:
    """Finds the checkpoint that is meant by a checkpoint's folder or a run's.

    Args:
        path: either folder.
        which: the one to take of a run's.

    Raises:
        UsageError: there is none.
    """
    if (path / checkpoints.STATE_FILE).exists():
        return path
    folder = path / "checkpoints"
    found = checkpoints.newest_first(folder / checkpoints.BEST if which == "best" else folder)
    if found:
        return found[0]
    if not folder.is_dir():
        raise UsageError(f"{path} is neither a run's folder nor a checkpoint's")
    raise UsageError(f"{path} has no {which} checkpoint yet: let it train until it has saved one")


def load_policy(path: str | Path, which: Which = "newest", device: str = "cpu", seed: int = 0) -> Policy:
    """See `asyncrl.load_policy`."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise UsageError(f"device {device} is none of cpu, cuda, cuda:N")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device {device}: PyTorch finds no CUDA device here; use cpu")
    found = find_checkpoint(Path(path), which)
    content = checkpoints.load(found)
    try:
        config = TrainConfig.model_validate(content.state["config"])
        spec = EnvSpec.from_data(content.state["spec"])
        model = make_acting_model(spec, config)
        model.load_state_dict(dict(content.model))
    except (KeyError, TypeError, ValidationError, RuntimeError) as error:
        raise UsageError(f"the checkpoint {found} does not hold a policy that can be used: {error}") from error
    return Policy(model.to(device).eval(), spec, config, seed)
