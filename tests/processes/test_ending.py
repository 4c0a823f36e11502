"""A command ends although an environment has left a thread."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, threading, time
from asyncrl.processes.ending import end_process

threading.Thread(target=time.sleep, args=(600,)).start()
atexit.register(print, "cleaned up")
print("result", end=" ")
end_process(3)
"""


def test_a_thread_that_is_left_does_not_keep_a_process_alive() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (3, "result cleaned up\n", "")
