"""A run that is resumed halfway, beside one that never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from run_helper import assert_same_training, run

from asyncrl.storage import checkpoint
from asyncrl.storage.checkpoint import Checkpoint


def whole_and_resumed(folder: Path, env: str, **settings: Any) -> tuple[Checkpoint, Checkpoint]:
    """The last checkpoints of a serial run, and of one that continues its first checkpoint; their training is the same.

    `settings` make the run save at least twice.
    """
    settings = {"checkpoint_resets": True, "keep_checkpoints": 100, **settings}
    whole = run(folder / "whole", "serial", env, **settings)
    saved = checkpoint.newest_first(folder / "whole" / "checkpoints")
    assert len(saved) > 1
    resumed = run(folder / "resumed", "serial", env, resume_from=saved[-1], **settings)
    has_replay = bool(settings.get("save_replay"))
    first, second = (
        checkpoint.load(Path(str(each.outcome.checkpoint)), with_replay=has_replay) for each in (whole, resumed)
    )
    assert_same_training(first, second)
    return first, second
