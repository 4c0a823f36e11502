"""Trains for a long time and checks from outside that memory and descriptors of all processes do not grow.

    python scripts/soak.py                                       # an hour of PPO, async, central
    python scripts/soak.py --minutes=20 --algo=sac --env=Pendulum-v1
    python scripts/soak.py --table --output=soak.jsonl           # show the recorded samples, run nothing

Other flags go to `asyncrl train`. Every `--every_s` a line of JSON is appended to the output: memory and open
descriptors of each process, and the run's environment steps. Memory is the proportional set size without mapped files,
in which shared pages count once and other programs with the same libraries make no difference; it is the resident set
size if the system does not report the other. After the warm-up, the memory of all processes together may grow by less
than 1 MB per million environment steps (least squares), descriptors and entries of /dev/shm not at all. A result about
memory needs at least a few million steps.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from watched_run import WatchedRun

from asyncrl.analysis.records import STEPS, append_json_line, read_json_lines, read_records
from asyncrl.analysis.tables import number, table

MOST_MB_PER_MILLION_STEPS = 1.0
WARM_UP = 0.25  # of the samples
END_S = 120.0
DEFAULTS = ("--env=CartPole-v1", "--inference_mode=central")
ALL = "all"
_PART = re.compile(r"^Pss_(Anon|Shmem): +(\d+) kB$", re.MULTILINE)


def main() -> int:
    """Trains and samples; returns 1 if a bound is broken or the run did not end normally."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every_s", type=float, default=10.0)
    parser.add_argument("--output", type=Path, default=Path("soak.jsonl"), help="file for the samples; overwritten")
    parser.add_argument("--table", action="store_true", help="show what was recorded, run nothing")
    options, flags = parser.parse_known_args()
    if not options.table:
        options.output.write_text("")
        soak(options.minutes, options.every_s, flags or DEFAULTS, options.output)
    records = read_json_lines(options.output)
    samples = of_the_whole_run([record for record in records if record["kind"] == "sample"])
    samples = samples[int(WARM_UP * len(samples)) :]
    broken = find_broken(samples, records[-1])
    print(summarize(samples))
    print("\n".join(broken) or "all bounds are kept")
    return 1 if broken else 0


def soak(minutes: float, every_s: float, flags: Sequence[str], output: Path) -> None:
    """Trains for some seconds and appends samples to the output."""
    with tempfile.TemporaryDirectory(prefix="asyncrl_soak_") as place:
        limits = (f"--train_for_seconds={60.0 * minutes}", "--train_for_env_steps=1000000000000", "--report_every_s=5")
        with Path(place, "stderr").open("w+") as errors:
            run = WatchedRun(Path(place), (*flags, *limits), errors)
            try:
                deadline = time.monotonic() + 60.0 * minutes + END_S
                while not run.is_over and time.monotonic() < deadline:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        run.process.wait(every_s)
                    env_steps = newest_steps(run)
                    if env_steps > 0 and not run.is_over:
                        append_json_line(output, {"kind": "sample", "env_steps": env_steps, **look(run)})
                is_hung, left = not run.is_over, run.num_left()
            finally:
                run.end()
            errors.seek(0)
            said = errors.read().splitlines()[-20:]
        outcome = {"exit_code": run.process.returncode, "is_hung": is_hung, "processes_left": left}
        found = {**outcome, "entries_left": run.new_shared_memory(), "said": said}
        append_json_line(output, {"kind": "run", "flags": list(flags), **found})


def newest_steps(run: WatchedRun) -> int:
    records = read_records(run.folder / "metrics.jsonl")
    return int(records[-1][STEPS]) if records else 0


def look(run: WatchedRun) -> dict[str, Any]:
    """Returns memory and descriptors by role, summed over the processes of a role."""
    roles = run.roles()
    processes: dict[str, dict[str, float]] = {}
    for process in run.processes():
        with contextlib.suppress(psutil.Error, OSError):
            role = roles.get(process.pid, "other")  # fork server, resource tracker
            found = processes.setdefault(role, {"mb": 0.0, "descriptors": 0})
            found["mb"] += memory_mb(process)
            found["descriptors"] += process.num_fds()
    return {"processes": processes, "entries": len(run.new_shared_memory())}


def memory_mb(process: psutil.Process) -> float:
    """Returns the memory of a process, as the module's docstring defines it."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup")
    parts = dict(_PART.findall(rollup.read_text())) if rollup.exists() else {}
    if parts.keys() >= {"Anon", "Shmem"}:
        return (int(parts["Anon"]) + int(parts["Shmem"])) * 1024 / 1e6
    return float(process.memory_info().rss / 1e6)


def of_the_whole_run(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the samples with the usual roles, without those of the start and the end of the run."""
    usual = statistics.mode(frozenset(each["processes"]) for each in samples) if samples else frozenset()
    return [each for each in samples if each["processes"].keys() == usual]


def summarize(samples: Sequence[dict[str, Any]]) -> str:
    """Returns a Markdown table with a line for each role and one for all."""
    header = ("process", "MB, first and last", "MB per million steps", "descriptors, first and last")
    rows, steps = [], millions_of_steps(samples)
    for role in roles_of(samples):
        mb, descriptors = series(samples, role, "mb"), series(samples, role, "descriptors")
        rows.append(
            [
                role,
                f"{number(mb[0], 1)}, {number(mb[-1], 1)}",
                number(slope(steps, mb), 3),
                f"{number(descriptors[0])}, {number(descriptors[-1])}",
            ]
        )
    span = number(steps[-1] - steps[0], 1) if steps else "no"
    return f"{len(samples)} samples over {span} million environment steps, after the warm-up\n\n{table(header, rows)}"


def find_broken(samples: Sequence[dict[str, Any]], outcome: dict[str, Any]) -> list[str]:
    """Returns a sentence for each bound that is broken."""
    broken = []
    if outcome["kind"] != "run":
        return ["the run was not watched to its end"]
    if outcome["exit_code"] != 0 or outcome["is_hung"]:
        broken.append(f"the run ended with {outcome['exit_code']}, hung: {outcome['is_hung']}: {outcome['said']}")
    if outcome["processes_left"] or outcome["entries_left"]:
        broken.append(f"left behind: {outcome['processes_left']} processes, {outcome['entries_left']} in /dev/shm")
    if len(samples) < 3:
        return [*broken, "there are too few samples to say anything of memory"]
    growth = slope(millions_of_steps(samples), series(samples, ALL, "mb"))
    if growth >= MOST_MB_PER_MILLION_STEPS:
        broken.append(f"memory grows by {growth:.2f} MB per million steps")
    for role in roles_of(samples):
        descriptors = series(samples, role, "descriptors")
        part = max(1, len(descriptors) // 3)
        before, after = statistics.median(descriptors[:part]), statistics.median(descriptors[-part:])
        if after > before:
            broken.append(f"{role}: {before:g} descriptors became {after:g}")
    if samples[-1]["entries"] > samples[0]["entries"]:
        broken.append(f"/dev/shm: {samples[0]['entries']} new entries became {samples[-1]['entries']}")
    return broken


def roles_of(samples: Sequence[dict[str, Any]]) -> list[str]:
    return [*samples[0]["processes"], ALL] if samples else []


def series(samples: Sequence[dict[str, Any]], role: str, what: str) -> list[float]:
    """Returns a figure of a role over time; of all roles, their sum."""
    if role == ALL:
        return [sum(process[what] for process in each["processes"].values()) for each in samples]
    return [each["processes"][role][what] for each in samples]


def millions_of_steps(samples: Sequence[dict[str, Any]]) -> list[float]:
    return [each["env_steps"] / 1e6 for each in samples]


def slope(steps: Sequence[float], values: Sequence[float]) -> float:
    """Returns the growth of values per step by linear regression; 0 with fewer than two different steps."""
    return statistics.linear_regression(steps, values).slope if len(set(steps)) > 1 else 0.0


if __name__ == "__main__":
    sys.exit(main())
