"""The resource plan: what every `auto` becomes on this machine, and every number that follows from the settings.

The roles read the plan; only `resolve` reads `auto`. Here are no checks: settings that do not fit together still
resolve to something of sane size, and `asyncrl.config.checks` says what is wrong with them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from asyncrl.config.machine import Machine

if TYPE_CHECKING:  # roles that only read a plan need no pydantic
    from asyncrl.config.schema import TrainConfig

_FLOPS_FOR_A_THREAD = 3e8  # of a minibatch, forward and backward: a few milliseconds of one core
_FLOPS_OF_CONVOLUTIONS = 2e7  # of one forward pass over a screen of 84 x 84
_WORK_TO_TAKE_A_CORE = 4
_FLOPS_FOR_AN_OFF_POLICY_THREAD = 2e8
_ON_POLICY_PASSES, _SAC_PASSES = 3, 16  # forward passes through one network that an update is worth
_UPDATES_TO_BE_WAITED_FOR = 0.1
_OFF_POLICY_ENVS = 4  # of each worker
_HOGWILD_ENVS, _HOGWILD_SAC_ENVS = 4, 1  # of each worker

PLACES_OF_A_WORKER = 2
"""Gradients that a Hogwild worker may have under way."""

InferenceMode = Literal["local", "central"]
HogwildMode = Literal["shared", "synced", "gradients"]


@dataclass(frozen=True)
class ReplayPlan:
    """What learning from a replay adds to a plan.

    Attributes:
        size: environment steps that the replay holds.
        warmup_env_steps: environment steps before the first update.
        updates_per_env_step: updates for each environment step after that.
        tolerance: updates by which learning may fall behind, on top of two steps of every environment.
    """

    size: int
    warmup_env_steps: int
    updates_per_env_step: float
    tolerance: float


@dataclass(frozen=True)
class HogwildPlan:
    """What the Hogwild backend adds to a plan.

    Attributes:
        mode: which parameters a worker acts with, and where its gradients go.
        num_gradients_to_combine: gradients that make one step, where a process combines them.
    """

    mode: HogwildMode
    num_gradients_to_combine: int


@dataclass(frozen=True)
class ResourcePlan:
    """Numbers of processes, environments, samples and slots of one run.

    Attributes:
        device: the learner's device: cpu, cuda or cuda:N.
        inference_devices: devices of the inference workers, which take turns over them; empty with local inference.
        inference_mode: where actions are computed.
        serial_mode, async_rl: as in the settings.
        num_workers: rollout workers.
        num_envs_per_worker: environments of each.
        worker_num_splits: parts of a worker's environments that take turns.
        num_inference_workers: inference workers, 0 with local inference.
        learner_threads: CPU threads of the learner.
        cores: cores that the plan was made for.
        num_ranks, num_local_ranks: processes like this one that train one policy together, and those of this machine.
        rollout: steps of one trajectory, T.
        batch_size, num_batches_per_epoch, num_epochs: as in the settings.
        num_batches_to_accumulate: datasets that may wait or be in training, A.
        fixed_lag: whether a dataset is collected as a whole while the one before is trained.
        max_policy_lag, debug_forced_lag: in policy versions, as in the settings.
        train_for_env_steps: environment steps of the whole run.
        rnn_state_size: numbers of one environment's recurrent state, of actor and critic together; 0 without one.
        recurrence: steps of a sequence that is trained as one; divides `rollout`.
        replay: what learning from a replay adds; None for algorithms that learn from trajectories.
        hogwild: what workers that train one set of parameters together add; None for the other backend.
        steps_tensors: whether environments are on the learner's device, and samples never leave it.
    """

    device: str
    inference_mode: InferenceMode
    serial_mode: bool
    async_rl: bool
    num_workers: int
    num_envs_per_worker: int
    worker_num_splits: int
    num_inference_workers: int
    learner_threads: int
    cores: int
    rollout: int
    batch_size: int
    num_batches_per_epoch: int
    num_epochs: int
    num_batches_to_accumulate: int
    max_policy_lag: int
    debug_forced_lag: int
    train_for_env_steps: int
    fixed_lag: bool = False
    num_ranks: int = 1
    num_local_ranks: int = 1
    inference_devices: tuple[str, ...] = ()
    rnn_state_size: int = 0
    recurrence: int = 0
    replay: ReplayPlan | None = None
    hogwild: HogwildPlan | None = None
    steps_tensors: bool = False

    @property
    def envs_per_split(self) -> int:
        """Environments that step together and fill one slot, E."""
        return self.num_envs_per_worker // self.worker_num_splits

    @property
    def num_splits(self) -> int:
        """Splits of all workers, W * K."""
        return self.num_workers * self.worker_num_splits

    @property
    def num_envs(self) -> int:
        """Environments of the run, or of one rank."""
        return self.num_workers * self.num_envs_per_worker

    @property
    def dataset_size(self) -> int:
        """Samples (rows) that are trained together."""
        return self.batch_size * self.num_batches_per_epoch

    @property
    def columns_per_dataset(self) -> int:
        """Trajectories of one environment in a dataset."""
        return max(1, self.dataset_size // self.rollout)

    @property
    def slots_per_dataset(self) -> Fraction:
        """D: a dataset in slots; in async it need not be whole, since datasets take single columns."""
        return Fraction(self.columns_per_dataset, self.envs_per_split)

    @property
    def num_slots(self) -> int:
        """Slots in the arena: D in sync, ceil(A * D) and one more for each split in async; perhaps none at all.

        With a fixed lag 2 D: one dataset is trained while the other is collected.
        """
        if self.replay is not None or self.hogwild is not None or self.steps_tensors:
            return 0
        if not self.async_rl:
            return math.ceil(self.slots_per_dataset)
        if self.fixed_lag:
            return 2 * math.ceil(self.slots_per_dataset)
        return math.ceil(self.num_batches_to_accumulate * self.slots_per_dataset) + self.num_splits

    @property
    def updates_per_dataset(self) -> int:
        """Optimizer steps, and so policy versions, that one dataset brings."""
        return self.num_epochs * self.num_batches_per_epoch

    @property
    def num_datasets(self) -> int:
        """Datasets of the whole run, in each rank."""
        return math.ceil(self.train_for_env_steps / (self.dataset_size * self.num_ranks))

    @property
    def num_updates(self) -> int:
        """Optimizer steps of the whole run."""
        if self.replay is not None:
            steps = max(0, self.train_for_env_steps // self.num_ranks - self.replay.warmup_env_steps)
            return math.floor(steps * self.replay.updates_per_env_step)
        if self.hogwild is not None:
            samples = self.num_envs_per_worker * self.rollout
            if self.hogwild.mode == "gradients":
                samples *= self.hogwild.num_gradients_to_combine
            return self.train_for_env_steps // samples
        return self.num_datasets * self.updates_per_dataset

    @property
    def forced_lag(self) -> int:
        """Versions by which published weights are late: `debug_forced_lag` in whole publications, one an epoch."""
        return math.ceil(self.debug_forced_lag / self.num_batches_per_epoch) * self.num_batches_per_epoch

    @property
    def steady_lag_bound(self) -> int:
        """Largest lag at first use, in policy versions, while all splits keep the same pace.

        Sync: 0, because slots are granted only after the weights of the dataset before were published.

        Async: take the moment when a slot is granted, while dataset j is being trained (or is the next to be). Its
        weights are at least those published after dataset j - 1, since they are published before slots are freed. A
        slot stays charged until its last column was trained, so besides dataset j at most `num_slots - D` slots can
        be charged, this one among them. Slots are trained in the order in which they become ready, which at equal
        pace is the order of the grants, so all that is trained between dataset j and this slot's last column lies
        in those: the slot is used up ceil((num_slots - D) / D) datasets after j at the latest, each of them
        `updates_per_dataset` versions. With A = 1 and D = W * K there are 2 D slots: a lag of exactly one dataset.

        A split that falls behind the others may exceed it; `lag_bound` holds always.

        Fixed lag: one dataset, whatever the pace.
        """
        if not self.async_rl:
            return self.forced_lag
        if self.fixed_lag:
            return self.updates_per_dataset
        datasets = math.ceil((self.num_slots - self.slots_per_dataset) / self.slots_per_dataset)
        return datasets * self.updates_per_dataset + self.forced_lag

    @property
    def lag_bound(self) -> int:
        """Lag at first use, in policy versions, that no trained sample exceeds: in async older ones are dropped."""
        return self.max_policy_lag if self.async_rl and not self.fixed_lag else self.steady_lag_bound

    @property
    def of_one_worker(self) -> ResourcePlan:
        """What a Hogwild worker has in memory of its own: one slot, or its part of the replay."""
        replay = self.replay
        if replay is not None:
            size, warmup = (max(1, total // self.num_workers) for total in (replay.size, replay.warmup_env_steps))
            replay = dataclasses.replace(replay, size=size, warmup_env_steps=warmup, tolerance=0.0)
        return dataclasses.replace(
            self,
            num_workers=1,
            worker_num_splits=1,
            async_rl=False,
            batch_size=self.num_envs_per_worker * self.rollout,
            num_batches_per_epoch=1,
            replay=replay,
            hogwild=None,
        )

    @property
    def num_processes(self) -> int:
        """Processes that compute, the runner included."""
        if self.serial_mode:
            return 1
        return 2 + self.num_workers + self.num_inference_workers

    @property
    def num_threads(self) -> int:
        """Threads that compute at the same time at most: one for each worker, and the learner's."""
        if self.serial_mode:
            return self.learner_threads
        collecting = self.num_workers + self.num_inference_workers
        return collecting + self.learner_threads if self.async_rl else max(collecting, self.learner_threads)


def resolve(config: TrainConfig, machine: Machine | None = None, observes_images: bool = False) -> ResourcePlan:
    """Turns every `auto` into a value for this machine and derives the rest.

    Args:
        config: the settings.
        machine: what to plan for; the machine this runs on if not given.
        observes_images: whether observations go through convolutions.
    """
    machine = machine or Machine.detect()
    device = _of_this_rank(_device(config, machine), machine)
    learner_device = device
    if config.learner_device != "auto" and config.backend != "hogwild":
        learner_device = _of_this_rank(config.learner_device, machine)
    inference_devices = tuple(_of_this_rank(each, machine) for each in config.inference_devices or (device,))
    cores = max(1, machine.cores // machine.num_local_ranks)
    inference_mode = _inference_mode(config, inference_devices)
    num_inference_workers = config.num_inference_workers
    if num_inference_workers == "auto":
        num_inference_workers = len(inference_devices)
    prefer_even = inference_mode == "central" and config.worker_num_splits == "auto"
    num_workers, num_envs = _workers_and_envs(config, cores, prefer_even)
    if config.worker_num_splits != "auto":
        num_splits = min(config.worker_num_splits, num_envs)
    else:
        num_splits = 2 if prefer_even and num_envs % 2 == 0 else 1
    return ResourcePlan(
        device=learner_device,
        inference_mode=inference_mode,
        serial_mode=config.serial_mode,
        async_rl=config.async_rl,
        fixed_lag=config.async_rl and config.fixed_lag and not config.is_off_policy and config.backend != "hogwild",
        num_workers=num_workers,
        num_envs_per_worker=num_envs,
        worker_num_splits=num_splits,
        num_inference_workers=num_inference_workers if inference_mode == "central" else 0,
        inference_devices=inference_devices if inference_mode == "central" else (),
        learner_threads=_learner_threads(config, cores, num_workers, observes_images),
        cores=cores,
        num_ranks=machine.num_ranks,
        num_local_ranks=machine.num_local_ranks,
        rollout=config.rollout,
        batch_size=config.batch_size,
        num_batches_per_epoch=config.num_batches_per_epoch,
        num_epochs=config.num_epochs,
        num_batches_to_accumulate=config.num_batches_to_accumulate,
        max_policy_lag=config.max_policy_lag,
        debug_forced_lag=config.debug_forced_lag,
        train_for_env_steps=config.train_for_env_steps,
        rnn_state_size=_rnn_state_size(config),
        recurrence=config.rollout if config.recurrence == "auto" else config.recurrence,
        replay=_replay(config),
        hogwild=_hogwild(config, num_workers),
        steps_tensors=config.env_backend == "tensor",
    )


def _device(config: TrainConfig, machine: Machine) -> str:
    if config.device != "auto":
        return config.device
    return "cuda" if machine.cuda_is_usable and config.backend != "hogwild" else "cpu"


def _of_this_rank(device: str, machine: Machine) -> str:
    """Ranks of one machine take a device each, unless a number says which."""
    return f"cuda:{machine.local_rank}" if device == "cuda" and machine.num_local_ranks > 1 else device


def _rnn_state_size(config: TrainConfig) -> int:
    if not config.use_rnn:
        return 0
    return config.rnn_state_size_of_core * (1 if config.actor_critic_share_weights else 2)


def _hogwild(config: TrainConfig, num_workers: int) -> HogwildPlan | None:
    if config.backend != "hogwild":
        return None
    mode: HogwildMode = "shared" if config.is_off_policy else "synced"
    if config.hogwild_mode != "auto":
        mode = config.hogwild_mode
    count = config.num_gradients_to_combine
    return HogwildPlan(mode, num_workers if count == "auto" else count)


def _replay(config: TrainConfig) -> ReplayPlan | None:
    if not config.is_off_policy:
        return None
    tolerance = config.replay_ratio_tolerance if config.async_rl else 0.0
    return ReplayPlan(config.replay_size, config.warmup_env_steps, config.updates_per_env_step, tolerance)


def _inference_mode(config: TrainConfig, devices: Sequence[str]) -> InferenceMode:
    if config.serial_mode or config.backend == "hogwild":
        return "local"
    if config.inference_mode == "auto":
        return "central" if any(device.startswith("cuda") for device in devices) else "local"
    return config.inference_mode


def _learner_threads(config: TrainConfig, cores: int, num_workers: int, observes_images: bool) -> int:
    if config.learner_threads != "auto":
        return config.learner_threads
    if config.serial_mode or config.backend == "hogwild":
        # The order of a sum depends on the number of threads; with one, a run repeats on any number of cores.
        return 1
    worth_having = _threads_worth_having(config, observes_images)
    if config.is_off_policy:
        # Its updates are what everyone waits for, as long as there are about as many as steps.
        return max(1, min(cores, worth_having)) if config.updates_per_env_step >= _UPDATES_TO_BE_WAITED_FOR else 1
    if not config.async_rl:
        return max(1, min(cores, worth_having))
    # The cores that workers leave over, or as many threads as have so much work that taking cores from workers pays:
    # beside two workers on two cores a run with a 512-512-512 network is 11 % faster with two threads than with one, a
    # 256-256 network 10 % slower.
    return max(1, min(cores, worth_having, max(cores - num_workers, worth_having // _WORK_TO_TAKE_A_CORE)))


def _threads_worth_having(config: TrainConfig, observes_images: bool) -> int:
    """How many threads a minibatch has work for.

    Threads meet at the end of every operation. With little work between the meetings a second thread gains next to
    nothing, and where another program takes its core every meeting waits for it: 64-64 networks trained 13 times slower
    with two threads than with one on a loaded machine.
    """
    widths = config.encoder_mlp_layers
    passes = _SAC_PASSES if config.is_off_policy else _ON_POLICY_PASSES
    flops = _FLOPS_FOR_AN_OFF_POLICY_THREAD if config.is_off_policy else _FLOPS_FOR_A_THREAD
    num_weights = sum(num_in * num_out for num_in, num_out in zip([*widths[:1], *widths[:-1]], widths, strict=True))
    of_one_pass = 2 * num_weights + (_FLOPS_OF_CONVOLUTIONS if observes_images else 0)
    return round(passes * config.batch_size * of_one_pass / flops)


def _workers_and_envs(config: TrainConfig, cores: int, prefer_even: bool) -> tuple[int, int]:
    """Chooses workers and environments of each so that all of them together fill one dataset with one rollout.

    Off-policy learning is what takes the time, so it has few workers: a quarter of the cores.
    """
    if config.backend == "hogwild":
        envs = _HOGWILD_SAC_ENVS if config.is_off_policy else _HOGWILD_ENVS
        return (
            (1 if config.serial_mode else cores) if config.num_workers == "auto" else config.num_workers,
            envs if config.num_envs_per_worker == "auto" else config.num_envs_per_worker,
        )
    if config.is_off_policy:
        most = 1 if config.serial_mode else max(1, cores // 4)
        return (
            most if config.num_workers == "auto" else config.num_workers,
            _OFF_POLICY_ENVS if config.num_envs_per_worker == "auto" else config.num_envs_per_worker,
        )
    columns = max(1, config.batch_size * config.num_batches_per_epoch // config.rollout)
    if config.num_workers != "auto":
        num_workers = config.num_workers
    else:
        num_workers = _auto_workers(config, columns, 1 if config.serial_mode else cores, prefer_even)
    if config.num_envs_per_worker != "auto":
        return num_workers, config.num_envs_per_worker
    return num_workers, max(1, columns // num_workers)


def _auto_workers(config: TrainConfig, columns: int, most: int, prefer_even: bool) -> int:
    """Largest number of workers, up to `most`, whose equal shares make up a dataset."""
    if config.num_envs_per_worker != "auto":
        share = config.num_envs_per_worker
        fitting = [count for count in range(1, most + 1) if columns % (count * share) == 0]
        return fitting[-1] if fitting else max(1, min(most, columns // share))
    divisors = [count for count in range(1, min(most, columns) + 1) if columns % count == 0]
    even = [count for count in divisors if (columns // count) % 2 == 0]
    return even[-1] if prefer_even and even else divisors[-1]
