"""What `asyncrl validate` shows of a run with pools: its traffic, and what bandwidth and delay of the network allow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pydantic import NonNegativeFloat, PositiveFloat

from asyncrl.commands.validation import Options
from asyncrl.config.flags import option
from asyncrl.contrib.ray_pools.settings import ClusterSettings
from asyncrl.contrib.ray_pools.traffic import Traffic
from asyncrl.models.sizes import weights_block_size
from asyncrl.run.preflight import Preflight


class NetworkOptions(Options):
    """What the user knows of the network and of the machines."""

    cluster_bandwidth_mbit: PositiveFloat | None = option(
        None, "with --cluster: Mbit/s of this machine's network each way; shows what it can carry"
    )
    round_trip_ms: NonNegativeFloat = option(
        0.0, "with --cluster: ms of a round trip in the network; with --worker_steps_per_s, shows what it costs"
    )
    worker_steps_per_s: PositiveFloat | None = option(
        None, "with --cluster: environment steps a second of one worker; shows speed and bytes a second"
    )
    wanted_steps_per_s: PositiveFloat | None = option(
        None, "with --cluster and --worker_steps_per_s: shows the pools that make so many environment steps a second"
    )

    def find_problems(self) -> Iterator[str]:
        if self.worker_steps_per_s is None and (self.round_trip_ms > 0.0 or self.wanted_steps_per_s is not None):
            yield "--round_trip_ms and --wanted_steps_per_s need --worker_steps_per_s."

    def lines(self, result: Preflight) -> Iterator[tuple[str, str]]:
        known = self.cluster_bandwidth_mbit, self.round_trip_ms, self.worker_steps_per_s, self.wanted_steps_per_s
        if (traffic := find_traffic(result)) is not None:
            yield from (("network", line) for line in traffic.describe(*known))

    def data(self, result: Preflight) -> dict[str, object]:
        traffic = find_traffic(result)
        return {"traffic": None if traffic is None else dataclasses.asdict(traffic)}


def find_traffic(result: Preflight) -> Traffic | None:
    """The traffic of a run; None without pools, or if its samples or its networks are unknown."""
    config, plan, spec = result.config, result.plan, result.spec
    has_samples = plan.num_slots > 0 or plan.replay is not None or plan.sends_gradients
    if plan.remote.num_pools == 0 or plan.num_policies > 1 or not has_samples:
        return None
    if spec is None or result.arena_bytes is None:
        return None
    has_float16 = ClusterSettings.of(config).cluster_observations == "float16"
    return Traffic.of(plan, spec, weights_block_size(spec, config), has_float16)
