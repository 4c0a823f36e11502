"""Learners that train one policy together, each with its own rollout workers.

Every rank makes the same optimizer steps: gradients, metrics and moments are summed over all ranks before they are
used. So weights, statistics and learning rates remain equal. All ranks make the calls below in the same order; each
call waits for the other ranks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

from asyncrl.buffers.control import RunControl
from asyncrl.config.hyperparameters import NO_CHANGES, Hyperparameters
from asyncrl.processes.children import RunFailed
from asyncrl.processes.peers import LOST_OTHERS, open_store
from asyncrl.processes.torchrun import RankAddress

_NO_LIMIT = timedelta(days=365)


class Ranks:
    """A learner that trains alone, and the interface of those that train together.

    Attributes:
        rank: number of this learner, from 0.
        num_ranks: learners that train together.
    """

    rank = 0
    num_ranks = 1

    def take_seconds(self) -> float:
        """Seconds spent in exchanges since the last call; on a GPU only until they were started."""
        return 0.0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all ranks, in place, and returns it."""
        return tensor

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every rank, in the order of ranks; each rank gives equally many."""
        return [list(numbers)]

    def take_from_first(self, tensor: Tensor) -> Tensor:
        """Overwrites a tensor, in place, with the one of rank 0, and returns it."""
        return tensor

    def average(self, tensors: Sequence[Tensor], weight: float | Tensor = 1.0) -> None:
        """Replaces float tensors by their means over all ranks, in one exchange; called with several ranks only.

        A number that is not finite on one rank is not finite on all of them afterwards.

        Args:
            tensors: of one dtype and device.
            weight: of this rank, a number or a scalar of the same device; with 0 its tensors must still be finite. If
                all ranks have 0 the means are not finite.
        """
        weights = tensors[0].new_empty(1).fill_(weight)
        flat = torch.cat([*(tensor.reshape(-1) for tensor in tensors), tensors[0].new_ones(1)]).mul_(weights)
        mean = self.sum(flat)[:-1].div_(flat[-1])
        start = 0
        for tensor in tensors:
            tensor.copy_(mean[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()


class ProcessGroupRanks(Ranks):
    """Ranks in a process group of `torch.distributed`, which uses Gloo and, for tensors on a GPU, NCCL.

    An exchange has no time limit, because a rank may wait long for its environments. The runner ends this process.
    """

    def __init__(self, address: RankAddress, device: torch.device) -> None:
        """Connects to the other ranks.

        Raises:
            RunFailed: they cannot be reached.
        """
        import torch.distributed as dist

        self._dist = dist
        self._seconds = 0.0
        self.rank, self.num_ranks = address.rank, address.num_ranks
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with _explaining_losses(address.rank):
            dist.init_process_group(
                backend,
                store=open_store(address, "learners"),
                rank=address.rank,
                world_size=address.num_ranks,
                timeout=_NO_LIMIT,
            )

    def sum(self, tensor: Tensor) -> Tensor:
        started = time.perf_counter()
        with _explaining_losses(self.rank):
            self._dist.all_reduce(tensor)
        self._seconds += time.perf_counter() - started
        return tensor

    def take_seconds(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        own = torch.tensor(numbers, dtype=torch.int64)
        everyone = [torch.empty_like(own) for _ in range(self.num_ranks)]
        with _explaining_losses(self.rank):
            self._dist.all_gather(everyone, own)
        return [each.tolist() for each in everyone]

    def take_from_first(self, tensor: Tensor) -> Tensor:
        with _explaining_losses(self.rank):
            self._dist.broadcast(tensor, src=0)
        return tensor


@contextlib.contextmanager
def _explaining_losses(rank: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RunFailed(f"rank {rank} {LOST_OTHERS}", str(error)) from error


@dataclass(frozen=True)
class Turn:
    """The common decision of all ranks about the next iteration.

    Attributes:
        is_over: some rank wants to end, or all are done; no rank continues.
        is_interrupted: some rank was asked to stop before the end of the run.
        num_updates: the smallest number of updates that a rank that is not done can make.
        env_steps: environment steps of all ranks.
        new_values: hyperparameters that an observer has changed; every rank uses them from its next update on.
    """

    is_over: bool
    is_interrupted: bool
    num_updates: int
    env_steps: int
    new_values: Hyperparameters | None = None


class RankConsensus:
    """Makes all ranks continue, save and end together. With one rank every decision is its own.

    Before each iteration every rank calls `sync_ranks`, or `end` instead if it wants to end.

    Attributes:
        ranks: the learners.
        hyperparameters: the changes that are in effect; with one rank its training loop adds them.
        is_over: whether some rank has ended.
        was_interrupted: whether some rank was asked to stop before the end of the run.
        env_steps: environment steps of all ranks, as of the last turn.
    """

    def __init__(
        self, ranks: Ranks, control: RunControl | None = None, hyperparameters: Hyperparameters = NO_CHANGES
    ) -> None:
        """Begins with the changes of a resumed run, `hyperparameters`; rank 0 reads new ones from `control`."""
        self.ranks = ranks
        self.hyperparameters = hyperparameters
        self._control = control
        self._wants_to_save = self._are_to_save = False
        self.is_over = self.was_interrupted = False
        self.env_steps = 0

    def sync_ranks(self, num_updates: int, env_steps: int, is_done: bool = False) -> Turn:
        """Waits until every rank is ready for its next iteration, or one of them wants to end.

        Args:
            num_updates: updates that this rank could make; at least 1 unless it is done.
            env_steps: environment steps of this rank, with those of the iteration.
            is_done: this rank has no work left, and continues only with the others.
        """
        return self._exchange(False, False, is_done, num_updates, env_steps)

    def should_stop(self, wants_to: bool) -> bool:
        """Whether some rank wants to stop; every rank calls this at the same place between two turns."""
        return any(row[0] for row in self.ranks.gather([wants_to]))

    def end(self, is_interrupted: bool, env_steps: int) -> None:
        """Ends all ranks with their next turn, unless they have ended. `is_interrupted`: this one was asked to stop."""
        if not self.is_over:
            self._exchange(True, is_interrupted, True, 0, env_steps)

    def should_save(self, is_due: bool) -> bool:
        """Whether to save now: rank 0 decides, and the others receive the decision with their next turn."""
        if self.ranks.num_ranks == 1:
            return is_due
        due, self._are_to_save = self._are_to_save, False
        # A request of rank 0 is kept until a turn has sent it; the save that follows fulfils it.
        self._wants_to_save = self.ranks.rank == 0 and not due and (self._wants_to_save or is_due)
        return due

    def _exchange(self, ends: bool, is_interrupted: bool, is_done: bool, num_updates: int, env_steps: int) -> Turn:
        new_values = None
        if not ends and self.ranks.rank == 0 and self._control is not None:
            change = self._control.take_change()
            new_values = None if change is None else change.new_values
        flags = [ends, is_interrupted, self._wants_to_save, new_values is not None, is_done]
        # Schedules follow the clock of rank 0, so that learning rates remain equal.
        steps_by_time = 0 if self._control is None else self._control.steps_by_time
        rows = self.ranks.gather([*flags, num_updates, env_steps, steps_by_time])
        all_end, all_interrupted, saves, changes, all_done, all_updates, steps, (first, *_) = zip(*rows, strict=True)
        if self._control is not None:
            self._control.steps_by_time = first
        if any(changes):
            numbers = torch.tensor((new_values or NO_CHANGES).to_numbers(), dtype=torch.float64)
            new_values = Hyperparameters.from_numbers(self.ranks.take_from_first(numbers).tolist())
            self.hyperparameters = self.hyperparameters.updated_by(new_values)
        updates = [count for count, done in zip(all_updates, all_done, strict=True) if not done]
        self._are_to_save, self._wants_to_save = self._are_to_save or any(saves), False
        turn = Turn(any(all_end) or not updates, any(all_interrupted), min(updates, default=0), sum(steps), new_values)
        self.is_over, self.was_interrupted, self.env_steps = turn.is_over, turn.is_interrupted, turn.env_steps
        return turn
