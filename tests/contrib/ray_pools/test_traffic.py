"""Bytes of a run on the network, against a case counted by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from small_runs import BOX, planned

from asyncrl.contrib.ray_pools.traffic import Traffic


def test_bytes_each_way_and_what_a_network_carries() -> None:
    plan = planned(
        cluster="ray", num_workers=1, num_remote_hosts=3, num_envs_per_worker=2, batch_size=16, num_epochs=4, rollout=2
    )
    traffic = Traffic.of(plan, BOX, num_weights=1000)
    # Rows of one environment: two of action 4, two distribution parameters 8, log-prob 4, reward 4, three flags 3, and
    # three of observation 8 and value 4. A row of both environments has a version 8 and a time 8, three of them.
    of_slot = 2 * (2 * (4 + 8 + 4 + 4 + 3) + 3 * (8 + 4)) + 3 * 16
    assert traffic.step_bytes == of_slot / (2 * 2)
    assert traffic.remote_share == 0.75
    assert traffic.publications_per_step == 4 / 16
    arriving, leaving = traffic.most_steps_per_s(8.0)
    assert arriving == pytest.approx(1e6 / (0.75 * of_slot / 4))
    assert leaving == pytest.approx(1e6 / (3 * 4000 * 0.25))
    assert "8 Mbit/s each way carry" in traffic.describe(8.0)[1]
    at_speed = traffic.bytes_per_s(100.0)
    assert at_speed == (100 * 0.75 * of_slot / 4, 100 * 3 * 4000 * 0.25)
    assert traffic.bytes_per_s(100.0, 0.1)[1] == 10 * 3 * 4000, "one publication in a round trip, not 25 a second"
    assert traffic.bytes_per_s(100.0, 0.01) == at_speed


def test_bytes_of_a_step_in_a_replay() -> None:
    plan = planned(algo="sac", cluster="ray", num_remote_hosts=3, num_envs_per_worker=2, updates_per_env_step=0.5)
    traffic = Traffic.of(plan, BOX, num_weights=1000)
    # Of each environment: observation 8, action 4, reward 4, three flags and one of the row before; a version for both.
    assert traffic.step_bytes == 8 + 4 + 4 + 4 + 4 / 2
    assert (traffic.publications_per_step, traffic.versions_per_step) == (0.5, 0.5), "at most one for each update"
    assert (traffic.permitted_steps, traffic.num_permits) == (2, 16)
    sync = planned(algo="sac", async_rl=False, cluster="ray", num_remote_hosts=3, num_envs_per_worker=2)
    assert Traffic.of(sync, BOX, 1000).num_permits == 1, "each row waits for the updates of the row before"


def test_bytes_of_gradients() -> None:
    settings: dict[str, Any] = {"backend": "hogwild", "hogwild_mode": "gradients", "rollout": 4}
    pools = {"cluster": "ray", "num_remote_hosts": 3, "num_envs_per_worker": 2}
    plan = planned(algo="a2c", num_gradients_to_combine=2, **settings, **pools)
    traffic = Traffic.of(plan, BOX, num_weights=1000)
    # A gradient of a rollout of two environments, and statistics of two numbers, of returns, and their counts.
    assert traffic.step_bytes == (4000 + 16 * (2 + 1 + 1)) / (4 * 2)
    assert traffic.publications_per_step == traffic.versions_per_step == 1 / (2 * 4 * 2)
    assert (traffic.permitted_steps, traffic.num_permits) == (8, 2)
    passes = planned(algo="ppo", num_epochs=3, batch_size=4, num_gradients_to_combine=2, **settings, **pools)
    assert Traffic.of(passes, BOX, 1000).step_bytes == 6 * traffic.step_bytes, "six gradients of each rollout"
    lines = traffic.describe(8.0, round_trip_ms=100.0, worker_steps_per_s=100.0)
    assert "gradients of" in lines[1] and "gradients arrive" in lines[2]
    assert "with 2 in flight; it adds" in lines[3], "no other number can be chosen"


def traffic(**changes: object) -> Traffic:
    """10 pools of 4 workers and 2 local ones; a permit is 100 steps of a worker, and a remote split has 2."""
    plan = Traffic(10, 4, 2, 50.0, 40 / 42, 1000, 0.001, 0.01, 100.0, 2)
    return dataclasses.replace(plan, **changes)


def test_a_remote_worker_is_as_fast_as_its_permits_come_back() -> None:
    # At 200 steps/s a permit takes 0.5 s. Two of them return after 0.5 s and the round trip.
    assert traffic().share_of_speed(200.0, 0.0) == 1.0
    assert traffic().share_of_speed(200.0, 0.5) == 1.0
    assert traffic().share_of_speed(200.0, 1.5) == 0.5
    assert traffic(num_permits=1).share_of_speed(200.0, 0.5) == 0.5
    assert [traffic().permits_needed(200.0, delay) for delay in (0.0, 0.2, 0.5, 0.6)] == [1, 2, 2, 3]
    for delay in (0.0, 0.3, 0.5, 1.7):
        needed = traffic().permits_needed(200.0, delay)
        assert traffic(num_permits=needed).share_of_speed(200.0, delay) == 1.0
        assert needed == 1 or traffic(num_permits=needed - 1).share_of_speed(200.0, delay) < 1.0


def test_hosts_for_a_wanted_speed_and_the_lag_of_a_round_trip() -> None:
    assert traffic().steps_per_s(200.0) == 42 * 200.0
    assert traffic().steps_per_s(200.0, 1.5) == 2 * 200.0 + 40 * 100.0
    # 2 local workers make 400, a pool 800, or 400 where workers have half their speed.
    assert [traffic().hosts_needed(wanted, 200.0) for wanted in (300.0, 400.0, 401.0, 1200.0, 1201.0)] == [
        0,
        0,
        1,
        1,
        2,
    ]
    assert traffic().hosts_needed(1200.0, 200.0, 1.5) == 2
    # A version in 100 steps, and a publication in 1 s, of which a fifth waits for 0.1 s.
    assert traffic().added_lag(1000.0, 0.2) == pytest.approx(10.0 * (0.2 + 0.2 * 0.1))
    assert traffic().added_lag(1000.0, 0.01) == pytest.approx(0.1, rel=0.01), "few weights wait for others"
    assert traffic().added_lag(1000.0, 1.0) == traffic().added_lag(500.0, 2.0) == pytest.approx(15.0), "all wait"


def test_datasets_that_are_collected_with_fixed_weights_get_no_older() -> None:
    settings = {"cluster": "ray", "num_remote_hosts": 2, "num_envs_per_worker": 4, "batch_size": 16, "rollout": 2}
    sync = Traffic.of(planned(**settings, async_rl=False), BOX, 10)
    assert (sync.versions_per_step, sync.num_permits, sync.permitted_steps) == (0.0, 1, 8)
    assert Traffic.of(planned(**settings, num_epochs=3), BOX, 10).versions_per_step == 3 / 16


def test_what_is_known_of_a_network_is_put_in_words() -> None:
    lines = traffic().describe(1.0, 1500.0, 200.0, 1200.0)
    assert len(lines) == 5
    # 125,000 bytes a second are 2,500 steps/s of pools, which are 40 of 42 workers.
    assert "all workers together make 2,625 steps/s, which the bandwidth limits," in lines[2]
    assert "1 Mbit/s of samples arrive, at most 0.0533 Mbit/s of weights leave" in lines[2]
    assert "at most 1 Mbit/s of weights leave" in traffic(weights_bytes=10**6).describe(1.0, 0.0, 200.0)[2]
    assert "it adds 59.1 versions to the lag" in lines[3]
    assert "50 % of their speed with 2 in flight, and all of it with 4" in lines[3]
    assert lines[4] == "1,200 steps/s need 2 pools of 4 workers"
    assert traffic().describe(1.0, 0.0, 200.0, 9000.0)[3].endswith(", but 1 Mbit/s carry only 2,625")
    sync = traffic(versions_per_step=0.0, num_permits=1).describe(None, 500.0, 200.0)
    assert sync[-1].endswith("reach 50 % of their speed in sync mode, which waits for it; async hides it")
