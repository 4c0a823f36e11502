"""The ratings of a run, drawn by `asyncrl plot elo` and in a report."""

import pytest
from plotted_runs import assert_is_drawn, call, numbers, steady, write_run


def test_ratings_of_policy_and_pool_are_drawn(tmp_path, capsys):
    records = [
        {"env_steps": n, "self_play/elo": 1200.0 + n, "self_play/pool_size": 0.0, "rollout/ep_rew_mean": 0.0}
        for n in (100, 200, 300, 400)
    ]
    for record in records[1:]:
        of_pool = {"mean": 1190.0, "min": 1180.0, "max": 1210.0}
        record |= {f"self_play/pool_elo_{name}": value + record["env_steps"] / 2 for name, value in of_pool.items()}
        record["self_play/win_rate"] = 0.75
    path = write_run(tmp_path, "game", records)
    (run,) = numbers(capsys, "elo", path)["runs"]
    assert run["policy"] == {"env_steps": [100.0, 200.0, 300.0, 400.0], "values": [1300.0, 1400.0, 1500.0, 1600.0]}
    assert run["pool_mean"]["values"] == [1290.0, 1340.0, 1390.0]
    assert run["win_rate"] == {"env_steps": [200.0, 300.0, 400.0], "values": [0.75] * 3}
    assert run["file"] == str(path / "plots" / "elo.png")
    assert_is_drawn(path / "plots" / "elo.png", num_colors=2)
    code, _, err = call(capsys, "elo", path, path, f"--out={tmp_path / 'both.png'}")
    assert code == 2 and "is one file, but each of the 2 runs has a figure" in err
    other = steady(tmp_path, "no_pool", 1, 100, 1000)
    code, _, err = call(capsys, "elo", other)
    assert code == 2 and "no_pool has recorded no games against a pool: train with --self_play=True" in err


def test_a_report_has_the_ratings_of_the_runs_that_have_some(tmp_path):
    command = pytest.importorskip("asyncrl.contrib.report.command")
    rating = {"self_play/elo": 1200.0, "self_play/win_rate": 0.5}
    pool = {f"self_play/pool_elo_{name}": 1190.0 for name in ("mean", "min", "max")}
    game = write_run(tmp_path, "game", [{"env_steps": n, **rating, **pool} for n in (100, 200, 300)])
    other = steady(tmp_path, "no_pool", 1, 100, 1000)
    out = tmp_path / "page.html"
    assert command.main([str(game), str(other), f"--out={out}"]) == 0
    assert "Self-play: game" in out.read_text() and "Self-play: no_pool" not in out.read_text()
