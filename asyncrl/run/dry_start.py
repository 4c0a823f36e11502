"""Tries out what a run needs of the system before it starts: files, a socket, memory, threads and processes.

Each problem says the limit, the need and the remedy. A limit that is too low would otherwise end the run after it has
begun, in whatever library reaches it first.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import tempfile
import threading
from collections.abc import Iterator

import psutil

from asyncrl.config import cgroups
from asyncrl.config.errors import Problem
from asyncrl.config.host import open_memory
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.processes.temporary_folder import use_folder_for_sockets

_CHECK_THREADS, _CHECK_DESCRIPTORS = 4, 12
"""Of the check of the environment: its process with its threads; files, pipes and the process itself."""
_OTHER_DESCRIPTORS, _DESCRIPTORS_OF_CHILD = 32, 7
"""Of the runner, measured: files of modules and of the run; pipes, waker, log and queue of each child."""
_SERVERS, _TASKS_OF_CHILD = 2, 3
"""Fork server and resource tracker; for each child its main thread, a thread that watches the runner, and one of the
runner's threads."""
_ADDRESS_SPACE, _ADDRESS_SPACE_OF_THREAD = 1200 << 20, 10 << 20
"""Measured for a process that has imported torch for CPUs, and the stack of a thread."""
_LARGEST_QUEUE_FILE = 4 << 20
_STACK_BYTES = 256 << 10


def find_machine_problems(is_serial: bool = True) -> Iterator[Problem]:
    """Yields limits of this machine that stop every run and the check of the environment."""
    try:
        tempfile.gettempdir()
    except OSError as error:
        yield _problem(
            f"No temporary folder can be written, and each run needs one ({error.strerror or error}).",
            "set TMPDIR to a folder that you may write",
        )
        return
    yield from _descriptor_problems(_CHECK_DESCRIPTORS)
    if problem := _address_space_problem():
        yield problem
        return
    yield from _task_problems(_CHECK_THREADS, "the check of the environment")
    if not is_serial:
        try:
            use_folder_for_sockets()
        except OSError as error:
            text = f"The processes of a run cannot connect: {error}."
            yield _problem(text, "set TMPDIR to a short path of a folder that you may write", "--serial_mode=True")


def find_plan_problems(config: TrainConfig, plan: ResourcePlan, shared_bytes: int | None) -> Iterator[Problem]:
    """Yields each limit of this process and of its control groups that is below what the plan needs.

    Args:
        config: the settings.
        plan: of one rank.
        shared_bytes: size of one rank's arena; None if it is not known.
    """
    num_children = 0
    if not plan.serial_mode:
        num_children = plan.num_processes - 2 + plan.num_policies
        num_children += (config.eval_every_env_steps is not None) + (config.video_every_env_steps is not None)
        fewer = "--serial_mode=True"
        if plan.num_workers > 1:
            fewer = f"fewer --num_workers than {plan.num_workers}"
        yield from _descriptor_problems(_OTHER_DESCRIPTORS + _DESCRIPTORS_OF_CHILD * num_children, fewer)
        tasks = _SERVERS + _TASKS_OF_CHILD * num_children + plan.learner_threads * plan.num_policies
        yield from _task_problems(tasks * plan.num_local_ranks, "this run", fewer)
    if shared_bytes is not None:
        yield from _memory_problems(shared_bytes, num_children)


def _descriptor_problems(needed: int, *remedies: str) -> Iterator[Problem]:
    needed += psutil.Process().num_fds()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        yield _problem(
            f"This process may open {hard} files at a time, and the run needs about {needed}.",
            f"a larger hard limit (ulimit -Hn {needed}, docker run --ulimit nofile={needed})",
            *remedies,
        )


def _task_problems(needed: int, what: str, *remedies: str) -> Iterator[Problem]:
    for limit, used, name, remedy in _task_limits():
        if limit - used < needed:
            yield _problem(
                f"{name} allows {limit} processes and threads, {used} run, and {what} starts about {needed} more.",
                f"{remedy} {used + needed}",
                *remedies,
            )
            return
    num_started = _start_threads(needed)
    if num_started < needed:
        yield _problem(
            f"Only {num_started} more threads can be started, and {what} starts about {needed} processes and threads.",
            f"a larger limit on processes and threads (ulimit -u, --pids-limit of a container) or on memory (ulimit "
            f"-v), for {needed - num_started} more",
            *remedies,
        )


def _task_limits() -> Iterator[tuple[int, int, str, str]]:
    """Each limit on processes and threads: the number, how many there are, its name, and what raises it."""
    for folder in cgroups.folders("pids"):
        limit, used = cgroups.read_number(folder / "pids.max"), cgroups.read_number(folder / "pids.current")
        if limit is not None and used is not None:
            yield limit, used, "The control group", "a larger limit of the container, docker run --pids-limit"
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit != resource.RLIM_INFINITY and os.getuid() != 0:  # it does not apply to root
        yield limit, _num_own_tasks(), "The user's limit", "a larger limit, ulimit -u"


def _num_own_tasks() -> int:
    """Threads of all processes of this user that this process can see."""
    own = os.getuid()
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == own:
                count += process.num_threads()
    return count


def _start_threads(count: int) -> int:
    """Starts so many threads at the same time and ends them; returns how many the system allowed."""
    is_over = threading.Event()
    started: list[threading.Thread] = []
    stack_before = threading.stack_size(_STACK_BYTES)
    try:
        while len(started) < count:
            thread = threading.Thread(target=is_over.wait, name="dry start", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the kernel refused: a limit on processes and threads, or no memory for a stack
                break
            started.append(thread)
        return len(started)
    finally:
        threading.stack_size(stack_before)
        is_over.set()
        for thread in started:
            thread.join()


def _memory_problems(shared_bytes: int, num_children: int) -> Iterator[Problem]:
    largest = max(shared_bytes, _LARGEST_QUEUE_FILE if num_children > 0 else 0)
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < largest:
        yield _problem(
            f"A file may have {limit >> 10} KiB, and shared memory of this run counts as one of {-(-largest >> 10)} "
            "KiB.",
            f"ulimit -f {-(-largest >> 10)} or unlimited",
        )
        return
    needed = _ADDRESS_SPACE_OF_THREAD * num_children + shared_bytes
    if problem := _address_space_problem(needed):
        yield problem
        return
    try:
        descriptor = open_memory(shared_bytes)
        try:
            mmap.mmap(descriptor, max(1, shared_bytes)).close()
        finally:
            os.close(descriptor)
    except OSError as error:
        yield _problem(
            f"{shared_bytes} bytes of shared memory cannot be mapped: {error.strerror or error}.",
            "larger limits of this process (ulimit -v, ulimit -f)",
        )


def _address_space_problem(needed: int = 0) -> Problem | None:
    """The problem if a process with torch and `needed` more bytes exceeds the limit of the address space."""
    needed += _ADDRESS_SPACE
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return None
    text = f"A process may have {limit >> 10} KiB of address space, and one of this run needs about {needed >> 10} KiB."
    return _problem(text, f"ulimit -v {needed >> 10} or more")


def _problem(text: str, *remedies: str) -> Problem:
    return Problem((), text, remedies)
