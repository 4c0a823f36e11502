"""Kills random processes of training runs at random times and reports the consequences.

    python scripts/fault_injection.py                    # until 200 kills are recorded
    python scripts/fault_injection.py --kills=20 --only=Hogwild
    python scripts/fault_injection.py --table            # show the recorded results, run nothing

Each kill and each run is appended to a JSON-lines file at its end, so the script can be stopped at any time and
continued. A run has to end by itself with exit code 0; a run that exceeds its time limit counts as hung. After each run
no process of it may live and /dev/shm may have no new entry.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watched_run import GONE_S, STARTED, WatchedRun, await_condition, median_and_largest

from asyncrl.analysis.records import append_json_line, read_json_lines
from asyncrl.analysis.tables import table

KILLS_OF_A_RUN = 10
RUN_LIMIT_S = 600.0
NOTICE_LIMIT_S = 30.0
RECOVER_LIMIT_S = 120.0
AT_WORK = re.compile(r"at work")


@dataclass(frozen=True)
class Case:
    """Runs of one kind: their flags, and a pattern of the logs of processes that may be killed."""

    name: str
    flags: tuple[str, ...]
    victims: str = "[ri]*-*.log"


_CARTPOLE = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--train_for_env_steps=120000")
_PENDULUM = ("--env=Pendulum-v1", "--num_workers=2", "--num_envs_per_worker=2", "--train_for_env_steps=30000")
_SAC = ("--algo=sac", "--warmup_env_steps=500", "--updates_per_env_step=0.25", "--batch_size=64")
_SMALL = ("--encoder_mlp_layers=[32]", "--learner_threads=1")

CASES = (
    Case("PPO async local", (*_CARTPOLE, "--inference_mode=local")),
    Case("PPO async central", (*_CARTPOLE, "--inference_mode=central", "--worker_num_splits=2")),
    Case("PPO sync central", (*_CARTPOLE, "--inference_mode=central", "--async_rl=False")),
    Case("PPO learner", (*_CARTPOLE, "--save_every_s=1", "--max_learner_restarts=1000"), "learner.log"),
    Case("SAC async local", (*_PENDULUM, *_SAC, *_SMALL)),
    Case("SAC async central", (*_PENDULUM, *_SAC, *_SMALL, "--inference_mode=central")),
    Case("SAC sync local", (*_PENDULUM, *_SAC, *_SMALL, "--async_rl=False")),
    Case("Hogwild A3C", (*_CARTPOLE, *_SMALL, "--algo=a3c")),
    Case("Hogwild gradients", (*_CARTPOLE, *_SMALL, "--algo=a2c", "--backend=hogwild", "--hogwild_mode=gradients")),
    Case("Hogwild SAC", (*_PENDULUM, *_SAC, *_SMALL, "--backend=hogwild")),
)


class Run(WatchedRun):
    """A run whose standard error is read, each line with its time."""

    def __init__(self, flags: Sequence[str], place: Path) -> None:
        super().__init__(place, ("--max_restarts=1000", "--preset=none", *flags), subprocess.PIPE)
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def noticed_at(self, role: str, since: float) -> float | None:
        """Returns the time after `since` at which the run reported the death of a process; None if it did not."""
        name = re.sub(r"-(\d+)$", r" worker \1", role)
        return next((at for at, line in list(self.lines) if at >= since and f"{name} died: SIGKILL" in line), None)

    def end(self) -> None:
        super().end()
        self._reader.join(5.0)


def count(log: Path, pattern: re.Pattern[str]) -> int:
    """Returns how often a pattern occurs in a log; 0 without the log."""
    return len(pattern.findall(log.read_text())) if log.exists() else 0


def kill_one(run: Run, case: Case, chance: random.Random) -> dict[str, Any] | None:
    """Kills a random process and waits until its successor works; returns None if the run ended before."""
    time.sleep(chance.uniform(0.0, 1.5))
    log = chance.choice([log for log in sorted(run.logs.glob(case.victims)) if count(log, STARTED)])
    num_at_work = count(log, AT_WORK)
    pid = int(STARTED.findall(log.read_text())[-1])
    killed_at = time.monotonic()
    try:
        if os.getsid(pid) != run.process.pid:
            return None  # another program has the id now
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    await_condition(lambda: run.is_over or run.noticed_at(log.stem, killed_at) is not None, NOTICE_LIMIT_S)
    noticed_at = run.noticed_at(log.stem, killed_at)
    recovered = await_condition(lambda: run.is_over or count(log, AT_WORK) > num_at_work, RECOVER_LIMIT_S)
    if run.is_over and noticed_at is None:
        return None  # the process had finished before the kill
    return {
        "victim": log.stem,
        "noticed_s": None if noticed_at is None else round(noticed_at - killed_at, 3),
        "recovered_s": round(time.monotonic() - killed_at, 3) if recovered and not run.is_over else None,
    }


def run_case(case: Case, most_kills: int, seed: int, record: Callable[[dict[str, Any]], None]) -> int:
    """Makes one run with kills and returns their number."""
    chance, num_kills = random.Random(seed), 0
    with tempfile.TemporaryDirectory(prefix="asyncrl_faults_") as folder:
        run = Run(case.flags, Path(folder))
        try:
            started_at = time.monotonic()
            victims = functools.partial(run.logs.glob, case.victims)
            await_condition(lambda: run.is_over or any(count(log, AT_WORK) for log in victims()), 120.0)
            for _ in range(4 * most_kills):
                if num_kills == most_kills or run.is_over:
                    break
                kill = kill_one(run, case, chance)
                if kill is not None:
                    num_kills += 1
                    record({"kind": "kill", "case": case.name, **kill})
            is_hung = not await_condition(lambda: run.is_over, max(0.0, started_at + RUN_LIMIT_S - time.monotonic()))
            left = run.num_left(0.0 if is_hung else GONE_S)
        finally:
            run.end()
        outcome = {"exit_code": run.process.returncode, "is_hung": is_hung, "processes_left": left}
        record({"kind": "run", "case": case.name, "seed": seed, **outcome, "entries_left": run.new_shared_memory()})
        if is_hung or run.process.returncode != 0:
            print("\n".join(line for _, line in run.lines[-20:]), file=sys.stderr)
    return num_kills


HEADER = (
    *("case", "runs", "kills", "exit code 0", "hung", "processes left", "left in /dev/shm"),
    *("noticed after, median (largest) s", "at work again after, median (largest) s"),
)


def summarize(records: list[dict[str, Any]]) -> str:
    """Returns a Markdown table with a line for each case."""
    rows = []
    for name in dict.fromkeys(record["case"] for record in records):
        kills = [each for each in records if each["kind"] == "kill" and each["case"] == name]
        runs = [each for each in records if each["kind"] == "run" and each["case"] == name]
        figures = [
            len(runs),
            len(kills),
            sum(run["exit_code"] == 0 for run in runs),
            sum(run["is_hung"] for run in runs),
            sum(run["processes_left"] for run in runs),
            sum(len(run["entries_left"]) for run in runs),
            median_and_largest([kill["noticed_s"] for kill in kills]),
            median_and_largest([kill["recovered_s"] for kill in kills]),
        ]
        rows.append([name, *map(str, figures)])
    return table(HEADER, rows)


def main() -> int:
    """Makes runs until enough kills are recorded; returns 1 if a run hung, leaked or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="number of kills to record over all cases")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--output", type=Path, default=Path("fault_injection.jsonl"))
    parser.add_argument("--table", action="store_true", help="show what was recorded, run nothing")
    options = parser.parse_args()
    records = read_json_lines(options.output)
    cases = [case for case in CASES if options.only in case.name]

    def record(entry: dict[str, Any]) -> None:
        records.append(entry)
        append_json_line(options.output, entry)

    while not options.table and cases:
        names = {case.name for case in cases}
        left = options.kills - sum(entry["kind"] == "kill" and entry["case"] in names for entry in records)
        if left <= 0:
            break
        num_runs = {case: sum(r["kind"] == "run" and r["case"] == case.name for r in records) for case in cases}
        case = min(cases, key=lambda case: num_runs[case])
        num_kills = run_case(case, min(left, KILLS_OF_A_RUN), seed=len(records), record=record)
        print(f"{case.name}: {num_kills} kills", flush=True)
    print(summarize(records))
    runs = [entry for entry in records if entry["kind"] == "run"]
    is_clean = all(not (r["is_hung"] or r["processes_left"] or r["entries_left"] or r["exit_code"]) for r in runs)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
