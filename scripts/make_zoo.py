"""Trains the policies of the folder `zoo`, chooses and publishes them, and checks what is written of them.

    python scripts/make_zoo.py train --work_dir=zoo_runs               # may be stopped, and continues; hours
    python scripts/make_zoo.py write --work_dir=zoo_runs               # zoo/NAME and zoo/README.md
    python scripts/make_zoo.py check                                   # plays all again, with other episodes

Each task is trained with several seeds by the command in the table, one run at a time; --work_dir is a relative path,
because checkpoints have it. The policy with the best return of deterministic actions over 20 episodes is published,
with the files that `asyncrl push` uploads; the returns in the table are of 100 other episodes. `check` fails if an
interval of 100 episodes with another seed does not reach the stored one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rounds import names_in

from asyncrl.contrib.zoo.policies import by_kind, mean_with_interval, results_of, zoo_folder, zoo_names
from asyncrl.evaluate import main as evaluate

TASKS = {
    "CartPole-v1": 100_000,
    "Acrobot-v1": 300_000,
    "Pendulum-v1": 300_000,
    "MountainCarContinuous-v0": 200_000,
    "LunarLander-v3": 1_000_000,
    "LunarLanderContinuous-v3": 1_000_000,
    "BipedalWalker-v3": 1_000_000,
    "InvertedDoublePendulum-v5": 500_000,
    "Swimmer-v5": 1_000_000,
    "Hopper-v5": 1_000_000,
    "Walker2d-v5": 1_000_000,
    "HalfCheetah-v5": 1_000_000,
    "Ant-v5": 1_000_000,
    "Humanoid-v5": 1_000_000,
}
"""Environment steps of a run."""

OWNER = "asyncrl"
"""User on the Hub whose repositories the cards name."""

CHOOSING_EPISODES, EPISODES, OTHER_SEED = 20, 100, 1000
_ABOUT = "environment.json"


def flags_of(env: str, seed: int) -> list[str]:
    """The flags of a run, without its place."""
    return [f"--env={env}", "--async_rl=True", f"--train_for_env_steps={TASKS[env]}", f"--seed={seed}"]


def run_name(env: str, seed: int) -> str:
    return f"{env.replace('/', '_')}_seed{seed}"


def is_finished(work_dir: Path, env: str, seed: int) -> bool:
    path = work_dir / run_name(env, seed) / "summary.json"
    return path.exists() and json.loads(path.read_text())["status"] == "completed"


def train(work_dir: Path, tasks: Sequence[str], num_seeds: int) -> None:
    """Makes the runs that are not finished; seeds take turns."""
    for seed in range(num_seeds):
        for env in tasks:
            if not is_finished(work_dir, env, seed):
                place = [f"--train_dir={work_dir}", f"--experiment={run_name(env, seed)}", "--quiet"]
                subprocess.run([sys.executable, "-m", "asyncrl.train", *flags_of(env, seed), *place], check=True)


def play(run: str | Path, episodes: int, seed: int, *flags: str) -> dict[str, Any]:
    """Plays a policy, with both kinds of actions unless flags name one; returns `asyncrl evaluate`'s JSON."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = evaluate([str(run), f"--episodes={episodes}", f"--seed={seed}", "--json", *flags])
    if code != 0:
        raise SystemExit(f"{run} cannot be evaluated: asyncrl evaluate returned {code}.")
    found: dict[str, Any] = json.loads(output.getvalue())
    return found


def chosen_seed(work_dir: Path, env: str, num_seeds: int) -> tuple[int, list[float]]:
    """The seed with the best return of deterministic actions, and the returns of all."""
    runs = [work_dir / run_name(env, seed) for seed in range(num_seeds)]
    returns = [play(run, CHOOSING_EPISODES, OTHER_SEED, "--deterministic")["mean_reward"] for run in runs]
    return max(range(num_seeds), key=returns.__getitem__), returns


def write(work_dir: Path, tasks: Sequence[str], num_seeds: int) -> None:
    """Publishes the best policy of each task whose runs are all finished, and writes the table."""
    from asyncrl.contrib.hub import push  # a feature that the checks of this script do without

    for env in tasks:
        if not all(is_finished(work_dir, env, seed) for seed in range(num_seeds)):
            print(f"{env}: not all of its {num_seeds} runs are finished", flush=True)
            continue
        seed, returns = chosen_seed(work_dir, env, num_seeds)
        run, name = work_dir / run_name(env, seed), env.replace("/", "_")
        seconds = json.loads((run / "summary.json").read_text(encoding="utf-8"))["elapsed_s"]
        target = zoo_folder() / name
        with tempfile.TemporaryDirectory() as place:
            made = Path(place) / name
            options = ["--checkpoint=newest", f"--episodes={EPISODES}", "--license=mit", f"--out={made}"]
            if push.main([str(run), f"--repo={OWNER}/{name}", *options]) != 0:
                raise SystemExit(f"{run} cannot be published.")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(made, target)
        training = {"seconds": round(seconds, 1), "seed": seed, "returns_of_seeds": [round(one, 1) for one in returns]}
        (target / _ABOUT).write_text(
            json.dumps({**_about(name), "training": training}, indent=2) + "\n", encoding="utf-8"
        )
    (zoo_folder() / "README.md").write_text(table(), encoding="utf-8")


def table() -> str:
    """The page of the zoo."""
    lines = [
        "# Trained policies",
        "",
        '`asyncrl enjoy zoo:Humanoid-v5` shows one, and `load_policy("zoo:Humanoid-v5")` loads it. Each folder is that',
        "of a run, made by `scripts/make_zoo.py` with the preset of its environment: the best of the seeds whose",
        f"deterministic returns the last column lists. Returns are means of {EPISODES} episodes, with 95 % intervals.",
        "",
        "| policy | deterministic actions | sampled actions | steps | seconds | commit | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in zoo_names():
        kinds, about = results_of(name), _about(name)
        training = about["training"]
        returns = (mean_with_interval(kinds.get(kind)) for kind in ("deterministic", "sampled"))
        steps, seconds = f"{kinds['deterministic']['env_steps']:,}", f"{training['seconds']:.0f}"
        seeds = ", ".join(f"{one:.0f}" for one in training["returns_of_seeds"])
        lines.append(f"| {' | '.join((name, *returns, steps, seconds, str(about['git_commit'])[:8], seeds))} |")
    commands = [f"asyncrl train {' '.join(flags_of(env, 0))}" for env in TASKS if env.replace("/", "_") in zoo_names()]
    processors = sorted({_about(name)["machine"]["cpu"] for name in zoo_names()})
    last = max(len(_about(name)["training"]["returns_of_seeds"]) for name in zoo_names()) - 1
    lines += ["", f"Two cores of {', '.join(processors)}. The commands, with `--seed=0` to `--seed={last}`:", ""]
    return "\n".join([*lines, "```bash", *commands, "```", ""])


def check(tasks: Sequence[str]) -> bool:
    """Plays the policies anew; prints old and new intervals and returns whether they meet."""
    are_right = True
    for name in (env.replace("/", "_") for env in tasks):
        if name not in zoo_names():
            print(f"{name}: not in the zoo", flush=True)
            continue
        new = by_kind(play(zoo_folder() / name, EPISODES, OTHER_SEED + 1))
        for kind, before in results_of(name).items():
            (low, high), (new_low, new_high) = before["ci95"], new[kind]["ci95"]
            meets = new_low <= high and low <= new_high
            are_right &= meets
            text = f"{mean_with_interval(before)} stored, {mean_with_interval(new[kind])} anew"
            print(f"{name}, {kind} actions: {text}{'' if meets else ': DIFFERENT'}", flush=True)
    return are_right


def _about(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((zoo_folder() / name / _ABOUT).read_text(encoding="utf-8"))
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=("train", "write", "check"))
    arguments.add_argument("--work_dir", type=Path, default=Path("zoo_runs"))
    arguments.add_argument("--tasks", type=lambda text: names_in(text, tuple(TASKS)), default=list(TASKS))
    arguments.add_argument("--seeds", type=int, default=3)
    options = arguments.parse_args()
    if options.what == "check":
        return 0 if check(options.tasks) else 1
    (train if options.what == "train" else write)(options.work_dir, options.tasks, options.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
