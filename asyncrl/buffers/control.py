"""Words by which a run is told to stop, by which its progress is seen, and by which deaths of workers are settled.

A rollout worker that dies leaves memory behind: rings of which it was one end, slots that it was filling, requests
whose answers nobody will read. Its successor starts with all of it in order, because everyone else acts first, each
once:

    runner             the process has ended for certain         died[w] += 1
    inference worker   drops its ring, closes its requests       server[w] = died[w]     (central inference only)
    learner            takes both rings and its slots over       learner[w] = died[w]    (trajectories only)
    runner             all have answered                         starts the next process

Each word has one writer. The learner waits for the inference worker, because that may still be writing an answer into
a slot of the dead worker until it has let go. An inference worker or learner that is restarted itself finds in the
words what it has to do.
"""

from __future__ import annotations

import enum
import pickle
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.config.errors import UsageError
from asyncrl.config.hyperparameters import NUM_HYPERPARAMETERS, Hyperparameters
from asyncrl.monitoring.reports import Activity, UpdateProgress

_TRAINING_INFO_BYTES = 32 << 10


def control_specs() -> list[ArraySpec]:
    """The words of `RunControl`, but for those of each worker."""
    return [
        ArraySpec("control", "int64", (8,)),
        ArraySpec("control.best_return", "float64", (1,)),
        ArraySpec("control.hyperparameters", "float64", (NUM_HYPERPARAMETERS,)),
        ArraySpec("control.update", "int64", (3,)),
        ArraySpec("control.training_info", "int64", (3,)),
        ArraySpec("control.training_info_bytes", "uint8", (2, _TRAINING_INFO_BYTES)),
    ]


class StopRequest(enum.IntEnum):
    """What the run was asked to do."""

    RUN = 0
    FINISH = 1
    """Finish the update in hand, save, end."""


class RunControl:
    """Words of the runner's requests, end and update words (learner), progress words (one writer each).

    The episode word is set by whoever has finished an episode, and never cleared.
    """

    _STOP, _ENDED, _NUM_BEST, _EPISODE, _NUM_SAVES, _NUM_EVALUATIONS, _NUM_CHANGES, _NUM_CHANGES_TAKEN = range(8)
    _STEPS, _FIRST_STEP_NS, _TURNS = range(3)
    _DONE, _TOTAL, _STARTED_NS = range(3)

    def __init__(self, arena: Arena, num_workers: int) -> None:
        """Views the words."""
        self._words = arena.words("control")
        self._best_return = arena.array("control.best_return")
        self._update = arena.words("control.update")
        self._hyperparameters = arena.array("control.hyperparameters")
        self._training_info = arena.words("control.training_info")
        self._training_info_bytes = arena.array("control.training_info_bytes")
        self._progress = [arena.words(f"progress.{worker_idx}") for worker_idx in range(num_workers)]

    def request_stop(self) -> None:
        """Asks the learner to finish, save and end (runner)."""
        self._words[self._STOP] = StopRequest.FINISH

    @property
    def stop_requested(self) -> bool:
        """Whether the learner is to finish."""
        return bool(self._words[self._STOP] != StopRequest.RUN)

    def ask_for_best(self, mean_return: float) -> None:
        """Asks the learner to save the present policy as the best so far (runner)."""
        self._best_return[0] = mean_return
        self._words[self._NUM_BEST] += 1

    @property
    def num_best(self) -> int:
        """How many times a best policy was asked for."""
        return int(self._words[self._NUM_BEST])

    @property
    def best_return(self) -> float:
        """What the last best policy was asked for with."""
        return float(self._best_return[0])

    def ask_for_save(self) -> None:
        """Asks the learner to save a checkpoint after its current dataset (runner)."""
        self._words[self._NUM_SAVES] += 1

    @property
    def num_saves(self) -> int:
        """How many times a checkpoint was asked for."""
        return int(self._words[self._NUM_SAVES])

    def ask_for_evaluation(self) -> None:
        """Asks for an evaluation of the newest policy (runner)."""
        self._words[self._NUM_EVALUATIONS] += 1

    @property
    def num_evaluations(self) -> int:
        """How many times an evaluation was asked for."""
        return int(self._words[self._NUM_EVALUATIONS])

    def set_hyperparameters(self, new_values: Hyperparameters) -> None:
        """Gives the learner new values, once it has taken those before (runner)."""
        assert self.has_taken_hyperparameters
        self._hyperparameters[:] = new_values.to_numbers()
        self._words[self._NUM_CHANGES] += 1

    @property
    def has_taken_hyperparameters(self) -> bool:
        """Whether no new values wait for the learner."""
        return bool(self._words[self._NUM_CHANGES] == self._words[self._NUM_CHANGES_TAKEN])

    def take_hyperparameters(self) -> Hyperparameters | None:
        """The new values, if there are any (learner)."""
        if self._words[self._NUM_CHANGES] == self._words[self._NUM_CHANGES_TAKEN]:
            return None
        new_values = Hyperparameters.from_numbers(self._hyperparameters.tolist())
        self._words[self._NUM_CHANGES_TAKEN] = self._words[self._NUM_CHANGES]
        return new_values

    @staticmethod
    def packed(info: Mapping[str, Any]) -> bytes:
        """A dict for environments as bytes.

        Raises:
            UsageError: it cannot be pickled, or is too large.
        """
        try:
            content = pickle.dumps(dict(info))
        except Exception as error:
            raise UsageError(f"The training info cannot be pickled: {type(error).__name__}: {error}.") from error
        if len(content) > _TRAINING_INFO_BYTES:
            raise UsageError(
                f"The training info has {len(content)} bytes; at most {_TRAINING_INFO_BYTES} are possible."
            )
        return content

    def send_training_info(self, content: bytes) -> None:
        """Sends a packed dict to all environments (runner). Two buffers take turns, as those of the weights do."""
        count = self._training_info[0] + 1
        self._training_info_bytes[count % 2, : len(content)] = np.frombuffer(content, np.uint8)
        self._training_info[1 + count % 2] = len(content)
        self._training_info[0] = count

    @property
    def num_training_infos(self) -> int:
        """How many dicts were sent to the environments."""
        return self._training_info[0]

    @property
    def newest_training_info(self) -> Mapping[str, Any] | None:
        """What environments that are made now are given before their first reset; None if nothing was sent."""
        return self.read_training_info()[1] if self.num_training_infos > 0 else None

    def read_training_info(self) -> tuple[int, Any]:
        """The number of the newest dict that was sent to the environments, at least 1, and the dict."""
        while True:
            count = self._training_info[0]
            content = self._training_info_bytes[count % 2, : self._training_info[1 + count % 2]].tobytes()
            if self._training_info[0] == count:
                return count, pickle.loads(content)

    def end(self) -> None:
        """Ends collecting and inference: training is over (learner; the runner when a role failed)."""
        self._words[self._ENDED] = 1

    @property
    def ended(self) -> bool:
        """Whether rollout and inference workers are to leave."""
        return bool(self._words[self._ENDED])

    def note_minibatch(self, num_done: int, num_total: int) -> None:
        """Says how far the update in hand has come (learner).

        Args:
            num_done: minibatches of the update that were trained; 0 begins an update.
            num_total: minibatches of the update; 0 if none is in hand.
        """
        if num_done == 0:
            self._update[self._STARTED_NS] = time.monotonic_ns()
        self._update[self._DONE] = num_done
        self._update[self._TOTAL] = num_total

    @property
    def activity(self) -> Activity:
        """What the run is doing."""
        done, total, started_ns = (int(word) for word in self._update)
        update = UpdateProgress(done, total, started_ns / 1e9) if total > 0 else None
        return Activity(self.total_steps, update, self.stop_requested, self.ended)

    def count_steps(self, worker_idx: int, num_steps: int) -> None:
        """Adds collected environment steps of one worker (that worker)."""
        words = self._progress[worker_idx]
        if words[self._STEPS] == 0 and num_steps > 0:
            words[self._FIRST_STEP_NS] = time.monotonic_ns()
        words[self._STEPS] += num_steps

    def collected_steps(self, worker_idx: int) -> int:
        """Environment steps that a worker has collected."""
        return int(self._progress[worker_idx][self._STEPS])

    @property
    def total_steps(self) -> int:
        """Environment steps that all workers have collected."""
        return sum(int(words[self._STEPS]) for words in self._progress)

    def count_turn(self, worker_idx: int) -> None:
        """Notes that a worker has looked after all its splits once, or has waited once (that worker)."""
        self._progress[worker_idx][self._TURNS] += 1

    def progress(self, worker_idx: int) -> int:
        """A number that stands still only while a worker is inside a call that does not return."""
        words = self._progress[worker_idx]
        return int(words[self._STEPS] + words[self._TURNS])

    def note_episode(self) -> None:
        """Says that an episode was finished: environments work as they are meant to (rollout workers)."""
        self._words[self._EPISODE] = 1

    @property
    def has_finished_episode(self) -> bool:
        """Whether the run has finished an episode."""
        return bool(self._words[self._EPISODE])

    @property
    def first_step_at(self) -> float | None:
        """Time (`time.monotonic`) of the run's first environment step, None before it."""
        times = [words[self._FIRST_STEP_NS] for words in self._progress if words[self._FIRST_STEP_NS] > 0]
        return min(times) / 1e9 if times else None


def departure_specs(num_workers: int) -> list[ArraySpec]:
    """Arrays of the words."""
    counts = [ArraySpec(f"departures.{word}", "int64", (num_workers,)) for word in ("died", "server", "learner")]
    return [*counts, ArraySpec("departures.total", "int64", (1,))]


class Departures:
    """Deaths of rollout workers, and who has settled them."""

    def __init__(self, arena: Arena, has_server: bool, has_slots: bool) -> None:
        """Views the words.

        Args:
            arena: the run's.
            has_server: whether inference workers answer requests.
            has_slots: whether the learner grants slots.
        """
        self._died = arena.words("departures.died")
        self._server = arena.words("departures.server")
        self._learner = arena.words("departures.learner")
        self._total = arena.words("departures.total")
        self._has_server = has_server
        self._has_slots = has_slots

    def announce(self, worker_idx: int) -> None:
        """Says that a worker's process has ended (runner)."""
        self._died[worker_idx] += 1
        self._total[0] += 1

    @property
    def total(self) -> int:
        """Deaths of all workers: one look tells whether there is anything new."""
        return int(self._total[0])

    def for_server(self, workers: Iterable[int]) -> list[int]:
        """Those of the workers whose death their inference worker has not settled."""
        return [worker for worker in workers if self._server[worker] != self._died[worker]]

    def settle_as_server(self, worker_idx: int) -> None:
        """Says that ring and requests of the dead worker are done with (its inference worker)."""
        self._server[worker_idx] = self._died[worker_idx]

    def for_learner(self) -> list[int]:
        """Workers whose death the learner has to settle now: nobody else touches what they left."""
        return [
            worker
            for worker in range(len(self._died))
            if self._learner[worker] != self._died[worker] and self._is_settled_by_server(worker)
        ]

    def settle_as_learner(self, worker_idx: int) -> None:
        """Says that rings and slots of the dead worker are in order (learner)."""
        self._learner[worker_idx] = self._died[worker_idx]

    def is_settled(self, worker_idx: int) -> bool:
        """Whether the worker may be started again (runner)."""
        settled_by_learner = not self._has_slots or self._learner[worker_idx] == self._died[worker_idx]
        return settled_by_learner and self._is_settled_by_server(worker_idx)

    def _is_settled_by_server(self, worker_idx: int) -> bool:
        return not self._has_server or self._server[worker_idx] == self._died[worker_idx]
