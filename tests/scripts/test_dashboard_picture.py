"""`scripts/dashboard_picture.py` draws the dashboard of a run from the files in its folder."""

from __future__ import annotations

import json
from pathlib import Path

import dashboard_picture

from asyncrl.config.schema import OF_ONE_START, TrainConfig
from asyncrl.config.settings import dump_mapping


def test_the_picture_shows_the_last_record_that_covers_a_whole_interval(tmp_path: Path) -> None:
    config = TrainConfig(env="CartPole-v1", train_for_env_steps=100_000)
    (tmp_path / "config.yaml").write_text(dump_mapping(config.model_dump(mode="json", exclude=set(OF_ONE_START))))
    (tmp_path / "environment.json").write_text(json.dumps({"machine": {"usable_cores": 2}}))
    records = [
        {
            "env_steps": 20_000 * idx,
            "time/time_elapsed": 5.0 * idx,
            "time/fps": 4_000.0 if idx > 1 else None,
            "rollout/ep_rew_mean": 100.0 * idx,
            "perf/cores_in_use": 1.75,
            "profile/learner/wait_for_samples": 0.625,
            "train/approx_kl": 0.25,
        }
        for idx in range(1, 5)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    dashboard_picture.main([str(tmp_path), str(tmp_path / "picture.svg"), "--width=120", "--height=36"])
    text = (tmp_path / "picture.svg").read_text(encoding="utf-8").replace("&#160;", " ")
    expected = ("60,000 of 100,000 steps (60.0 %), 15 s elapsed, 10 s left", "300.0", "4,000 steps/s", "KL divergence")
    assert [part for part in (*expected, "1.8 of 2", "learner wait for samples", "62%") if part not in text] == []
