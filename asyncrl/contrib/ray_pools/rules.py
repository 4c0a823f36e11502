"""What rollout workers on other machines cannot be combined with, and what they need of cluster and environment."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from asyncrl.config.checks import not_together
from asyncrl.config.env_maker import EnvMaker
from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools import connection
from asyncrl.contrib.ray_pools.batches import LARGEST_FLOAT16
from asyncrl.contrib.ray_pools.settings import ClusterSettings
from asyncrl.envs.spec import EnvSpec

_GIVEN, _OFF = "--cluster=ray", "--cluster=none"


def settings_problems(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    """Settings that pools cannot be combined with."""
    if plan.remote.num_pools == 0:
        return
    others = {
        "use_rnn": (
            plan.replay is not None and config.use_rnn,
            f"--use_rnn=True of --algo={config.algo}",
            "--use_rnn=False",
        ),
        "hogwild_mode": (
            plan.hogwild is not None and plan.hogwild.mode != "gradients",
            f"--hogwild_mode={plan.hogwild.mode if plan.hogwild else ''}, whose workers share memory",
            "--hogwild_mode=gradients",
        ),
        "device": (
            plan.hogwild is not None and plan.device != "cpu",
            f"--backend=hogwild --device={config.device}",
            "--device=cpu",
        ),
        "serial_mode": (config.serial_mode, "--serial_mode=True", "--serial_mode=False"),
        "env_backend": (plan.steps_tensors, "--env_backend=tensor", "--env_backend=gym"),
        "num_policies": (plan.num_policies > 1, f"--num_policies={plan.num_policies}", "--num_policies=1"),
        "inference_mode": (config.inference_mode == "central", "--inference_mode=central", "--inference_mode=local"),
        # Settings of other features.
        "her_goals": (
            plan.replay is not None and getattr(config, "her_goals", 0) > 0,
            "--her_goals",
            "--her_goals=0",
        ),
        "self_play": (plan.num_opponents > 0, "--self_play=True", "--self_play=False"),
    }
    yield from not_together("cluster", _GIVEN, _OFF, others)
    ray_address = ClusterSettings.of(config).ray_address
    if ray_address.startswith("ray://"):
        text = f"--ray_address={ray_address}: the learner's machine must be a node of the cluster, not a client."
        yield make_problem("ray_address", text, "--ray_address=HOST:6379", "--ray_address=auto")
    if isinstance(config.env, EnvMaker):
        text = (
            f"{_GIVEN} needs an environment that other machines can import; {config.env} exists in this program only."
        )
        yield make_problem("cluster env", text, "--env=MODULE:function", _OFF)


def spec_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterator[Problem]:
    """Why the cluster cannot be used, and observations that float16 cannot hold."""
    settings = ClusterSettings.of(config)
    if settings.cluster == "none":
        return
    if (reason := connection.find_problem(settings)) is not None:
        yield Problem(("cluster", "ray_address"), reason, (_OFF,))
    if plan.hogwild is None and settings.cluster_observations == "float16":
        yield from float16_problems(spec)


def float16_problems(spec: EnvSpec) -> list[Problem]:
    """Observations that float16 cannot hold."""
    texts = [
        f"--cluster_observations=float16 ends at {LARGEST_FLOAT16:g}, and {part.name} of {spec.env_id} may be as large "
        f"as {part.largest:g}."
        for part in spec.observation.parts
        if part.kind == "numbers" and np.issubdtype(part.dtype, np.floating) and (part.largest or 0.0) > LARGEST_FLOAT16
    ]
    names = ("cluster_observations", "env")
    return [Problem(names, text, ("--cluster_observations=float32",)) for text in texts]
