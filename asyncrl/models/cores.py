"""Recurrent cores, between the encoder's features and the heads.

The state of one environment is one row of numbers: the layers' hidden states, followed by the cells of an LSTM. It is
zero at the beginning of an episode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from asyncrl.config.schema import TrainConfig
from asyncrl.models.encoders import Inputs
from asyncrl.models.precision import without_autocast


def unroll_after(encoder: Any, core: Any, inputs: Inputs, state: Tensor, begins: Tensor, burn_in: int = 0) -> Tensor:
    """Features `[(T - burn_in) * B, out]` of sequences of T rows, of which the first only change the state.

    No gradient flows into those rows (burn-in, Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed
    Reinforcement Learning", section 3).

    Args:
        encoder: from `Inputs` to features.
        core: with the methods of `RecurrentCore`.
        inputs: normalized observations of T * B rows, in the order of `[T, B]`.
        state: [B, S], before the first row.
        begins: [T, B] bool, rows that begin an episode.
        burn_in: rows that only change the state.
    """
    num_columns = begins.shape[1]
    if not torch.is_grad_enabled():
        features = unrolled(core, encoder(inputs).unflatten(0, begins.shape), state, begins)
        return features[burn_in:].flatten(0, 1)
    if burn_in > 0:
        with torch.no_grad():
            first = encoder(inputs.slice(0, burn_in * num_columns)).unflatten(0, (burn_in, num_columns))
            state = _state_after(core, first, state, begins)
    features = encoder(inputs.slice(burn_in * num_columns)).unflatten(0, (-1, num_columns))
    return unrolled(core, features, state, begins[burn_in:]).flatten(0, 1)


def unrolled(core: Any, features: Tensor, state: Tensor, begins: Tensor, *room: int) -> Tensor:
    """`core.unroll` in the precision of `state`, as in rollouts; `room` is only for `RecurrentCore`."""
    with without_autocast(features):
        output: Tensor = core.unroll(features.to(state), state, begins, *room)
    return output


def _state_after(core: Any, features: Tensor, state: Tensor, begins: Tensor) -> Tensor:
    """The state `[B, S]` after all rows of `features: [T, B, in]`, in the precision of `state`."""
    with without_autocast(features):
        for row, has_begun in zip(features.to(state), begins, strict=False):
            _, state = core.step(row, state.masked_fill(has_begun.unsqueeze(-1), 0.0))
    return state


class RecurrentCore(nn.Module):
    """A GRU or LSTM.

    Under autocast it stays in float32: in a narrower format its rounding errors would add up over a sequence, and
    autocast runs a recurrent layer of cuDNN in float16.

    Attributes:
        state_size: numbers of one environment's state.
        output_size: features of one row.
    """

    def __init__(self, input_size: int, config: TrainConfig) -> None:
        super().__init__()
        self._is_lstm = config.rnn_type == "lstm"
        self._num_layers = config.rnn_num_layers
        kind = nn.LSTM if self._is_lstm else nn.GRU
        self.rnn = kind(input_size, config.rnn_size, config.rnn_num_layers)
        self.output_size = config.rnn_size
        self.state_size = config.rnn_state_size_of_core
        if config.policy_initialization == "orthogonal":
            for name, parameter in self.rnn.named_parameters():
                if "weight" in name:
                    nn.init.orthogonal_(parameter)
                else:
                    nn.init.zeros_(parameter)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One row: from features `[B, in]` and states `[B, S]` to features `[B, out]` and the next states."""
        output, after = self.rnn(features.unsqueeze(0), self._unpack(state))
        return output[0], self._pack(after)

    def unroll(self, features: Tensor, state: Tensor, begins: Tensor, num_pieces: int = 0) -> Tensor:
        """Whole sequences: equals repeated calls of `step` with the state set to zero where an episode begins.

        Pieces between such rows are separate sequences of one packed batch, or with `num_pieces` of one padded batch.

        Args:
            features: [T, B, in]; the result is [T, B, out].
            state: [B, S], before the first row.
            begins: [T, B] bool, rows that begin an episode.
            num_pieces: room for pieces, at least B plus the rows of `begins` but the first. With it no shape depends
                on where episodes end, and the host reads nothing.
        """
        if torch.is_autocast_enabled(features.device.type):
            with without_autocast(features):
                return self.unroll(features.float(), state, begins, num_pieces)
        if num_pieces > 0:
            return self._unroll_padded(features, state, begins, num_pieces)
        num_rows, num_columns = begins.shape
        if not bool(begins.any()):
            whole, _ = self.rnn(features, self._unpack(state))
            return whole  # type: ignore[no-any-return]
        starts = begins.clone()
        starts[0] = True
        column, row = starts.t().nonzero(as_tuple=True)  # pieces in the order of columns, then of rows
        following = torch.cat((column[1:], column.new_full((1,), -1)))
        next_row = torch.cat((row[1:], row.new_zeros(1)))
        length = torch.where(following == column, next_row, num_rows) - row
        length, order = length.sort(descending=True, stable=True)
        column, row = column[order], row[order]
        # A packed sequence holds, for each t, row t of every piece that is longer than t, longest first.
        offset = torch.arange(int(length[0]), device=features.device)
        has_row = offset.unsqueeze(1) < length
        source = ((row + offset.unsqueeze(1)) * num_columns + column)[has_row]
        fresh = begins[row, column].unsqueeze(1)
        initial = state.index_select(0, column).masked_fill(fresh, 0.0)
        packed = PackedSequence(features.flatten(0, 1).index_select(0, source), has_row.sum(1).cpu())
        result, _ = self.rnn(packed, self._unpack(initial))
        back = torch.empty_like(source)
        back[source] = torch.arange(len(source), device=source.device)
        output: Tensor = result.data.index_select(0, back)
        return output.view(num_rows, num_columns, -1)

    def _unroll_padded(self, features: Tensor, state: Tensor, begins: Tensor, num_pieces: int) -> Tensor:
        """`unroll` with every piece filled up to T rows: T times as many numbers, but as few steps in a row."""
        num_rows, num_columns = begins.shape
        starts = begins.clone()
        starts[0] = True
        piece = (starts.t().flatten().cumsum(0) - 1).view(num_columns, num_rows).t()
        row = torch.arange(num_rows, device=begins.device).unsqueeze(1)
        offset = row - torch.where(starts, row, 0).cummax(0).values
        place = (offset * num_pieces + piece).flatten()
        padded = features.new_zeros(num_rows * num_pieces, features.shape[-1])
        padded = padded.index_copy(0, place, features.flatten(0, 1)).view(num_rows, num_pieces, -1)
        # Only the first piece of a column continues an episode.
        initial = state.new_zeros(num_pieces, state.shape[-1])
        initial = initial.index_copy(0, piece[0], state.masked_fill(begins[0].unsqueeze(1), 0.0))
        result, _ = self.rnn(padded, self._unpack(initial))
        output: Tensor = result.flatten(0, 1).index_select(0, place)
        return output.view(num_rows, num_columns, -1)

    def _unpack(self, state: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        layers = torch.unflatten(state, -1, (-1, self.output_size)).transpose(0, 1).contiguous()
        return (layers[: self._num_layers], layers[self._num_layers :]) if self._is_lstm else layers

    def _pack(self, state: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        layers = torch.cat(state) if isinstance(state, tuple) else state
        return layers.transpose(0, 1).flatten(1)
