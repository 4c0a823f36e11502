"""Trains in what containers give and forbid, and prints a table of the outcomes. For root on Linux.

    python scripts/check_containers.py [CASE ...]

Each case must end with exit code 0, or with 2 and one sentence. The run is an asynchronous one of CartPole. Everybody
must be able to run the interpreter, for the case of a uid without a name.
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
    """

    title: str
    mounts: str = "true"
    prefix: str = ""
    flags: str = ""
    prepare: Callable[[], None] | None = None
    is_in_folder: bool = True
    without: tuple[str, ...] = ()


def forbid_memfd() -> None:
    """Lets the system refuse `memfd_create`, as some seccomp profiles do."""
    number = _MEMFD_CREATE[os.uname().machine]
    steps = ((_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    filters = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, filters, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


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
    "memory": Case("1 GiB of memory", prefix="CGROUP"),
    "home": Case("no `HOME`", without=("HOME",)),
    "user": Case(
        "a uid without a name, read-only home", prefix=f"setpriv --reuid={_STRANGER} --regid={_STRANGER} --clear-groups"
    ),
    "folder": Case("read-only working directory", is_in_folder=False),
    "train_dir": Case("the same, `--train_dir` in `/tmp`", flags="--train_dir=TEMPORARY", is_in_folder=False),
}


def run(case: Case) -> tuple[int, str]:
    """The exit code of a run in this case, and the last line that it printed."""
    folder = Path(tempfile.mkdtemp(prefix="asyncrl-containers-"))
    folder.chmod(0o777)
    try:
        prefix = case.prefix
        if prefix == "CGROUP":
            if (group := _group_of(1 << 30)) is None:
                return -1, "this system lets nobody make a control group"
            prefix = f"sh -c 'echo $$ > {group}/cgroup.procs; exec \"$@\"' sh"
        flags = case.flags.replace("TEMPORARY", str(folder / "runs"))
        train = f"{prefix} {shlex.quote(sys.executable)} {TRAIN} {flags}"
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
        lines = (done.stdout + done.stderr).strip().splitlines()
        return done.returncode, lines[-1] if lines else ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _group_of(num_bytes: int) -> Path | None:
    group = Path("/sys/fs/cgroup/asyncrl-check")
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(num_bytes))
    except OSError:
        return None
    return group


def main() -> int:
    names, is_right = sys.argv[1:] or list(CASES), True
    print("| container | exit code | last line |\n| --- | --- | --- |", flush=True)
    for name in names:
        code, line = run(CASES[name])
        is_right &= code in (0, 2)
        print(f"| {CASES[name].title} | {code} | {line[:200]} |", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
