"""Stands for `python`, `pip` and the other programs in the blocks of documents: small runs, and nothing is installed.

Usage: python document_command.py PROGRAM [ARGUMENT ...]. `DOCUMENT_LOG` names the file to which each run of training is
added as a line of JSON, `DOCUMENT_FLAGS` flags for each of them, and `DOCUMENT_PATH` the PATH for what is started.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

PROGRAMS = ("python", "python3", "pip", "tensorboard", "torchrun", "asyncrl")
LIMITS = {
    "asyncrl.train": (
        "--num_workers=1 --num_envs_per_worker=4 --rollout=8 --batch_size=32 --num_batches_per_epoch=2 --num_epochs=1 "
        "--learner_threads=1 --encoder_mlp_layers=[16] --encoder_conv_mlp_layers=[16] --train_for_env_steps=256 "
        "--report_every_s=0.2 --with_tensorboard=False --quiet"
    ),
    "asyncrl.launch": "--slots=2",
    "asyncrl.sweep": (
        "--num_trials=2 --final_best=1 --final_seeds=1 --slots=2 --train_for_env_steps=4096 --serial_mode=True "
        "--async_rl=False --eval_episodes=1"
    ),
    "asyncrl.evaluate": "--episodes=1 --num_envs=1",
    "asyncrl.enjoy": "--episodes=1 --max_steps=20",
    "asyncrl.doctor": "--seconds=1",
    "asyncrl.benchmark": (
        "--seeds=1 --modes=async --num_workers=1 --num_envs_per_worker=4 --rollout=8 --batch_size=32 "
        "--num_batches_per_epoch=2 --warm_up_s=0 --measure_s=3 --simulate_s=0.1 --encoder_mlp_layers=[16]"
    ),
}
"""Flags by module, after those that the document gives."""
OF_SAC = ("--warmup_env_steps=64", "--replay_size=2000")


def install_programs(folder: Path, names: tuple[str, ...] = PROGRAMS) -> None:
    """Makes programs that call this file, as they are in a virtual environment after installation."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" {name} "$@"\n')
        program.chmod(0o755)
    (folder / "activate").write_text(f'export PATH="{folder.resolve()}:$PATH"\n')


def main(program: str, *arguments: str) -> None:
    if program == "pip":
        return check_installation(arguments)
    if program == "tensorboard":
        return check_folder(arguments)
    if program.startswith("python") and arguments[:2] == ("-m", "venv"):
        return install_programs(Path(arguments[2]) / "bin")
    if program == "asyncrl":
        arguments = ("-m", f"asyncrl.{arguments[0]}", *arguments[1:])
    command = ["-m", "torch.distributed.run", *arguments] if program == "torchrun" else list(arguments)
    modules = [arguments[number + 1] for number, word in enumerate(arguments) if word == "-m"]
    for module in modules:
        command += LIMITS.get(module, "").split()
        if module == "asyncrl.train":
            command += run_flags(program, arguments)
    os.environ["PATH"] = os.environ["DOCUMENT_PATH"]
    os.execv(sys.executable, [sys.executable, *command])


def run_flags(program: str, arguments: tuple[str, ...]) -> list[str]:
    """Flags of one run of training, which is noted with the name of its folder."""
    log = Path(os.environ["DOCUMENT_LOG"])
    given = [word.split("=")[1] for word in arguments if word.startswith("--experiment=")]
    name = given[0] if given else f"run{len(log.read_text().splitlines())}"
    with log.open("a") as file:
        file.write(json.dumps({"flags": arguments, "experiment": name}) + "\n")
    flags = [f"--experiment={name}", *(OF_SAC if "--algo=sac" in arguments else ())]
    return flags + ([] if program == "torchrun" else os.environ["DOCUMENT_FLAGS"].split())


def check_installation(arguments: tuple[str, ...]) -> None:
    """Exits with 1 unless everything is a package that is not this one, or the clone with extras that it has."""
    project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    extras = re.findall(
        r"^(\w+) = \[", project.split("[project.optional-dependencies]")[1].split("\n[")[0], re.MULTILINE
    )
    for word in arguments[1:]:
        local = re.fullmatch(r"\.(?:\[([\w,]+)\])?", word)
        wrong = set((local[1] or "").split(",")) - {"", *extras} if local else word.startswith("asyncrl")
        if wrong:
            sys.exit(f"a clone cannot install {word}")


def check_folder(arguments: tuple[str, ...]) -> None:
    folder = Path(arguments[arguments.index("--logdir") + 1])
    if not any(folder.iterdir()):
        sys.exit(f"{folder} is empty")


if __name__ == "__main__":
    main(*sys.argv[1:])
