"""A policy that answers requests for actions with the newest weights.

Rollout workers (local inference) and inference workers (central) act through this class.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asyncrl import native
from asyncrl.buffers.inference_buffer import ActorOutput, InferenceBuffer
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.inference.device_acting import DeviceActor, Part
from asyncrl.inference.native_policy import NativePolicy
from asyncrl.models.activations import ARRAY_ACTIVATIONS
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.arrays import Encoder, FloatArray, array_of
from asyncrl.models.cuda_graph import Compile
from asyncrl.models.exploration import Exploration
from asyncrl.models.factory import ActingModel
from asyncrl.models.flat import FlatParameters, block_size, read_block
from asyncrl.models.native_model import NativeModel
from asyncrl.models.normalized import OBS_CLIP
from asyncrl.models.sac import SacActor
from asyncrl.models.uniform import UniformPolicy
from asyncrl.observers.reports import Phase, PhaseTimer
from asyncrl.processes.own_settings import own_settings

CLIP = np.float32(OBS_CLIP)
Act = Callable[[npt.NDArray[Any], npt.NDArray[Any]], ActorOutput]
"""From observations `[B, row_size]` and recurrent states `[B, S]` to the policy's results."""


class ActingPolicy:
    """One process's copy of the policy.

    It moves `model` to `device`, takes published parameters from `weights`, and reads observations from and writes
    actions to `buffer`. `seed` is for drawing actions; `exploration` adds noise to them.

    Attributes:
        model: on its device; its parameters are flat.
        version: policy version of the weights in use, -1 before the first.
    """

    def __init__(
        self,
        model: ActingModel,
        weights: WeightsChannel,
        buffer: InferenceBuffer,
        device: torch.device,
        seed: int,
        phases: PhaseTimer | None = None,
        compile: Compile = "auto",
        exploration: Exploration | None = None,
    ) -> None:
        self.model = model.to(device).eval()
        self._flat = FlatParameters(self.model, with_grad=False)
        self._block = torch.empty(block_size(self.model))
        self._device = device
        self._reads_on_device = False
        self._weights = weights
        self._phases = phases or PhaseTimer()
        self._buffer = buffer
        self._exploration = exploration
        self._buffers: list[npt.NDArray[Any]] = []
        self._publication = 0
        self.version = -1
        self._device_actor = None if device.type == "cpu" else DeviceActor(self.model, device, seed, compile)
        self._act: Act = _act_on_host(self.model, seed) if self._device_actor is None else self._device_actor.act
        self._act_untrained = self._act
        if isinstance(model, SacActor):
            # Until the first update, actions are drawn from the whole range.
            uniform = UniformPolicy(model.distribution, seed, model.layout).act
            self._act_untrained = uniform if model.rnn_state_size == 0 else self._act_uniformly(uniform)

    def answer(self, places: Sequence[tuple[int, int]]) -> None:
        """Runs the newest policy on rows of observations and writes the results where the splits read them.

        Args:
            places: of each split in the batch, see `InferenceBuffer`.

        Raises:
            RuntimeError: no weights were ever published.
        """
        self.refresh()
        self._phases.charge(Phase.FETCH)
        buffer, num_envs = self._buffer, self._buffer.num_envs
        parts = [buffer.inputs_at(place) for place in places]
        if self._device_actor is not None:
            obs, state = self._device_actor.gather(parts)
        else:
            obs, state = parts[0] if len(parts) == 1 else self._gather(parts)
        self._phases.charge(Phase.GATHER)
        with own_settings():
            result = self._act(obs, state) if self.version > 0 else self._act_untrained(obs, state)
            if self._exploration is not None:
                result = self._exploration.apply(places, result)
        self._phases.charge(Phase.FORWARD)
        now = time.monotonic()
        for position, place in enumerate(places):
            envs = slice(position * num_envs, (position + 1) * num_envs)
            buffer.answer(place, envs, result, self.version, now)
        self._phases.charge(Phase.COPY)

    def _act_uniformly(self, uniform: Act) -> Act:
        """A function that draws actions uniformly, with the states of the policy."""
        return lambda obs, state: uniform(obs, state)._replace(rnn_state=self._act(obs, state).rnn_state)

    def refresh(self) -> bool:
        """Takes the newest weights; returns whether there were newer ones.

        Raises:
            RuntimeError: no weights were ever published.
        """
        if self._publication == 0 and self._weights.num_publications > 0 and self._weights.open_on_device(self._device):
            self._reads_on_device = True
            self._block = self._block.to(self._device)
        news = self._weights.read(self._block if self._reads_on_device else self._block.numpy(), self._publication)
        if news is not None:
            self._publication, self.version = news.number, news.version
            read_block(self.model, self._flat, self._block)
        elif self.version < 0:
            raise RuntimeError("asked to act before any weights were published")
        return news is not None

    def act(self, obs: npt.NDArray[Any], state: npt.NDArray[Any]) -> ActorOutput:
        """Results for B observations, with the weights of the last `refresh`; the next call may overwrite them.

        On an accelerator it pads B to a power of two, so that there are few batch sizes.
        """
        if self._device_actor is None:
            return self._act(obs, state)
        num_rows = len(obs)
        padded = np.minimum(np.arange(1 << (num_rows - 1).bit_length()), num_rows - 1)
        result = self._device_actor.act(*self._device_actor.gather([(obs[padded], state[padded])]))
        return ActorOutput(*(field[:num_rows] for field in result))

    def pop_warning(self) -> str | None:
        """A warning for the user about how the policy runs, once."""
        return None if self._device_actor is None else self._device_actor.pop_warning()

    def _gather(self, parts: Sequence[Part]) -> Part:
        size = sum(len(obs) for obs, _ in parts)
        if not self._buffers or size > len(self._buffers[0]):
            self._buffers = [np.empty((size, field.shape[1]), dtype=field.dtype) for field in parts[0]]
        obs, state = (buffer[:size] for buffer in self._buffers)
        for fields, target in zip(zip(*parts, strict=True), (obs, state), strict=True):
            np.concatenate(fields, out=target)
        return obs, state


class ArrayPolicy:
    """Computes what `act` of a model on the CPU does, in NumPy. It shares the model's memory and follows its changes.

    The time of a forward pass over a few dozen observations is mostly the overhead of calls, and simulation evicts the
    caches between two passes: directly after 32 steps of HalfCheetah, PyTorch takes 265 microseconds for a pass that
    takes 51 when it is repeated; this class takes 91.

    Its `runs_in_arrays` must be true, and its parameters must be flat (`FlatParameters`).
    """

    def __init__(self, model: ActingModel, seed: int) -> None:
        self._distribution = model.distribution
        self._normalizes_obs = model.normalizes_obs
        self._activate = ARRAY_ACTIVATIONS[model.nonlinearity]
        self._obs_mean, self._obs_std = array_of(model.obs_mean), array_of(model.obs_std)
        self._networks = model.array_networks()
        self._generator = np.random.Generator(np.random.SFC64(seed))
        self._no_state = np.empty((0, 0), dtype=np.float32)

    def act(self, obs: FloatArray, rnn_state: FloatArray | None = None) -> ActorOutput:
        """Samples actions for raw observations `[B, D]`; there is no recurrent state."""
        if self._normalizes_obs:
            obs = obs - self._obs_mean
            obs /= self._obs_std
            np.minimum(obs, CLIP, out=obs)
            np.maximum(obs, -CLIP, out=obs)
        actor, (weight, bias), parameters_of, critic = self._networks
        features = self._encode(actor, obs)
        outputs: FloatArray = np.dot(features, weight)
        outputs += bias
        parameters = parameters_of(outputs, features, obs)
        action, log_prob = self._distribution.sample_arrays(parameters, self._generator)
        if critic is None:
            return ActorOutput(action, log_prob, action_parameters=parameters, features=features)
        weight, bias = critic.head
        value: FloatArray = np.dot(
            features if critic.encoder is None else self._encode(critic.encoder, obs), weight[:, 0]
        )
        value += bias
        value *= critic.return_std
        value += critic.return_mean
        return ActorOutput(action, log_prob, value, parameters, self._no_state, features)

    def _encode(self, encoder: Encoder, obs: FloatArray) -> FloatArray:
        columns, layers = encoder
        features = obs[:, columns]
        for weight, bias in layers:
            features = np.dot(features, weight)
            features += bias
            self._activate(features, features)
        return features


def make_act(model: ActingModel, device: torch.device, seed: int) -> Act:
    """A function that acts with a model on `device` whose parameters are flat; their changes in place take effect."""
    if device.type == "cpu":
        return _act_on_host(model, seed)
    actor = DeviceActor(model, device, seed, compile="off")

    def act(obs: npt.NDArray[Any], state: npt.NDArray[Any]) -> ActorOutput:
        with eval_mode(model):
            return actor.act(*actor.gather([(obs, state)]))

    return act


@contextlib.contextmanager
def eval_mode(model: ActingModel) -> Iterator[None]:
    """Without what a user's network does in training mode only, such as dropout; leaves all modes as they were."""
    in_training = [module for module in model.modules() if module.training] if model.training else []
    for module in in_training:
        module.training = False
    try:
        yield
    finally:
        for module in in_training:
            module.training = True


def _act_on_host(model: ActingModel, seed: int) -> Act:
    """Acts in C or NumPy if `NativePolicy` or `ArrayPolicy` knows the networks, otherwise in PyTorch."""
    kernels = native.kernels()
    if kernels is not None and type(model) is ActorCritic and NativeModel.fits(model):
        return NativePolicy(kernels, model, seed).act
    if model.runs_in_arrays:
        return ArrayPolicy(model, seed).act
    generator = torch.Generator().manual_seed(seed)

    def act(obs: npt.NDArray[Any], state: npt.NDArray[Any]) -> ActorOutput:
        with eval_mode(model):
            result = model.act_in_training(torch.from_numpy(obs), generator, torch.from_numpy(state))
        return ActorOutput(**{name: tensor.numpy() for name, tensor in result.items()})

    return act
