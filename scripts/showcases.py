"""Makes SLM Lab's two showcases in stretches: asynchronous SAC on Humanoid, and Pong by A3C beside others.

    python scripts/showcases.py humanoid --work_dir=showcases --minutes=120
    python scripts/showcases.py pong --work_dir=showcases --minutes=240 --stretch_minutes=20
    python scripts/showcases.py pong --work_dir=showcases --systems=a3c,sb3_a2c --minutes=240
    python scripts/showcases.py pong --work_dir=showcases --table       # only the table and the pictures

humanoid  one run: SAC with 16 Hogwild workers on shared parameters (the preset `humanoid_hogwild`).
pong      A3C with 16 workers that pull copies (`--algo=a3c`), PPO with such workers, A2C and PPO with a learner (PPO in
          sync mode and bf16, its faster way on few cores), and Stable-Baselines3's A2C with rl-baselines3-zoo's
          settings, in a virtual environment in --work_dir.

Each system trains for --minutes in all. Systems take turns in stretches, one at a time, so a machine that becomes
slower slows all of them. A finished stretch is noted in showcases.jsonl and is not repeated. The script may be stopped
at any time: a run of asyncrl saves and resumes within its stretch, one of Stable-Baselines3 repeats the stretch. More
--minutes continue the runs. The pictures are those of `asyncrl plot`: trials over the steps of each worker, and a
comparison.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_environments import DRIVERS, python_of
from rounds import names_in
from scoring.systems import STABLE_BASELINES3

from asyncrl.analysis.benchmark.tasks import train_command
from asyncrl.analysis.benchmark.watch import TaskFailed, run_watched
from asyncrl.analysis.records import ELAPSED, STEPS, TRAIN_RETURN, append_json_line, read_json_lines, read_records
from asyncrl.analysis.tables import UNKNOWN, number, rounded, table
from asyncrl.commands.runner import run_many
from asyncrl.plot import main as plot
from asyncrl.storage.run_folder import RunFolder

ENDLESS = ("--train_for_env_steps=1000000000", "--lr_schedule=constant")
START_AND_END_S = 300.0
PONG = "ALE/Pong-v5"
FRAMES_PER_STEP = {"humanoid": 1, "pong": 4}
SB3_A2C = {
    "algorithm": "a2c",
    "policy": "CnnPolicy",
    "n_envs": 16,
    "frame_stack": 4,
    "ent_coef": 0.01,
    "vf_coef": 0.25,
    "policy_kwargs": {"optimizer_class": "RMSpropTFLike", "optimizer_kwargs": {"eps": 1e-5}},
}
"""rl-baselines3-zoo's settings of A2C for Atari games; the others are Stable-Baselines3's defaults."""

Point = tuple[float, float, float | None]
"""Seconds of training, environment steps, mean return of the last 100 training episodes; None before one has ended."""


@dataclass(frozen=True)
class System:
    """One run of a showcase.

    Attributes:
        name: name of its folder.
        label: name in the table.
        flags: of asyncrl; none for Stable-Baselines3.
    """

    name: str
    label: str
    flags: tuple[str, ...] = ()


SHOWCASES = {
    "humanoid": (
        System(
            "sac",
            "SAC, 16 Hogwild workers, shared",
            ("--env=Humanoid-v5", "--algo=sac", "--preset=humanoid_hogwild"),
        ),
    ),
    "pong": (
        System("a3c", "A3C, 16 workers, synced", (f"--env={PONG}", "--algo=a3c", "--num_workers=16")),
        System(
            "hogwild_ppo",
            "PPO, 16 Hogwild workers, synced",
            (
                *(f"--env={PONG}", "--algo=ppo", "--backend=hogwild", "--hogwild_mode=synced", "--num_workers=16"),
                *("--num_envs_per_worker=4", "--hogwild_max_staleness=0"),
            ),
        ),
        System("a2c", "A2C, async", (f"--env={PONG}", "--algo=a2c")),
        System("ppo", "PPO, sync, bf16", (f"--env={PONG}", "--algo=ppo", "--async_rl=False", "--precision=bf16")),
        System("sb3_a2c", "Stable-Baselines3's A2C"),
    ),
}


class Showcase:
    """The runs of one showcase in a folder."""

    def __init__(self, name: str, systems: Sequence[System], options: argparse.Namespace) -> None:
        """Makes the folder; runs nothing."""
        self.name, self.systems = name, systems
        self._folder: Path = options.work_dir.resolve() / name
        self._work_dir: Path = options.work_dir.resolve()
        self._stretch_s, self._seed = 60.0 * options.stretch_minutes, options.seed
        self._all_s = 60.0 * options.minutes
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def _notes(self) -> Path:
        return self._folder / "showcases.jsonl"

    def stretches_of(self, system: System) -> list[float]:
        """Seconds of each finished stretch."""
        return [entry["stretch_s"] for entry in read_json_lines(self._notes) if entry["system"] == system.name]

    def make(self) -> bool:
        """Trains what is missing, the system that has trained least first; returns whether none failed."""
        waiting = list(self.systems)
        while waiting:
            system = min(waiting, key=lambda each: sum(self.stretches_of(each)))
            done = self.stretches_of(system)
            stretch_s = min(self._stretch_s, self._all_s - sum(done))
            if stretch_s <= 0.0:
                break
            print(f"{system.name}: minutes {sum(done) / 60:g} to {(sum(done) + stretch_s) / 60:g}", flush=True)
            try:
                self._train(system, done, stretch_s)
            except TaskFailed as error:
                print(f"{system.name}: {error}", file=sys.stderr)
                waiting.remove(system)
                continue
            append_json_line(self._notes, {"system": system.name, "stretch_s": stretch_s})
        return len(waiting) == len(self.systems)

    def _train(self, system: System, done: Sequence[float], stretch_s: float) -> None:
        train = self._asyncrl_command if system.flags else self._peer_command
        log = self._folder / f"{system.name}.log"
        run_watched(train(system, done, stretch_s), log, stretch_s + START_AND_END_S)

    def _asyncrl_command(self, system: System, done: Sequence[float], stretch_s: float) -> list[str]:
        """`train_for_seconds` counts all stretches, so one that was stopped continues to its end."""
        seconds = f"--train_for_seconds={sum(done) + stretch_s:g}"
        place = (f"--train_dir={self._folder}", f"--experiment={system.name}", f"--seed={self._seed}")
        return train_command((*system.flags, *place, *ENDLESS, seconds, "--quiet"))

    def _peer_command(self, system: System, done: Sequence[float], stretch_s: float) -> list[str]:
        """Each stretch has a folder, and begins with the policy that the one before has saved."""
        options: dict[str, Any] = {
            "env": PONG,
            "env_steps": 1_000_000_000,
            "seed": self._seed + len(done),  # random numbers of another stretch
            "limit_s": stretch_s,
            "step_marks": [],
            "time_marks_s": [],
            "settings": SB3_A2C,
        }
        if done:
            saved = (self._stretch_folder(system, len(done) - 1) / "policies").glob("*.zip")
            options["start_from"] = str(max(saved, key=lambda path: path.stat().st_mtime))
        python = python_of(STABLE_BASELINES3, self._work_dir)
        folder = self._stretch_folder(system, len(done))
        return [str(python), str(DRIVERS / STABLE_BASELINES3.driver), "train", str(folder), json.dumps(options)]

    def _stretch_folder(self, system: System, idx: int) -> Path:
        return self._folder / system.name / f"stretch_{idx}"

    def curve(self, system: System) -> list[Point]:
        """Returns what is on record of a system, that of an unfinished stretch of asyncrl included."""
        if system.flags:
            records = read_records(RunFolder(self._folder / system.name).metrics)
            return [(each[ELAPSED], each[STEPS], each.get(TRAIN_RETURN)) for each in records if ELAPSED in each]
        points: list[Point] = []
        before_s = 0.0
        for idx, stretch_s in enumerate(self.stretches_of(system)):
            first, *entries = read_json_lines(self._stretch_folder(system, idx) / "curve.jsonl")
            for entry in entries:
                points.append((before_s + entry["time_s"] - first["time_s"], entry["env_steps"], entry["mean_return"]))
            before_s += stretch_s
        return points

    def report(self) -> str:
        """Returns the table of all systems, and draws the pictures of those of asyncrl."""
        rows, drawn = [], []
        for system in self.systems:
            curve = self.curve(system)
            if not curve:
                continue
            seconds, steps, _ = curve[-1]
            returns = [point[2] for point in curve if point[2] is not None]
            frames = FRAMES_PER_STEP[self.name] * steps
            shown = [rounded(returns[-1]), rounded(max(returns))] if returns else [UNKNOWN, UNKNOWN]
            rows.append([system.label, f"{seconds / 60:.1f}", number(frames), number(frames / seconds), *shown])
            if system.flags and returns:
                drawn.append(str(self._folder / system.name))
        for run in drawn:
            if (RunFolder(Path(run)).read_config()).backend == "hogwild":
                plot(["trial", run, "--x=per_worker_steps"])
        if len(drawn) > 1:
            for axis in ("env_steps", "wall_time"):
                plot(["compare", *drawn, f"--x={axis}", f"--out={self._folder / f'returns_over_{axis}.png'}"])
        header = ["system", "minutes", "frames", "frames a second", "return of the last 100 episodes", "largest such"]
        text = table(header, rows)
        (self._folder / "results.md").write_text(text + "\n", encoding="utf-8")
        return text


def main() -> int:
    """Runs the command line; returns 0 if no run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("showcase", choices=sorted(SHOWCASES))
    parser.add_argument("--work_dir", type=Path, default=Path("showcases"), help="runs, environments, tables, pictures")
    parser.add_argument("--minutes", type=float, default=60.0, help="training of each system, in all")
    parser.add_argument("--stretch_minutes", type=float, default=20.0, help="training before the next system's turn")
    known = [system.name for each in SHOWCASES.values() for system in each]
    names: Callable[[str], list[str]] = functools.partial(names_in, known=known)
    parser.add_argument("--systems", type=names, help=f"some of {', '.join(known)} [default: all of the showcase]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="show what was measured and train nothing")
    options = parser.parse_args()
    systems = [each for each in SHOWCASES[options.showcase] if each.name in (options.systems or known)]
    showcase = Showcase(options.showcase, systems, options)

    def work() -> int:
        is_done = options.table or showcase.make()
        print(showcase.report())
        return 0 if is_done else 1

    return run_many(work, "Stopped. The same command continues.")


if __name__ == "__main__":
    sys.exit(main())
