"""Settings: the Hogwild backend."""

from __future__ import annotations

from typing import Literal

from asyncrl.config.sections.section import Section, section
from asyncrl.config.value_types import AutoPositiveInt, NonNegativeInt

_hogwild = section("hogwild", backend=("hogwild",))


class HogwildSettings(Section):
    """The Hogwild backend."""

    hogwild_mode: Literal["auto", "shared", "synced", "gradients"] = _hogwild(
        "auto",
        "workers act with the shared parameters directly (shared), with a copy pulled before a rollout or update "
        "(synced), or with published parameters, sending gradients to a process that combines them (gradients); auto "
        "is synced for PPO and A2C, and shared for SAC",
    )
    hogwild_optimizer: Literal["adam", "rmsprop"] = _hogwild(
        "adam", "optimizer of the shared parameters; its state is also shared"
    )
    hogwild_max_staleness: NonNegativeInt | None = _hogwild(
        None,
        "largest number of updates that others may make between a worker's pull of the parameters and its push; a "
        "worker that is over it pulls and computes again. none means no bound, and nobody waits",
        hogwild_mode=("auto", "shared", "synced"),
    )
    num_gradients_to_combine: AutoPositiveInt = _hogwild(
        "auto",
        "gradients mode: number of gradients combined into one step; auto is the number of workers, or less where most "
        "of them are in one pool on another machine",
        hogwild_mode=("gradients",),
    )
    combine_gradients: Literal["mean", "sum"] = _hogwild(
        "mean", "gradients mode: how gradients are combined before clipping", hogwild_mode=("gradients",)
    )
