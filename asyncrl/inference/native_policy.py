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
        # Held, so that the addresses stay valid if the model exchanges its statistics.
        self._statistics = model.obs_mean, model.obs_std, model.return_mean, model.return_std
        obs_mean, obs_std, return_mean, return_std = (tensor.data_ptr() for tensor in self._statistics)
        self._request = native.Request(
            num_floats=model.layout.num_floats,
            obs_mean=obs_mean if model.normalizes_obs else None,
            obs_std=obs_std if model.normalizes_obs else None,
            obs_clip=OBS_CLIP,
            return_mean=return_mean,
            return_std=return_std,
        )
        self._answer = ActorOutput(np.empty(0))

    def act(self, obs: FloatArray, rnn_state: FloatArray | None = None) -> ActorOutput:
        """Samples actions for raw observations `[B, D]`; the next call overwrites the answer."""
        request = self._request
        if len(obs) != request.num_rows:
            self._prepare(len(obs))
        if obs.dtype != np.float32 or not obs.flags.c_contiguous:
            obs = np.ascontiguousarray(obs, dtype=np.float32)
        draw = self._generator.standard_exponential if self._is_categorical else self._generator.standard_normal
        draw(out=self._noise, dtype=np.float32)
        request.row_stride, request.obs = obs.shape[1], obs.__array_interface__["data"][0]
        self._kernels.act(self._described.record, request, self._scratch_address)
        return self._answer

    def _prepare(self, num_rows: int) -> None:
        """Allocates the memory for so many rows."""
        request, record = self._request, self._described.record
        size = self._kernels.scratch_size(record, num_rows) + num_rows * request.num_floats
        self._scratch = np.empty(size, np.float32)
        self._scratch_address = self._scratch.ctypes.data
        self._noise = np.empty((num_rows, self._num_actions), np.float32)
        action = np.empty(num_rows, np.int64) if self._is_categorical else np.empty_like(self._noise)
        log_prob, value = np.empty(num_rows, np.float32), np.empty(num_rows, np.float32)
        parameters = np.empty((num_rows, self._num_parameters), np.float32)
        self._answer = ActorOutput(action, log_prob, value, parameters, np.empty((0, 0), np.float32))
        request.num_rows = num_rows
        request.noise, request.action, request.parameters = (x.ctypes.data for x in (self._noise, action, parameters))
        request.log_prob, request.value = log_prob.ctypes.data, value.ctypes.data
