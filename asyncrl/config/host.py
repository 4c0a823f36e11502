"""What only some systems have, each beside the form that every POSIX system has.

What a run relies on is chosen here. `ASYNCRL_PORTABLE=1` takes the other forms on Linux, too: tests use it, and macOS
runs with them. What only shows or tunes something (control groups, devices) stands where it is read.

| Linux | elsewhere |
| --- | --- |
| memfd | POSIX shared memory whose name is removed at once, or a deleted file in the temporary folder |
| record lock on the shared memory | on another deleted file |
| eventfd | pipe |
| pidfd | the pipe that multiprocessing has to the child, and its pid |
| fork server | spawn: Apple's libraries do not survive a fork |
| a signal of the kernel when a starter ends | a thread that waits for it |
| affinity, /proc/cpuinfo | all cores, sysctl |
| x86-64 keeps the order of stores | `asyncrl.buffers.words` |
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import platform
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

IS_PORTABLE = os.environ.get("ASYNCRL_PORTABLE", "0") not in ("", "0")
"""Whether only what every system has is used."""

IS_LINUX = sys.platform.startswith("linux") and not IS_PORTABLE
START_METHOD = "forkserver" if IS_LINUX else "spawn"

_KEEP_STORE_ORDER = ("x86_64", "amd64", "i386", "i686")
"""Processors by their names in `platform.machine()`."""

_CPU_INFO = Path("/proc/cpuinfo")


def keeps_store_order() -> bool:
    """Whether another core sees stores and loads in the order of the program, as on x86-64."""
    return platform.machine().lower() in _KEEP_STORE_ORDER and not IS_PORTABLE


def open_memory(size: int, allocate: bool = False) -> int:
    """A descriptor of so many bytes of shared memory without a name.

    Args:
        size: bytes.
        allocate: allocate all pages now, where the system can.

    Raises:
        OSError: there is not enough memory.
    """
    if IS_LINUX and hasattr(os, "memfd_create"):
        try:
            descriptor = os.memfd_create("asyncrl", os.MFD_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):  # a container may forbid it
                raise
        else:
            return _sized(descriptor, size, allocate)
    try:
        return _sized(_open_shared_memory(), size, allocate)
    except (ImportError, OSError) as error:  # Python has no such module, or /dev/shm is missing or too small
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        log.info("shared memory is a deleted file in %s: %s", tempfile.gettempdir(), error)
    return _sized(_open_deleted_file(), size, allocate)


def _sized(descriptor: int, size: int, allocate: bool) -> int:
    try:
        os.ftruncate(descriptor, size)
        if allocate and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_shared_memory() -> int:
    import _posixshmem  # type: ignore[import-not-found]  # of multiprocessing.shared_memory, which keeps the name

    name = f"/asyncrl-{secrets.token_hex(8)}"  # macOS takes 31 characters
    descriptor: int = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    _posixshmem.shm_unlink(name)
    return descriptor


def _open_deleted_file() -> int:
    descriptor, path = tempfile.mkstemp(prefix="asyncrl-")
    os.unlink(path)
    return descriptor


def open_lock_file() -> int | None:
    """A descriptor of a file without a name, for record locks; None where shared memory takes them itself."""
    return None if IS_LINUX else _open_deleted_file()


def open_wakeup() -> tuple[int, int]:
    """Descriptors to read and to write, which never block; one descriptor for both where the system has eventfd."""
    if IS_LINUX and hasattr(os, "eventfd"):  # from Python 3.10 on
        descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return descriptor, descriptor
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def open_process(pid: int) -> int | None:
    """A descriptor of a process, which becomes readable when it ends; None where the system has none."""
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(pid) if IS_LINUX else None
    return None


def usable_cores() -> list[int] | None:
    """Numbers of the cores on which this process may run; None where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if IS_LINUX and hasattr(os, "sched_getaffinity") else None


def num_usable_cores() -> int:
    cores = usable_cores()
    return (os.cpu_count() or 1) if cores is None else len(cores)


def cpu_info(name: str) -> Iterator[str]:
    """The values of a line of `/proc/cpuinfo`, one for each core; none elsewhere."""
    with contextlib.suppress(OSError):
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                yield value.strip()


def cpu_name() -> str:
    """The processor, as its maker names it; empty if the system does not say."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.processor()
    return next(cpu_info("model name"), platform.processor())


def _sysctl(name: str) -> str:
    buffer, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    ask = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if ask is None or ask(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return ""
    return buffer.value.decode(errors="replace")
