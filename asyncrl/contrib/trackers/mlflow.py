"""MLflow (`--track=mlflow`)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl.observers.trackers import TrackedRunInfo


class MlflowRun:
    """MLflow, at MLFLOW_TRACKING_URI, by default the SQLite file `mlflow.db` in the working directory."""

    def __init__(self, info: TrackedRunInfo, saved_id: str | None) -> None:
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient()
        if saved_id is None:
            found = client.get_experiment_by_name(info.project)
            experiment = client.create_experiment(info.project) if found is None else found.experiment_id
            self.id = client.create_run(experiment, run_name=info.name).info.run_id
            for name, value in info.settings.items():
                client.log_param(self.id, name, value)
        else:
            self.id = saved_id
            client.update_run(self.id, status="RUNNING")
        client.log_dict(self.id, info.settings, "config.yaml")  # parameters cannot change when a run is resumed

    def log(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = time.time_ns() // 1_000_000
        metrics = [Metric(_as_mlflow_name(name), value, now_ms, env_steps) for name, value in scalars.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def save(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self.id, str(file), f"checkpoints/{name}")

    def save_video(self, env_steps: int, name: str, file: Path) -> None:
        self._client.log_artifact(self.id, str(file), "videos")

    def close(self, has_failed: bool) -> None:
        self._client.set_terminated(self.id, "FAILED" if has_failed else "FINISHED")


def _as_mlflow_name(name: str) -> str:
    """A metric's name with `_` for what MLflow refuses: other characters, and parts that no path may have."""
    parts = re.sub(r"[^\w\-. :/]", "_", name).split("/")
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)
