"""Ranks as tasks of a Spark job: against the interface of PySpark, and on a real Spark where there is one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from unavoidable import PREFIX

from asyncrl.contrib.spark import job
from asyncrl.inference.policy import load_policy
from asyncrl.processes.children import RunFailed

needs_spark = pytest.mark.skipif(
    shutil.which("java") is None or importlib.util.find_spec("pyspark") is None,
    reason=f"{PREFIX}no Java, or no PySpark (300 MB)",
)
HOSTS = ["one", "two", "one"]


class FakeStage:
    """Tasks of a barrier stage as threads of this process."""

    def __init__(self, num_tasks: int) -> None:
        self.num_tasks = num_tasks
        self.own = threading.local()
        self.everyone: dict[int, str] = {}
        self.meeting = threading.Barrier(num_tasks)

    def barrier(self) -> FakeStage:
        return self

    def mapPartitions(self, run: Any) -> FakeStage:  # noqa: N802
        self.run = run
        return self

    def collect(self) -> list[Any]:
        module: Any = ModuleType("pyspark")
        module.BarrierTaskContext = SimpleNamespace(get=lambda: FakeTask(self, self.own.rank))
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(self.num_tasks) as pool:
            patch.setitem(sys.modules, "pyspark", module)
            return [outcome for outcomes in pool.map(self._run_task, range(self.num_tasks)) for outcome in outcomes]

    def _run_task(self, rank: int) -> list[Any]:
        self.own.rank = rank
        return list(self.run(iter([rank])))


class FakeTask:
    """What a task sees of its stage."""

    def __init__(self, stage: FakeStage, rank: int) -> None:
        self.stage, self.rank = stage, rank

    def partitionId(self) -> int:  # noqa: N802
        return self.rank

    def taskAttemptId(self) -> int:  # noqa: N802
        return 10 + self.rank

    def getTaskInfos(self) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(address=f"{HOSTS[rank]}:4{rank}") for rank in range(self.stage.num_tasks)]

    def allGather(self, message: str) -> list[str]:  # noqa: N802
        self.stage.everyone[self.rank] = message
        self.stage.meeting.wait(60.0)
        return [self.stage.everyone[rank] for rank in range(self.stage.num_tasks)]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake session, whose ranks are pretended."""
    monkeypatch.setattr(job, "_MODULE", "pretend_rank")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    context = SimpleNamespace(applicationId="app-1", parallelize=lambda items, count: FakeStage(count))
    return SimpleNamespace(sparkContext=context)


@pytest.mark.usefixtures("leaves_nothing")
def test_each_task_is_a_rank_as_torchrun_makes_them(session: Any) -> None:
    outcomes = job.train(session, ["0 0 0"], 3, environment={"COLOUR": "red"})
    assert [(outcome.rank, outcome.host, outcome.exit_code) for outcome in outcomes] == [
        (rank, host, 0) for rank, host in enumerate(HOSTS)
    ]
    ranks, stores = zip(*(outcome.last_lines.splitlines() for outcome in outcomes), strict=True)
    assert ranks == (
        "rank 0 of 3, 0 of 2 on its machine",
        "rank 1 of 3, 0 of 1 on its machine",
        "rank 2 of 3, 1 of 2 on its machine",
    )
    assert len(set(stores)) == 1, "all meet in one store, which rank 0 opens"
    assert stores[0].startswith("store one ") and " True asyncrl/app-1/" in stores[0] and "COLOUR=red" in stores[0]


@pytest.mark.usefixtures("leaves_nothing")
def test_a_rank_that_fails_fails_the_run_or_restarts_all(session: Any) -> None:
    with pytest.raises(RunFailed, match="1 of 2 ranks failed; rank 1 on two ended with exit code 1") as caught:
        job.train(session, ["1 1 1"], 2)
    assert "rank 1 of 2" in caught.value.details
    outcomes = job.train(session, ["1 1 1"], 2, max_restarts=1)
    assert all("/1.10," in outcome.last_lines for outcome in outcomes), "the second attempt"


@pytest.mark.usefixtures("leaves_nothing")
def test_all_attempts_are_one_run(session: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[str] = []
    run_rank = job._run_rank
    monkeypatch.setattr(job, "_run_rank", lambda flags, *rest: (started.append(flags[-1]), run_rank(flags, *rest))[1])
    job.train(session, ["1 1 1"], 2, max_restarts=1)
    assert len(started) == 4 and len(set(started)) == 1 and started[0].startswith("--experiment=spark_app-1_")
    (tmp_path / "run.yaml").write_text("experiment: mine\n")
    for named in ("--experiment=mine", f"--config={tmp_path / 'run.yaml'}"):
        started.clear()
        job.train(session, ["0 0 0", named], 2)
        assert started == [named] * 2


@pytest.mark.usefixtures("leaves_nothing")
def test_a_mistake_in_the_flags_is_not_tried_again(session: Any) -> None:
    with pytest.raises(RunFailed, match="exit code 2"):
        job.train(session, ["2 0 1"], 2, max_restarts=1)  # a mistake stays one


@needs_spark
@pytest.mark.long
def test_two_executors_of_a_spark_train_one_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_WORKER_DIR", str(tmp_path / "work"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    session = builder.config("spark.local.dir", str(tmp_path)).config("spark.executor.memory", "1g").getOrCreate()
    flags = ["--env=CartPole-v1", "--async_rl=False", "--num_workers=1", "--worker_num_splits=1", "--device=cpu"]
    flags += ["--num_envs_per_worker=4", "--rollout=16", "--batch_size=64", "--num_batches_per_epoch=1"]
    flags += ["--train_for_env_steps=2000", f"--train_dir={tmp_path}", "--experiment=run", "--learner_threads=1"]
    try:
        outcomes = job.train(session, flags, 2)
    finally:
        session.stop()
    assert [outcome.exit_code for outcome in outcomes] == [0, 0]
    assert load_policy(tmp_path / "run").config.train_for_env_steps == 2000
