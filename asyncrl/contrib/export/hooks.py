"""Connects export with the core."""

from __future__ import annotations

COMMANDS = {
    "export": ("asyncrl.contrib.export.command", "write a trained policy to one file that runs without asyncrl"),
}
FORMATS = {
    "onnx": ("asyncrl.contrib.export.exported:export_model", ".onnx"),
    "torch_export": ("asyncrl.contrib.export.exported:export_model", ".pt2"),
}
