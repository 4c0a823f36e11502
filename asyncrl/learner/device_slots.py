"""Slots where the learner reads them: on its own device, to which each is copied as soon as it is ready.

On a CPU these are the slots themselves. On a CUDA device there is a copy of each slot's fields. The thread that takes
in ready slots starts their copies, on a stream of their own, out of page-locked memory; so a dataset is on its way
while the one before it is trained on. Who owns what:

    slot (shared memory)   its state says; a copy only reads it, and it is freed after its copy has ended
    copy (device)          the stream of copies writes it, after datasets that were gathered from it; datasets read it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.pinning import pin_arena
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.learner.slot_ledger import Columns

FIELDS = (
    "obs",
    "rnn_state",
    "action",
    "action_parameters",
    "log_prob",
    "value",
    "reward",
    "terminated",
    "truncated",
    "valid",
    "policy_version",
)


class DeviceSlots:
    """Fields of all slots as tensors on one device.

    Attributes:
        device: where they are.
        slots: the slots in shared memory.
        fields: by name, `[slots, T or T+1, E, ...]`; `policy_version` is `[slots, T+1]`.
    """

    def __init__(self, slots: TrajectorySlots, device: torch.device | None = None, arena: Arena | None = None) -> None:
        """Takes slots, and the arena that they are in, to be page-locked; `device` is a CPU if it is not given."""
        device = device or torch.device("cpu")
        self.device = device
        self.slots = slots
        self._shared = {name: torch.from_numpy(getattr(slots, name)) for name in FIELDS}
        self.fields = self._shared
        self._is_copied = device.type == "cuda"
        if self._is_copied:
            if arena is not None:
                pin_arena(arena, self)
            self.fields = {name: torch.zeros_like(field, device=device) for name, field in self._shared.items()}
            self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._copied: dict[int, torch.cuda.Event] = {}
        self._gathered: dict[int, torch.cuda.Event] = {}

    def start_copy(self, slot: int) -> None:
        """Copies a slot that is ready; does not wait for it."""
        if not self._is_copied:
            return
        torch.cuda.set_device(self._stream.device)  # of this thread, which would go back to the first device otherwise
        with torch.cuda.stream(self._stream):
            gathered = self._gathered.pop(slot, None)
            if gathered is not None:
                self._stream.wait_event(gathered)
            for name, field in self._shared.items():
                self.fields[name][slot].copy_(field[slot], non_blocking=True)
            self._copied[slot] = self._stream.record_event()

    def gather(self, columns: Sequence[Columns], targets: dict[str, Tensor]) -> None:
        """Puts columns side by side into `targets`, of the fields' names, `[rows, C, ...]` on the device.

        Rows are every `n`-th of the field's, where `targets` has fewer: the first ones of sequences.
        """
        slots = {part.slot for part in columns}
        if self._is_copied:
            current = torch.cuda.current_stream(self.device)
            for slot in slots:
                current.wait_event(self._copied[slot])
        for name, target in targets.items():
            torch.cat(list(self._parts(name, columns, len(target))), dim=1, out=target)
        if self._is_copied:
            done = torch.cuda.current_stream(self.device).record_event()
            for slot in slots:
                self._gathered[slot] = done

    def settle(self, slot: int) -> None:
        """Waits until nothing reads the slot's shared memory any more: it is about to be freed."""
        copied = self._copied.get(slot)
        if copied is not None:
            copied.synchronize()

    def _parts(self, name: str, columns: Sequence[Columns], num_rows: int) -> Iterator[Tensor]:
        field, rollout = self.fields[name], self.slots.rollout
        for part in columns:
            rows = field[part.slot]
            if name == "policy_version":
                yield rows[:rollout, None].expand(-1, part.stop - part.start)
            elif num_rows < rollout:
                yield rows[: rollout : rollout // num_rows, part.start : part.stop]
            else:
                yield rows[:num_rows, part.start : part.stop]
