"""What a run with pools on other machines sends over a network, and what bandwidth and delay of the network allow.

Times are in seconds, rates in environment steps or bytes a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from asyncrl.buffers.layout import slot_specs
from asyncrl.buffers.replay import replay_specs
from asyncrl.config.plan import PLACES_OF_A_WORKER, ResourcePlan
from asyncrl.contrib.ray_pools.batches import float16_row_bytes
from asyncrl.contrib.ray_pools.sent_rows import FIELDS, rows_in_flight
from asyncrl.contrib.ray_pools.sent_slots import OWN_WORDS
from asyncrl.envs.spec import EnvSpec

_STATISTICS_BYTES = 16
_BYTES_PER_S_OF_MBIT = 1e6 / 8


@dataclass(frozen=True)
class Traffic:
    """Bytes each way, without what the network itself adds, and what a run's speed follows from.

    Attributes:
        num_hosts: pools.
        workers_per_host, num_local_workers: rollout workers of a pool, and of the learner's machine.
        step_bytes: bytes that arrive for each environment step of a remote worker.
        remote_share: share of the environment steps that remote workers make, if all are equally fast.
        weights_bytes: bytes of the weights that leave for each pool with a publication.
        publications_per_step: for each environment step that is trained on, at most: if a pool has not received some
            weights when newer ones are published, it gets the newest only.
        versions_per_step: optimizer steps for each environment step, while samples may be late; 0 where a dataset is
            collected with fixed weights.
        permitted_steps: environment steps that a worker makes with one permit for each of its splits: a slot, a row of
            a replay, or the place of a gradient; in sync mode its part of a dataset.
        num_permits: permits that a remote split has at a time.
        payload: what arrives, in a word.
    """

    num_hosts: int
    workers_per_host: int
    num_local_workers: int
    step_bytes: float
    remote_share: float
    weights_bytes: int
    publications_per_step: float
    versions_per_step: float
    permitted_steps: float
    num_permits: int
    payload: str = "samples"

    @classmethod
    def of(cls, plan: ResourcePlan, spec: EnvSpec, num_weights: int, has_float16: bool = False) -> Traffic:
        """The traffic of a plan, for blocks of `num_weights` float32; observations may travel as float16."""
        is_late = (plan.async_rl or plan.hogwild is not None) and not plan.fixed_lag
        if plan.hogwild is not None:
            permitted = plan.num_envs_per_worker * plan.rollout / plan.hogwild.num_gradients_of_rollout
            publications = versions = 1.0 / (permitted * plan.hogwild.num_gradients_to_combine)
            num_permits = PLACES_OF_A_WORKER
        elif plan.replay is None:
            publications = plan.num_epochs * plan.num_agents / plan.dataset_size
            versions = publications * plan.num_batches_per_epoch
            permitted = plan.rollout * plan.num_envs_per_worker
            if not is_late:
                permitted = max(1, plan.dataset_size // plan.num_agents // plan.num_workers)
            num_permits = plan.remote.slots_in_flight if is_late else 1
        else:
            publications = versions = plan.replay.updates_per_env_step
            permitted, num_permits = plan.num_envs_per_worker, rows_in_flight(plan)
        return cls(
            num_hosts=plan.remote.num_pools,
            workers_per_host=plan.remote.workers_per_pool,
            num_local_workers=plan.num_local_workers,
            step_bytes=_bytes_of_a_step(plan, spec, num_weights, has_float16),
            remote_share=1.0 - plan.num_local_workers / plan.num_workers,
            weights_bytes=4 * num_weights,
            publications_per_step=publications,
            versions_per_step=versions if is_late else 0.0,
            permitted_steps=permitted,
            num_permits=num_permits,
            payload="gradients" if plan.sends_gradients else "samples",
        )

    def bytes_per_s(self, steps_per_s: float, round_trip_s: float = 0.0) -> tuple[float, float]:
        """Samples that arrive and weights that leave, if all workers together make so many environment steps.

        A pool gets at most one publication in a round trip.
        """
        arriving = steps_per_s * self.step_bytes * self.remote_share
        publications_per_s = steps_per_s * self.publications_per_step
        if round_trip_s > 0.0:
            publications_per_s = min(publications_per_s, 1.0 / round_trip_s)
        return arriving, publications_per_s * self.num_hosts * self.weights_bytes

    def most_steps_per_s(self, bandwidth_mbit: float) -> tuple[float, float]:
        """Environment steps a second at which the samples that arrive, and the weights that leave, fill a network."""
        arriving, leaving = self.bytes_per_s(1.0)
        bytes_per_s = bandwidth_mbit * _BYTES_PER_S_OF_MBIT
        return bytes_per_s / arriving, bytes_per_s / leaving

    def share_of_speed(self, worker_steps_per_s: float, round_trip_s: float) -> float:
        """Speed of a remote worker as a share of the one that it has without a network.

        A permit comes back a round trip after the split could use it, so a split uses its permits once in the time of
        one permit and a round trip.
        """
        permit_s = self.permitted_steps / worker_steps_per_s
        return min(1.0, self.num_permits * permit_s / (permit_s + round_trip_s))

    def permits_needed(self, worker_steps_per_s: float, round_trip_s: float) -> int:
        """Permits that a remote split must have at a time so that it never waits for the network."""
        return math.ceil(1.0 + round_trip_s * worker_steps_per_s / self.permitted_steps)

    def steps_per_s(self, worker_steps_per_s: float, round_trip_s: float = 0.0) -> float:
        """Environment steps of all workers, if neither the learner nor the bandwidth is the limit."""
        return self.num_local_workers * worker_steps_per_s + self.num_hosts * self._host_steps_per_s(
            worker_steps_per_s, round_trip_s
        )

    def hosts_needed(self, wanted_steps_per_s: float, worker_steps_per_s: float, round_trip_s: float = 0.0) -> int:
        """Pools with which all workers together make so many environment steps, the local workers included."""
        missing = wanted_steps_per_s - self.num_local_workers * worker_steps_per_s
        return max(0, math.ceil(missing / self._host_steps_per_s(worker_steps_per_s, round_trip_s)))

    def _host_steps_per_s(self, worker_steps_per_s: float, round_trip_s: float) -> float:
        return self.workers_per_host * worker_steps_per_s * self.share_of_speed(worker_steps_per_s, round_trip_s)

    def added_lag(self, steps_per_s: float, round_trip_s: float) -> float:
        """Policy versions by which samples of pools are older because of the round trip, on average.

        Samples travel for half a round trip, and weights for the other half. Weights that are published while others
        are under way wait for the rest of a round trip, on average half of one. That is the share of all weights for
        which others are under way, or all if they are published more often than once in a round trip.
        """
        waiting = min(1.0, round_trip_s * steps_per_s * self.publications_per_step)
        late_s = round_trip_s * (1.0 + 0.5 * waiting)
        return late_s * steps_per_s * self.versions_per_step

    def describe(
        self,
        bandwidth_mbit: float | None = None,
        round_trip_ms: float = 0.0,
        worker_steps_per_s: float | None = None,
        wanted_steps_per_s: float | None = None,
    ) -> list[str]:
        """The traffic in words, and what follows from all that the user knows of network and machines.

        Args:
            bandwidth_mbit: Mbit/s of the learner's machine, each way.
            round_trip_ms: between the learner's machine and a pool.
            worker_steps_per_s: environment steps that a worker makes if it never waits.
            wanted_steps_per_s: environment steps that all workers together are to make.
        """
        weights_kb, times = self.weights_bytes / 1e3, 1e6 * self.publications_per_step
        lines = [
            f"{self.step_bytes:,.0f} B arrive for each environment step of other machines; {weights_kb:,.0f} kB of "
            f"weights leave for each of {self.num_hosts} pools, at most {times:,.{0 if times > 10 else 2}f} times in a "
            "million steps"
        ]
        if bandwidth_mbit is not None:
            arriving, leaving = self.most_steps_per_s(bandwidth_mbit)
            carried = f"the {self.payload} of {arriving:,.0f} steps/s, and all publications of {leaving:,.0f} steps/s"
            lines.append(f"{bandwidth_mbit:g} Mbit/s each way carry {carried}")
        speed, wanted, round_trip_s = worker_steps_per_s, wanted_steps_per_s, round_trip_ms / 1e3
        if speed is not None:
            lines += self._describe_speed(speed, round_trip_s, bandwidth_mbit)
            if wanted is not None:
                hosts = self.hosts_needed(wanted, speed, round_trip_s)
                lines.append(f"{wanted:,.0f} steps/s need {hosts} pools of {self.workers_per_host} workers")
                if bandwidth_mbit is not None and (most := self.most_steps_per_s(bandwidth_mbit)[0]) < wanted:
                    lines[-1] += f", but {bandwidth_mbit:g} Mbit/s carry only {most:,.0f}"
        return lines

    def _describe_speed(self, speed: float, round_trip_s: float, bandwidth_mbit: float | None) -> list[str]:
        total = self.steps_per_s(speed, round_trip_s)
        limit = ""
        if bandwidth_mbit is not None and (most := self.most_steps_per_s(bandwidth_mbit)[0]) < total:
            total, limit = most, ", which the bandwidth limits,"
        arriving, leaving = (each / _BYTES_PER_S_OF_MBIT for each in self.bytes_per_s(total, round_trip_s))
        if bandwidth_mbit is not None:
            leaving = min(leaving, bandwidth_mbit)  # publications are left out
        lines = [
            f"all workers together make {total:,.0f} steps/s{limit} if the learner keeps up: {arriving:,.3g} Mbit/s of "
            f"{self.payload} arrive, at most {leaving:,.3g} Mbit/s of weights leave"
        ]
        if round_trip_s > 0.0:
            share, needed = self.share_of_speed(speed, round_trip_s), self.permits_needed(speed, round_trip_s)
            reached = (
                f"a round trip of {1e3 * round_trip_s:g} ms lets remote workers reach {100 * share:.0f} % of their"
            )
            if self.versions_per_step == 0.0:
                return [*lines, f"{reached} speed in sync mode, which waits for it; async hides it"]
            lag = self.added_lag(total, round_trip_s)
            # A worker has a fixed number of places for gradients.
            advice = f", and all of it with {needed}" if self.payload == "samples" else ""
            lines.append(
                f"{reached} speed with {self.num_permits} in flight{advice}; it adds {lag:,.3g} versions to the lag"
            )
        return lines


def _bytes_of_a_step(plan: ResourcePlan, spec: EnvSpec, num_weights: int, has_float16: bool) -> float:
    """Bytes of a slot, a row or a gradient, divided by its environment steps."""
    if plan.hogwild is not None:  # a gradient is as large as the weights; count, means and variances go with it
        gradient_bytes = 4 * num_weights + _STATISTICS_BYTES * (spec.observation_size + 2)
        return gradient_bytes * plan.hogwild.num_gradients_of_rollout / (plan.num_envs_per_worker * plan.rollout)
    if plan.replay is None:
        arrays = [each for each in slot_specs(spec, plan) if each.name not in OWN_WORDS]
        num_steps = plan.num_slots * plan.rollout * plan.envs_per_split
    else:
        layout = (plan.num_splits, plan.envs_per_split, plan.replay.size)
        travel = {f"replay.{name}" for name in ("obs", *FIELDS)}
        arrays = [each for each in replay_specs(spec, *layout) if each.name in travel]
        num_steps = math.prod(arrays[0].shape[:3])
    num_bytes = sum(math.prod(each.shape) * np.dtype(each.dtype).itemsize for each in arrays)
    if has_float16:
        (obs,) = (each for each in arrays if each.name.endswith(".obs"))
        row_bytes = obs.shape[-1] * np.dtype(obs.dtype).itemsize
        num_bytes -= math.prod(obs.shape[:-1]) * (row_bytes - float16_row_bytes(spec.observation))
    flags_of_row_before = 0 if plan.replay is None else 1
    return num_bytes / num_steps + flags_of_row_before
