"""`asyncrl export`: writes a trained policy to one file that runs without asyncrl.

    asyncrl export RUN --format=onnx

The file takes observations and returns actions, both in the environment's form: `asyncrl.contrib.export.exported` has
all inputs and outputs. It is checked against the policy before the command ends.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeInt

from asyncrl.commands.run_argument import RunCommand, RunOptions
from asyncrl.commands.runner import print_error
from asyncrl.config.flags import option
from asyncrl.config.hooks import hooks
from asyncrl.config.value_types import GivenPath
from asyncrl.storage.locating import find_given_checkpoint

_FORMATS = hooks("FORMATS")
if TYPE_CHECKING:
    _Format = str
else:
    _Format = Literal[tuple(_FORMATS)]


class _Options(RunOptions):
    checkpoint: str = option(
        "newest",
        "newest or best of the run, a checkpoint's name in it, or the path of a checkpoint, which needs no RUN "
        "[default newest]",
    )
    policy: NonNegativeInt = option(0, "which of several policies [default 0]")
    format: _Format = option("onnx", "onnx (needs the extra export) or torch_export [default onnx]")
    out: GivenPath | None = option(None, "the file [default policy.onnx or policy.pt2 in the working directory]")


class _Export(RunCommand[_Options]):
    """Its exit code is 1 if file and policy differ."""

    usage = "asyncrl export RUN"
    description = (
        "Write a trained policy to one file that runs without asyncrl. RUN is a run's folder, its name in train_dir, "
        "hf://user/name, or a checkpoint's folder."
    )
    examples = (
        "asyncrl export my_run --checkpoint=best",
        "asyncrl export train_dir/my_run/checkpoints/best --format=torch_export --out=policy.pt2",
    )
    model = _Options

    def run(self, options: _Options) -> int:
        path = find_given_checkpoint(options.named_run, options.checkpoint, options.train_dir, options.policy)
        out = options.out or Path(f"policy{_FORMATS[options.format][1]}")

        # Imports torch, which takes a second: mistakes of the user are reported before.
        from asyncrl.inference.policy import ExportDiffers, load_policy

        policy = load_policy(path)
        logging.disable(logging.WARNING)  # of torch and onnx: they are not about the policy
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                difference = policy.export(out, options.format)
        except ExportDiffers as error:
            print_error(error)
            return 1
        finally:
            logging.disable(logging.NOTSET)
        print(f"{policy.config.env}: {path} -> {out}; largest difference of a parameter {difference:.1e}")
        print("With noise 0 the file's actions are the deterministic ones.", flush=True)
        return 0


main = _Export().main
