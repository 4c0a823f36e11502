"""Settings: rollout workers on other machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from asyncrl.config.remote_workers import NO_REMOTE_WORKERS, RemoteWorkers
from asyncrl.config.sections.section import OFF_POLICY, ON_TRAJECTORIES, Section, section
from asyncrl.config.value_types import PositiveFloat, PositiveInt

_cluster = section("cluster")


class ClusterSettings(Section):
    """Rollout workers on other machines."""

    cluster: Literal["none", "ray"] = _cluster("none", "whether rollout workers run on other machines too, by Ray")
    ray_address: str = _cluster(
        "auto",
        "HOST:PORT of the Ray cluster; auto is RAY_ADDRESS, or the cluster that this machine joined last",
        cluster=("ray",),
    )
    num_remote_hosts: PositiveInt = _cluster(
        1, "pools of rollout workers, which Ray spreads over the machines", cluster=("ray",)
    )
    num_workers_per_remote_host: PositiveInt = _cluster(
        1, "rollout workers of a pool, for each of which Ray keeps a CPU", cluster=("ray",)
    )
    remote_slots_in_flight: PositiveInt = _cluster(
        2,
        "async: slots that a remote worker holds at a time; it fills one while the others travel",
        cluster=("ray",),
        algo=ON_TRAJECTORIES,
        backend=("actor_learner",),
        async_rl=(True,),
        fixed_lag=(False,),
    )
    remote_rows_in_flight: PositiveInt = _cluster(
        16,
        "async, replay: rows, one step of each of its environments, that a remote split may be ahead of the learner",
        cluster=("ray",),
        algo=OFF_POLICY,
        async_rl=(True,),
    )
    ray_resources: dict[str, float] = _cluster(
        {}, "custom resources of Ray that a pool takes, as JSON", cluster=("ray",)
    )
    ray_runtime_env: dict[str, Any] = _cluster({}, "Ray's runtime environment for the pools, as JSON", cluster=("ray",))
    remote_start_timeout: PositiveFloat = _cluster(
        600.0, "seconds in which Ray must have placed and started a pool", cluster=("ray",)
    )
    cluster_observations: Literal["float32", "float16"] = _cluster(
        "float32",
        "how floating-point observations of other machines travel; float16 halves their bytes and rounds them",
        cluster=("ray",),
        backend=("actor_learner",),
    )

    @property
    def remote_workers(self) -> RemoteWorkers:
        if self.cluster == "none":
            return NO_REMOTE_WORKERS
        return RemoteWorkers(
            num_pools=self.num_remote_hosts,
            workers_per_pool=self.num_workers_per_remote_host,
            slots_in_flight=self.remote_slots_in_flight,
            rows_in_flight=self.remote_rows_in_flight,
            main="asyncrl.contrib.ray_pools.bridge:bridge_main",
            limiter="asyncrl.contrib.ray_pools.limiter:RemoteReplayLimiter",
            setting="num_remote_hosts",
        )


def saved_remote_workers(config: Mapping[str, Any]) -> int:
    """Rollout workers of the pools of a run, from its saved settings."""
    pools, each = config.get("num_remote_hosts"), config.get("num_workers_per_remote_host")
    if config.get("cluster", "none") == "none" or not isinstance(pools, int) or not isinstance(each, int):
        return 0
    return pools * each
