"""Ranks of one run as the tasks of a Spark job, for those whose machines are Spark's.

    train(session, flags, num_ranks)                                             driver
      └─ barrier stage, a task for each rank ── addresses of all tasks           executors
           └─ python -m asyncrl.train FLAGS   (with the variables of torchrun)

A barrier stage starts all its tasks together, or none. The driver needs `pyspark` (extra `spark`), the executors'
Python needs this package. Ranks find one another as those of torchrun do (`docs/scaling.md`).
"""

from __future__ import annotations

import collections
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.config.flags import ExtraFlag, split_flags
from asyncrl.config.settings import all_settings, read_mapping
from asyncrl.processes.children import RunFailed

_MODULE = "asyncrl.train"
_NUM_LAST_LINES = 20


class RankOutcome(NamedTuple):
    """How a rank has ended.

    Attributes:
        rank: its number.
        host: where it ran.
        exit_code: of the training command.
        last_lines: of its output; all of it is in the output of the executor.
    """

    rank: int
    host: str
    exit_code: int
    last_lines: str


def train(
    session: Any,
    flags: Sequence[str],
    num_ranks: int,
    *,
    environment: Mapping[str, str] | None = None,
    max_restarts: int = 0,
) -> list[RankOutcome]:
    """Trains one policy in `num_ranks` tasks of a Spark cluster, and waits until the run is over.

    Args:
        session: a `pyspark.sql.SparkSession`; the cluster must have that many free slots, without dynamic allocation.
        flags: of `python -m asyncrl.train`. `--train_dir` should be a folder that all machines share, and the driver
            reads the file of `--config`, too.
        num_ranks: tasks. Each is one rank and has `spark.task.cpus` cores in Spark's books; `--num_workers` says how
            many it takes. Without `--experiment` the run is named after the application, so that all attempts are
            one run.
        environment: variables of the ranks' processes, such as `GLOO_SOCKET_IFNAME`.
        max_restarts: how often all ranks are started again, from the last checkpoint, after one has failed.

    Returns:
        The outcome of each rank.

    Raises:
        RunFailed: a rank has failed and there are no restarts left.
        UsageError: the file of `--config` cannot be read.
    """
    context = session.sparkContext
    if not _names_experiment(flags):
        flags = [*flags, f"--experiment=spark_{context.applicationId}_{time.time_ns()}"]
    for attempt in range(max_restarts + 1):
        job = (tuple(flags), dict(environment or {}), context.applicationId, attempt)
        stage = context.parallelize(range(num_ranks), num_ranks).barrier()
        outcomes: list[RankOutcome] = stage.mapPartitions(lambda _, job=job: _run_rank(*job)).collect()
        failed = [outcome for outcome in outcomes if outcome.exit_code != 0]
        if not failed:
            return outcomes
        if any(outcome.exit_code == 2 for outcome in failed):
            break  # a mistake in the flags
    first = failed[0]
    raise RunFailed(
        f"{len(failed)} of {num_ranks} ranks failed; rank {first.rank} on {first.host} ended with exit code "
        f"{first.exit_code}",
        first.last_lines,
    )


def _names_experiment(flags: Sequence[str]) -> bool:
    texts, _ = split_flags(flags, all_settings(), (ExtraFlag("config", "", is_bool=False),))
    return "experiment" in texts or ("config" in texts and "experiment" in read_mapping(Path(texts["config"])))


def rank_variables(hosts: Sequence[str], rank: int, port: int, run: str, attempt: str) -> dict[str, str]:
    """The variables that torchrun sets for a rank.

    Args:
        hosts: of the tasks, by their rank.
        rank: number of this one.
        port: on the first host, of the ranks' store.
        run: a name that other runs of the cluster do not have.
        attempt: differs from those of the run's earlier attempts.
    """
    host = hosts[rank]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(hosts[:rank].count(host)),
        "LOCAL_WORLD_SIZE": str(hosts.count(host)),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"{run}/{attempt}",
        "TORCHELASTIC_RESTART_COUNT": attempt,
    }


def _run_rank(flags: Sequence[str], environment: Mapping[str, str], run: str, attempt: int) -> Iterator[RankOutcome]:
    """A task: one rank from its start to its end.

    It raises nothing if the rank fails: the others then end by themselves, and Spark would start all of them again.
    """
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    rank = context.partitionId()
    host = context.getTaskInfos()[rank].address.rpartition(":")[0]
    own = json.dumps([host, _free_port(), context.taskAttemptId()])
    everyone = [json.loads(message) for message in context.allGather(own)]
    # Spark itself repeats a stage whose executor was lost, with new numbers of attempts.
    _, port, number = everyone[0]
    variables = rank_variables([each[0] for each in everyone], rank, port, run, f"{attempt}.{number}")
    exit_code, last_lines = _run_command(flags, {**os.environ, **environment, **variables})
    yield RankOutcome(rank, host, exit_code, last_lines)


def _run_command(flags: Iterable[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Runs the training command, which ends with this process; returns its exit code and its last lines."""
    lifeline, commands_end = socket.socketpair()
    descriptors = (commands_end.fileno(), lifeline.fileno())
    command = [sys.executable, "-m", "asyncrl.processes.owned", *map(str, descriptors), "all", _MODULE, *flags]
    last: collections.deque[str] = collections.deque(maxlen=_NUM_LAST_LINES)
    try:
        with subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=descriptors,
            start_new_session=True,
        ) as process:
            commands_end.close()  # only the command holds its end
            assert process.stdout is not None
            for line in process.stdout:
                sys.stdout.write(line)
                last.append(line)
    finally:
        commands_end.close()
        lifeline.close()
    return process.returncode, "".join(last)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
    return port
