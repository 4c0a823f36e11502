"""Trains with Sample Factory for some seconds and records its progress. Runs in a separate virtual environment.

Usage: sample_factory_run.py PROGRESS_FILE TRAIN_DIR OPTIONS, the last one JSON: task, mode, seconds, num_workers,
num_envs_per_worker, num_policies, seed. Each line of the progress file is one trained dataset:
{"time_s": ..., "env_steps": ...}.
"""

import json
import sys
import time
from pathlib import Path

from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_utils import make_atari_env
from sf_examples.atari.train_atari import parse_atari_args
from sf_examples.mujoco.train_mujoco import parse_mujoco_cfg, register_mujoco_components

ENDLESS_STEPS = 10**12


class ProgressWriter(AlgoObserver):
    """Writes a line after each training iteration, and stops after a time.

    Sample Factory looks at `train_for_seconds` only when it saves, so the end is asked for by its limit of steps.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._seconds = seconds
        self._first_at: float | None = None

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        now = time.monotonic()
        self._first_at = now if self._first_at is None else self._first_at
        self._file.write(json.dumps({"time_s": now, "env_steps": sum(runner.env_steps.values())}) + "\n")
        if now - self._first_at >= self._seconds:
            runner.cfg.train_for_env_steps = 0


BODY_FLAGS = [
    "--rollout=64",
    "--batch_size=1024",
    "--num_epochs=2",
    "--num_batches_per_epoch=4",
    "--encoder_mlp_layers", "64", "64",
]  # fmt: skip
PONG_FLAGS = [
    "--rollout=128",
    "--batch_size=256",
    "--num_epochs=4",
    "--num_batches_per_epoch=16",
    "--batched_sampling=False",
    "--summaries_use_frameskip=False",  # steps are counted as decisions
]


def flags(options: dict, train_dir: str) -> list[str]:
    """Returns Sample Factory's own settings, with a learning rate that changes nothing and without saving."""
    is_pong = options["task"] == "Pong"
    return [
        "--env=" + ("atari_pong" if is_pong else f"mujoco_{options['task'].lower()}"),
        f"--async_rl={options['mode'] == 'async'}",
        f"--num_workers={options['num_workers']}",
        f"--num_envs_per_worker={options['num_envs_per_worker']}",
        f"--num_policies={options['num_policies']}",
        "--worker_num_splits=2",
        *(PONG_FLAGS if is_pong else BODY_FLAGS),
        "--learning_rate=1e-12",
        "--lr_schedule=constant",
        "--device=cpu",
        f"--seed={options['seed']}",
        f"--train_for_env_steps={ENDLESS_STEPS}",
        "--save_every_sec=1000000",
        "--restart_behavior=overwrite",
        f"--train_dir={train_dir}",
        "--experiment=run",
    ]


def make_pong(name, cfg, env_config, render_mode=None):
    """Makes Sample Factory's Pong; each process that does has to register the games first."""
    import ale_py  # noqa: F401

    return make_atari_env(name, cfg, env_config, render_mode)


def main() -> int:
    progress, train_dir, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    register_mujoco_components()
    register_env("atari_pong", make_pong)
    parse = parse_atari_args if options["task"] == "Pong" else parse_mujoco_cfg
    _, runner = make_runner(parse(flags(options, train_dir)))
    runner.register_observer(ProgressWriter(progress, options["seconds"]))
    status = runner.init()
    if status == ExperimentStatus.SUCCESS:
        status = runner.run()
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
