"""Acting in NumPy: what `ActorCritic.act` and `SacActor.act` compute, for roles that act on a CPU between steps.

The time of a forward pass over a few dozen observations is mostly the overhead of calls, and simulation evicts the
caches between two passes: directly after 32 steps of HalfCheetah, PyTorch takes 265 microseconds for a pass that takes
51 when it is repeated; this module takes 91.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from asyncrl.buffers.inference_buffer import ActorOutput
from asyncrl.models.activations import ARRAY_ACTIVATIONS
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.encoders import Layers, ObservationEncoder, PartialEncoder
from asyncrl.models.normalized import OBS_CLIP
from asyncrl.models.sac import SacActor, limit_log_std_array
from asyncrl.models.state_dependent import (
    StateDependentActorCritic,
    StateDependentSacActor,
    state_dependent_log_std_array,
)

FloatArray = npt.NDArray[np.float32]
ArrayLayers = list[tuple[FloatArray, FloatArray]]
Columns = slice | list[int]
Encoder = tuple[Columns, ArrayLayers]
CLIP = np.float32(OBS_CLIP)


class ArrayPolicy:
    """Acts with a model on the CPU whose memory it shares, so changes of its parameters in place take effect here.

    Its `runs_in_arrays` must be true, and its parameters must be flat (`FlatParameters`).
    """

    def __init__(self, model: ActorCritic | SacActor, seed: int) -> None:
        self._distribution = model.distribution
        self._normalizes_obs = model.normalizes_obs
        self._activate = ARRAY_ACTIVATIONS[model.nonlinearity]
        self._obs_mean, self._obs_std = array_of(model.obs_mean), array_of(model.obs_std)
        self._generator = np.random.Generator(np.random.SFC64(seed))
        self._no_state = np.empty((0, 0), dtype=np.float32)
        self._is_sac_gaussian = False
        self._critic: Encoder | None = None
        self._value_head: tuple[FloatArray, FloatArray] | None = None
        self._log_std: FloatArray | None = None
        self._mask: slice | None = None
        self._is_state_dependent = isinstance(model, StateDependentActorCritic | StateDependentSacActor)
        if isinstance(model, StateDependentSacActor):
            assert isinstance(model.encoder, ObservationEncoder | PartialEncoder)
            self._actor: Encoder = encoder_of(model.encoder)
            (self._policy_head,) = weights_of(model.array_layers())
            self._log_std = array_of(model.log_std)
            return
        if isinstance(model, SacActor):
            *hidden, self._policy_head = weights_of(model.array_layers())
            self._actor = (slice(None), hidden)
            self._is_sac_gaussian = model.is_gaussian
            return
        self._actor = encoder_of(model.actor)
        self._critic = None if model.critic is None else encoder_of(model.critic)
        self._policy_head, self._value_head = weights_of(model.heads)
        self._log_std = None if model.log_std is None else array_of(model.log_std)
        self._return_mean, self._return_std = array_of(model.return_mean), array_of(model.return_std)
        if model.layout.num_mask:
            self._mask = slice(model.layout.num_features, model.layout.num_floats)

    def act(self, obs: FloatArray, rnn_state: FloatArray | None = None) -> ActorOutput:
        """Draws actions for raw observations `[B, D]`; there is no recurrent state."""
        if self._normalizes_obs:
            obs = obs - self._obs_mean
            obs /= self._obs_std
            np.minimum(obs, CLIP, out=obs)
            np.maximum(obs, -CLIP, out=obs)
        features = self._encode(self._actor, obs)
        weight, bias = self._policy_head
        parameters: FloatArray = np.dot(features, weight)
        parameters += bias
        if self._is_sac_gaussian:
            limit_log_std_array(parameters[:, self._distribution.num_parameters // 2 :])
        else:
            mask, log_std = None if self._mask is None else obs[:, self._mask], self._log_std
            if self._is_state_dependent:
                assert log_std is not None
                log_std = state_dependent_log_std_array(features, log_std)
            parameters = self._distribution.parameter_arrays_of(parameters, log_std, mask)
        action, log_prob = self._distribution.sample_arrays(parameters, self._generator)
        if self._value_head is None:
            return ActorOutput(action, log_prob, action_parameters=parameters, features=features)
        weight, bias = self._value_head
        value: FloatArray = np.dot(features if self._critic is None else self._encode(self._critic, obs), weight[:, 0])
        value += bias
        value *= self._return_std
        value += self._return_mean
        return ActorOutput(action, log_prob, value, parameters, self._no_state, features)

    def _encode(self, encoder: Encoder, obs: FloatArray) -> FloatArray:
        columns, layers = encoder
        features = obs[:, columns]
        for weight, bias in layers:
            features = np.dot(features, weight)
            features += bias
            self._activate(features, features)
        return features


def array_of(tensor: Tensor) -> FloatArray:
    """A view of a tensor on the CPU."""
    array: FloatArray = tensor.detach().numpy()
    return array


def encoder_of(encoder: ObservationEncoder | PartialEncoder) -> Encoder:
    perceptron = encoder.perceptron
    assert perceptron is not None
    columns, layers = perceptron
    return columns, weights_of(layers)


def weights_of(layers: Layers) -> ArrayLayers:
    """Transposed weights `[in, out]` and biases of layers, as views."""
    return [(array_of(weight).T, array_of(bias)) for weight, bias in layers]
