"""Counts the instructions of the paths that run for every step or minibatch, and compares them with accepted counts.

    python scripts/count_instructions.py            # exit code 1 if a count is more than 3 % above the accepted one
    python scripts/count_instructions.py --accept   # stores today's counts in scripts/instructions.json

Counts do not depend on how busy the machine is. They depend on the versions of Python, NumPy, PyTorch and the compiler,
and on the processor's vendor. If one of these differs from the accepted ones, the counts are printed but not compared.
The accepted counts were measured by `.ci/run` on an Intel processor.

Needs valgrind with its headers and a C compiler (Debian: `valgrind`, `gcc`). Valgrind shows a processor with AVX2, so
the native core's kernels for AVX2 are counted.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_ACCEPTED = _HERE / "instructions.json"
_TOLERANCE = 0.03
_NUM_ENVS, _ROLLOUT = 16, 128
_REPEATS = 20
_REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(void) { CALLGRIND_DUMP_STATS; CALLGRIND_STOP_INSTRUMENTATION; }
"""


def paths() -> dict[str, Callable[[], Any]]:
    """The counted paths by name, with networks and spaces of HalfCheetah-v5's size."""
    sys.path[:0] = [str(_HERE.parent), str(_HERE / "peers")]
    import gymnasium
    import numpy as np
    import torch
    from asyncrl_updates import PPO, make_ppo_updates

    from asyncrl.buffers.arena import Arena
    from asyncrl.buffers.slots import TrajectorySlots
    from asyncrl.buffers.weights import WeightsChannel
    from asyncrl.config.loading import load
    from asyncrl.config.plan import resolve
    from asyncrl.envs.spaces import read_spec
    from asyncrl.inference.acting import ActingPolicy
    from asyncrl.learner.dataset import Batcher
    from asyncrl.learner.on_policy import OnPolicyLearner
    from asyncrl.learner.slot_ledger import Columns
    from asyncrl.models.actor_critic import ActorCritic
    from asyncrl.models.sizes import weights_block_size
    from asyncrl.modes.choice import arena_specs
    from asyncrl.modes.hogwild.worker import PrivateSlot
    from asyncrl.rollout.env_group import EnvGroup
    from asyncrl.rollout.sinks import SlotSink
    from asyncrl.rollout.worker import LocalActions

    class Still(gymnasium.Env[Any, Any]):
        """An environment that costs nothing."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float64)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)
        obs = np.linspace(-1.0, 1.0, 17)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return self.obs, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self.obs, 1.0, False, False, {}

    torch.set_num_threads(1)
    gymnasium.register("Still-v0", Still)
    flags = ["--env=Still-v0", "--preset=mujoco", "--num_workers=1", f"--num_envs_per_worker={_NUM_ENVS}"]
    config = load([*flags, f"--rollout={_ROLLOUT}", "--batch_size=64", "--seed=0", "--device=cpu"]).config
    spec, cpu = read_spec(gymnasium.make("Still-v0"), "Still-v0"), torch.device("cpu")
    plan = resolve(config)
    slots = TrajectorySlots(arena := Arena.create(arena_specs(spec, plan, weights_block_size(spec, config))))
    slots.reset()
    model = ActorCritic(spec, config)
    learner, weights = OnPolicyLearner(model, config, cpu), WeightsChannel(arena)
    block = learner.publication()
    weights.publish(block.numpy(), 1, 0)
    actions = LocalActions(ActingPolicy(ActorCritic(spec, config), weights, slots, cpu, seed=0))
    group = EnvGroup([Still() for _ in range(_NUM_ENVS)], range(_NUM_ENVS), 0, spec, mapping="raw")
    sink = SlotSink(0, group, slots, PrivateSlot(slots))
    place = sink.begin()
    assert place is not None
    actions.request(0, *place)
    opened = sink.open_row(place)
    assert opened is not None
    batcher, columns = Batcher(slots, _NUM_ENVS), [Columns(0, 0, _NUM_ENVS, is_last=True)]
    ppo = load(["--env=Still-v0", *PPO, "--num_workers=1", "--seed=0", "--device=cpu"]).config
    train, _ = make_ppo_updates(ppo, spec, is_shared=False)
    return {
        "acting, 16 rows": lambda: actions.request(0, *place),
        "step of 16 environments that cost nothing": lambda: group.step(*opened),
        "batcher, 2,048 samples": lambda: batcher.collect(columns),
        "PPO, 320 optimizer steps of 64 samples": train,
    }


def run_paths(library: str) -> None:
    """Runs each path under valgrind, which writes one file of counts for each."""
    requests = ctypes.CDLL(library)
    for name, path in paths().items():
        repeats = 1 if "PPO" in name else _REPEATS
        for _ in range(2):  # caches of Python's specializing interpreter and of PyTorch are filled
            path()
        requests.start()
        for _ in range(repeats):
            path()
        requests.stop()
        print(f"{name}\t{repeats}", flush=True)


def count() -> dict[str, int]:
    """Instructions of one run of each path."""
    with tempfile.TemporaryDirectory() as folder:
        source, library, out = (str(Path(folder, name)) for name in ("requests.c", "requests.so", "counts"))
        Path(source).write_text(_REQUESTS)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", library], check=True)
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        done = subprocess.run(
            [*valgrind, sys.executable, __file__, f"--run_paths={library}"],
            env={**os.environ, **threads, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(f"error: valgrind ended with code {done.returncode}:\n{done.stderr[-2000:]}")
        counts = {}
        for number, line in enumerate(done.stdout.splitlines(), start=1):
            name, repeats = line.split("\t")
            total = re.search(r"^totals: (\d+)", Path(f"{out}.{number}").read_text(), flags=re.MULTILINE)
            assert total is not None
            counts[name] = int(total.group(1)) // int(repeats)
    return counts


def versions() -> dict[str, str]:
    """What counts depend on."""
    import numpy
    import torch

    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    vendor = re.search(r"^vendor_id\s*: (.+)", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "compiler": compiler,
        "processor": "unknown" if vendor is None else vendor.group(1),  # libraries choose their kernels by it
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accept", action="store_true", help="store the counts as the accepted ones")
    parser.add_argument("--run_paths", metavar="LIBRARY", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run_paths:
        run_paths(options.run_paths)
        return 0
    counts, own = count(), versions()
    if options.accept:
        _ACCEPTED.write_text(json.dumps({"versions": own, "instructions": counts}, indent=2) + "\n")
    stored = json.loads(_ACCEPTED.read_text())
    accepted = stored["instructions"]
    for name, found in counts.items():
        print(f"{name}: {found:,} instructions, {found / accepted[name] - 1:+.1%} of the accepted {accepted[name]:,}")
    if own != stored["versions"]:
        print(f"The counts were not compared, because versions differ. Here: {own}; accepted: {stored['versions']}.")
        return 0
    return int(any(found > (1 + _TOLERANCE) * accepted[name] for name, found in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
