"""Which process of which machine works on something, as a file in a shared folder.

The owner locks its file, and touches it now and then. On its own machine an owner is dead as soon as its file is not
locked: the kernel releases the lock with the process. Locks of other machines are not seen on every file system, so an
owner elsewhere is dead when its file has not been touched for `SILENCE_S`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
import uuid
from pathlib import Path

SILENCE_S = 120.0
_TOUCH_EVERY_S = 10.0


class Owner:
    """This process, as others see it, until it is closed or ends.

    Attributes:
        name: a name that no other process has: machine, and a random part.
    """

    def __init__(self, folder: Path) -> None:
        """Makes its file in `folder`, which holds those of all owners."""
        self.name = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._folder = folder
        self._touched_at = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / self.name, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def touch(self) -> None:
        """Shows that this process lives; to be called at least once a minute."""
        if time.monotonic() - self._touched_at >= _TOUCH_EVERY_S:
            os.utime(self._file)
            self._touched_at = time.monotonic()

    def is_alive(self, name: str) -> bool:
        """Whether the process with this name lives, as far as can be known here."""
        if name == self.name:
            return True
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            if name.rpartition("_")[0] != socket.gethostname():
                # Both times are the file server's: the clocks of the machines may differ.
                os.utime(self._file)
                return os.fstat(self._file).st_mtime - os.fstat(descriptor).st_mtime < SILENCE_S
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @property
    def has_other_owners(self) -> bool:
        """Whether another living process has a file in the folder."""
        others = (path.name for path in self._folder.iterdir() if path.name != self.name)
        return any(self.is_alive(name) for name in others)

    def claim(self, path: Path) -> bool:
        """Makes this process the owner of some work, named by a file; False if another living process is."""
        mine = path.with_name(f".{self.name}")
        mine.write_text(self.name, encoding="utf-8")
        # Two that find a dead owner must not both replace it: the second would remove what the first has written.
        guard = os.open(path.with_name(f".{path.name}.guard"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            while True:
                try:
                    os.link(mine, path)  # unlike opening a new file, also writes the name at once
                    return True
                except FileExistsError:
                    with contextlib.suppress(FileNotFoundError):
                        if self.is_alive(path.read_text(encoding="utf-8")):
                            return False
                        path.unlink()
        finally:
            os.close(guard)
            mine.unlink()

    def close(self) -> None:
        """Gives everything up that this process owns."""
        (self._folder / self.name).unlink(missing_ok=True)
        os.close(self._file)

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
