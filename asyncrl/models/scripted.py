"""A policy as a TorchScript file, called as the files that RSL-RL writes: `policy(observation)` returns the action."""

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_NUM_STEPS = 3  # of the check: a recurrent state needs more than one


class ScriptedPolicy(nn.Module):
    """Takes observations `[B, *shape]` and returns the most likely actions `[B, *shape]`, in the environment's form.

    A recurrent state is inside. `reset` begins an episode in all rows, and so does a batch of another size.
    """

    state: Tensor

    def __init__(self, step: Callable[..., Any], num_noise: int, state_size: int) -> None:
        """Takes a traced function of observation, noise and state `[B, S]`, which returns action and next state."""
        super().__init__()
        self.step = step
        self.num_noise = num_noise
        self.register_buffer("state", torch.zeros(1, state_size))

    def forward(self, observation: Tensor) -> Tensor:
        rows = observation.shape[0]
        if self.state.shape[0] != rows:
            self.state = torch.zeros(rows, self.state.shape[1])
        noise = torch.zeros(rows, self.num_noise)
        result: tuple[Tensor, Tensor] = self.step(observation, noise, self.state)
        self.state = result[1]
        return result[0]

    @torch.jit.export
    def reset(self) -> None:
        self.state = torch.zeros_like(self.state)


class _Step(nn.Module):
    """The arguments and results of one step, the same with and without a recurrent state."""

    def __init__(self, policy: nn.Module, has_state: bool) -> None:
        super().__init__()
        self._policy, self._has_state = policy, has_state

    def forward(self, observation: Tensor, noise: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if not self._has_state:
            _, action = self._policy(observation, noise)
            return action, state
        _, action, after = self._policy(observation, noise, state)
        return action, after


def write_scripted(policy: nn.Module, example: list[Tensor], has_state: bool, path: Path, about: Any) -> None:
    """Writes a policy of one observation and one action.

    Args:
        policy: takes observation, noise, and perhaps a state; returns parameters, action, and perhaps the next state.
        example: such arguments.
        has_state: whether there is a state.
        path: the file.
        about: its extra file `asyncrl.json`.
    """
    observation, noise, *state = example
    given = (observation, noise, state[0] if has_state else noise[:, :0])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # PyTorch recommends `torch.export`, the format torch_export
        step = torch.jit.trace(_Step(policy, has_state).eval(), given, check_trace=False)  # type: ignore[no-untyped-call]
        scripted = torch.jit.script(ScriptedPolicy(step, noise.shape[1], given[2].shape[1]))
        content = io.BytesIO()
        torch.jit.save(scripted, content, _extra_files={"asyncrl.json": json.dumps(about)})
    path.write_bytes(content.getvalue())


def largest_difference(policy: nn.Module, examples: list[list[Tensor]], has_state: bool, path: Path) -> float:
    """The largest difference of an action between a policy and its file, in a few steps from each example.

    It is relative to the action, but absolute where that is small; infinite if shape or dtype differ.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        loaded = torch.jit.load(path)  # type: ignore[no-untyped-call]
        largest = 0.0
        for observation, noise, *state in examples:
            after = [torch.zeros_like(each) for each in state]
            loaded.reset()
            for _ in range(_NUM_STEPS if has_state else 1):
                _, expected, *after = policy(observation, noise, *after)
                found = loaded(observation)
                if found.dtype != expected.dtype or found.shape != expected.shape:
                    return float("inf")
                difference = (found.double() - expected.double()).abs() / (1.0 + expected.double().abs())
                largest = max(largest, float(difference.max()))
    return largest
