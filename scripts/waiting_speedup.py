"""Measures the speed-up of more workers where steps wait for a simulator elsewhere, and writes one table.

    python scripts/waiting_speedup.py --work_dir=waiting            # about 15 minutes a round
    python scripts/waiting_speedup.py --work_dir=waiting --table    # only the table of the results

Each step sleeps 5 ms (`waiting_env.py`), so more workers than cores help until the cores are busy: 1, 2, 4, 8 and 16
workers of one environment each run A3C (`synced`) and SAC (`shared`) on Hogwild, and A2C and PPO with a learner, async.
The ideal is as many times the speed of one worker. The last group has 8 workers of A3C with bounds of staleness.
Results are appended to waiting.jsonl; a measurement with a result is not repeated, so the script may be stopped.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path

from rounds import Row, carry_out, env_steps_per_s, parser

ENV = "waiting_env:make"
COMMON = ("--preset=classic_control", "--num_envs_per_worker=1", "--device=cpu")
A3C = ("--algo=a3c",)
ON_POLICY = ("--rollout=32", "--batch_size=128", "--num_batches_per_epoch=4")
# One update for 32 steps: 16 workers wait for 100 updates a second, of which a core makes more.
SAC = ("--algo=sac", "--backend=hogwild", "--updates_per_env_step=0.03125", "--warmup_env_steps=1600")
ALGORITHMS = {
    "A3C, synced": A3C,
    "A2C, async": ("--algo=a2c", *ON_POLICY),
    "PPO, async": ("--algo=ppo", "--num_epochs=2", *ON_POLICY),
    "SAC, shared": SAC,
}
BOUNDED = "A3C, synced, 8 workers"


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for algorithm, flags in ALGORITHMS.items():
        for num_workers in options.num_workers:
            of_run = (*flags, f"--num_workers={num_workers}")
            measure = functools.partial(steps_per_s, f"{flags[0][7:]}_{num_workers}", of_run, options)
            found.append(Row(algorithm, f"{num_workers} workers", measure))
    for bound in ("none", "16", "4", "0"):
        flags = (*A3C, "--num_workers=8", f"--hogwild_max_staleness={bound}")
        found.append(Row(BOUNDED, f"bound {bound}", functools.partial(steps_per_s, f"bound_{bound}", flags, options)))
    return found


def steps_per_s(name: str, flags: tuple[str, ...], options: argparse.Namespace, round_idx: int) -> float:
    """Returns the environment steps per second of a run."""
    of_env = f'--env_kwargs={{"step_ms": {options.step_ms:g}}}'
    return env_steps_per_s(name, ENV, (of_env, *COMMON, *flags), options, round_idx)


def main() -> int:
    found = parser(__doc__, rounds=3, warm_up_s=5.0, measure_s=15.0)
    found.add_argument("--step_ms", type=float, default=5.0, help="how long a step waits")
    found.add_argument(
        "--num_workers", type=lambda text: [int(number) for number in text.split(",")], default=[1, 2, 4, 8, 16]
    )
    options = found.parse_args()
    # The runs find the environment here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])
    about = f"Environment steps; each sleeps {options.step_ms:g} ms."
    done = carry_out("waiting", about, rows(options), options, step_ms=options.step_ms)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
