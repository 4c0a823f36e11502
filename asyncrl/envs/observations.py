"""Converts observations of environments to rows of numbers (`asyncrl.envs.spec.ObservationLayout`) and back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from asyncrl.envs.spec import (
    FLOAT_BYTES,
    Action,
    BoxAction,
    LeafAction,
    ObservationLayout,
    ObservationPart,
    Path,
)

FloatArray = npt.NDArray[np.float32]


class ObservationMismatch(ValueError):
    """An observation does not fit its space."""


class ObservationCodec:
    """Writes observations to rows and reads them back. Checks every observation before it is written.

    Attributes:
        shape, dtype: of an observation that is the row itself, so it can be assigned without a check; `dtype` is None
            if the space is not a Box of one dimension. It changes when an array of another dtype fits the row.
        warning: text about an array of an unexpected dtype, once for each dtype; the reader sets it to None.
    """

    def __init__(self, layout: ObservationLayout, unread: Collection[str] = ()) -> None:
        """Parts that a key in `unread` names need not be in an observation, and are never written to a row."""
        self._layout = layout
        parts = zip(layout.parts, layout.places, strict=True)
        self._parts = [(part, place) for part, place in parts if not part.is_in(unread)]
        self._choices_of = {part.path: _Choices(part) for part in layout.parts if part.kind == "choices"}
        self.shape = layout.parts[0].shape
        self.dtype: np.dtype[Any] | None = np.dtype(layout.parts[0].dtype) if layout.is_vector else None
        self._known_dtypes = {layout.parts[0].dtype}
        self.warning: str | None = None

    def write(self, observation: Any, row: npt.NDArray[Any]) -> None:
        """Writes one observation to `row [row_size]`.

        Raises:
            ObservationMismatch: a part is missing, or its shape, dtype or values do not fit the space.
        """
        if self.dtype is None:
            self._write_parts(observation, row[np.newaxis], ())
            return
        space_dtype = self._layout.parts[0].dtype
        try:
            array = np.asarray(observation)
        except (ValueError, TypeError):  # such as lists of different lengths
            raise ObservationMismatch(f"a {type(observation).__name__} that is not an array") from None
        if array.shape != self.shape or not np.can_cast(array.dtype, row.dtype, "same_kind"):
            raise ObservationMismatch(
                f"shape {array.shape} and dtype {array.dtype}, but its space promises shape {self.shape} and dtype "
                f"{space_dtype}"
            )
        store_rounded(row, array)
        if isinstance(observation, np.ndarray):
            self.dtype = array.dtype
            if array.dtype.name not in self._known_dtypes:
                self._known_dtypes.add(array.dtype.name)
                self.warning = (
                    f"of {array.dtype.name}, but its observation_space says {space_dtype}: they are converted"
                )

    def write_batch(self, observations: Any, rows: npt.NDArray[Any]) -> None:
        """Writes the observations of E environments.

        Args:
            observations: an array, or arrays nested like the space, each `[E, ...]`.
            rows: [E, row_size], where they are written.
        """
        self._write_parts(observations, rows, (len(rows),))

    def batch_size(self, observations: Any) -> int | None:
        """Number of observations by the shape of their first part; None for one observation without a batch axis."""
        part = self._parts[0][0]
        shape = np.shape(leaf_of(observations, part))
        return shape[0] if len(shape) == len(part.shape) + 1 else None

    def read(self, row: npt.NDArray[Any]) -> Any:
        """The observation in `row [row_size]`, with the dtypes of its space."""
        floats, pixels = split_rows(self._layout, row[np.newaxis])
        values = {}
        for part, place in self._parts:
            source = pixels if part.kind == "image" else floats
            numbers = source[0, place] if part.kind != "choices" else self._choices_of[part.path].read(floats[0, place])
            values[part.path] = numbers.reshape(part.shape).astype(part.dtype)
        return nest(values)

    def floats(self, rows: npt.NDArray[Any]) -> FloatArray:
        """View of the float32 numbers `[E, F]` of rows `[E, row_size]`, without the bytes of images."""
        return split_rows(self._layout, rows)[0]

    def _write_parts(self, observation: Any, rows: npt.NDArray[Any], batch: tuple[int, ...]) -> None:
        floats, pixels = split_rows(self._layout, rows)
        try:
            for part, place in self._parts:
                values = np.asarray(leaf_of(observation, part))
                expected = (*batch, *part.shape)
                if values.shape != expected:
                    said = f"for a batch of {batch[0]} it must have" if batch else "its space says"
                    raise ObservationMismatch(f"{part.name} has shape {values.shape}, {said} {expected}")
                flat = values.reshape(len(rows), -1)
                if part.kind == "choices":
                    one_hot = floats[:, place]
                    one_hot[...] = 0.0
                    np.put_along_axis(one_hot, self._choices_of[part.path].positions(flat), 1.0, axis=1)
                    continue
                target: npt.NDArray[Any] = pixels if part.kind == "image" else floats
                # Numbers may be rounded to float32; a byte would keep only the last 8 bits of a larger integer.
                casting: Literal["safe", "same_kind"] = "safe" if part.kind == "image" else "same_kind"
                if not np.can_cast(values.dtype, target.dtype, casting):
                    raise ObservationMismatch(f"{part.name} has dtype {values.dtype}, its space says {part.dtype}")
                if part.kind == "flags" and ((values != 0) & (values != 1)).any():
                    raise ObservationMismatch(f"{part.name} is {values.tolist()}, its space has only 0 and 1")
                store_rounded(target[:, place], flat)
        except ObservationMismatch:
            raise
        except (ValueError, TypeError, IndexError) as error:
            raise ObservationMismatch(str(error)) from error


def store_rounded(target: npt.NDArray[Any], values: npt.ArrayLike) -> None:
    """Writes numbers as the dtype of `target`, also where a user's module lets NumPy raise for too small ones."""
    try:
        target[...] = values
    except FloatingPointError:
        with np.errstate(all="ignore"):
            target[...] = values


class _Choices:
    """Converts the choices of one part to one-hot numbers, those of its elements one after the other, and back."""

    def __init__(self, part: ObservationPart) -> None:
        self._part = part
        self._first = np.array(part.starts)
        self._last = self._first + np.array(part.num_choices) - 1
        self._offsets = np.cumsum((0, *part.num_choices[:-1])) - self._first

    def positions(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Positions of the ones for choices `[B, elements]`, which may be integers stored as floats."""
        if values.dtype.kind not in "biuf":
            raise ObservationMismatch(f"{self._part.name} has dtype {values.dtype}, its space says {self._part.dtype}")
        with np.errstate(invalid="ignore"):  # NaN and infinity become an integer that differs from them
            choices = values.astype(np.int64)
        wrong = (choices != values) | (choices < self._first) | (choices > self._last)
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
        choices: npt.NDArray[np.int64] = np.flatnonzero(one_hot) - self._offsets
        return choices


def split_rows(layout: ObservationLayout, rows: npt.NDArray[Any]) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
    """Views of rows `[B, row_size]`: the float32 numbers `[B, F]`, and the bytes of images `[B, pixels]`."""
    if not layout.num_pixels:
        return rows, np.empty((len(rows), 0), dtype=np.uint8)
    num_bytes = FLOAT_BYTES * layout.num_floats
    return rows[:, :num_bytes].view(np.float32), rows[:, num_bytes : num_bytes + layout.num_pixels]


def nest(values: dict[Path, Any]) -> Any:
    """Dicts and tuples from leaves by their paths; the leaf itself if its path is empty."""
    if () in values:
        return values[()]
    inner: dict[Any, dict[Path, Any]] = {}
    for path, value in values.items():
        inner.setdefault(path[0], {})[path[1:]] = value
    nested = {key: nest(rest) for key, rest in inner.items()}
    return tuple(nested[key] for key in sorted(nested)) if isinstance(next(iter(nested)), int) else nested


def space_text(space: ObservationLayout | Action) -> str:
    """A space as Gymnasium writes it; the bounds of observed numbers are not known, and are left out."""
    if isinstance(space, ObservationLayout):
        return _nested_text(nest({part.path: _leaf_text(part) for part in space.parts}))
    return _nested_text(nest(dict(zip(space.paths, map(_leaf_text, space.leaves), strict=True))))


def _nested_text(texts: Any) -> str:
    if isinstance(texts, tuple):
        return f"Tuple({', '.join(map(_nested_text, texts))})"
    if isinstance(texts, dict):
        return f"Dict({', '.join(f'{key!r}: {_nested_text(inner)}' for key, inner in texts.items())})"
    return str(texts)


def _leaf_text(leaf: ObservationPart | LeafAction) -> str:
    if isinstance(leaf, BoxAction):
        low, high = (each[0] if len(set(each)) == 1 else [*each] for each in (leaf.low, leaf.high))
        return f"Box({low}, {high}, {leaf.shape}, {leaf.dtype})"
    if isinstance(leaf, ObservationPart) and leaf.kind == "flags":
        return f"MultiBinary({leaf.shape[0] if len(leaf.shape) == 1 else leaf.shape})"
    if not leaf.num_choices:
        return f"Box({'0, 255, ' if leaf.dtype == 'uint8' else ''}{leaf.shape}, {leaf.dtype})"
    if leaf.shape == ():
        start = f", start={leaf.starts[0]}" if leaf.starts[0] else ""
        return f"Discrete({leaf.num_choices[0]}{start})"
    return f"MultiDiscrete([{' '.join(map(str, leaf.num_choices))}])"


def one_of_batch(batch: Any, env: int) -> Any:
    """One environment's part of a batch: an array of objects, or arrays nested like the space."""
    if isinstance(batch, dict):
        return {key: one_of_batch(inner, env) for key, inner in batch.items()}
    if isinstance(batch, tuple):
        return tuple(one_of_batch(inner, env) for inner in batch)
    return batch[env]


def leaf_of(observation: Any, part: ObservationPart) -> Any:
    """The part of an observation at its path."""
    for key in part.path:
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ObservationMismatch(f"{part.name} is not in the observation") from error
    return observation
