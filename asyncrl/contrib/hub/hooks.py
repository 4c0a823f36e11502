"""Connects the Hub with the core."""

from __future__ import annotations

COMMANDS = {
    "push": ("asyncrl.contrib.hub.push", "upload a run to the Hugging Face Hub"),
    "pull": ("asyncrl.contrib.hub.pull", "download a run from the Hugging Face Hub"),
}
LOCATIONS = {"hf://": "asyncrl.contrib.hub.repository:fetch_without_code"}
