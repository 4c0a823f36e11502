"""Trains in what containers give and forbid, and prints a table of the outcomes. For root on Linux.

    python scripts/check_containers.py [CASE ...]

Each case must end with its exit code, and with one sentence where nothing can be trained. The run is an asynchronous
one of CartPole. Everybody must be able to run the interpreter, for the case of a uid without a name.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TRAIN = "-m asyncrl.train --env=CartPole-v1 --train_for_env_steps=6000 --num_workers=2 --quiet --experiment=run"
_STRANGER = 54321  # a uid without a name
_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # the latter with EPERM
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


@dataclass(frozen=True)
class Case:
    """What a container is like.

    Attributes:
        title: for the table.
        mounts: shell commands in a mount namespace of its own, before the run.
        prefix: command before the run's.
        flags: further flags of the run.
        prepare: called in the process that becomes the run.
        is_in_folder: whether the working directory can be written; otherwise it is read-only.
        without: environment variables that are not set.
        code: exit code of the run.
    """

    title: str
    mounts: str = "true"
    prefix: str = ""
    flags: str = ""
    prepare: Callable[[], None] | None = None
    is_in_folder: bool = True
    without: tuple[str, ...] = ()
    code: int = 0


def forbid_memfd() -> None:
    """Lets the system refuse `memfd_create`, as some seccomp profiles do."""
    number = _MEMFD_CREATE[os.uname().machine]
    steps = ((_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    filters = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, filters, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


_HAS_VERSION_1 = Path("/sys/fs/cgroup/memory/cgroup.procs").exists()
_GROUP = Path("/sys/fs/cgroup/memory" if _HAS_VERSION_1 else "/sys/fs/cgroup", "asyncrl-check")
_LIMIT = _GROUP / ("memory.limit_in_bytes" if _HAS_VERSION_1 else "memory.max")
_NO_SHM = "mount -t tmpfs -o ro,size=4k tmpfs /dev/shm"
CASES = {
    "plain": Case("nothing special"),
    "shm": Case("`--shm-size=64m`", mounts="mount -t tmpfs -o size=64m tmpfs /dev/shm"),
    "no_shm": Case("no usable `/dev/shm`", mounts=_NO_SHM),
    "memfd": Case("seccomp without `memfd_create`", prepare=forbid_memfd),
    "memfd_shm": Case(
        "the same, `/dev/shm` of 64 KiB", mounts=_NO_SHM.replace("ro,size=4k", "size=64k"), prepare=forbid_memfd
    ),
    "files": Case("256 open files", prefix="prlimit --nofile=256:256"),
    "core": Case("one core", prefix="taskset -c 0"),
    "memory": Case("1 GiB of memory", prefix=f"sh -c 'echo $$ > {_GROUP}/cgroup.procs; exec \"$@\"' sh"),
    "home": Case("no `HOME`", without=("HOME",)),
    "user": Case(
        "a uid without a name, read-only home", prefix=f"setpriv --reuid={_STRANGER} --regid={_STRANGER} --clear-groups"
    ),
    "folder": Case("read-only working directory", is_in_folder=False, code=2),
    "train_dir": Case("the same, `--train_dir` in `/tmp`", flags="--train_dir=TEMPORARY", is_in_folder=False),
}


def run(case: Case) -> tuple[int, str]:
    """The exit code of a run in this case, and what it printed."""
    folder = Path(tempfile.mkdtemp(prefix="asyncrl-containers-"))
    folder.chmod(0o777)
    try:
        flags = case.flags.replace("TEMPORARY", str(folder / "runs"))
        train = f"{case.prefix} {shlex.quote(sys.executable)} {TRAIN} {flags}"
        place = str(folder) if case.is_in_folder else "/mnt"
        read_only = "mount -t tmpfs -o ro tmpfs /mnt"
        mounts = f"mount --make-rprivate / && {read_only} && {case.mounts} && cd {place} && exec {train}"
        environment = {name: value for name, value in os.environ.items() if name not in case.without}
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mounts],
            env=environment,
            preexec_fn=case.prepare,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, (done.stdout + done.stderr).strip()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    names, is_right = sys.argv[1:] or list(CASES), True
    _GROUP.mkdir(exist_ok=True)
    try:
        with open(_LIMIT, "r+") as limit:  # the kernel's, so it is not made here
            limit.write(str(1 << 30))
        print("| container | exit code | printed |\n| --- | --- | --- |", flush=True)
        for name in names:
            case = CASES[name]
            code, printed = run(case)
            is_right &= code == case.code and (code == 0 or len(printed.splitlines()) == 1)
            print(f"| {case.title} | {code} | {printed[-200:]} |", flush=True)
    finally:
        _GROUP.rmdir()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
