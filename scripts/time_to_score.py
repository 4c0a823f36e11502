"""Measures the time that asyncrl and other libraries need to reach a score, and their final scores; writes one report.

    python scripts/time_to_score.py --suite=quick --compare_to=docs/time_to_score_quick.json  # before each release
    python scripts/time_to_score.py --suite=quick --outcome=docs/time_to_score_quick.json     # store the reference
    python scripts/time_to_score.py --suite=full --work_dir=scores/full                       # hours
    python scripts/time_to_score.py --suite=peers --limit_s=300  # eight tasks beside other libraries
    python scripts/time_to_score.py --suite=defaults    # without a preset, beside Stable-Baselines3's defaults
    python scripts/time_to_score.py --suite=untouched   # environments that had no part in finding settings
    python scripts/time_to_score.py --suite=agents      # several agents, beside Stable-Baselines3 with supersuit
    python scripts/time_to_score.py --suite=full --tasks=Hopper-v5 --variant small='--batch_size=256 --num_epochs=4'
    python scripts/time_to_score.py --suite=full --work_dir=scores/full --table               # only the report

Each system trains each task with each seed: all systems with one task and seed, then the next task; all tasks with one
seed, then the next seed. Training only saves policies; they are evaluated after it. Each other library has a virtual
environment in --work_dir. The script can be stopped and continued: each result is appended to results.jsonl at once,
and a run with a result is not made again unless its settings or, for asyncrl, the commit differ. A stopped run begins
again, because a curve over the clock must have no gap; `asyncrl launch` would resume it, so it is not used here.

Exit code: 0 if all runs have a result and, with --compare_to, no task is worse; 1 otherwise; 130 after Ctrl-C.
Needs `pip install -e ".[mujoco,atari,plot]" "gymnasium[box2d]"`; Atari for Pong only. The suite `untouched` also needs
`pip install flappy-bird-gymnasium highway-env`, the suite `agents` mpe2.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peer_environments import DRIVERS
from rounds import names_in
from scoring import report
from scoring.analysis import outcome, regressions
from scoring.records import Record
from scoring.report import OWN, Results
from scoring.running import conditions, run
from scoring.systems import Job, System, known_systems, variant
from scoring.tasks import SUITES, USUAL_SYSTEMS, Task

from asyncrl.analysis.benchmark.watch import TaskFailed
from asyncrl.analysis.drawing import check_can_draw
from asyncrl.analysis.records import append_json_line, read_json_lines
from asyncrl.config.errors import UsageError
from asyncrl.storage.provenance import describe

Key = tuple[str, str, int]
"""Task, system, seed."""


class Session:
    """The runs of one suite: those with a result, and those that are still missing."""

    def __init__(self, options: argparse.Namespace, tasks: Sequence[Task], systems: Sequence[System]) -> None:
        self._options = options
        self._folder: Path = options.work_dir.resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._results = self._folder / "results.jsonl"
        self.tasks, self.systems = tasks, systems
        self._records = self._read()

    @property
    def is_complete(self) -> bool:
        return not list(self._todo())

    def measure(self) -> None:
        """Makes the missing runs; a failed run is reported and leaves no result."""
        for system in self.systems:
            system.prepare()
        for task, system, seed in self._todo():
            try:
                record = run(system, self._job(task, system, seed), self._options.episodes)
            except TaskFailed as error:
                print(f"{task.env} {system.name} seed {seed}: failed: {error}", flush=True)
                continue
            self._records[task.env, system.name, seed] = record
            append_json_line(self._results, record.to_json())
            print(f"{task.env} {system.name} seed {seed}: {record.score:.1f} after {record.seconds:.1f} s", flush=True)

    def results(self) -> Results:
        options = self._options
        return Results(
            tasks=self.tasks,
            systems=self.systems,
            records={(task.env, system.name): self._of(task, system) for task in self.tasks for system in self.systems},
            seeds=options.seeds,
            episodes=options.episodes,
            limit_s=options.limit_s,
            provenance={**describe("cpu"), "git_commit": options.commit, "date": time.strftime("%Y-%m-%d")},
        )

    def _of(self, task: Task, system: System) -> list[Record]:
        keys = [(task.env, system.name, seed) for seed in range(self._options.seeds)]
        return [self._records[key] for key in keys if key in self._records]

    def _todo(self) -> Iterator[tuple[Task, System, int]]:
        for seed in range(self._options.seeds):
            for task in self.tasks:
                # In reverse order for every second seed, so that no system always follows the same other system.
                for system in self.systems if seed % 2 == 0 else reversed(self.systems):
                    if system.env_of(task) is not None and (task.env, system.name, seed) not in self._records:
                        yield task, system, seed

    def _job(self, task: Task, system: System, seed: int) -> Job:
        name = f"{re.sub('[/:]', '_', task.env)}_{system.name}_{seed}"
        options = self._options
        return Job(task, seed, self._folder / "runs" / name, options.limit_s, options.num_cores)

    def _read(self) -> dict[Key, Record]:
        """Returns the saved results of these runs under these conditions."""
        tasks = {task.env: task for task in self.tasks}
        systems = {system.name: system for system in self.systems}
        found = {}
        for entry in read_json_lines(self._results):
            task, system = tasks.get(entry["task"]), systems.get(entry["system"])
            if task is None or system is None or system.env_of(task) is None:
                continue
            wanted = conditions(system, self._job(task, system, entry["seed"]), self._options.episodes)
            if entry["conditions"] == json.loads(json.dumps(wanted)):
                found[task.env, system.name, entry["seed"]] = Record.from_json(entry)
        return found


def write_report(session: Session, folder: Path) -> None:
    results = session.results()
    plots: list[str] = []
    without_plots = None
    try:
        check_can_draw()
        for task in results.tasks:
            drawn = report.draw(task, results.of_task(task), results.systems, folder / "plots")
            plots += [str(path.relative_to(folder)) for path in drawn]
    except UsageError as error:
        without_plots = f"There are no plots: {error}"
    results = dataclasses.replace(results, plots=plots, without_plots=without_plots)
    text = report.to_markdown(results)
    (folder / "report.md").write_text(text, encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(report.to_json(results), indent=1) + "\n", encoding="utf-8")
    print(text, flush=True)


def check_and_store(session: Session, compare_to: Path | None, store: Path | None) -> bool:
    """Compares asyncrl's scores with a stored outcome and stores them if no task is worse and none is missing.

    Returns:
        Whether no task is worse.
    """
    results = session.results()
    now = outcome(session.tasks, OWN, {task.env: results.of_task(task).get(OWN, ()) for task in session.tasks})
    found: list[str] = []
    if compare_to is not None:
        stored = json.loads(compare_to.read_text(encoding="utf-8"))
        found = regressions(session.tasks, stored["tasks"], now)
        for sentence in found:
            print(sentence, flush=True)
        if not found:
            print(f"No task fell behind {compare_to} ({stored['provenance']['git_commit']}).", flush=True)
    if store is not None and not found and session.is_complete:
        content = {"provenance": results.provenance, "episodes": results.episodes, "tasks": now}
        store.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return not found


def main() -> int:
    options = _parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Workers import the small environments of the suite `defaults` by the name of their module.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(DRIVERS))))
    session = Session(options, options.tasks, options.systems)
    if options.prepare_only:
        for system in session.systems:
            system.prepare()
        return 0
    try:
        if not options.table:
            session.measure()
    except KeyboardInterrupt:
        return 130
    finally:
        write_report(session, options.work_dir)
    passes = check_and_store(session, options.compare_to, options.outcome)
    return 0 if passes and session.is_complete else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(known_systems(Path(), None))
    parser.add_argument("--suite", choices=list(SUITES), required=True)
    parser.add_argument("--work_dir", type=Path, help="environments, runs, results, report [default scores/SUITE]")
    parser.add_argument("--tasks", help="only these environments, separated by commas")
    parser.add_argument(
        "--systems",
        type=lambda text: names_in(text, names),
        help=f"{', '.join(names)} [default: those of the suite in scoring/tasks.py]",
    )
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME='--flag=value ...'",
        help="asyncrl with these flags, as a further system; may be given several times",
    )
    parser.add_argument("--seeds", type=int, help="0, 1, ... one run each [default 3; 6 for the suite quick]")
    parser.add_argument("--episodes", type=int, default=20, help="of each evaluation [default 20]")
    parser.add_argument("--limit_s", type=float, default=600.0, help="most seconds of training in a run [default 600]")
    parser.add_argument("--compare_to", type=Path, help="stored outcome that asyncrl must not fall behind")
    parser.add_argument("--outcome", type=Path, help="file to store asyncrl's scores in, if all is well")
    parser.add_argument("--table", action="store_true", help="measure nothing; report the newest commit with results")
    parser.add_argument("--prepare_only", action="store_true", help="make the virtual environments and stop")
    return _completed(parser, parser.parse_args())


def _completed(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """Adds the values that follow from other flags, and replaces names by objects."""
    suite = SUITES[options.suite]
    options.seeds = options.seeds or (6 if options.suite == "quick" else 3)
    options.work_dir = options.work_dir or Path("scores") / options.suite
    options.num_cores = len(os.sched_getaffinity(0))
    options.commit = describe("cpu")["git_commit"]
    if options.table:
        options.commit = _last_commit(options.work_dir / "results.jsonl") or options.commit
    known = known_systems(options.work_dir.resolve(), options.commit)
    try:
        wanted = names_in(options.tasks, [task.env for task in suite]) if options.tasks else None
        variants = [variant(text, options.commit) for text in options.variant]
    except (argparse.ArgumentTypeError, ValueError) as error:
        parser.error(str(error))
    options.tasks = [task for task in suite if wanted is None or task.env in wanted]
    options.systems = [*(known[name] for name in options.systems or USUAL_SYSTEMS[options.suite]), *variants]
    called = [system.name for system in options.systems]
    if len(set(called)) < len(called) or {item.name for item in variants} & set(known):
        parser.error(f"two systems have one name: {', '.join(called)}")
    if options.compare_to is not None and OWN not in called:
        parser.error(f"--compare_to compares {OWN}, which is not among --systems")
    if options.compare_to is not None and not options.compare_to.exists():
        parser.error(f"there is no stored outcome {options.compare_to}: make one with --outcome")
    return options


def _last_commit(results: Path) -> str | None:
    entries: list[dict[str, Any]] = read_json_lines(results)
    commits = [commit for entry in entries if (commit := entry["conditions"]["settings"].get("commit")) is not None]
    return commits[-1] if commits else None


if __name__ == "__main__":
    sys.exit(main())
