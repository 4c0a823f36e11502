"""Comet (`--track=comet`)."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl.observers.trackers import TrackedRunInfo

_LOGGED_BY_COMET_ITSELF = (
    *("log_code", "log_graph", "parse_args", "log_git_metadata", "log_git_patch", "log_env_details"),
    *("auto_output_logging", "auto_param_logging", "auto_metric_logging", "auto_log_co2"),
)


class CometRun:
    """Comet, with the key of `comet login`. Without a server: COMET_START_ONLINE=0, and `comet upload` later."""

    def __init__(self, info: TrackedRunInfo, saved_id: str | None) -> None:
        os.environ.setdefault("COMET_DISABLE_AUTO_LOGGING", "1")  # it would patch PyTorch while that trains
        import comet_ml

        if info.is_quiet:
            logging.getLogger("comet_ml").setLevel(logging.ERROR)
        self.id = saved_id or uuid.uuid4().hex
        nothing_else = dict.fromkeys(_LOGGED_BY_COMET_ITSELF, False)
        self._run = comet_ml.start(
            project_name=info.project,
            experiment_key=self.id,
            mode="get_or_create",
            experiment_config=comet_ml.ExperimentConfig(
                name=info.name, offline_directory=str(info.folder / "comet"), display_summary_level=0, **nothing_else
            ),
        )
        self._run.log_parameters(info.settings)

    def log(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        self._run.log_metrics(dict(scalars), step=env_steps)

    def save(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self._run.log_model(name, str(file))

    def save_video(self, env_steps: int, name: str, file: Path) -> None:
        self._run.log_video(str(file), name=name, step=env_steps)

    def close(self, has_failed: bool) -> None:
        if has_failed:
            self._run.add_tag("failed")
        self._run.end()
