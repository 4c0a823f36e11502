"""The systems that are compared: asyncrl with several settings, and other libraries with theirs."""

from __future__ import annotations

import json
import re
import shlex
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_environments import DRIVERS, Peer, python_of, versions_of

from asyncrl.analysis.benchmark.tasks import train_command
from asyncrl.analysis.records import ELAPSED, STEPS, TRAIN_RETURN, read_json_lines, read_records
from asyncrl.storage.provenance import describe
from scoring.records import Point
from scoring.tasks import STEP_MARKS, TIME_MARKS_S, Task

SAMPLE_FACTORY = Peer(
    "sample_factory_learning",
    # The Box2D of this Gymnasium's own extra must be compiled.
    ("sample-factory==2.1.1", "gymnasium[mujoco]==0.29.1", "mujoco=={mujoco}", "box2d==2.3.10", "pygame-ce"),
    ("sample-factory", "gymnasium", "mujoco", "box2d", "torch", "numpy"),
    "sample_factory_learning.py",
)
STABLE_BASELINES3 = Peer(
    "stable_baselines3_learning",
    ("stable-baselines3==2.9.2", "gymnasium[mujoco,box2d]", "mujoco=={mujoco}", "ale-py==0.12.1",
     "opencv-python-headless", "flappy-bird-gymnasium==0.4.0", "highway-env==1.12.1"),
    ("stable-baselines3", "gymnasium", "mujoco", "box2d", "ale-py", "torch", "numpy"),
    "stable_baselines3_learning.py",
)  # fmt: skip
WITH_AGENTS = Peer(
    "stable_baselines3_agents",
    ("stable-baselines3==2.9.2", "supersuit==3.11.0", "pettingzoo==1.27.0", "mpe2==1.1.1"),
    ("stable-baselines3", "supersuit", "pettingzoo", "mpe2", "gymnasium", "torch", "numpy"),
    "stable_baselines3_learning.py",
)
TUNED = DRIVERS / "zoo_ppo.json"
"""Settings of rl-baselines3-zoo, by environment."""

_SAVE_EVERY_SHARE = 0.05  # all of STEP_MARKS are multiples of it
_OLDER_VERSIONS = {"LunarLander-v3": "LunarLander-v2", "LunarLanderContinuous-v3": "LunarLanderContinuous-v2"}
_SAMPLE_FACTORY_ENVS = 64  # its recipe has 8 workers of 8


@dataclass(frozen=True)
class Job:
    """One run of a system.

    Attributes:
        task: the environment and its steps.
        seed: seed of the run and of its evaluation.
        folder: folder of this run alone.
        limit_s: seconds of training after which the run ends, even before its steps are reached.
        num_cores: number of workers, for systems with workers.
    """

    task: Task
    seed: int
    folder: Path
    limit_s: float
    num_cores: int


class System(ABC):
    """One column of the tables.

    Attributes:
        name: name in results and on the command line.
        label: name in tables.
        setting: one sentence for the report.
        is_peer: whether it is another library.
    """

    is_peer = False

    def __init__(self, name: str, label: str, setting: str) -> None:
        self.name, self.label, self.setting = name, label, setting

    def env_of(self, task: Task) -> str | None:
        """Returns the id of a task's environment in this system; None if it cannot train the task."""
        return task.env

    def prepare(self) -> None:
        """Installs the packages of the system."""
        return

    @abstractmethod
    def settings(self, task: Task) -> Any:
        """Returns the settings on which a result depends, besides task and seed, as JSON."""

    @abstractmethod
    def versions(self) -> str:
        """Returns the versions of its packages."""

    @abstractmethod
    def training_command(self, job: Job) -> list[str]:
        """Returns the command that trains in the job's folder."""

    @abstractmethod
    def read_training(self, job: Job, launched_at: float) -> tuple[float, tuple[Point, ...]]:
        """Returns the seconds to the first environment step of a finished run, and its curve, as in `Record`.

        `launched_at` is the time of the command in seconds since the epoch.
        """

    @abstractmethod
    def saved_paths(self, job: Job) -> list[Path]:
        """Returns the policies that a finished run saved."""

    @abstractmethod
    def evaluation_command(self, job: Job) -> list[str]:
        """Returns the command that evaluates policies, without its last two arguments.

        These are the file of the results and JSON: env, seed, episodes, policies (paths). The command writes a line
        for each policy to the file, {"policy": ..., "mean_return": ...}, with sampled actions; the last line has
        "deterministic_return", too.
        """


class Asyncrl(System):
    """asyncrl with some flags."""

    def __init__(self, name: str, label: str, flags: tuple[str, ...], commit: str | None) -> None:
        super().__init__(name, label, f"as shipped, and `{' '.join(flags)}`" if flags else "as shipped")
        self._flags, self._commit = flags, commit

    def settings(self, task: Task) -> Any:
        return {"flags": list(self._flags), "commit": self._commit}

    def versions(self) -> str:
        packages = describe("cpu")["packages"]
        shown = ("asyncrl", "gymnasium", "mujoco", "torch", "numpy")
        return ", ".join(f"{name} {packages[name]}" for name in shown if name in packages)

    def training_command(self, job: Job) -> list[str]:
        flags = (
            f"--env={job.task.env}",
            f"--train_for_env_steps={job.task.env_steps}",
            f"--train_for_seconds={job.limit_s:g}",
            f"--seed={job.seed}",
            *self._flags,
            f"--train_dir={job.folder.parent}",
            f"--experiment={job.folder.name}",
            "--restart_behavior=overwrite",
            "--report_every_s=1",
            f"--save_every_env_steps={round(_SAVE_EVERY_SHARE * job.task.env_steps)}",
            f"--keep_checkpoints={round(1 / _SAVE_EVERY_SHARE) + 1}",
            "--save_every_s=1000000",
            f"--save_milestones_s={min(TIME_MARKS_S)}",
            "--quiet",
        )
        return train_command(flags)

    def read_training(self, job: Job, launched_at: float) -> tuple[float, tuple[Point, ...]]:
        summary = json.loads((job.folder / "summary.json").read_text(encoding="utf-8"))
        curve = tuple(
            (record[ELAPSED], record[STEPS], record[TRAIN_RETURN])
            for record in read_records(job.folder / "metrics.jsonl")
            if record.get(TRAIN_RETURN) is not None
        )
        return summary["startup_s"], curve

    def saved_paths(self, job: Job) -> list[Path]:
        folder = job.folder / "checkpoints"
        return [*folder.glob("milestones/checkpoint_*"), *folder.glob("checkpoint_*")]

    def evaluation_command(self, job: Job) -> list[str]:
        """One process evaluates all checkpoints, which saves start-ups."""
        return [sys.executable, str(DRIVERS / "asyncrl_evaluation.py")]


class PeerSystem(System):
    """Another library, trained and evaluated by a driver in the library's virtual environment."""

    is_peer = True

    def __init__(self, name: str, label: str, setting: str, peer: Peer, work_dir: Path) -> None:
        super().__init__(name, label, setting)
        self._peer, self._work_dir = peer, work_dir

    def prepare(self) -> None:
        python_of(self._peer, self._work_dir)

    def versions(self) -> str:
        return versions_of(self._peer, self._work_dir)

    def training_command(self, job: Job) -> list[str]:
        options = {
            "env": self.env_of(job.task),
            "env_steps": job.task.env_steps,
            "seed": job.seed,
            "limit_s": job.limit_s,
            "step_marks": STEP_MARKS,
            "time_marks_s": TIME_MARKS_S,
            "num_workers": job.num_cores,
            "num_envs_per_worker": max(1, _SAMPLE_FACTORY_ENVS // job.num_cores),
            "settings": self.settings(job.task),
        }
        return [*self._driver, "train", str(job.folder), json.dumps(options)]

    def read_training(self, job: Job, launched_at: float) -> tuple[float, tuple[Point, ...]]:
        """Reads curve.jsonl, whose first line has the time of the first environment step."""
        first, *entries = read_json_lines(job.folder / "curve.jsonl")
        curve = tuple((entry["time_s"] - launched_at, entry["env_steps"], entry["mean_return"]) for entry in entries)
        return first["time_s"] - launched_at, curve

    def saved_paths(self, job: Job) -> list[Path]:
        return [*job.folder.glob("policies/*.zip"), *job.folder.glob("run/checkpoint_p0/**/checkpoint_*.pth")]

    def evaluation_command(self, job: Job) -> list[str]:
        return [*self._driver, "evaluate"]

    @property
    def _driver(self) -> list[str]:
        return [str(python_of(self._peer, self._work_dir)), str(DRIVERS / self._peer.driver)]


class SampleFactory(PeerSystem):
    """Sample Factory with the settings of its MuJoCo examples; `mode` is `sync`, as they are shipped, or `async`."""

    def __init__(self, mode: str, work_dir: Path) -> None:
        name = "sample_factory" if mode == "sync" else f"sample_factory_{mode}"
        setting = f"settings of its MuJoCo examples, {mode}, {_SAMPLE_FACTORY_ENVS} environments, a worker a core"
        super().__init__(name, f"Sample Factory, {mode}", setting, SAMPLE_FACTORY, work_dir)
        self._mode = mode

    def env_of(self, task: Task) -> str | None:
        """Its Gymnasium, 0.29, has older versions. Tasks that need other settings or packages are left out."""
        if task.env.startswith("ALE/") or ":" in task.env:
            return None
        return _OLDER_VERSIONS.get(task.env, task.env.replace("-v5", "-v4"))

    def settings(self, task: Task) -> Any:
        return {"mode": self._mode}


class StableBaselines3(PeerSystem):
    """Stable-Baselines3's PPO, with rl-baselines3-zoo's tuned settings or with its defaults."""

    def __init__(self, is_tuned: bool, work_dir: Path) -> None:
        name, kind = ("sb3_zoo", "tuned") if is_tuned else ("sb3_default", "default")
        setting = "PPO with rl-baselines3-zoo's settings" if is_tuned else "PPO with its defaults, one environment"
        super().__init__(name, f"Stable-Baselines3, {kind}", setting, STABLE_BASELINES3, work_dir)
        self._is_tuned = is_tuned
        self._tuned: dict[str, Any] = json.loads(TUNED.read_text(encoding="utf-8"))["settings"]

    def env_of(self, task: Task) -> str | None:
        """The zoo does not know all tasks, and the defaults are not for games."""
        is_possible = task.env in self._tuned if self._is_tuned else not task.env.startswith("ALE/")
        return task.env if is_possible else None

    def settings(self, task: Task) -> Any:
        return self._tuned[task.env] if self._is_tuned else {}


class StableBaselines3Agents(PeerSystem):
    """Stable-Baselines3's PPO, whose environments are the agents of PettingZoo environments (supersuit)."""

    def __init__(self, work_dir: Path) -> None:
        setting = "PPO with its defaults, 8 environments by supersuit, each agent an environment"
        super().__init__("sb3_agents", "Stable-Baselines3, supersuit", setting, WITH_AGENTS, work_dir)

    def env_of(self, task: Task) -> str | None:
        return task.env if task.env.startswith("mpe2:") else None

    def settings(self, task: Task) -> Any:
        return {"n_envs": 8}


def known_systems(work_dir: Path, commit: str | None) -> dict[str, System]:
    """Returns all systems by name; results of asyncrl are of a commit."""
    systems: list[System] = [
        Asyncrl("asyncrl", "asyncrl, async", (), commit),
        Asyncrl("asyncrl_sync", "asyncrl, sync", ("--async_rl=False",), commit),
        Asyncrl("asyncrl_defaults", "asyncrl, no preset", ("--preset=none",), commit),
        SampleFactory("sync", work_dir),
        SampleFactory("async", work_dir),
        StableBaselines3(True, work_dir),
        StableBaselines3(False, work_dir),
        StableBaselines3Agents(work_dir),
    ]
    return {system.name: system for system in systems}


def variant(text: str, commit: str | None) -> Asyncrl:
    """Reads `NAME=--flag=value --flag=value ...`; results are of a commit.

    Raises:
        ValueError: it is of another form.
    """
    name, _, flags = text.partition("=")
    split = tuple(shlex.split(flags))
    if not re.fullmatch(r"[\w.-]+", name) or not split or not all(flag.startswith("--") for flag in split):
        raise ValueError(f"{text!r} is not a variant: expected NAME='--flag=value --flag=value'")
    return Asyncrl(name, f"asyncrl, {name}", split, commit)
