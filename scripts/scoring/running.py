"""Makes one run: trains, and evaluates the policies that were saved."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from asyncrl.analysis.benchmark.watch import TaskFailed, run_watched
from asyncrl.analysis.records import read_json_lines
from asyncrl.storage.provenance import describe
from scoring.records import Record, Snapshot, choose, find_saved
from scoring.systems import Job, System

_START_AND_END_S = 180.0
_EVALUATION_S = 1800.0


def conditions(system: System, job: Job, episodes: int) -> dict[str, Any]:
    """Returns the conditions under which an earlier result is used again."""
    return {
        "env_steps": job.task.env_steps,
        "limit_s": job.limit_s,
        "episodes": episodes,
        "num_cores": job.num_cores,
        "settings": system.settings(job.task),
    }


def run(system: System, job: Job, episodes: int) -> Record:
    """Trains in the job's folder, which is emptied first, and then evaluates.

    A stopped run begins again, because its curve over time would have a gap.

    Raises:
        TaskFailed: training or evaluation failed.
    """
    env = system.env_of(job.task)
    assert env is not None, f"{system.name} cannot train {job.task.env}"
    shutil.rmtree(job.folder, ignore_errors=True)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    command = system.training_command(job)
    launched_at = time.time()
    run_watched(command, _beside(job, "training.log"), job.limit_s + _START_AND_END_S)
    startup_s, curve = system.read_training(job, launched_at)
    saved = find_saved(system.saved_paths(job))
    if not saved:
        raise TaskFailed("the run saved no policy")
    chosen = choose(saved, launched_at + startup_s, job.task.env_steps)
    evaluated = _evaluate(system, job, env, episodes, [policy.path for policy, _ in chosen])
    last = saved[-1]
    return Record(
        task=job.task.env,
        system=system.name,
        seed=job.seed,
        conditions=conditions(system, job, episodes),
        env=env,
        versions=system.versions(),
        startup_s=round(startup_s, 2),
        seconds=round(last.saved_at - launched_at, 2),
        env_steps=last.env_steps,
        curve=tuple((round(seconds, 2), steps, round(value, 3)) for seconds, steps, value in curve),
        snapshots=tuple(
            Snapshot(
                round(policy.saved_at - launched_at, 2),
                policy.env_steps,
                tuple(marks),
                float(evaluated[str(policy.path)]["mean_return"]),
            )
            for policy, marks in chosen
        ),
        environment=describe("cpu"),
        deterministic_score=float(evaluated[str(last.path)]["deterministic_return"]),
    )


def _evaluate(system: System, job: Job, env: str, episodes: int, policies: list[Path]) -> dict[str, dict[str, Any]]:
    """The lines of the policies' evaluations, by path."""
    results = _beside(job, "evaluation.jsonl")
    results.unlink(missing_ok=True)
    options = {"env": env, "seed": job.seed, "episodes": episodes, "policies": [str(path) for path in policies],
               "settings": system.settings(job.task)}  # fmt: skip
    command = [*system.evaluation_command(job), str(results), json.dumps(options)]
    run_watched(command, _beside(job, "evaluation.log"), _EVALUATION_S)
    return {entry["policy"]: entry for entry in read_json_lines(results)}


def _beside(job: Job, ending: str) -> Path:
    return job.folder.with_name(f"{job.folder.name}.{ending}")
