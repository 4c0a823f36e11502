"""Bytes of a run on the network, against a case counted by hand."""

from __future__ import annotations

import pytest
from small_runs import BOX, planned

from asyncrl.cluster.traffic import Traffic


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
    assert "8 Mbit/s each way carry" in traffic.describe(8.0)
