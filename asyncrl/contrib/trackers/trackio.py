"""Trackio (`--track=trackio`)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl.observers.trackers import TrackedRunInfo


class TrackioRun:
    """Trackio, in TRACKIO_DIR on this machine unless its own variables name a Space or a server.

    It finds a run again by its name, so the name ends with a random part.
    """

    def __init__(self, info: TrackedRunInfo, saved_id: str | None) -> None:
        import trackio

        self.id = saved_id or f"{info.name}-{uuid.uuid4().hex[:8]}"
        is_new = saved_id is None
        self._run = trackio.init(
            project=info.project, name=self.id, config=info.settings, resume="never" if is_new else "must", embed=False
        )

    def log(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=env_steps)

    def save(self, name: str, files: Sequence[Path]) -> None:
        import trackio

        artifact = trackio.Artifact(f"{self.id}-{name}", type="model")
        for file in files:
            artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def save_video(self, env_steps: int, name: str, file: Path) -> None:
        import trackio

        self._run.log({name: trackio.Video(str(file))}, step=env_steps)

    def close(self, has_failed: bool) -> None:
        self._run.finish()
