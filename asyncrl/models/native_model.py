"""A model as the native core sees it: records that point into the memory of its tensors on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl import native
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.distributions import FORBIDDEN, LOG_STD_RANGE, Categorical, DiagonalGaussian
from asyncrl.models.encoders import ObservationEncoder, PartialEncoder


class NativeModel:
    """Keeps what the record points to alive.

    Attributes:
        record: for the functions of `asyncrl.native.Kernels`.
    """

    @staticmethod
    def fits(model: ActorCritic) -> bool:
        """Whether the native core knows the networks and the distribution."""
        if not model.has_passes or type(model.distribution) not in (DiagonalGaussian, Categorical):
            return False
        perceptrons = (encoder.perceptron for encoder in (model.actor, model.critic) if encoder is not None)
        return all(found is not None and len(found[1]) <= native.MOST_LAYERS for found in perceptrons)

    def __init__(self, model: ActorCritic) -> None:
        """Describes a model that fits and whose parameters are flat (`FlatParameters`), perhaps without gradients."""
        self._referenced: list[object] = [model]  # and the tensors themselves, which a model may exchange
        self._referenced += [*model.parameters(), *(parameter.grad for parameter in model.parameters())]
        gaussian = model.distribution if isinstance(model.distribution, DiagonalGaussian) else None
        policy_head, value_head = (_layer(*layer) for layer in model.heads)
        log_std, layout = model.log_std, model.layout
        self.record = native.Model(
            actor=self._encoder(model.actor),
            critic=native.Encoder() if model.critic is None else self._encoder(model.critic),
            policy_head=policy_head,
            value_head=value_head,
            log_std=_address(log_std),
            log_std_gradient=None if log_std is None else _address(log_std.grad),
            has_critic=model.critic is not None,
            activation=native.ACTIVATIONS.index(model.nonlinearity),
            distribution=native.DISTRIBUTIONS.index("categorical" if gaussian is None else "gaussian"),
            num_actions=model.distribution.num_parameters if gaussian is None else gaussian.num_actions,
            mask_column=layout.num_features if layout.num_mask else -1,
            lowest_log_std=LOG_STD_RANGE[0],
            highest_log_std=LOG_STD_RANGE[1],
            forbidden_logit=FORBIDDEN,
        )

    def _encoder(self, encoder: ObservationEncoder | PartialEncoder) -> native.Encoder:
        assert encoder.perceptron is not None
        columns, layers = encoder.perceptron
        described = (native.Layer * max(1, len(layers)))(*(_layer(*layer) for layer in layers))
        indices = None if isinstance(columns, slice) else torch.tensor(columns, dtype=torch.int64)
        self._referenced += [described, indices]
        first = (columns.start or 0) if isinstance(columns, slice) else 0
        return native.Encoder(
            layers=described,
            columns=_address(indices),
            num_layers=len(layers),
            first_column=first,
            num_inputs=columns.stop - first if isinstance(columns, slice) else len(columns),
        )


def _layer(weight: Tensor, bias: Tensor) -> native.Layer:
    assert weight.is_contiguous()
    memory = _address(weight), _address(bias), _address(weight.grad), _address(bias.grad)
    return native.Layer(*memory, weight.shape[1], weight.shape[0])


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
