"""What `asyncrl validate` shows of a run with pools."""

from __future__ import annotations

import pytest

from asyncrl.contrib.ray_pools import connection
from asyncrl.validate import main


def test_pools_on_other_machines_are_shown_with_their_traffic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "find_problem", lambda config: None)
    flags = ["--env=CartPole-v1", "--cluster=ray", "--num_remote_hosts=2", "--num_workers=1"]
    assert main([*flags, "--cluster_bandwidth_mbit=100"]) == 0
    shown = {line.partition(":")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "2 of the workers in 2 pools on other machines" in shown["environments"]
    assert "100 Mbit/s each way carry the samples of" in shown["network"]
    assert main([*flags, "--worker_steps_per_s=1000", "--round_trip_ms=10", "--wanted_steps_per_s=9000"]) == 0
    shown = capsys.readouterr().out
    assert "all workers together make 3,000 steps/s" in shown
    assert "a round trip of 10 ms lets remote workers reach" in shown
    assert "9,000 steps/s need 8 pools of 1 workers" in shown
    assert main([*flags, "--wanted_steps_per_s=9000"]) == 2
    assert "need --worker_steps_per_s" in capsys.readouterr().err
    monkeypatch.setattr(connection, "find_problem", lambda config: "nobody is there.")
    assert main(flags) == 2
    assert "nobody is there." in capsys.readouterr().err
