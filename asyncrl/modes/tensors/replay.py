"""A replay whose rows stay on the learner's device, filled and read in turn by one process.

Only whether a row may start a transition is kept in the host's memory: indices are drawn there.
"""

from __future__ import annotations

import numpy as np
import torch

from asyncrl.buffers.replay import UNKNOWN_VERSION, ReplayStripes, rows_per_stripe
from asyncrl.config.plan import ReplayPlan
from asyncrl.envs.spec import EnvSpec, stored_action
from asyncrl.storage.checkpoint import SavedReplay


class DeviceReplay(ReplayStripes):
    """One stripe, whose fields are tensors on `device` and `valid` an array. Owns its memory."""

    def __init__(self, spec: EnvSpec, num_envs: int, replay: ReplayPlan, device: torch.device) -> None:
        """Allocates the memory, empty.

        Raises:
            torch.OutOfMemoryError: the device has too little of it.
        """
        rows = (1, rows_per_stripe(1, num_envs, replay.size), num_envs)
        action_dtype, action_shape = stored_action(spec.action)
        fields = {
            "obs": (spec.observation.row_dtype, (spec.observation.row_size,)),
            "action": (action_dtype, action_shape),
            "reward": ("float32", ()),
            "terminated": ("bool", ()),
            "truncated": ("bool", ()),
        }
        self._fields = {
            name: torch.zeros((*rows, *shape), dtype=getattr(torch, dtype), device=device)
            for name, (dtype, shape) in fields.items()
        }
        self._fields["valid"] = np.zeros(rows, dtype=np.bool_)
        self.obs, self.action, self.reward, self.terminated, self.truncated, self.valid = self._fields.values()
        self.priority = None
        self.policy_version = np.full(rows[:2], UNKNOWN_VERSION, dtype=np.int32)
        self.num_rows, self._env_steps = [0], [0]
        self.num_splits, self.capacity, self.num_envs = rows

    def content(self) -> SavedReplay:
        """See `ReplayStripes`; a copy in the host's memory."""
        return self._on_host().content()

    def restore(self, kept: SavedReplay) -> None:
        """See `ReplayStripes`."""
        host = self._on_host()
        host.restore(kept)
        for name, field in host._fields.items():
            self._fields[name][...] = torch.from_numpy(field) if name != "valid" else field
        self.num_rows, self._env_steps = host.num_rows, host._env_steps

    def _on_host(self) -> ReplayStripes:
        copy = ReplayStripes.__new__(ReplayStripes)
        copy.__dict__.update(self.__dict__)
        copy._fields = {
            name: field.cpu().numpy() if isinstance(field, torch.Tensor) else field
            for name, field in self._fields.items()
        }
        copy.obs, copy.action, copy.reward, copy.terminated, copy.truncated, copy.valid = copy._fields.values()
        return copy
