"""A policy as one function of tensors, from observations to actions in the environment's form, and as a file of it."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec, ObservationPart, PathKey
from asyncrl.envs.tensors import ChoicesToOneHot, LeafToEnv
from asyncrl.inference.policy import ExportDiffers
from asyncrl.models.activations import tanh_
from asyncrl.models.actor_critic import ForwardResult
from asyncrl.models.distributions import Deterministic, DiagonalGaussian, Joint
from asyncrl.models.encoders import Inputs
from asyncrl.models.factory import ActingModel

ExportFormat = Literal["onnx", "torch_export"]
RTOL, ATOL = 1e-5, 1e-5
"""Largest difference of a distribution's parameters between the policy and its file, in float32."""

_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "torch_export": ()}
_NUM_CHECKED_ROWS = (1, 7)
_INPUT_DTYPES = {"choices": torch.int64, "image": torch.uint8}


class ExportedPolicy(nn.Module):
    """Normalization, one-hot numbers, networks, masks, recurrent state, choice and unit of actions in one module.

    Its arguments are, in this order, the parts of an observation (`[B, *shape]`: images uint8, choices int64, all other
    parts float32), `noise [B, N]` float32, and for a recurrent policy `state [B, S]` float32, zeros where an episode
    begins. It returns the parameters of the action distributions `[B, P]`, the parts of an action in the environment's
    form, and for a recurrent policy the next state.

    With `noise` 0 an action is the most likely one. It is a sample if the columns of `noise` are drawn as `noise_kinds`
    says: from a standard normal distribution for continuous numbers, from a standard Gumbel distribution for choices.

    Attributes:
        input_names, output_names: of arguments and results.
        noise_kinds: `normal` or `gumbel`, and a number of columns, for each part of the distribution.
        num_noise: N.
    """

    def __init__(self, model: ActingModel, spec: EnvSpec, config: TrainConfig) -> None:
        """Copies the model to the CPU. Parts that only the critic sees are not arguments."""
        super().__init__()
        self.model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        if spec.observation.num_floats == 0:  # torch.export.save cannot store the views without elements
            self.model.normalizes_obs = False
        modules: Any = self.model.modules()
        for module in modules:
            if getattr(module, "_activation", None) is tanh_:  # it chooses by the size of the batch
                module._activation = torch.tanh_
        self._spec = spec
        self._visible = spec.observation.without(config.critic_only_keys).parts
        distribution = model.distribution
        self._distributions = distribution.parts if isinstance(distribution, Joint) else [distribution]
        self.noise_kinds = [
            ("gumbel", part.num_logits) if part.num_logits > 0 else ("normal", part.num_stddevs)
            for part in self._distributions
        ]
        self.num_noise = sum(count for _, count in self.noise_kinds)
        self._leaves = [LeafToEnv(leaf, config.action_mapping, torch.device("cpu")) for leaf in spec.action.leaves]
        state = ["state"] if model.rnn_state_size > 0 else []
        observed = [_name("observation", part.path) for part in self._visible]
        acted = [_name("action", path) for path in spec.action.paths]
        self.input_names = [*observed, "noise", *state]
        self.output_names = ["parameters", *acted, *(f"next_{name}" for name in state)]

    def example(self, num_rows: int, generator: np.random.Generator) -> list[Tensor]:
        """Random arguments for B = `num_rows`; one choice of each group is allowed by masks, at least."""
        arguments = []
        for part in self._visible:
            shape = (num_rows, *part.shape)
            if part.kind == "choices":
                choices = np.array(part.starts) + generator.integers(0, part.num_choices, (num_rows, len(part.starts)))
                values: Any = choices.reshape(shape)
            elif part.kind == "image":
                values = generator.integers(0, 256, shape)
            elif part.kind == "numbers":
                values = 3.0 * generator.standard_normal(shape)
            else:
                values = generator.integers(0, 2, shape)
            arguments.append(torch.from_numpy(values).to(_INPUT_DTYPES.get(part.kind, torch.float32)))
        arguments.append(torch.zeros(num_rows, self.num_noise))
        if self.model.rnn_state_size > 0:
            state = generator.uniform(-1.0, 1.0, (num_rows, self.model.rnn_state_size))
            arguments.append(torch.from_numpy(state).to(torch.float32))
        return arguments

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        noise, *state = arguments[len(self._visible) :]
        observed = dict(zip(self._visible, arguments, strict=False))
        floats: list[Tensor] = []
        images: list[Tensor] = []
        for part in self._spec.observation.parts:
            if part not in observed:
                dtype = torch.uint8 if part.kind == "image" else noise.dtype
                hidden = noise.new_zeros((noise.shape[0], part.size), dtype=dtype)  # the actor does not read them
                (images if part.kind == "image" else floats).append(hidden)
            elif part.kind == "image":
                images.append(observed[part].flatten(1))
            else:
                floats.append(_numbers_of(part, observed[part]))
        pixels = torch.cat(images, dim=1) if images else None
        numbers = torch.cat(floats, dim=1) if floats else noise[:, :0]
        inputs = Inputs(self.model.normalize_obs(numbers), pixels)
        before = state[0] if state else noise[:, :0]
        result, after = self.model.step(inputs, before)
        parameters = result.action_parameters if isinstance(result, ForwardResult) else result
        stored = self._choose(parameters, noise)
        columns = torch.split(stored, [leaf.size for leaf in self._spec.action.leaves], dim=1)
        actions = [leaf(own) for leaf, own in zip(self._leaves, columns, strict=True)]
        return (parameters, *actions, *([after] if state else []))

    def _choose(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Actions `[B, A]` float32 as they are stored."""
        chosen = []
        own_parameters = torch.split(parameters, [part.num_parameters for part in self._distributions], dim=1)
        own_noise = torch.split(noise, [count for _, count in self.noise_kinds], dim=1)
        for part, own, drawn in zip(self._distributions, own_parameters, own_noise, strict=True):
            if isinstance(part, DiagonalGaussian):
                mean, log_std = own.chunk(2, dim=1)
                chosen.append(mean + log_std.exp() * drawn)
            elif isinstance(part, Deterministic):
                chosen.append(own)
            else:
                logits = torch.unflatten(own + drawn, 1, (part.num_actions, -1))
                chosen.append(logits.argmax(-1).to(torch.float32))
        return torch.cat(chosen, dim=1)


def export_model(model: ActingModel, spec: EnvSpec, config: TrainConfig, path: Path, format: ExportFormat) -> float:
    """Writes a policy to one file, and compares what the file computes with the policy on random observations.

    Args:
        model: networks and statistics.
        spec: spaces of the environment.
        config: settings of the policy.
        path: the file; an existing one is replaced.
        format: `onnx`, or `torch_export` for `torch.export.load`.

    Returns:
        The largest difference of a parameter of the action distributions.

    Raises:
        UsageError: a package is missing, the file cannot be written, or the model cannot be exported.
        ExportDiffers: the file computes something else.
    """
    _require_packages(format)
    module = ExportedPolicy(model, spec, config).eval()
    generator = np.random.default_rng(0)
    about = {
        "env": config.env_id,
        "inputs": module.input_names,
        "outputs": module.output_names,
        "noise": module.noise_kinds,
        "state_size": model.rnn_state_size,
    }
    batch = torch.export.Dim("batch", min=1)
    arguments = tuple(module.example(3, generator))
    try:
        with torch.no_grad():
            program = torch.export.export(
                module, arguments, dynamic_shapes=(tuple({0: batch} for _ in arguments),), strict=False
            )
    except Exception as error:  # of torch.export, for models with code of a user
        text = str(error).strip().partition("\n")[0]
        raise UsageError(f"The model of this policy cannot be exported: {type(error).__name__}: {text}") from error
    try:
        if format == "onnx":
            _write_onnx(program, module, path, about)
        else:
            content = io.BytesIO()  # given a path, it raises RuntimeError where no file can be written
            torch.export.save(program, content, extra_files={"asyncrl.json": json.dumps(about)})
            path.write_bytes(content.getvalue())
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}.") from error
    return _check(module, path, format, generator)


def _write_onnx(program: Any, module: ExportedPolicy, path: Path, about: dict[str, Any]) -> None:
    import onnx

    exported = torch.onnx.export(
        program, input_names=module.input_names, output_names=module.output_names, dynamo=True, verbose=False
    )
    assert exported is not None
    proto = exported.model_proto
    for name, value in about.items():
        proto.metadata_props.add(key=f"asyncrl.{name}", value=json.dumps(value))
    onnx.save(proto, path)


def _check(module: ExportedPolicy, path: Path, format: ExportFormat, generator: Any) -> float:
    """Runs the file on random observations, and returns the largest difference of a parameter."""
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


def _require_packages(format: ExportFormat) -> None:
    missing = [name for name in _PACKAGES[format] if importlib.util.find_spec(name) is None]
    if missing:
        text = f"--format={format} needs packages that are not installed ({', '.join(missing)})"
        raise UsageError(f'{text}: pip install -e ".[export]"')


def _numbers_of(part: ObservationPart, values: Tensor) -> Tensor:
    """The float32 numbers `[B, size]` of a part that is not an image."""
    flat = values.flatten(1) if part.shape else values.unsqueeze(1)
    if part.kind != "choices":
        return flat.to(torch.float32)
    return ChoicesToOneHot(part, values.device)(values)


def _name(kind: str, path: tuple[PathKey, ...]) -> str:
    return "/".join([kind, *map(str, path)])
