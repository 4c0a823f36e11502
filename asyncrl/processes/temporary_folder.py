"""Where multiprocessing puts sockets and shared memory: folders in which both work."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import tempfile
from multiprocessing import heap
from multiprocessing.util import Finalize

_SHORT_FOLDERS = ("/tmp", "/var/tmp", f"/run/user/{os.getuid()}", "/dev/shm")
_SOCKET = "listener-12345678"  # as long as the names that multiprocessing gives


def use_folder_for_sockets() -> None:
    """Gives multiprocessing a private folder whose path is short enough for sockets; it is deleted at exit.

    The path of a Unix socket has at most 107 bytes, so a long TMPDIR (Slurm) has no room for one.

    Raises:
        OSError: no such folder can be made.
    """
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is not None and _takes_sockets(config["tempdir"]):
        return
    for parent in (tempfile.gettempdir(), *_SHORT_FOLDERS):
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="pymp-", dir=parent)
            if _takes_sockets(folder):
                config["tempdir"] = folder
                Finalize(None, _remove, args=(folder, os.getpid()), exitpriority=-100)
                return
            os.rmdir(folder)
    raise OSError(
        f"a Unix socket needs a path of at most 107 bytes, that of the temporary folder has "
        f"{len(os.fsencode(tempfile.gettempdir()))}, and no socket can be made in {', '.join(_SHORT_FOLDERS)} either"
    )


def use_writable_shared_memory() -> None:
    """Lets multiprocessing put shared memory into temporary files where `/dev/shm` cannot be used."""
    folders: list[str] = getattr(heap.Arena, "_dir_candidates", [])
    folders[:] = filter(_takes_files, folders)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() != owner:  # a process that was forked
        return
    shutil.rmtree(folder, ignore_errors=True)
    config = getattr(multiprocessing.current_process(), "_config", {})
    config.pop("tempdir", None)


def _takes_sockets(folder: str) -> bool:
    path = os.path.join(folder, _SOCKET)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
        os.unlink(path)
    except OSError:
        return False
    return True


def _takes_files(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
