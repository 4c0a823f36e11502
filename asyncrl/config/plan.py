"""The resource plan: every `auto` resolved for this machine, and every number that follows from the settings.

The roles read the plan; only `resolve` reads `auto`. Nothing is checked here: settings that cannot be combined still
resolve to moderate sizes, and `asyncrl.config.checks` reports what is wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from asyncrl.config.device_choice import (
    estimate_acting,
    estimate_update,
    flops_of_pass,
    knows_networks,
    passes_of_update,
)
from asyncrl.config.machine import Machine
from asyncrl.config.remote_workers import NO_REMOTE_WORKERS, RemoteWorkers
from asyncrl.config.replay_kinds import PLAIN, ReplayKind, replay_kind

if TYPE_CHECKING:  # roles that only read a plan need no pydantic
    from asyncrl.config.schema import TrainConfig

_FLOPS_FOR_A_THREAD = 3e8  # of a minibatch, forward and backward: a few milliseconds of one core
_WORK_TO_TAKE_A_CORE = 4
_FLOPS_FOR_AN_OFF_POLICY_THREAD = 2e8
_UPDATES_TO_WAIT_FOR = 0.1  # for each environment step: with as many, all roles wait for the learner
_OFF_POLICY_ENVS = 4  # of each worker
_HOGWILD_ENVS, _HOGWILD_SAC_ENVS = 4, 1  # of each worker
_ASYNC_SLOTS_PER_SPLIT = 3  # with several policies

ROLLOUT_NICENESS = 10
"""Rollout workers have a lower priority than learner and inference workers, because all workers wait for these.

They are not pinned to cores: on two cores a run with pinned workers was no faster.
"""
MOST_PROCESSES = 240
"""Workers of a run on one machine: each has open files in the others."""
PLACES_OF_A_WORKER = 2
"""Gradients that a Hogwild worker may have sent without an answer."""

InferenceMode = Literal["local", "central"]
HogwildMode = Literal["shared", "synced", "gradients"]


@dataclass(frozen=True)
class ReplayPlan:
    """The part of a plan for an algorithm that learns from a replay.

    Attributes:
        size: capacity in environment steps.
        warmup_env_steps: environment steps before the first update; at least one transition or sequence of each
            environment.
        updates_per_env_step: updates for each environment step after that.
        tolerance: updates by which the learner may fall behind, in addition to two steps of every environment.
        is_prioritized: whether transitions are drawn by priority.
        kind: what is stored with each step, what writes it and what samples it.
    """

    size: int
    warmup_env_steps: int
    updates_per_env_step: float
    tolerance: float
    is_prioritized: bool = False
    kind: ReplayKind = PLAIN


@dataclass(frozen=True)
class HogwildPlan:
    """The part of a plan for the Hogwild backend.

    Attributes:
        mode: the parameters with which a worker acts, and where its gradients go.
        num_gradients_to_combine: gradients in one optimizer step, in the mode `gradients`.
        num_epochs: passes over a rollout; 1 for a loss without a ratio, which is right for the policy that acted only.
        num_batches_per_epoch: minibatches of a pass, each of them one gradient.
        devices: of the workers' networks, assigned in turn.
    """

    mode: HogwildMode
    num_gradients_to_combine: int
    num_epochs: int = 1
    num_batches_per_epoch: int = 1
    devices: tuple[str, ...] = ("cpu",)

    def device_of(self, worker_idx: int) -> str:
        """The device of one worker's networks."""
        return self.devices[worker_idx % len(self.devices)]

    @property
    def num_gradients_of_rollout(self) -> int:
        """Gradients that a worker computes from one rollout."""
        return self.num_epochs * self.num_batches_per_epoch


def most_gradients_to_combine(num_workers: int, workers_per_pool: int) -> int:
    """The largest number that is still there while one worker hangs, or one of several pools is gone."""
    has_others = 1 < workers_per_pool < num_workers
    return PLACES_OF_A_WORKER * max(1, num_workers - (workers_per_pool if has_others else 1))


@dataclass(frozen=True)
class ResourcePlan:
    """Numbers of processes, environments, samples and slots of one run. Fields without a note are as in the settings.

    Attributes:
        device: the learner's device: cpu, cuda or cuda:N.
        device_reason: why `auto` chose the devices, where there was a choice.
        inference_devices: devices of the inference workers, assigned in turn; empty with local inference.
        num_workers: rollout workers, those of other machines included, which have the last indices.
        num_envs_per_worker: environments of each rollout worker.
        worker_num_splits: groups of a worker's environments that step in turn, K.
        num_inference_workers: 0 with local inference.
        learner_threads: CPU threads of the learner.
        cores: CPU cores that the plan is for.
        num_ranks, num_local_ranks: processes that train one policy together, in total and on this machine.
        rollout: steps of one trajectory, T.
        num_batches_to_accumulate: datasets that may wait or be in training, A.
        fixed_lag: whether a dataset is collected as a whole while the previous one is trained.
        max_policy_lag, debug_forced_lag: in policy versions.
        train_for_env_steps, train_for_seconds: limits of the whole run.
        rnn_state_size: size of one environment's recurrent state, of actor and critic together, with a replay of the
            actor alone; 0 without one.
        recurrence: steps of one training sequence of trajectories; divides `rollout`.
        replay: None for algorithms that learn from trajectories.
        hogwild: None for the other backend.
        steps_tensors: whether environments are on the learner's device, so that samples never leave it.
        num_eval_envs: environments of tensors that evaluate, beside those that train; of one rank.
        num_agents: agents of each environment.
        num_policies: policies that train in one run, P. With several, a dataset is that of one policy.
        num_opponents: frozen policies that play and never train, at most.
        remote: rollout workers on other machines.
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
    train_for_seconds: float | None = None
    fixed_lag: bool = False
    num_ranks: int = 1
    num_local_ranks: int = 1
    inference_devices: tuple[str, ...] = ()
    rnn_state_size: int = 0
    recurrence: int = 0
    replay: ReplayPlan | None = None
    hogwild: HogwildPlan | None = None
    steps_tensors: bool = False
    num_eval_envs: int = 0
    num_agents: int = 1
    num_policies: int = 1
    num_opponents: int = 0
    remote: RemoteWorkers = NO_REMOTE_WORKERS
    device_reason: str | None = None

    @property
    def num_local_workers(self) -> int:
        """Rollout workers on the learner's machine."""
        return self.num_workers - self.remote.num_workers

    def workers_of_pool(self, pool_idx: int) -> range:
        """Indices of the rollout workers of one pool."""
        first = self.num_local_workers + pool_idx * self.remote.workers_per_pool
        return range(first, first + self.remote.workers_per_pool)

    @property
    def sends_gradients(self) -> bool:
        """Whether workers send gradients to the process that steps."""
        return self.hogwild is not None and self.hogwild.mode == "gradients"

    @property
    def num_local_splits(self) -> int:
        """Splits on the learner's machine, which come first."""
        return self.num_local_workers * self.worker_num_splits

    @property
    def first_splits(self) -> list[int]:
        """Async: the splits that are granted the first slots, in this order; remote ones hold several at a time."""
        remote_splits = range(self.num_local_splits, self.num_splits)
        return [*range(self.num_splits), *(self.remote.slots_in_flight - 1) * [*remote_splits]]

    @property
    def has_slot_pools(self) -> bool:
        """Whether several policies, or one and its opponents, play the columns of a slot; each split owns its slots."""
        return self.num_policies + self.num_opponents > 1

    @property
    def envs_per_split(self) -> int:
        """Environments of one split, which fill one slot together."""
        return self.num_envs_per_worker // self.worker_num_splits

    @property
    def columns_per_split(self) -> int:
        """Columns of a slot, E: one for each agent of each environment of a split."""
        return self.envs_per_split * self.num_agents

    @property
    def num_splits(self) -> int:
        """Splits of all workers, W * K."""
        return self.num_workers * self.worker_num_splits

    @property
    def num_envs(self) -> int:
        """Environments of the run; with several ranks, of one rank."""
        return self.num_workers * self.num_envs_per_worker

    @property
    def dataset_size(self) -> int:
        """Samples of a dataset."""
        return self.batch_size * self.num_batches_per_epoch

    @property
    def columns_per_dataset(self) -> int:
        """Columns (trajectories of one agent of one environment) in a dataset."""
        return max(1, self.dataset_size // self.rollout)

    @property
    def slots_per_dataset(self) -> Fraction:
        """Size of a dataset in slots, D. In async it may be a fraction: a dataset takes single columns."""
        return Fraction(self.columns_per_dataset, self.columns_per_split)

    @property
    def slots_per_split(self) -> int:
        """Slots that each split owns where several policies play.

        Sync: the fewest with which one iteration collects P datasets. Async: one is filled, one waits until each
        policy has copied its rows, and one is left for a policy that is late.
        """
        if self.async_rl:
            return _ASYNC_SLOTS_PER_SPLIT
        columns = self.num_splits * self.columns_per_split
        return math.ceil(Fraction(self.num_policies * self.columns_per_dataset, columns))

    @property
    def num_slots(self) -> int:
        """Slots in the arena: D in sync, 2 D with a fixed lag, ceil(A * D) + W * K in async; 0 where none are used.

        In async remote splits have more than one, so that they do not wait while slots travel.

        Where several policies play, each split owns `slots_per_split` of them.
        """
        if self.replay is not None or self.hogwild is not None or self.steps_tensors:
            return 0
        if self.has_slot_pools:
            return self.num_splits * self.slots_per_split
        if not self.async_rl:
            return math.ceil(self.slots_per_dataset)
        if self.fixed_lag:  # one dataset is trained while the other is collected
            return 2 * math.ceil(self.slots_per_dataset)
        return math.ceil(self.num_batches_to_accumulate * self.slots_per_dataset) + len(self.first_splits)

    @property
    def updates_per_dataset(self) -> int:
        """Optimizer steps, and so policy versions, for one dataset."""
        return self.num_epochs * self.num_batches_per_epoch

    @property
    def num_datasets(self) -> int:
        """Datasets of the whole run, of each rank; an environment step is a sample of each agent."""
        return math.ceil(self.train_for_env_steps * self.num_agents / (self.dataset_size * self.num_ranks))

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
            return self.train_for_env_steps * self.hogwild.num_gradients_of_rollout // samples
        return self.num_datasets * self.updates_per_dataset

    @property
    def schedules_text(self) -> str | None:
        """Which limit schedules follow, in words; None if only steps limit the run."""
        steps, seconds = self.train_for_env_steps, self.train_for_seconds
        if seconds is None:
            return None
        rate = steps / seconds
        return f"end after {seconds:,g} seconds, or after {steps:,} steps of a run with more than {rate:,.0f} steps/s"

    @property
    def forced_lag(self) -> int:
        """Versions by which weights are published late: `debug_forced_lag` rounded up to publications, one an epoch."""
        return math.ceil(self.debug_forced_lag / self.num_batches_per_epoch) * self.num_batches_per_epoch

    @property
    def steady_lag_bound(self) -> int:
        """Largest lag at first use, in policy versions, while all splits run at the same speed.

        Sync: 0, because slots are granted after the weights of the previous dataset were published.

        Async: consider a slot that is granted while dataset j is trained, or is the next to be trained. Its weights
        are at least those published after dataset j - 1, because weights are published before slots are freed. A slot
        stays in use until its last column was trained, so besides dataset j at most `num_slots - D` slots are in use,
        this one included. Slots are trained in the order in which they become ready, which at equal speed is the
        order of the grants. So this slot is trained at most ceil((num_slots - D) / D) datasets after j, each of them
        `updates_per_dataset` versions. With A = 1 and D = W * K there are 2 D slots: a lag of exactly one dataset.
        A split that falls behind the others may exceed this bound; `lag_bound` always holds.

        Fixed lag: one dataset, at any speed.
        """
        if not self.async_rl:
            return self.forced_lag
        if self.fixed_lag:
            return self.updates_per_dataset
        datasets = math.ceil((self.num_slots - self.slots_per_dataset) / self.slots_per_dataset)
        return datasets * self.updates_per_dataset + self.forced_lag

    @property
    def lag_bound(self) -> int:
        """Largest lag at first use, in policy versions, of any trained sample; in async older samples are dropped."""
        return self.max_policy_lag if self.async_rl and not self.fixed_lag else self.steady_lag_bound

    @property
    def for_one_worker(self) -> ResourcePlan:
        """The private memory of one Hogwild worker: one slot, or its part of the replay."""
        replay = self.replay
        if replay is not None:
            size, warmup = (max(1, total // self.num_workers) for total in (replay.size, replay.warmup_env_steps))
            replay = dataclasses.replace(replay, size=size, warmup_env_steps=warmup, tolerance=0.0)
        return dataclasses.replace(
            self,
            num_workers=1,
            remote=NO_REMOTE_WORKERS,
            worker_num_splits=1,
            async_rl=False,
            batch_size=self.num_envs_per_worker * self.rollout,
            num_batches_per_epoch=1,
            replay=replay,
            hogwild=None,
        )

    @property
    def num_processes(self) -> int:
        """Processes of this machine that compute, including the runner; each pool has one here."""
        if self.serial_mode:
            return 1
        return 2 + self.num_local_workers + self.num_inference_workers + self.remote.num_pools

    @property
    def num_threads(self) -> int:
        """Largest number of threads of this machine that compute at the same time: of workers and the learner."""
        if self.serial_mode:
            return self.learner_threads
        collecting = self.num_local_workers + self.num_inference_workers
        return collecting + self.learner_threads if self.async_rl else max(collecting, self.learner_threads)


def resolve(
    config: TrainConfig, machine: Machine | None = None, observes_images: bool = False, num_agents: int = 1
) -> ResourcePlan:
    """Resolves every `auto` for a machine and derives all other numbers.

    Args:
        config: the settings.
        machine: the machine to plan for; by default the one that this process runs on.
        observes_images: whether the networks have convolutions.
        num_agents: agents of each environment.
    """
    machine = machine or Machine.detect()
    is_hogwild = config.backend == "hogwild"
    device, learner_device, device_reason = _devices(config, machine, observes_images)
    inference_devices = tuple(_device_for_this_rank(each, machine) for each in config.inference_devices or (device,))
    cores = max(1, machine.cores // machine.num_local_ranks)
    inference_mode = _inference_mode(config, inference_devices)
    num_inference_workers = config.num_inference_workers
    if num_inference_workers == "auto":
        num_inference_workers = len(inference_devices)
    num_cores = 1 if config.actor_critic_share_weights or config.is_off_policy else 2
    unit = 1
    if inference_mode == "central":
        unit = 2 if config.worker_num_splits == "auto" else config.worker_num_splits
    remote = config.remote_workers
    num_workers, num_envs = _workers_and_envs(config, cores, unit, num_agents)
    if config.worker_num_splits != "auto":
        num_splits = min(config.worker_num_splits, num_envs)
    else:
        num_splits = unit if num_envs % unit == 0 else 1
    return ResourcePlan(
        device=_device_for_this_rank(learner_device, machine),
        device_reason=device_reason,
        inference_mode=inference_mode,
        serial_mode=config.serial_mode,
        async_rl=config.async_rl,
        fixed_lag=config.async_rl and config.fixed_lag and not config.is_off_policy and not is_hogwild,
        num_workers=num_workers,
        num_envs_per_worker=num_envs,
        worker_num_splits=num_splits,
        num_inference_workers=num_inference_workers if inference_mode == "central" else 0,
        inference_devices=inference_devices if inference_mode == "central" else (),
        learner_threads=_learner_threads(config, cores, num_workers - remote.num_workers, observes_images),
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
        train_for_seconds=config.train_for_seconds,
        rnn_state_size=config.rnn_state_size_of_core * num_cores if config.use_rnn else 0,
        recurrence=config.rollout if config.recurrence == "auto" else config.recurrence,
        replay=_replay(config, num_workers * num_envs),
        hogwild=_hogwild(config, num_workers, num_envs, _all_of(device, machine)),
        steps_tensors=config.env_backend == "tensor",
        num_eval_envs=_num_eval_envs(config),
        num_agents=num_agents,
        num_policies=config.num_policies,
        num_opponents=0 if config.opponents is None else config.opponents.most,
        remote=remote,
    )


def _devices(config: TrainConfig, machine: Machine, observes_images: bool) -> tuple[str, str, str | None]:
    """The device of inference, that of the learner, and why `auto` chose them; None without a choice."""
    device, learner_device, reason = config.device, config.learner_device, None
    own, is_hogwild = device, config.backend == "hogwild"
    if device == "auto":
        device = own = "cuda" if machine.cuda_is_usable and not is_hogwild else "cpu"
        needs_gpu = config.env_backend == "tensor" or config.compile == "cuda_graph"
        if device == "cuda" and not needs_gpu and knows_networks(config):
            acting, update = estimate_acting(config, observes_images), estimate_update(config, observes_images)
            device, own = ("cuda" if estimate.favours_gpu else "cpu" for estimate in (acting, update))
            reason = f"an optimizer step is estimated at {update}, an action at {acting}; --device=cuda takes the GPU"
    return device, own if learner_device == "auto" or is_hogwild else learner_device, reason


def _num_eval_envs(config: TrainConfig) -> int:
    if config.env_backend != "tensor" or config.eval_every_env_steps is None:
        return 0
    return config.eval_episodes if config.eval_num_envs == "auto" else config.eval_num_envs


def _device_for_this_rank(device: str, machine: Machine) -> str:
    """Each rank of one machine gets its own device, unless the device has a number."""
    return f"cuda:{machine.local_rank}" if device == "cuda" and machine.num_local_ranks > 1 else device


def _all_of(device: str, machine: Machine) -> tuple[str, ...]:
    """All CUDA devices of the machine for `cuda` without a number, otherwise this device."""
    count = machine.num_cuda_devices
    return tuple(f"cuda:{number}" for number in range(count)) if device == "cuda" and count > 1 else (device,)


def _hogwild(config: TrainConfig, num_workers: int, num_envs: int, devices: tuple[str, ...]) -> HogwildPlan | None:
    if config.backend != "hogwild":
        return None
    auto: HogwildMode = "shared" if config.is_off_policy else "synced"
    mode = auto if config.hogwild_mode == "auto" else config.hogwild_mode
    if config.num_gradients_to_combine != "auto":
        count = config.num_gradients_to_combine
    else:
        count = min(num_workers, most_gradients_to_combine(num_workers, config.remote_workers.workers_per_pool))
    if not config.algorithm.uses_ratio:
        return HogwildPlan(mode, count, devices=devices)
    num_batches = max(1, num_envs * config.rollout // config.batch_size)
    return HogwildPlan(mode, count, config.num_epochs, num_batches, devices)


def _replay(config: TrainConfig, num_envs: int) -> ReplayPlan | None:
    if not config.is_off_policy:
        return None
    kind = replay_kind(config)
    rows = kind.rows_of_sample or config.n_step + 1
    tolerance = config.replay_ratio_tolerance if config.async_rl and not config.serial_mode else 0.0
    return ReplayPlan(
        config.replay_size,
        max(config.warmup_env_steps, num_envs * rows),
        config.updates_per_env_step,
        tolerance,
        is_prioritized=config.prioritized_replay and config.algorithm.sets_priorities,
        kind=kind,
    )


def _inference_mode(config: TrainConfig, devices: Sequence[str]) -> InferenceMode:
    if (
        config.serial_mode
        or config.backend == "hogwild"
        or (config.remote_workers.num_pools > 0 and config.inference_mode == "auto")
    ):
        return "local"
    if config.inference_mode == "auto":
        return "central" if any(device.startswith("cuda") for device in devices) else "local"
    return config.inference_mode


def _learner_threads(config: TrainConfig, cores: int, num_workers: int, observes_images: bool) -> int:
    if config.learner_threads != "auto":
        return config.learner_threads
    if config.serial_mode or config.backend == "hogwild":
        # The order of a sum depends on the number of threads; with one thread a run repeats on any number of cores.
        return 1
    useful = _useful_threads(config, observes_images)
    if config.is_off_policy and config.updates_per_env_step < _UPDATES_TO_WAIT_FOR:
        return 1
    if config.async_rl and not config.is_off_policy:
        # The cores without workers, or as many threads as have enough work to take cores from workers: with two workers
        # on two cores a 512-512-512 network trains 11 % faster with two threads than with one, a 256-256 network 10 %
        # slower.
        useful = min(useful, max(cores - num_workers, useful // _WORK_TO_TAKE_A_CORE))
    return max(1, min(cores, useful))


def _useful_threads(config: TrainConfig, observes_images: bool) -> int:
    """The number of threads for which a minibatch has enough work.

    Threads synchronize after every operation. With little work in between, a second thread gains almost nothing, and if
    another program uses its core, every synchronization waits: on a loaded machine 64-64 networks trained 13 times
    slower with two threads than with one.
    """
    flops = _FLOPS_FOR_AN_OFF_POLICY_THREAD if config.is_off_policy else _FLOPS_FOR_A_THREAD
    return round(passes_of_update(config) * config.batch_size * flops_of_pass(config, observes_images) / flops)


def _workers_and_envs(config: TrainConfig, cores: int, unit: int, num_agents: int) -> tuple[int, int]:
    """Workers and environments of each, chosen so that one rollout of all environments fills one dataset.

    In off-policy learning the learner needs the time, so only a quarter of the cores get workers. With workers on other
    machines this machine has those that the user asks for. Each worker has a multiple of `unit` environments where that
    is possible.
    """
    num_workers, num_envs = config.num_workers, config.num_envs_per_worker
    if (num_remote := config.remote_workers.num_workers) > 0:
        num_workers = num_remote + (0 if num_workers == "auto" else num_workers)
    most = 1 if config.serial_mode else cores
    if config.backend == "hogwild":
        auto_envs = _HOGWILD_SAC_ENVS if config.is_off_policy else _HOGWILD_ENVS
        most = min(most, MOST_PROCESSES)
        return most if num_workers == "auto" else num_workers, auto_envs if num_envs == "auto" else num_envs
    if config.is_off_policy:
        few = max(1, most // 4)
        return few if num_workers == "auto" else num_workers, _OFF_POLICY_ENVS if num_envs == "auto" else num_envs
    columns = max(1, config.batch_size * config.num_batches_per_epoch // config.rollout // num_agents)
    if num_workers == "auto":
        num_workers = _auto_workers(config, columns, most, unit, num_agents)
    return num_workers, max(1, columns // num_workers) if num_envs == "auto" else num_envs


def _auto_workers(config: TrainConfig, columns: int, most: int, unit: int, num_agents: int) -> int:
    """The largest number of workers, up to `most`, whose equal shares add up to a dataset."""
    if config.num_envs_per_worker != "auto":
        share = config.num_envs_per_worker
        fitting = [count for count in range(1, most + 1) if columns % (count * share) == 0]
        return fitting[-1] if fitting else max(1, min(most, columns // share))
    if num_agents > 1 and config.async_rl and not config.fixed_lag:
        return min(most, columns)  # a dataset takes single columns, so the shares need not add up
    divisors = [count for count in range(1, min(most, columns) + 1) if columns % count == 0]
    whole = [count for count in divisors if (columns // count) % unit == 0]
    return (whole or divisors)[-1]
