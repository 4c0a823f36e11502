import json
import os
import signal
import sys
import threading
import time

import psutil
import pytest
from command import wait_until

from asyncrl.analysis.benchmark.watch import TaskFailed, Usage, run_watched

pytestmark = pytest.mark.usefixtures("leaves_nothing")

BUSY_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; x = bytearray(40_000_000); end = time.time() + 1.5\\n"
                                                "while time.time() < end: pass"])
child.wait()
"""
STUBBORN = """
import json, os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
open(sys.argv[1], "w").write(json.dumps([os.getpid(), child.pid]))
time.sleep(100)
"""


def test_cpu_between_two_moments_is_interpolated():
    usage = Usage(cpu=[(0.0, 0.0), (10.0, 5.0), (20.0, 25.0)])
    assert usage.cpu_between(5.0, 15.0) == pytest.approx(15.0 - 2.5)


def test_what_descendants_use_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncrl.analysis.benchmark.watch._LOOK_EVERY_S", 0.2)
    log = tmp_path / "out.log"
    usage = run_watched([sys.executable, "-c", BUSY_CHILD], log)
    cpu = [used for _, used in usage.cpu]
    assert cpu == sorted(cpu), "a process that has ended is not forgotten"
    assert cpu[-1] > 0
    assert usage.peak_rss_bytes > 40_000_000
    assert usage.peak_pss_bytes is None or usage.peak_pss_bytes <= usage.peak_rss_bytes


def test_a_command_that_fails_is_reported_with_its_last_error(tmp_path):
    command = [sys.executable, "-c", "import sys; print('error: a'); print('error: as asked'); sys.exit(7)"]
    with pytest.raises(TaskFailed, match=r"^training ended with exit code 7: as asked \(output: .*log\)$"):
        run_watched(command, tmp_path / "log", what="training")


def test_a_command_that_hangs_is_ended(tmp_path):
    with pytest.raises(TaskFailed, match="did not end within"):
        run_watched([sys.executable, "-c", "import time; time.sleep(100)"], tmp_path / "log", timeout_s=0.5)


def test_an_interrupted_wait_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncrl.analysis.benchmark.watch._GRACE_S", 0.3)
    pids = tmp_path / "pids"

    def interrupt():
        while not (pids.exists() and pids.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_watched([sys.executable, "-c", STUBBORN, str(pids)], tmp_path / "log")

    def is_gone(pid):
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_until(lambda: all(map(is_gone, json.loads(pids.read_text()))), 10.0, "both are gone")
