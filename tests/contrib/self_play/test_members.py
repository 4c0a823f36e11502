"""Matches against the members of a run's pool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bit_players import checkpoint_of

from asyncrl.evaluate import main
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.run_folder import MARKER

pytest.importorskip("asyncrl.contrib.matches")


def test_the_policy_plays_all_members_of_its_runs_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, env = tmp_path / "run", "agent_envs:take_turns"
    own = checkpoint_of(run / "checkpoints", env, True)
    (run / MARKER).touch()
    assert main([f"--checkpoint={own}", "--opponents=pool"]) == 2
    assert "has no pool of self-play: it needs --self_play=True" in capsys.readouterr().err
    for env_steps, names_the_bit in ((1000, False), (2000, True)):
        member = checkpoints.load(checkpoint_of(tmp_path / "made", env, names_the_bit))
        checkpoints.save(run / "self_play", member, env_steps, keep=None)
    assert main([f"--checkpoint={own}", "--opponents=pool", "--episodes=5", "--json"]) == 0
    matches = json.loads(capsys.readouterr().out)["matches"]
    assert [(each["opponent"], each["agent"], each["won"]) for each in matches] == [
        ("pool 2,000", "first", 5), ("pool 2,000", "second", 0),
        ("pool 1,000", "first", 5), ("pool 1,000", "second", 5),
    ]  # fmt: skip
    assert main([f"--checkpoint={checkpoint_of(tmp_path / 'alone', env, True)}", "--opponents=pool"]) == 2
    assert "is in no run's folder, so there is no pool of self-play" in capsys.readouterr().err
