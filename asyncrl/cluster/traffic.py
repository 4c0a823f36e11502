"""What a run with pools on other machines sends over the network of the learner's machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from asyncrl.buffers.layout import slot_specs
from asyncrl.cluster.sent_slots import OWN_WORDS
from asyncrl.config.plan import ResourcePlan
from asyncrl.envs.spec import EnvSpec

_BYTES_PER_S_OF_MBIT = 1e6 / 8


@dataclass(frozen=True)
class Traffic:
    """Bytes each way, without what the network itself adds.

    Attributes:
        num_hosts: pools.
        step_bytes: bytes that arrive for each environment step of a remote worker.
        remote_share: share of the environment steps that remote workers make, if all are equally fast.
        weights_bytes: bytes of the weights that leave for each pool with a publication.
        publications_per_step: for each environment step that is trained on, at most: if a pool has not received some
            weights when newer ones are published, it gets the newest only.
    """

    num_hosts: int
    step_bytes: float
    remote_share: float
    weights_bytes: int
    publications_per_step: float

    @classmethod
    def of(cls, plan: ResourcePlan, spec: EnvSpec, num_weights: int) -> Traffic:
        """The traffic of a plan, for blocks of `num_weights` float32."""
        arrays = [each for each in slot_specs(spec, plan) if each.name not in OWN_WORDS]
        slots_bytes = sum(math.prod(each.shape) * np.dtype(each.dtype).itemsize for each in arrays)
        return cls(
            num_hosts=plan.num_remote_hosts,
            step_bytes=slots_bytes / (plan.num_slots * plan.rollout * plan.envs_per_split),
            remote_share=1.0 - plan.num_local_workers / plan.num_workers,
            weights_bytes=4 * num_weights,
            publications_per_step=plan.num_epochs * plan.num_agents / plan.dataset_size,
        )

    def most_steps_per_s(self, bandwidth_mbit: float) -> tuple[float, float]:
        """Environment steps a second at which the samples that arrive, and the weights that leave, fill a network."""
        bytes_per_s = bandwidth_mbit * _BYTES_PER_S_OF_MBIT
        arriving = self.step_bytes * self.remote_share
        leaving = self.num_hosts * self.weights_bytes * self.publications_per_step
        return bytes_per_s / arriving, bytes_per_s / leaving

    def describe(self, bandwidth_mbit: float | None) -> str:
        """The traffic in words; with a bandwidth, each way, also what it can carry."""
        weights_kb, times = self.weights_bytes / 1e3, 1e6 * self.publications_per_step
        text = (
            f"{self.step_bytes:,.0f} B arrive for each environment step of other machines; {weights_kb:,.0f} kB of "
            f"weights leave for each of {self.num_hosts} pools, at most {times:,.{0 if times > 10 else 2}f} times in a "
            "million steps"
        )
        if bandwidth_mbit is None:
            return text
        arriving, leaving = self.most_steps_per_s(bandwidth_mbit)
        carried = f"the samples of {arriving:,.0f} steps/s, and all publications of {leaving:,.0f} steps/s"
        return f"{text}; {bandwidth_mbit:g} Mbit/s each way carry {carried}"
