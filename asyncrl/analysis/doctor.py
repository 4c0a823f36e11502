"""What `asyncrl doctor` knows: the machine, the speeds of a short training, and what to change, one sentence each."""

from __future__ import annotations

import platform
import resource
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from asyncrl import native
from asyncrl.config import cgroups
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan
from asyncrl.observers.status import Record
from asyncrl.processes.memory import available_bytes
from asyncrl.storage.provenance import describe

_GIB = 1 << 30
_SHARED_MEMORY = Path("/dev/shm")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_BYTES_FOR_QUEUES = 64 << 20  # of the reports of 100 processes, 500 kB each
_DESCRIPTORS_FOR_MANY_WORKERS = 1024
_BUSY, _WAITING = 0.9, 0.7
"""A role that works for more than the first share of its time limits one that works for less than the second."""


@dataclass(frozen=True)
class MachineFacts:
    """What was found on a machine.

    Attributes:
        versions: of Python, asyncrl and the packages that it needs.
        platform: system, its version and the processor's architecture.
        processor: its name.
        machine: cores and CUDA devices that a run is planned for.
        system_cores: cores of the machine, of which a container or `taskset` may leave fewer.
        container_cores: cores whose time the control groups allow; None without a limit.
        governor: how Linux chooses the processor's frequency; None if it does not say.
        other_load: share of all cores' time that other programs use now.
        free_bytes: memory that can still be allocated, within the limit of a container.
        shared_bytes: size of `/dev/shm`; None without one.
        descriptors: file descriptors that a process may open now, and after `ulimit -n`.
        gpus: names of NVIDIA GPUs, from the driver.
        instruction_set: of the native core; None if that was not built.
    """

    versions: Mapping[str, str]
    platform: str
    processor: str
    machine: Machine
    system_cores: int
    container_cores: int | None
    governor: str | None
    other_load: float
    free_bytes: int
    shared_bytes: int | None
    descriptors: tuple[int, int]
    gpus: Sequence[str]
    instruction_set: str | None


@dataclass(frozen=True)
class Speeds:
    """What a short training measured; None where no process reported it.

    Attributes:
        trained: environment steps per second that were trained on.
        simulation: environment steps per second of one rollout worker while it only steps.
        inference: actions per second of one process that acts, while it only computes them.
        learner: environment steps per second that the learner can train on, if it never waits.
        rollout_busy, learner_busy: share of their time in which they did not wait.
        num_workers: rollout workers.
        device: of the learner.
    """

    trained: float | None
    simulation: float | None
    inference: float | None
    learner: float | None
    rollout_busy: float | None
    learner_busy: float | None
    num_workers: int
    device: str = "cpu"


def find_facts() -> MachineFacts:
    """Looks at this machine, for about half a second."""
    found: dict[str, Any] = describe("")
    about, kernels = found["machine"], native.kernels()
    return MachineFacts(
        versions={"python": found["python"], **found["packages"]},
        platform=about["platform"],
        processor=about["cpu"] or platform.machine(),
        machine=Machine.detect(),
        system_cores=about["cores"] or 1,
        container_cores=cgroups.cpu_quota(),
        governor=_GOVERNOR.read_text(encoding="utf-8").strip() if _GOVERNOR.exists() else None,
        other_load=psutil.cpu_percent(interval=0.5) / 100,
        free_bytes=available_bytes(),
        shared_bytes=psutil.disk_usage(str(_SHARED_MEMORY)).total if _SHARED_MEMORY.is_dir() else None,
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE),
        gpus=about["gpus"],
        instruction_set=None if kernels is None else kernels.name,
    )


def measure_speeds(records: Sequence[Record], plan: ResourcePlan, trained: float | None) -> Speeds:
    """Derives the speeds of single roles from the shares of their time in the records of a run.

    Args:
        records: of a run with `profile`.
        plan: of the run.
        trained: environment steps per second of the run.
    """

    def mean(name: str) -> float | None:
        found = [record.scalars[name] for record in records if name in record.scalars]
        return statistics.fmean(found) if found else None

    def alone(name: str, num_processes: int) -> float | None:
        share = mean(name)
        return trained / (share * num_processes) if trained is not None and share else None

    acts, num_acting = ("inference", plan.num_inference_workers) if plan.num_inference_workers else ("rollout", None)
    return Speeds(
        trained=trained,
        simulation=alone("profile/rollout/step", plan.num_workers),
        inference=alone(f"profile/{acts}/forward", num_acting or plan.num_workers),
        learner=alone("profile/learner/train", 1),
        rollout_busy=mean("perf/rollout_busy"),
        learner_busy=mean("perf/learner_busy"),
        num_workers=plan.num_workers,
        device=plan.device,
    )


def format_facts(facts: MachineFacts) -> str:
    """The facts as lines for a person."""
    limits = []
    if facts.container_cores is not None:
        limits.append(f"the container may use the time of {facts.container_cores}")
    limits.append(f"other programs use {facts.other_load:.0%}")
    cuda = "a CUDA build" if facts.machine.torch_has_cuda else "a CPU build"
    gpus = ", ".join(facts.gpus) or "none found"
    shared = "none" if facts.shared_bytes is None else f"{facts.shared_bytes / _GIB:.1f} GiB"
    soft, hard = ("unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}" for limit in facts.descriptors)
    rows = {
        "versions": ", ".join(f"{name} {version}" for name, version in facts.versions.items()),
        "system": facts.platform,
        "cores": f"{facts.machine.cores} of {facts.system_cores}, {facts.processor}; {'; '.join(limits)}",
        "memory": f"{facts.free_bytes / _GIB:.1f} GiB free; /dev/shm: {shared}",
        "GPU": f"{gpus}; CUDA shows {facts.machine.num_cuda_devices} to PyTorch, which is {cuda}",
        "native core": facts.instruction_set or "not built; NumPy computes updates and actions of small networks",
        "descriptors": f"{soft} for each process, at most {hard}",
    }
    return "\n".join(f"{name + ':':<13} {text}" for name, text in rows.items())


def format_speeds(speeds: Speeds) -> str:
    """The speeds as lines for a person."""

    def text(value: float | None, unit: str) -> str:
        return "not measured" if value is None else f"{value:,.0f} {unit}"

    def busy(share: float | None) -> str:
        return "" if share is None else f"; busy for {share:.0%} of the time"

    workers = f"{speeds.num_workers} worker" + ("" if speeds.num_workers == 1 else "s")
    rows = {
        "training": f"{text(speeds.trained, 'steps/s')} with {workers}",
        "simulation": f"{text(speeds.simulation, 'steps/s')} in one worker alone{busy(speeds.rollout_busy)}",
        "inference": f"{text(speeds.inference, 'actions/s')} in one process alone",
        "learner": f"{text(speeds.learner, 'steps/s')} alone{busy(speeds.learner_busy)}",
    }
    return "\n".join(f"{name + ':':<13} {text}" for name, text in rows.items())


def advise(facts: MachineFacts, speeds: Speeds | None) -> Iterator[str]:
    """Yields what to change, one sentence each; nothing if all is well. `speeds` is None without a training."""
    yield from _advise_about_machine(facts)
    if speeds is not None and speeds.rollout_busy is not None and speeds.learner_busy is not None:
        yield from _advise_about_speeds(facts.machine, speeds, speeds.rollout_busy, speeds.learner_busy)


def _advise_about_machine(facts: MachineFacts) -> Iterator[str]:
    machine = facts.machine
    if not machine.shares_words:
        yield (
            f"Use --serial_mode=True, or install a C compiler and then asyncrl again: processes that share memory need "
            f"the native core on this processor, {platform.machine()}."
        )
    if facts.instruction_set is None:
        yield "Install a C compiler and then asyncrl again: its native core makes updates of small networks faster."
    if facts.container_cores is not None and facts.container_cores < facts.system_cores:
        yield (
            f"Give the container more processor time (docker run --cpus) if it may have more than "
            f"{facts.container_cores} of {facts.system_cores} cores."
        )
    if machine.cores == 1:
        yield "Use --serial_mode=True or a machine with more cores: workers and learner take turns on this one."
    if facts.other_load > 0.25:
        yield f"End the other programs, which use {facts.other_load:.0%} of the processors, before you measure a speed."
    if facts.governor == "powersave":
        yield "Choose the governor performance (cpupower frequency-set -g performance): powersave may slow processors."
    if facts.free_bytes < 2 * _GIB:
        yield (
            f"Free memory, or give the container more (docker run --memory): a run with several workers needs about "
            f"2 GiB, and {facts.free_bytes / _GIB:.1f} GiB are free."
        )
    if facts.shared_bytes is not None and facts.shared_bytes < _BYTES_FOR_QUEUES:
        yield (
            f"Enlarge /dev/shm (docker run --shm-size=1g): it has {facts.shared_bytes >> 20} MiB, and the queues of "
            "many workers are then files on a disk."
        )
    soft, hard = facts.descriptors
    if 0 <= soft < _DESCRIPTORS_FOR_MANY_WORKERS:
        most = _DESCRIPTORS_FOR_MANY_WORKERS if hard == resource.RLIM_INFINITY else min(hard, 4096)
        yield f"Allow more file descriptors (ulimit -n {most}): {soft} are too few for many workers."
    if facts.gpus and not machine.torch_has_cuda:
        yield "Install a CUDA build of PyTorch (https://pytorch.org): this one is built without, so no GPU is used."
    elif facts.gpus and machine.num_cuda_devices == 0:
        yield (
            "Look at nvidia-smi and CUDA_VISIBLE_DEVICES: there is a GPU, but CUDA shows none to PyTorch, or the "
            "driver is older than the CUDA that PyTorch was built for."
        )


def _advise_about_speeds(machine: Machine, speeds: Speeds, rollout_busy: float, learner_busy: float) -> Iterator[str]:
    if learner_busy > _BUSY and rollout_busy < _WAITING:
        faster = "--device=cuda, " if machine.cuda_is_usable and speeds.device == "cpu" else ""
        yield f"The learner limits the speed: {faster}fewer --num_epochs or a smaller network make training faster."
    elif rollout_busy > _BUSY and learner_busy < _WAITING:
        if speeds.num_workers < machine.cores:
            yield (
                f"Simulation limits the speed, with {speeds.num_workers} workers on {machine.cores} cores: more "
                "--num_workers, or a larger --num_batches_per_epoch, which auto follows, make training faster."
            )
        else:
            yield "Simulation limits the speed: more cores, for more --num_workers, make training faster."
