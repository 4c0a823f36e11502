"""Runs a list of cases (environment, flags, seeds, threshold) and reports which thresholds were reached.

    python scripts/acceptance.py core                 # run the cases without a result
    python scripts/acceptance.py core --only CartPole # those whose name contains a text
    python scripts/acceptance.py core --table         # show the results, run nothing

`asyncrl.contrib.experiments.launch` makes the runs and evaluates them, so the script can be stopped at any time and
continued: finished runs are not repeated, others resume from their newest checkpoints. A run that fails is not tried
again until the script is started again. Presets are used as shipped; a case sets only its own flags.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from asyncrl.analysis.benchmark.tasks import train_command
from asyncrl.analysis.records import ELAPSED, STEPS, TRAIN_RETURN, read_records
from asyncrl.analysis.tables import rounded, table
from asyncrl.commands.runner import run_many
from asyncrl.config.loading import load
from asyncrl.contrib.experiments.grid import Evaluation, Grid, GridRun
from asyncrl.contrib.experiments.launch import IfChanged, Launch, LaunchedRun

RETURNS = (350, 1000, 2000, 3000, 4000)
"""Training returns whose first steps and seconds are recorded."""

HELPERS = Path(__file__).resolve().parents[1] / "tests" / "helpers"
"""Folder with the environments of some cases."""


@dataclass(frozen=True)
class Case:
    """One claim: these flags reach `threshold` in at least `needed` of the seeds, or stay below it.

    Attributes:
        name: name of the case, and part of the names of its runs' folders.
        flags: flags that differ from the preset.
        threshold: return to reach; with `compared_to`, a share of that case's value.
        seeds: seeds of the runs.
        needed: number of seeds that have to reach the threshold.
        measure: mean return of evaluation episodes with sampled actions, of the final policy (`evaluated`) or the best
            checkpoint (`best`), or the mean return of the last 100 training episodes.
        episodes: evaluation episodes.
        is_killed: whether the run is killed at half of its steps and resumed.
        compared_to: name of a case; its value with the same seed is the reference.
        stays_below: whether the threshold must not be reached.
        num_ranks: learners that train together; torchrun starts several.
    """

    name: str
    flags: tuple[str, ...]
    threshold: float
    seeds: tuple[int, ...] = (0, 1, 2)
    needed: int = 2
    measure: Literal["evaluated", "best", "training"] = "evaluated"
    episodes: int = 20
    is_killed: bool = False
    compared_to: str | None = None
    stays_below: bool = False
    num_ranks: int = 1

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation(self.episodes, "best" if self.measure == "best" else "newest")


def _flags(env: str, steps: int, *more: str) -> tuple[str, ...]:
    return (f"--env={env}", f"--train_for_env_steps={steps}", *more)


def _cartpole() -> Iterator[Case]:
    for mode in ("sync", "async"):
        for inference in ("local", "central"):
            more = (f"--async_rl={mode == 'async'}", f"--inference_mode={inference}")
            yield Case(f"CartPole-v1 100k {mode} {inference}", _flags("CartPole-v1", 100_000, *more), 450.0)


def _resumed() -> Iterator[Case]:
    for env, steps in (("CartPole-v1", 100_000), ("InvertedPendulum-v5", 1_000_000)):
        flags = _flags(env, steps, f"--save_every_env_steps={steps // 10}")
        whole = f"{env} {steps // 1000}k uninterrupted"
        yield Case(whole, flags, 450.0)
        yield Case(f"{env} {steps // 1000}k killed at half", flags, 0.9, needed=3, is_killed=True, compared_to=whole)


def _sac() -> Iterator[Case]:
    for mode in ("async", "sync"):
        flags = _flags("Pendulum-v1", 20_000, "--algo=sac", f"--async_rl={mode == 'async'}")
        yield Case(f"SAC Pendulum-v1 20k {mode}", flags, -200.0, needed=3)
    yield Case("SAC CartPole-v1 60k", _flags("CartPole-v1", 60_000, "--algo=sac"), 400.0)
    yield Case("SAC HalfCheetah-v5 200k", _flags("HalfCheetah-v5", 200_000, "--algo=sac"), 5000.0)


def _sac_precision() -> Iterator[Case]:
    for precision in ("float32", "bf16"):
        flags = _flags("HalfCheetah-v5", 100_000, "--algo=sac", f"--precision={precision}")
        yield Case(f"SAC HalfCheetah-v5 100k {precision}", flags, 0.0, needed=0)


def _hogwild() -> Iterator[Case]:
    yield Case("A3C CartPole-v1 300k", _flags("CartPole-v1", 300_000, "--algo=a3c", "--num_workers=2"), 400.0, needed=3)
    combined = ("--algo=a2c", "--backend=hogwild", "--hogwild_mode=gradients", "--num_workers=2")
    yield Case("A3C CartPole-v1 300k gradients", _flags("CartPole-v1", 300_000, *combined), 400.0, needed=3)
    sac = ("--algo=sac", "--backend=hogwild", "--num_workers=2")
    yield Case("Hogwild SAC Pendulum-v1 30k", _flags("Pendulum-v1", 30_000, *sac), -250.0, needed=3)
    yield Case("Hogwild SAC HalfCheetah-v5 200k", _flags("HalfCheetah-v5", 200_000, *sac), 3000.0)


def _memory() -> Iterator[Case]:
    hidden = _flags("space_envs:HiddenVelocity-v0", 500_000, "--preset=classic_control")
    yield Case("Hidden velocities 500k GRU", (*hidden, "--use_rnn=True"), 350.0, needed=3)
    yield Case("Hidden velocities 500k without memory", hidden, 150.0, needed=3, stays_below=True)


def _spaces() -> Iterator[Case]:
    # An image shows the right choice, a number the right continuous action. A step is a task; the best return is 1.
    # The preset's learning rate is too large for convolutions (docs/results.md).
    task = ("--preset=classic_control", "--learning_rate=0.0003", "--num_epochs=2", "--gamma=0", "--initial_stddev=0.2")
    flags = _flags("space_envs:SeeAndTell-v0", 60_000, *task, "--encoder_conv_mlp_layers=[64]")
    yield Case("Image and vector, Tuple action 60k", flags, 0.9, needed=3)


def _vtrace() -> Iterator[Case]:
    # Synchronous, so that after the first 20 versions each sample is exactly 20 versions old. After 20 steps with the
    # preset's learning rate the policy differs too much from the old samples: smaller steps, from smaller batches.
    small = ("--rollout=16", "--batch_size=64", "--learning_rate=0.0003", "--entropy_loss_coeff=0.01")
    flags = _flags("CartPole-v1", 500_000, "--algo=a2c", "--async_rl=False", "--debug_forced_lag=20", *small)
    yield Case("IMPALA CartPole-v1 500k lag 20", (*flags, "--with_vtrace=True"), 400.0)
    yield Case("A2C CartPole-v1 500k lag 20", flags, 0.0, needed=0)


_OBJECTIVES = {
    "clip": ("--ppo_objective=clip",),
    "decoupled": ("--ppo_objective=decoupled",),
    "V-trace": ("--ppo_objective=clip", "--with_vtrace=True"),
}
# Tasks that are not learned to their ceiling in so many steps.
_LAG_TASKS = (("Hopper-v5", 500_000), ("HalfCheetah-v5", 500_000), ("LunarLander-v3", 200_000))


def _lag() -> Iterator[Case]:
    # Serial, so each sample is exactly so many datasets old. All passes are made: with `clip` the divergence contains
    # the lag, and `--target_kl` would end updates early for it.
    for env, steps in _LAG_TASKS:
        config = load([f"--env={env}"]).config
        updates = config.num_epochs * config.num_batches_per_epoch
        flags = (*_flags(env, steps), "--serial_mode=True", "--async_rl=False", "--target_kl=none",
                 "--max_policy_lag=1000000")  # fmt: skip
        yield Case(f"{env} lag 0", flags, 0.0, needed=0)
        for datasets, (name, objective) in itertools.product((1, 4, 16), _OBJECTIVES.items()):
            late = (f"--debug_forced_lag={datasets * updates}", *objective)
            yield Case(f"{env} lag {datasets} {name}", (*flags, *late), 0.9, needed=0, compared_to=f"{env} lag 0")


def _lag_async() -> Iterator[Case]:
    for env, steps in _LAG_TASKS:
        sync = f"{env} sync"
        yield Case(sync, (*_flags(env, steps), "--async_rl=False"), 0.0, needed=0)
        for name, objective in _OBJECTIVES.items():
            yield Case(f"{env} async {name}", (*_flags(env, steps), *objective), 0.9, needed=0, compared_to=sync)


def _ranks() -> Iterator[Case]:
    # The thresholds are those of one rank. The presets stay, so each optimizer step has twice as many samples.
    yield Case("CartPole-v1 100k 2 ranks", _flags("CartPole-v1", 100_000), 450.0, num_ranks=2)
    sac = _flags("Pendulum-v1", 20_000, "--algo=sac")
    yield Case("SAC Pendulum-v1 20k 2 ranks", sac, -200.0, needed=3, num_ranks=2)


def _control(million_steps: int, thresholds: dict[str, float]) -> Iterator[Case]:
    # Needs two of three seeds: the median reaches the threshold.
    for env, threshold in thresholds.items():
        yield Case(f"{env} {million_steps}M async", _flags(env, million_steps * 1_000_000), threshold)


SUITES: dict[str, list[Case]] = {
    "core": [
        *_cartpole(),
        Case("InvertedPendulum-v5 1M async", _flags("InvertedPendulum-v5", 1_000_000), 900.0),
        Case("Humanoid-v5 1M async", _flags("Humanoid-v5", 1_000_000), 600.0, measure="training"),
    ],
    "humanoid": [
        Case("Humanoid-v5 3M async", _flags("Humanoid-v5", 3_000_000), 4000.0),
        Case("Humanoid-v5 3M sync", _flags("Humanoid-v5", 3_000_000, "--async_rl=False"), 4000.0),
    ],
    "humanoid10": [
        Case("Humanoid-v5 10M async", _flags("Humanoid-v5", 10_000_000), 5000.0, (0,), 1, measure="best", episodes=50)
    ],
    "atari": [
        Case("Pong 30 minutes", ("--env=ALE/Pong-v5", "--train_for_seconds=1800"), -19.5, (0,), 1, measure="training")
    ],
    "mujoco": [
        *_control(1, {"Hopper-v5": 3000.0, "Walker2d-v5": 3700.0, "HalfCheetah-v5": 6500.0}),
        *_control(1, {"Ant-v5": 3000.0, "Swimmer-v5": 110.0, "Humanoid-v5": 2500.0}),
    ],
    "mujoco3": [
        *_control(3, {"Hopper-v5": 3300.0, "Walker2d-v5": 5000.0, "HalfCheetah-v5": 8000.0}),
        *_control(3, {"Ant-v5": 4500.0, "Humanoid-v5": 5500.0}),
    ],
    "box2d": list(_control(1, {"LunarLander-v3": 270.0, "LunarLanderContinuous-v3": 270.0, "BipedalWalker-v3": 295.0})),
    "halfcheetah": [Case("HalfCheetah-v5 3M async", _flags("HalfCheetah-v5", 3_000_000), 4000.0)],
    "a2c": [
        Case("A2C CartPole-v1 500k", _flags("CartPole-v1", 500_000, "--algo=a2c"), 450.0),
        Case("A2C InvertedPendulum-v5 1M", _flags("InvertedPendulum-v5", 1_000_000, "--algo=a2c"), 900.0),
    ],
    "lag": list(_lag()),
    "lag_async": list(_lag_async()),
    "memory": list(_memory()),
    "ranks": list(_ranks()),
    "resume": list(_resumed()),
    "hogwild": list(_hogwild()),
    "sac": list(_sac()),
    "sac_precision": list(_sac_precision()),
    "spaces": list(_spaces()),
    "vtrace": list(_vtrace()),
}


def launches(cases: Sequence[Case], train_dir: Path, num_core_sets: int, if_changed: IfChanged) -> list[Launch]:
    """Returns the runs of the cases: all with their first seed, then with their second, by kind of evaluation."""
    most_seeds = max((len(case.seeds) for case in cases), default=0)
    pairs = [(case, case.seeds[idx]) for idx in range(most_seeds) for case in cases if idx < len(case.seeds)]
    runs: dict[Evaluation, list[GridRun]] = {}
    for case, seed in pairs:
        name = f"{case.name.replace(' ', '_')}_seed{seed}"
        run = GridRun(name, case.name, seed, (*case.flags, f"--seed={seed}"))
        runs.setdefault(case.evaluation, []).append(run)
    grids = [Grid(train_dir, tuple(each), evaluation) for evaluation, each in runs.items()]
    return [Launch(grid, num_core_sets=num_core_sets, retries=0, if_changed=if_changed) for grid in grids]


def begin(case: Case, run: LaunchedRun) -> None:
    """Makes the part of a run that a launch cannot make: the half until it is killed, or the training of many ranks."""
    folder = run.run.folder
    command = train_command((*run.run.flags, *run.run.place, *run.once, "--quiet"), case.num_ranks)
    # A run without a summary was killed, perhaps before its half: it is begun again, and killed at once if it is there.
    if case.is_killed and (run.once or not folder.summary.exists()):
        kill_at_half(command, folder.path)
    if case.num_ranks > 1:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def kill_at_half(command: list[str], folder: Path) -> None:
    """Starts a run and kills its runner by SIGKILL once half of the steps are in a checkpoint."""
    target = next(int(flag.partition("=")[2]) for flag in command if flag.startswith("--train_for_env_steps="))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None:
            saved = [int(path.name.rpartition("_")[2]) for path in folder.glob("checkpoints/checkpoint_*")]
            if max(saved, default=0) >= target // 2:
                break
            time.sleep(0.05)
    finally:  # also when this script is stopped: the run has its own session, which no Ctrl-C reaches
        process.kill()
        process.wait()
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the run ended with exit code {process.returncode} before it was killed")
    deadline = time.monotonic() + 10.0
    while _session_lives(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)


def _session_lives(session: int) -> bool:
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


def first_at(metrics: Path) -> dict[str, list[float]]:
    """Returns environment steps and seconds at which the mean training return first reached each of `RETURNS`."""
    records = [record for record in read_records(metrics) if record.get(TRAIN_RETURN) is not None]
    reached = {str(each): next((r for r in records if r[TRAIN_RETURN] >= each), None) for each in RETURNS}
    return {name: [first[STEPS], first[ELAPSED]] for name, first in reached.items() if first is not None}


def read_results(cases: Sequence[Case], made: Sequence[Launch]) -> list[dict[str, Any]]:
    """Returns the results of the finished runs, each with its `case`, `value` and `first_at`."""
    of_name = {case.name: case for case in cases}
    results = []
    for launch in made:
        for run, result in zip(launch.runs, launch.results(), strict=True):
            if result["state"] == "finished":
                case = of_name[run.group]
                value = result["training_return" if case.measure == "training" else "evaluation_return"]
                reached = first_at(run.run.folder.metrics)
                results.append({**result, "case": case.name, "value": value, "first_at": reached})
    return results


def outcomes(cases: list[Case], results: list[dict[str, Any]]) -> str:
    """Returns the table of results, as Markdown."""
    rows = []
    for case in cases:
        values = _values(case.name, results)
        reached = sum(has_reached(case, seed, results) for seed in values)
        shown = ", ".join(rounded(values[seed]) for seed in case.seeds if seed in values) or "-"
        verdict = f"{reached} of {len(values)} (needs {case.needed} of {len(case.seeds)})"
        wanted = f"{case.threshold:g}" + (f" of {case.compared_to}" if case.compared_to else "")
        wanted = f"below {wanted}" if case.stays_below else wanted
        rows.append([f"{case.name} ({case.measure})", wanted, shown, verdict])
    return table(["case", "threshold", "measured, by seed", "reached"], rows)


def milestones(cases: list[Case], results: list[dict[str, Any]]) -> str:
    """Returns median steps and seconds to each training return, as Markdown."""
    rows = []
    for case in cases:
        found = [result["first_at"] for result in results if result["case"] == case.name]
        cells = []
        for wanted in map(str, RETURNS):
            steps = [entry[wanted][0] for entry in found if wanted in entry]
            seconds = [entry[wanted][1] for entry in found if wanted in entry]
            reached = f" ({len(steps)} of {len(found)})" if len(steps) < len(found) else ""
            cells.append(
                f"{statistics.median(steps) / 1e6:.2f}M, {statistics.median(seconds):.0f} s{reached}" if steps else "-"
            )
        rows.append([case.name, *cells])
    return table(["case", *map(str, RETURNS)], rows)


def has_reached(case: Case, seed: int, results: list[dict[str, Any]]) -> bool:
    """Returns whether a seed of a case met its condition; False if a figure is missing."""
    value = _values(case.name, results).get(seed)
    threshold: float | None = case.threshold
    if case.compared_to is not None:
        other = _values(case.compared_to, results).get(seed)
        threshold = None if other is None else case.threshold * other
    if value is None or threshold is None:
        return False
    return value < threshold if case.stays_below else value >= threshold


def _values(name: str, results: list[dict[str, Any]]) -> dict[int, float]:
    return {result["seed"]: result["value"] for result in results if result["case"] == name}


def main() -> int:
    """Runs the command line; returns 0 if no run failed and every case met its condition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--train_dir", type=Path, help="folder of the runs [default train_dir/acceptance/SUITE]")
    parser.add_argument("--slots", type=int, default=1, help="runs at the same time; with several, seconds say little")
    parser.add_argument("--changed", choices=get_args(IfChanged), default="refuse", help="as in asyncrl launch")
    parser.add_argument("--table", action="store_true", help="show what was measured and run nothing")
    options = parser.parse_args()
    options.train_dir = options.train_dir or Path("train_dir/acceptance") / options.suite
    sys.path.append(str(HELPERS))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HELPERS))))
    return run_many(lambda: _measure(options), "Stopped. The same command continues.")


def _measure(options: argparse.Namespace) -> int:
    cases = [case for case in SUITES[options.suite] if options.only in case.name]
    made = launches(cases, options.train_dir, options.slots, options.changed)
    has_failed = False
    if not options.table:
        of_name = {case.name: case for case in cases}
        for launch in made:
            for run in launch.runs:
                if run.state == "waiting":
                    try:
                        begin(of_name[run.group], run)
                    except (subprocess.CalledProcessError, RuntimeError) as error:
                        print(f"{run.run.name}: {error}", file=sys.stderr)
                        return 1
        # Made again, as they read what exists of their runs.
        made = launches(cases, options.train_dir, options.slots, options.changed)
        for launch in made:
            has_failed |= not launch.make_all()
    results = read_results(cases, made)
    print(outcomes(cases, results))
    print()
    print(milestones(cases, results))
    reached = [sum(has_reached(case, seed, results) for seed in case.seeds) >= case.needed for case in cases]
    return 0 if all(reached) and not has_failed else 1


if __name__ == "__main__":
    sys.exit(main())
