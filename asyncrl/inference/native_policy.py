"""Acting in C (`asyncrl.native`): what `ArrayPolicy` computes, in one call."""

from __future__ import annotations

import numpy as np

from asyncrl import native
from asyncrl.buffers.inference_buffer import ActorOutput
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.arrays import FloatArray
from asyncrl.models.distributions import Categorical
from asyncrl.models.native_model import NativeModel
from asyncrl.models.normalized import OBS_CLIP


class NativePolicy:
    """Acts with a model on the CPU whose memory it shares, so changes of its parameters in place take effect here."""

    def __init__(self, kernels: native.Kernels, model: ActorCritic, seed: int) -> None:
        """Prepares for a model that `NativeModel.fits`, and whose parameters are flat (`FlatParameters`)."""
        self._kernels, self._described = kernels, NativeModel(model)
        self._is_categorical = isinstance(model.distribution, Categorical)
        self._num_actions, self._num_parameters = self._described.record.num_actions, model.distribution.num_parameters
        self._generator = np.random.Generator(np.random.SFC64(seed))
        self._no_state = np.empty((0, 0), dtype=np.float32)
        self._request = native.Request(
            num_floats=model.layout.num_floats,
            obs_mean=model.obs_mean.data_ptr() if model.normalizes_obs else None,
            obs_std=model.obs_std.data_ptr() if model.normalizes_obs else None,
            obs_clip=OBS_CLIP,
            return_mean=model.return_mean.data_ptr(),
            return_std=model.return_std.data_ptr(),
        )
        self._scratch = np.empty(0, dtype=np.float32)

    def act(self, obs: FloatArray, rnn_state: FloatArray | None = None) -> ActorOutput:
        """Samples actions for raw observations `[B, D]`; there is no recurrent state."""
        obs = np.ascontiguousarray(obs, dtype=np.float32)
        num_rows, request, shape = len(obs), self._request, (len(obs), self._num_actions)
        if num_rows != request.num_rows:
            size = self._kernels.scratch_size(self._described.record, num_rows) + num_rows * request.num_floats
            self._scratch = np.empty(size, dtype=np.float32)
        if self._is_categorical:
            noise = self._generator.standard_exponential(shape, dtype=np.float32)
            action = np.empty(num_rows, dtype=np.int64)
        else:
            noise = self._generator.standard_normal(shape, dtype=np.float32)
            action = np.empty(shape, dtype=np.float32)
        log_prob, value = np.empty(num_rows, dtype=np.float32), np.empty(num_rows, dtype=np.float32)
        parameters = np.empty((num_rows, self._num_parameters), dtype=np.float32)
        request.num_rows, request.row_stride = num_rows, obs.shape[1]
        request.obs, request.noise, request.action = obs.ctypes.data, noise.ctypes.data, action.ctypes.data
        request.log_prob, request.value = log_prob.ctypes.data, value.ctypes.data
        request.parameters = parameters.ctypes.data
        self._kernels.act(self._described.record, request, self._scratch.ctypes.data)
        return ActorOutput(action, log_prob, value, parameters, self._no_state)
