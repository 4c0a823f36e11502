"""`python -m asyncrl.export`: writes a trained policy to one file that runs without asyncrl.

    python -m asyncrl.export --experiment=NAME --format=onnx

The file takes observations and returns actions, both in the environment's form: `asyncrl.models.exported` has all
inputs and outputs. It is checked against the policy before the command ends.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, NonNegativeInt

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import format_help, option, option_flags, parse_options, split_flags
from asyncrl.runtime import checkpoint as checkpoints
from asyncrl.runtime.locating import TRAIN_DIR, find_checkpoint, find_checkpoint_of, find_run
from asyncrl.runtime.reader import run_for_a_reader

if TYPE_CHECKING:
    from asyncrl.models.exported import ExportedPolicy
    from asyncrl.policy import Policy

Format = Literal["onnx", "torch_export"]

RTOL, ATOL = 1e-5, 1e-5
"""Largest difference of a distribution's parameters between the policy and its file, in float32."""

_SUFFIXES = {"onnx": ".onnx", "torch_export": ".pt2"}
_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "torch_export": ()}
_NUM_CHECKED_ROWS = (1, 7)
_DESCRIPTION = "Write a trained policy to one file that runs without asyncrl."
_EXAMPLES = (
    "python -m asyncrl.export --experiment=my_run --checkpoint=best",
    "python -m asyncrl.export --checkpoint=train_dir/my_run/checkpoints/best --format=torch_export --out=policy.pt2",
)


class _Options(BaseModel):
    experiment: str | None = option(None, "run, by its name in train_dir or by its folder's path")
    train_dir: str = option(TRAIN_DIR, "folder that holds all runs [default train_dir]")
    checkpoint: str = option(
        "newest",
        "newest or best of the run, a checkpoint's name in it, or the path of a checkpoint or a run, which needs no "
        "--experiment [default newest]",
    )
    policy: NonNegativeInt = option(0, "which of several policies [default 0]")
    format: Format = option("onnx", "onnx (needs the extra export) or torch_export [default onnx]")
    out: Path | None = option(None, "the file [default policy.onnx or policy.pt2 in the working directory]")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 2 for a user's mistake, 1 if file and policy differ."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    flags = option_flags(_Options)
    if {"--help", "-h"} & set(arguments):
        print(format_help("python -m asyncrl.export --experiment=NAME", _DESCRIPTION, {}, flags, _EXAMPLES))
        return 0
    texts, wrong = split_flags(arguments, {}, flags)
    options, refused = parse_options(_Options, texts)
    problems = [problem.text for problem in wrong] + refused
    try:
        if options is None or problems:
            raise UsageError("\nerror: ".join(problems))
        _require_packages(options.format)
        path = _find_checkpoint(options)
        out = options.out or Path(f"policy{_SUFFIXES[options.format]}")

        from asyncrl.policy import load_policy

        policy = load_policy(path)
        difference = export_policy(policy, out, options.format)
    except (UsageError, checkpoints.CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ExportDiffers as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{policy.config.env}: {path} -> {out}; largest difference of a parameter {difference:.1e}", flush=True)
    return 0


class ExportDiffers(Exception):
    """A file was written, but does not compute what the policy computes."""


def export_policy(policy: Policy, path: str | Path, format: Format = "onnx") -> float:
    """Writes a policy to one file, and compares what the file computes with the policy on random observations.

    Args:
        policy: of `asyncrl.load_policy`.
        path: the file; an existing one is replaced.
        format: `onnx`, or `torch_export` for `torch.export.load`.

    Returns:
        The largest difference of a parameter of the action distributions.

    Raises:
        UsageError: a package is missing, the file cannot be written, or the model cannot be exported.
        ExportDiffers: the file computes something else.
    """
    import numpy as np
    import torch

    from asyncrl.models.exported import ExportedPolicy

    _require_packages(format)
    path = Path(path)
    module = ExportedPolicy(policy.model, policy.spec, policy.config.action_mapping).eval()
    generator = np.random.default_rng(0)
    batch = torch.export.Dim("batch", min=1)
    arguments = tuple(module.example(3, generator))
    try:
        with torch.no_grad():
            program = torch.export.export(
                module, arguments, dynamic_shapes=(tuple({0: batch} for _ in arguments),), strict=False
            )
    except Exception as error:  # of torch.export, for models with code of a user
        text = str(error).strip().splitlines()[0]
        raise UsageError(f"The model of this policy cannot be exported: {type(error).__name__}: {text}") from error
    about = {
        "env": policy.config.env_id,
        "inputs": module.input_names,
        "outputs": module.output_names,
        "noise": module.noise_kinds,
        "state_size": policy.model.rnn_state_size,
    }
    try:
        if format == "onnx":
            _write_onnx(program, module, path, about)
        else:
            torch.export.save(program, path, extra_files={"asyncrl.json": json.dumps(about)})
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}.") from error
    return _check(module, path, format, generator)


def _write_onnx(program: Any, module: ExportedPolicy, path: Path, about: dict[str, Any]) -> None:
    import onnx
    import torch

    exported = torch.onnx.export(
        program, input_names=module.input_names, output_names=module.output_names, dynamo=True, verbose=False
    )
    assert exported is not None
    proto = exported.model_proto
    for name, value in about.items():
        proto.metadata_props.add(key=f"asyncrl.{name}", value=json.dumps(value))
    onnx.save(proto, path)


def _check(module: ExportedPolicy, path: Path, format: Format, generator: Any) -> float:
    """Runs the file on random observations, and returns the largest difference of a parameter."""
    import numpy as np
    import torch

    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    else:
        loaded = torch.export.load(path).module()
    largest = 0.0
    for num_rows in _NUM_CHECKED_ROWS:
        arguments = module.example(num_rows, generator)
        with torch.no_grad():
            expected = [result.numpy() for result in module(*arguments)]
            if format == "onnx":
                feed = {name: value.numpy() for name, value in zip(module.input_names, arguments, strict=True)}
                found = session.run(None, {each.name: feed[each.name] for each in session.get_inputs()})
            else:
                found = [result.numpy() for result in loaded(*arguments)]
        largest = max(largest, float(np.abs(found[0] - expected[0]).max()))
        if not np.allclose(found[0], expected[0], rtol=RTOL, atol=ATOL):
            raise ExportDiffers(f"{path} differs from the policy: a parameter of an action by {largest:.1e}.")
    return largest


def _require_packages(format: Format) -> None:
    missing = [name for name in _PACKAGES[format] if importlib.util.find_spec(name) is None]
    if missing:
        text = f"--format={format} needs packages that are not installed ({', '.join(missing)})"
        raise UsageError(f'{text}: pip install -e ".[export]"')


def _find_checkpoint(options: _Options) -> Path:
    named, run = options.checkpoint, options.experiment
    if named not in ("newest", "best"):
        if run is None or Path(named).exists():
            return find_checkpoint(named, train_dir=options.train_dir, policy_idx=options.policy)
        return find_checkpoint_of(find_run(run, options.train_dir), named, options.policy)
    if run is None:
        raise UsageError("No run was given: give --experiment=NAME (of a run in --train_dir), or --checkpoint=PATH.")
    return find_checkpoint(run, named, options.train_dir, options.policy)


if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))
