"""Acting in NumPy: what `ActorCritic.act` and `SacActor.act` compute, for roles that act on a CPU between steps.

A forward pass over a few dozen observations is short of everything but calls, and between two of them a simulator has
emptied the caches: right after 32 steps of HalfCheetah, PyTorch takes 265 microseconds for a pass that takes 51 when
repeated, and this module 91. Nothing is trained here, so nothing of PyTorch is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from asyncrl.models.actor_critic import OBS_CLIP, ActorCritic
from asyncrl.models.encoders import ObservationEncoder
from asyncrl.models.sac import SacActor, limit_log_std_array

FloatArray = npt.NDArray[np.float32]
_Layers = tuple[tuple[FloatArray, FloatArray], ...]
_Key = tuple[list[slice], _Layers]
_CLIP = np.float32(OBS_CLIP)


def _tanh(features: FloatArray) -> None:
    np.tanh(features, out=features)


def _relu(features: FloatArray) -> None:
    np.maximum(features, np.float32(0.0), out=features)


def _elu(features: FloatArray) -> None:
    np.expm1(features, out=features, where=features < 0.0)


_ACTIVATIONS: dict[str, Callable[[FloatArray], None]] = {"tanh": _tanh, "relu": _relu, "elu": _elu}
"""By the name in the settings; in place."""


class ArrayActResult(NamedTuple):
    """The arrays of an `asyncrl.models.actor_critic.ActResult`."""

    action: npt.NDArray[np.float32] | npt.NDArray[np.int64]
    log_prob: FloatArray
    value: FloatArray
    action_parameters: FloatArray
    rnn_state: FloatArray


class ArraySacActResult(NamedTuple):
    """The arrays of an `asyncrl.models.sac.SacActResult`."""

    action: npt.NDArray[np.float32] | npt.NDArray[np.int64]
    log_prob: FloatArray
    action_parameters: FloatArray


class _ArrayMlp:
    """What both policies share: observations in the units of the network, and its layers."""

    def __init__(self, model: ActorCritic | SacActor, seed: int) -> None:
        self._distribution = model.distribution
        self._normalizes_obs = model.normalizes_obs
        self._activation = _ACTIVATIONS[model.nonlinearity]
        self._obs_mean, self._obs_std = array_of(model.obs_mean), array_of(model.obs_std)
        self._generator = np.random.Generator(np.random.SFC64(seed))

    def _normalize(self, obs: FloatArray) -> FloatArray:
        obs = obs - self._obs_mean
        obs /= self._obs_std
        np.minimum(obs, _CLIP, out=obs)
        np.maximum(obs, -_CLIP, out=obs)
        return obs

    def _run_mlp(self, layers: _Layers, features: FloatArray) -> FloatArray:
        for weight, bias in layers:
            features = np.dot(features, weight.T)
            features += bias
            self._activation(features)
        return features


class ArrayPolicy(_ArrayMlp):
    """Acts with the parameters and statistics of a model on the CPU, whose memory it shares.

    What the model is given later, in place, this policy has at once.
    """

    def __init__(self, model: ActorCritic, seed: int) -> None:
        """Views the parameters of `model`, which must be flat already (`FlatParameters`)."""
        super().__init__(model, seed)
        self._actor = _keys_of(model.actor)
        self._critic = None if model.critic is None else _keys_of(model.critic)
        layout = model.layout
        self._mask = slice(layout.num_features, layout.num_floats) if layout.num_mask else None
        self._no_state = np.empty((0, 0), dtype=np.float32)
        self._policy_head, self._value_head = _arrays_of(model.heads)
        self._log_std = None if model.log_std is None else array_of(model.log_std)
        self._return_mean, self._return_std = array_of(model.return_mean), array_of(model.return_std)

    def act(self, obs: FloatArray) -> ArrayActResult:
        """Choose actions for raw observations `[B, D]` by drawing from the policy."""
        if self._normalizes_obs:
            obs = self._normalize(obs)
        features = self._run_keys(self._actor, obs)
        mask = None if self._mask is None else obs[:, self._mask]
        weight, bias = self._policy_head
        outputs: FloatArray = np.dot(features, weight.T)
        outputs += bias
        parameters = self._distribution.parameter_arrays_of(outputs, self._log_std, mask)
        action, log_prob = self._distribution.sample_arrays(parameters, self._generator)
        weight, bias = self._value_head
        value = np.dot(features if self._critic is None else self._run_keys(self._critic, obs), weight[0])
        value += bias
        value *= self._return_std
        value += self._return_mean
        return ArrayActResult(action, log_prob, value, parameters, self._no_state)

    def _run_keys(self, keys: list[_Key], obs: FloatArray) -> FloatArray:
        """The features of all keys side by side."""
        if len(keys) == 1:
            places, layers = keys[0]
            return self._run_mlp(layers, obs if self._mask is None else obs[:, places[0]])
        pieces = []
        for places, layers in keys:
            own = obs[:, places[0]] if len(places) == 1 else np.concatenate([obs[:, place] for place in places], axis=1)
            pieces.append(self._run_mlp(layers, own))
        return np.concatenate(pieces, axis=1)


class ArraySacPolicy(_ArrayMlp):
    """The same for SAC's actor, which has no value function beside it."""

    def __init__(self, model: SacActor, seed: int) -> None:
        """Views the parameters of `model`, which must be flat already (`FlatParameters`)."""
        super().__init__(model, seed)
        layers = _arrays_of(model.array_layers)
        self._hidden, self._head = layers[:-1], layers[-1]
        self._is_gaussian = model.is_gaussian

    def act(self, obs: FloatArray) -> ArraySacActResult:
        """Choose actions for raw observations `[B, D]` by drawing from the policy."""
        if self._normalizes_obs:
            obs = self._normalize(obs)
        weight, bias = self._head
        parameters: FloatArray = np.dot(self._run_mlp(self._hidden, obs), weight.T)
        parameters += bias
        if self._is_gaussian:
            limit_log_std_array(parameters[:, self._distribution.num_parameters // 2 :])
        else:
            parameters = self._distribution.parameter_arrays_of(parameters, None)
        action, log_prob = self._distribution.sample_arrays(parameters, self._generator)
        return ArraySacActResult(action, log_prob, parameters)


def runs_in_arrays(model: ActorCritic | SacActor) -> bool:
    """Whether `make_array_policy` knows such a model."""
    return model.has_passes if isinstance(model, SacActor) else model.runs_in_arrays


def make_array_policy(model: ActorCritic | SacActor, seed: int) -> ArrayPolicy | ArraySacPolicy:
    """The policy in NumPy that fits the model."""
    return ArraySacPolicy(model, seed) if isinstance(model, SacActor) else ArrayPolicy(model, seed)


def array_of(tensor: Tensor) -> FloatArray:
    """A view of a tensor on the CPU."""
    array: FloatArray = tensor.detach().numpy()
    return array


def _keys_of(encoder: ObservationEncoder) -> list[_Key]:
    keys = encoder.vector_keys
    assert keys is not None
    return [(places, _arrays_of(layers)) for places, layers in keys]


def _arrays_of(layers: tuple[tuple[Tensor, Tensor], ...]) -> _Layers:
    return tuple((array_of(weight), array_of(bias)) for weight, bias in layers)
