"""Observations as environments give them, to and from rows of numbers (`asyncrl.envs.spec.ObservationLayout`).

`ObservationWriter` checks what an environment gave before it writes it, and says whether numbers are finite.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from asyncrl.envs.spec import FLOAT_BYTES, ObservationLayout, ObservationPart, Path

FloatArray = npt.NDArray[np.float32]


class ObservationMismatch(ValueError):
    """An observation is not what its space promised."""


class ObservationCodec:
    """Writes observations into rows and reads them back."""

    def __init__(self, layout: ObservationLayout) -> None:
        """Takes the layout of the rows."""
        self._layout = layout
        self._parts = list(zip(layout.parts, layout.places, strict=True))
        self._choices_of = {part.path: _Choices(part) for part in layout.parts if part.kind == "choices"}

    def write(self, observation: Any, row: npt.NDArray[Any]) -> None:
        """Writes one observation into `row [row_size]`.

        Raises:
            ObservationMismatch: a part is missing, or has a shape or a choice that its space does not have.
        """
        self._write(observation, row[np.newaxis], ())

    def write_batch(self, observations: Any, rows: npt.NDArray[Any]) -> None:
        """Writes the observations of E environments as a vectorized environment gives them, `[E, ...]` each part.

        Args:
            observations: an array, or arrays nested as the space is.
            rows: [E, row_size], to write to.

        Raises:
            ObservationMismatch: a part is missing, or has a shape or a choice that its space does not have.
        """
        self._write(observations, rows, (len(rows),))

    def batch_size(self, observations: Any) -> int | None:
        """How many observations these are, by the first of their parts; None for one that is not in a batch."""
        part = self._layout.parts[0]
        shape = np.shape(_leaf(observations, part))
        return shape[0] if len(shape) == len(part.shape) + 1 else None

    def read(self, row: npt.NDArray[Any]) -> Any:
        """The observation that `row [row_size]` holds, with the dtypes of its space."""
        floats, pixels = split_rows(self._layout, row[np.newaxis])
        values = {}
        for part, place in self._parts:
            if part.kind == "choices":
                chosen = self._choices_of[part.path].read(floats[0, place])
                values[part.path] = chosen.reshape(part.shape).astype(part.dtype)
            else:
                source = pixels if part.kind == "image" else floats
                values[part.path] = source[0, place].reshape(part.shape).astype(part.dtype)
        return nest(values)

    def _write(self, observation: Any, rows: npt.NDArray[Any], batch: tuple[int, ...]) -> None:
        floats, pixels = split_rows(self._layout, rows)
        for part, place in self._parts:
            values = np.asarray(_leaf(observation, part))
            if values.shape != (*batch, *part.shape):
                raise ObservationMismatch(
                    f"{part.name} has shape {values.shape}, its space says {(*batch, *part.shape)}"
                )
            if part.kind == "choices":
                one_hot = floats[:, place]
                one_hot[...] = 0.0
                positions = self._choices_of[part.path].positions(values.reshape(len(rows), -1))
                np.put_along_axis(one_hot, positions, 1.0, axis=1)
            else:
                target: npt.NDArray[Any] = pixels if part.kind == "image" else floats
                # Numbers may be rounded to float32; a byte would keep the last 8 bits of a larger integer.
                casting: Literal["safe", "same_kind"] = "safe" if part.kind == "image" else "same_kind"
                if not np.can_cast(values.dtype, target.dtype, casting):
                    raise ObservationMismatch(f"{part.name} has dtype {values.dtype}, its space says {part.dtype}")
                if part.kind == "flags" and ((values != 0) & (values != 1)).any():
                    raise ObservationMismatch(f"{part.name} is {values.tolist()}, its space has only 0 and 1")
                target[:, place] = values.reshape(len(rows), -1)


class _Choices:
    """Turns the choices of one part into one-hot numbers, those of its elements side by side, and back."""

    def __init__(self, part: ObservationPart) -> None:
        self._part = part
        self._first = np.array(part.starts)
        self._last = self._first + np.array(part.num_choices) - 1
        self._offsets = np.cumsum((0, *part.num_choices[:-1])) - self._first

    def positions(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Where the ones of choices `[B, elements]` are.

        Raises:
            ObservationMismatch: one of them is no integer, or none of its element's choices.
        """
        if values.dtype.kind in "biu":
            choices = values.astype(np.int64)
            wrong = (choices < self._first) | (choices > self._last)
        elif values.dtype.kind == "f":
            with np.errstate(invalid="ignore"):  # NaN and infinity become some integer, which differs from them
                choices = values.astype(np.int64)
            wrong = (choices != values) | (choices < self._first) | (choices > self._last)
        else:
            raise ObservationMismatch(f"{self._part.name} has dtype {values.dtype}, its space says {self._part.dtype}")
        if wrong.any():
            env, element = np.argwhere(wrong)[0]
            where = f" at position {element}" if len(self._first) > 1 else ""
            allowed = f"{self._first[element]} to {self._last[element]}"
            raise ObservationMismatch(
                f"{self._part.name} has {values[env, element]}{where}, its space the integers {allowed}"
            )
        positions: npt.NDArray[np.int64] = choices + self._offsets
        return positions

    def read(self, one_hot: FloatArray) -> npt.NDArray[np.int64]:
        """The choices whose ones are in `one_hot`."""
        choices: npt.NDArray[np.int64] = np.flatnonzero(one_hot) - self._offsets
        return choices


def split_rows(layout: ObservationLayout, rows: npt.NDArray[Any]) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
    """Views of rows `[B, row_size]`: the float32 numbers `[B, F]`, and the bytes of images `[B, pixels]`."""
    if not layout.num_pixels:
        return rows, np.empty((len(rows), 0), dtype=np.uint8)
    num_bytes = FLOAT_BYTES * layout.num_floats
    return rows[:, :num_bytes].view(np.float32), rows[:, num_bytes : num_bytes + layout.num_pixels]


def nest(values: dict[Path, Any]) -> Any:
    """Dicts and tuples from leaves by their paths; the leaf itself where its path is empty."""
    if () in values:
        return values[()]
    inner: dict[Any, dict[Path, Any]] = {}
    for path, value in values.items():
        inner.setdefault(path[0], {})[path[1:]] = value
    nested = {key: nest(rest) for key, rest in inner.items()}
    return tuple(nested[key] for key in sorted(nested)) if isinstance(next(iter(nested)), int) else nested


def one_of_batch(batch: Any, env: int) -> Any:
    """One environment's part of a batch: an array of objects, or arrays nested as the space is."""
    if isinstance(batch, dict):
        return {key: one_of_batch(inner, env) for key, inner in batch.items()}
    if isinstance(batch, tuple):
        return tuple(one_of_batch(inner, env) for inner in batch)
    return batch[env]


def _leaf(observation: Any, part: ObservationPart) -> Any:
    for key in part.path:
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ObservationMismatch(f"{part.name} is not in the observation") from error
    return observation


class ObservationWriter:
    """Writes the observations of one environment, or of several as a vectorized one gives them.

    Attributes:
        shape, dtype: of an observation that is the row itself and can be assigned to it without a further look; `dtype`
            is None where there are none, and another one from the spaces' where another was found to fit.
        warning: what there is to say of a dtype that is not the promised one, once for each, until it is taken.
    """

    def __init__(self, layout: ObservationLayout) -> None:
        """Takes the layout of the rows."""
        self._layout = layout
        self._codec = ObservationCodec(layout)
        self._promised = layout.parts[0].dtype
        self.shape = layout.parts[0].shape
        self.dtype: np.dtype[Any] | None = np.dtype(self._promised) if layout.is_vector else None
        self._seen = {self._promised}
        self.warning: str | None = None

    def write(self, obs: Any, row: npt.NDArray[Any]) -> None:
        """Writes one observation into `row [row_size]`.

        Raises:
            ObservationMismatch: it is not what its space promises.
        """
        try:
            if self.dtype is None:
                self._codec.write(obs, row)
            else:
                row[:] = self._fitting(obs, row.dtype)
        except (ValueError, TypeError, IndexError) as error:
            raise ObservationMismatch(str(error)) from error

    def write_batch(self, obs: Any, rows: npt.NDArray[Any]) -> None:
        """Writes the observations of E environments into `rows [E, row_size]`.

        Raises:
            ObservationMismatch: they are not what their space promises.
        """
        try:
            self._codec.write_batch(obs, rows)
        except (ValueError, TypeError, IndexError) as error:
            raise ObservationMismatch(str(error)) from error

    def floats(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The numbers of rows `[E, row_size]`, as a view: all but the bytes of images."""
        return split_rows(self._layout, rows)[0]

    def _fitting(self, obs: Any, stored: np.dtype[Any]) -> npt.NDArray[Any]:
        try:
            array = np.asarray(obs)
        except ValueError:  # lists of different lengths
            raise ObservationMismatch(f"a {type(obs).__name__} that is no array") from None
        if array.shape != self.shape or not np.can_cast(array.dtype, stored, "same_kind"):
            raise ObservationMismatch(
                f"shape {array.shape} and dtype {array.dtype}, but its observation_space promises shape {self.shape} "
                f"and dtype {self._promised}"
            )
        if isinstance(obs, np.ndarray):
            self.dtype = array.dtype
            if array.dtype.name not in self._seen:
                self._seen.add(array.dtype.name)
                self.warning = (
                    f"of {array.dtype.name}, but its observation_space says {self._promised}: they are converted"
                )
        return array


def is_surely_finite(numbers: npt.NDArray[Any]) -> bool:
    """Whether all numbers are finite, in one pass; False also for some beyond 1e19, which need a closer look.

    An infinity or a NaN makes the sum of squares one. For 32 rows of 17 numbers this takes half of the time of a sum,
    and less than half of that of `isfinite`.
    """
    return math.isfinite(np.vdot(numbers, numbers))


def describe_not_finite(numbers: npt.NDArray[Any]) -> str:
    """Which of the numbers is the first that is not finite, and what it is."""
    if numbers.ndim == 0:
        return str(numbers)
    (places,) = np.nonzero(~np.isfinite(numbers))
    return f"element {places[0]} is {numbers[places[0]]}"
