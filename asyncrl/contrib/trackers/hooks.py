"""Connects the trackers with the core."""

from __future__ import annotations

TRACKERS = {
    "mlflow": ("asyncrl.contrib.trackers.mlflow:MlflowRun", "mlflow"),
    "trackio": ("asyncrl.contrib.trackers.trackio:TrackioRun", "trackio"),
    "comet": ("asyncrl.contrib.trackers.comet:CometRun", "comet_ml"),
}
