"""Words in shared memory: what the runner asks for, the progress of the run, and the deaths of rollout workers.

A rollout worker that dies leaves state behind: rings of which it was one end, slots that it was filling, requests
whose answers nobody will read. The other processes clean up, each once, before its successor starts:

    runner             the process has certainly ended          died[w] += 1
    inference worker   empties its ring, closes its requests    server[w] = died[w]     (central inference only)
    learner            takes over both rings and its slots      learner[w] = died[w]    (trajectories only)
    runner             all have acknowledged                    starts the next process

Each word has one writer. The learner waits for the inference worker, which may still be writing an answer into a slot
of the dead worker until then. An inference worker or learner that is restarted reads from the words what is left to do.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.config.errors import UsageError
from asyncrl.config.hyperparameters import NUM_HYPERPARAMETERS, Hyperparameters
from asyncrl.observers.reports import Activity, UpdateProgress

_TRAINING_INFO_BYTES = 32 << 10
_NUM_WORDS = 11
_STEPS, _FIRST_STEP_NS, _TURNS = range(3)

Value = TypeVar("Value", bool, int)


class TrainingInfo(NamedTuple):
    """What the runner tells the environments.

    Attributes:
        of_observers: the newest dict of an observer, for `set_training_info`; None if there was none.
        num_of_observers: dicts of observers so far.
        reward_shaping: of each policy, for `set_reward_shaping`; empty if nothing is to change it.
    """

    of_observers: Mapping[str, Any] | None = None
    num_of_observers: int = 0
    reward_shaping: tuple[Mapping[str, float], ...] = ()


def control_specs() -> list[ArraySpec]:
    """Arrays of `RunControl` without the progress words of the workers."""
    return [
        ArraySpec("control", "int64", (_NUM_WORDS,)),
        ArraySpec("control.best_return", "float64", (1,)),
        ArraySpec("control.hyperparameters", "float64", (NUM_HYPERPARAMETERS,)),
        ArraySpec("control.change", "int64", (2,)),
        ArraySpec("control.update", "int64", (3,)),
        ArraySpec("control.training_info_sizes", "int64", (2,)),
        ArraySpec("control.training_info_bytes", "uint8", (2, _TRAINING_INFO_BYTES)),
    ]


class _Word(Generic[Value]):
    """A word of `RunControl` that is read and written as an attribute of type `kind`."""

    def __init__(self, kind: Callable[[int], Value], index: int) -> None:
        self._kind: Callable[[int], Value] = kind
        self._index = index

    def __get__(self, control: RunControl, owner: type[RunControl]) -> Value:
        return self._kind(control._words[self._index])

    def __set__(self, control: RunControl, value: Value) -> None:
        control._words[self._index] = int(value)


FROM_FILE = -2
"""As the source of a `PolicyChange`: a block of weights in the file `TAKEOVER_FILE`."""

TAKEOVER_FILE = "takeover.npy"
"""In the policy's folder of checkpoints: weights of another run [N] float32, that the learner takes over."""

LAST_TURN = "population_turn"
"""Name in a checkpoint of the `turn` of the last `PolicyChange` that had one and that the learner has carried out."""

_NONE = -1


class PolicyChange(NamedTuple):
    """What an observer asks of the learner of one policy.

    Attributes:
        new_values: new hyperparameters.
        source: the policy whose newest weights and statistics it takes over, or `FROM_FILE`; None to keep its own.
        turn: number of the turn of an observer that decided this, for checkpoints; None if they need not know.
    """

    new_values: Hyperparameters
    source: int | None = None
    turn: int | None = None

    def updated_by(self, later: PolicyChange) -> PolicyChange:
        """Both changes as one."""
        return PolicyChange(
            self.new_values.updated_by(later.new_values),
            self.source if later.source is None else later.source,
            self.turn if later.turn is None else later.turn,
        )


class RunControl:
    """Requests of the runner and progress of the run. A word has one writer; counts never fall, flags stay set.

    Attributes:
        stop_requested: the learner is to finish its update, save and end (runner).
        ended: training is over, rollout and inference workers are to leave (learner; the runner when a role failed).
        has_finished_episode: an episode was finished, so the environments work (any rollout worker).
        num_best, num_saves, num_evaluations: requests for a best policy, a checkpoint, an evaluation (runner).
        num_changes, num_changes_taken: changes of hyperparameters or weights that were sent (runner) and taken
            (learner).
        num_training_infos: messages to the environments, `TrainingInfo` (runner).
        must_finish: Hogwild workers are to finish what they have begun, and begin nothing more (parameter server).
        steps_by_time: the share of `train_for_seconds` that has passed, of `train_for_env_steps`: schedules follow it
            where it is ahead of the environment steps; 0 without a limit of time (learner, parameter server).
    """

    stop_requested = _Word(bool, 0)
    ended = _Word(bool, 1)
    has_finished_episode = _Word(bool, 2)
    num_best = _Word(int, 3)
    num_saves = _Word(int, 4)
    num_evaluations = _Word(int, 5)
    num_changes = _Word(int, 6)
    num_changes_taken = _Word(int, 7)
    num_training_infos = _Word(int, 8)
    must_finish = _Word(bool, 9)
    steps_by_time = _Word(int, 10)

    def __init__(self, arena: Arena, num_workers: int) -> None:
        self._words = arena.words("control")
        self._best_return = arena.array("control.best_return")
        self._update = arena.words("control.update")  # minibatches done, minibatches in all, start in ns
        self._hyperparameters = arena.array("control.hyperparameters")
        self._change = arena.words("control.change")  # source and turn of a `PolicyChange`
        self._training_info_sizes = arena.words("control.training_info_sizes")
        self._training_info_bytes = arena.array("control.training_info_bytes")
        self._progress = [arena.words(f"progress.{worker_idx}") for worker_idx in range(num_workers)]

    def request_stop(self) -> None:
        self.stop_requested = True

    def end(self) -> None:
        self.ended = True

    def ask_for_save(self) -> None:
        self.num_saves += 1

    def ask_for_evaluation(self) -> None:
        self.num_evaluations += 1

    def ask_for_best(self, mean_return: float, policy_idx: int = 0) -> None:
        """Asks the learner of a policy to save it as the best so far (runner)."""
        self._best_return[0] = mean_return
        self.num_best += 1

    @property
    def best_return(self) -> float:
        """The mean return of the last best policy that was asked for."""
        return float(self._best_return[0])

    @property
    def learner_controls(self) -> Sequence[RunControl]:
        """The words of each learner, one for each policy."""
        return (self,)

    def send_change(self, change: PolicyChange) -> None:
        """Sends a change to the learner, which must have taken the previous one (runner)."""
        assert self.has_taken_change
        self._hyperparameters[:] = change.new_values.to_numbers()
        self._change[0] = _NONE if change.source is None else change.source
        self._change[1] = _NONE if change.turn is None else change.turn
        self.num_changes += 1

    @property
    def has_taken_change(self) -> bool:
        return self.num_changes == self.num_changes_taken

    def take_change(self) -> PolicyChange | None:
        """Returns a change once; None without one (learner)."""
        if self.num_changes == self.num_changes_taken:
            return None
        source, turn = (None if word == _NONE else word for word in self._change)
        change = PolicyChange(Hyperparameters.from_numbers(self._hyperparameters.tolist()), source, turn)
        self.num_changes_taken = self.num_changes
        return change

    @staticmethod
    def pack_training_info(info: TrainingInfo) -> bytes:
        """Returns what the environments are told as bytes, for `send_training_info`.

        Raises:
            UsageError: it cannot be pickled, or is too large.
        """
        try:
            content = pickle.dumps(tuple(info))
        except Exception as error:
            raise UsageError(f"The training info cannot be pickled: {type(error).__name__}: {error}.") from error
        if len(content) > _TRAINING_INFO_BYTES:
            raise UsageError(
                f"The training info has {len(content)} bytes; at most {_TRAINING_INFO_BYTES} are possible."
            )
        return content

    def send_training_info(self, content: bytes) -> None:
        """Sends packed bytes to all environments (runner). Two buffers alternate, as those of the weights do."""
        count = self.num_training_infos + 1
        self._training_info_bytes[count % 2, : len(content)] = np.frombuffer(content, np.uint8)
        self._training_info_sizes[count % 2] = len(content)
        self.num_training_infos = count

    @property
    def newest_training_info(self) -> TrainingInfo | None:
        """What new environments are told before their first reset; None if nothing was sent."""
        return self.read_training_info()[1] if self.num_training_infos > 0 else None

    def read_training_info(self) -> tuple[int, TrainingInfo]:
        """Returns the number of the newest message, at least 1, and the message."""
        while True:
            count = self.num_training_infos
            content = self._training_info_bytes[count % 2, : self._training_info_sizes[count % 2]].tobytes()
            if self.num_training_infos == count:
                return count, TrainingInfo(*pickle.loads(content))

    def record_minibatch(self, num_done: int, num_total: int) -> None:
        """Notes the progress of the current update (learner).

        Args:
            num_done: minibatches of the update that were trained; 0 begins an update.
            num_total: minibatches of the update; 0 if there is no update now.
        """
        if num_done == 0:
            self._update[2] = time.monotonic_ns()
        self._update[0] = num_done
        self._update[1] = num_total

    @property
    def activity(self) -> Activity:
        """What the run is doing now."""
        num_done, num_total, started_ns = self._update
        update = UpdateProgress(num_done, num_total, started_ns / 1e9) if num_total > 0 else None
        return Activity(self.total_steps, update, self.stop_requested, self.ended)

    def count_steps(self, worker_idx: int, num_steps: int) -> None:
        """Adds collected environment steps of one worker (that worker)."""
        words = self._progress[worker_idx]
        if words[_STEPS] == 0 and num_steps > 0:
            words[_FIRST_STEP_NS] = time.monotonic_ns()
        words[_STEPS] += num_steps

    def collected_steps(self, worker_idx: int) -> int:
        return int(self._progress[worker_idx][_STEPS])

    @property
    def total_steps(self) -> int:
        """Environment steps that all workers have collected."""
        return sum(words[_STEPS] for words in self._progress)

    def count_turn(self, worker_idx: int) -> None:
        """Notes that a worker has not hung: it has polled its splits, waited, or made or reset an environment."""
        self._progress[worker_idx][_TURNS] += 1

    def progress(self, worker_idx: int) -> int:
        """A number that changes unless the worker is inside a call that does not return."""
        words = self._progress[worker_idx]
        return int(words[_STEPS] + words[_TURNS])

    @property
    def first_step_at(self) -> float | None:
        """Time (`time.monotonic`) of the run's first environment step, None before it."""
        times = [words[_FIRST_STEP_NS] for words in self._progress if words[_FIRST_STEP_NS] > 0]
        return min(times) / 1e9 if times else None


class TrainedSteps:
    """Steps that each policy of a run has been trained on; the words of a policy have its learner as the writer.

    An environment step of several agents counts in the row of one of them, so it counts for one policy only. The sum
    over the policies is right, but a policy that never plays this agent has none.

    Attributes:
        policy_idx: the policy of this process.
    """

    def __init__(self, arena: Arena, policy_idx: int, num_policies: int) -> None:
        self.policy_idx = policy_idx
        self._env_steps = [arena.words(f"policy.{idx}.trained_env_steps") for idx in range(num_policies)]
        self._agent_steps = [arena.words(f"policy.{idx}.trained_agent_steps") for idx in range(num_policies)]

    @property
    def env_steps_by_others(self) -> int:
        """The environment steps of all other policies."""
        return sum(int(words[0]) for idx, words in enumerate(self._env_steps) if idx != self.policy_idx)

    @property
    def share(self) -> int:
        """This policy's part of the environment steps of all policies, in proportion to the agents' steps."""
        env_steps, agent_steps = (sum(int(words[0]) for words in each) for each in (self._env_steps, self._agent_steps))
        return env_steps * int(self._agent_steps[self.policy_idx][0]) // max(1, agent_steps)

    def record(self, env_steps: int, agent_steps: int) -> None:
        """Sets the steps of this process's policy and of its agents, which must never fall."""
        self._env_steps[self.policy_idx][0] = env_steps
        self._agent_steps[self.policy_idx][0] = agent_steps


class PoliciesControl(RunControl):
    """The control words of a run with several policies: what is asked of the run is asked of each learner.

    Attributes:
        controls: the words of each policy.
    """

    def __init__(self, arena: Arena, num_workers: int, controls: Sequence[RunControl]) -> None:
        super().__init__(arena, num_workers)
        self.controls = controls

    def request_stop(self) -> None:
        super().request_stop()
        for control in self.controls:
            control.request_stop()

    def ask_for_save(self) -> None:
        for control in self.controls:
            control.ask_for_save()

    def ask_for_best(self, mean_return: float, policy_idx: int = 0) -> None:
        self.controls[policy_idx].ask_for_best(mean_return)

    @property
    def learner_controls(self) -> Sequence[RunControl]:
        return self.controls

    @property
    def activity(self) -> Activity:
        update = next((found for control in self.controls if (found := control.activity.update) is not None), None)
        return Activity(self.total_steps, update, self.stop_requested, self.ended)


def worker_death_specs(num_workers: int) -> list[ArraySpec]:
    counts = [ArraySpec(f"worker_deaths.{word}", "int64", (num_workers,)) for word in ("died", "server", "learner")]
    return [*counts, ArraySpec("worker_deaths.total", "int64", (1,))]


class WorkerDeaths:
    """Deaths of rollout workers, and which processes have cleaned up after them; see the module's table."""

    def __init__(self, arena: Arena, has_server: bool, has_slots: bool) -> None:
        """Views the words.

        Args:
            arena: the run's.
            has_server: whether inference workers answer requests.
            has_slots: whether a learner grants slots.
        """
        self._died = arena.words("worker_deaths.died")
        self._server = arena.words("worker_deaths.server")
        self._learner = arena.words("worker_deaths.learner")
        self._total = arena.words("worker_deaths.total")
        self._has_server = has_server
        self._has_slots = has_slots

    def announce(self, worker_idx: int) -> None:
        """Notes that the process of a worker has ended (runner)."""
        self._died[worker_idx] += 1
        self._total[0] += 1

    @property
    def total(self) -> int:
        """Number of all deaths; it changes whenever there is a new one."""
        return int(self._total[0])

    def pending_for_server(self, workers: Iterable[int]) -> list[int]:
        """Returns those of `workers` whose death their inference worker has not acknowledged."""
        return [worker for worker in workers if self._server[worker] != self._died[worker]]

    def acknowledge_as_server(self, worker_idx: int) -> None:
        """Notes that the worker's ring is empty and its requests are closed (its inference worker)."""
        self._server[worker_idx] = self._died[worker_idx]

    def pending_for_learner(self) -> list[int]:
        """Returns the workers after which the learner has to clean up now: nobody else uses their slots any more."""
        return [
            worker
            for worker, num_deaths in enumerate(self._died)
            if self._learner[worker] != num_deaths and (not self._has_server or self._server[worker] == num_deaths)
        ]

    def acknowledge_as_learner(self, worker_idx: int) -> None:
        """Notes that the rings and slots of the dead worker are in order (learner)."""
        self._learner[worker_idx] = self._died[worker_idx]

    def is_acknowledged(self, worker_idx: int) -> bool:
        """Whether the worker may be started again (runner)."""
        num_deaths = self._died[worker_idx]
        has_learner_acknowledged = not self._has_slots or self._learner[worker_idx] == num_deaths
        return has_learner_acknowledged and (not self._has_server or self._server[worker_idx] == num_deaths)
