"""A small Ray cluster on this machine, in its own process, and the processes of its pools."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import psutil
import pytest

NUM_NODES = 2
_START_S = 300.0

_PROGRAM = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
for _ in range(int(sys.argv[1])):
    cluster.add_node(num_cpus=2)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


class RayCluster:
    """A head without CPUs, and nodes with two. Nodes share this machine, which Ray does not know."""

    def __init__(self, num_nodes: int = NUM_NODES, **environment: str) -> None:
        pytest.importorskip("ray")
        # Ray cannot start an interpreter whose path contains a space, sockets need a short path, and Ray's usual folder
        # may belong to another user.
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        (self._folder / "python").symlink_to(sys.prefix)
        own = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(self._folder), **environment}
        interpreter = self._folder / "python" / Path(sys.executable).relative_to(sys.prefix)
        command = [str(interpreter), "-c", _PROGRAM, str(num_nodes)]
        self._process = subprocess.Popen(
            command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        try:
            assert wait([self._process.stdout], _START_S), "the cluster has not started in time"
            self.address = self._process.stdout.readline().decode().strip()
            assert self.address, "the cluster has not started"
        except BaseException:
            self.close()
            raise

    def pools(self) -> list[psutil.Process]:
        """The actors of pools that live, the oldest first."""
        return sorted(self._named("ray::Pool"), key=lambda process: process.create_time())

    def workers(self) -> list[psutil.Process]:
        """The rollout workers of all pools: children of the pools' fork servers."""
        found = []
        for pool in self.pools():
            with contextlib.suppress(psutil.Error):
                found += [worker for server in pool.children() for worker in server.children()]
        return found

    def node_of(self, process: psutil.Process) -> psutil.Process:
        """The process that is a node of the cluster, and ends with all of the node's processes."""
        parent = process.parent()
        assert parent is not None and "raylet" in parent.name()
        return parent

    def head(self) -> psutil.Process:
        """The process that the cluster cannot be without."""
        return self._named("gcs_server")[0]

    def close(self) -> None:
        """Ends all processes of the cluster."""
        descendants = self._descendants()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=30.0)
        self._process.kill()
        self._process.wait()
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _descendants(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)

    def _named(self, name: str) -> list[psutil.Process]:
        found = []
        for process in self._descendants():
            with contextlib.suppress(psutil.Error, IndexError):
                if process.status() != psutil.STATUS_ZOMBIE and name in process.cmdline()[0]:
                    found.append(process)
        return found


@contextlib.contextmanager
def started(num_nodes: int = NUM_NODES, **environment: str) -> Iterator[RayCluster]:
    """A cluster, which ends with the context; its processes have further variables of the environment."""
    cluster = RayCluster(num_nodes, **environment)
    try:
        yield cluster
    finally:
        cluster.close()
