"""Whether the GPU that `--device=auto` would take computes at all, tried in a process before the run."""

from __future__ import annotations

import subprocess
import sys

from asyncrl.config.errors import Problem
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig

_PRODUCT = "import torch; ones = torch.ones(8, 8, device='cuda'); assert float((ones @ ones).sum()) == 512.0"
_TIMEOUT_S = 120.0


def is_needed(config: TrainConfig, plan: ResourcePlan, machine: Machine) -> bool:
    """Whether `auto` chose a CUDA device, for a single learner: several ranks must choose the same."""
    asked = (config.learner_device, *(config.inference_devices or ()))
    chosen = (plan.device, *plan.inference_devices)
    was_asked = config.device != "auto" or any(device.startswith("cuda") for device in asked)
    return not was_asked and machine.num_ranks == 1 and any(device.startswith("cuda") for device in chosen)


def find_problem() -> Problem | None:
    """Multiplies two matrices on the GPU; returns a warning that says why that failed, or None."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PRODUCT], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        reason = f"a product of two small matrices took more than {_TIMEOUT_S:.0f} s"
    except OSError as error:
        reason = f"the process that tries it cannot be started: {error}"
    else:
        if done.returncode == 0:
            return None
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1].rstrip(".")
    return Problem(
        ("device",),
        f"The GPU cannot be used, so the run uses the CPU: {reason}. --device=cuda would end the run instead.",
    )
