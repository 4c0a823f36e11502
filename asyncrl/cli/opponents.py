"""What --opponents takes, for --help; without torch, which `asyncrl.cli.playing` needs."""

from __future__ import annotations

from asyncrl.config.hooks import hooks

OPPONENTS = "random, runs and checkpoints" + "".join(
    f", or {name}, which are {what}" for name, (_, what) in hooks("OPPONENTS").items()
)
