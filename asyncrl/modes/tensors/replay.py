"""A replay whose rows stay on the learner's device, filled and read in turn by one process.

Only whether a row may start a transition is kept in the host's memory: indices are drawn there.
"""

from __future__ import annotations

import numpy as np
import torch

from asyncrl.buffers.replay import FIELDS, UNKNOWN_VERSION, ReplayStripes, replay_specs
from asyncrl.config.plan import ReplayPlan
from asyncrl.envs.spec import EnvSpec
from asyncrl.storage.checkpoint import SavedReplay


class DeviceReplay(ReplayStripes):
    """One stripe, whose fields are tensors on `device` and `valid` an array. Owns its memory."""

    def __init__(self, spec: EnvSpec, num_envs: int, replay: ReplayPlan, device: torch.device) -> None:
        """Allocates the memory, empty.

        Raises:
            torch.OutOfMemoryError: the device has too little of it.
        """
        specs = {spec.name: spec for spec in replay_specs(spec, 1, num_envs, replay.size)}
        self._fields = {}
        for name in FIELDS[:-1]:
            field = specs[f"replay.{name}"]
            self._fields[name] = torch.zeros(field.shape, dtype=getattr(torch, field.dtype), device=device)
        self._fields["valid"] = np.zeros(specs["replay.valid"].shape, dtype=np.bool_)
        self.obs, self.action, self.reward, self.terminated, self.truncated, self.valid = self._fields.values()
        self.priority = None
        self.policy_version = np.full(self.valid.shape[:2], UNKNOWN_VERSION, dtype=np.int32)
        self.num_rows, self._env_steps = [0], [0]
        self.num_splits, self.capacity, self.num_envs = self.valid.shape

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
