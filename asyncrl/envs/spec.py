"""What the roles need to know of an environment's spaces, as plain data that crosses processes as JSON.

One observation, however nested, is one row of numbers: in shared memory, in datasets and in replays it is an array
`[..., row_size]` of `row_dtype`, and only environments (`asyncrl.envs.observations`) and models
(`asyncrl.models.encoders`) look inside. A row without images is float32. One with images is bytes: the float32 numbers
first, then the images as they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

PathKey = str | int
Path = tuple[PathKey, ...]
"""Where a leaf lies in nested spaces: keys of Dict, positions in Tuple; empty for a space that is not nested."""

PartKind = Literal["numbers", "choices", "flags", "image", "mask"]
Channels = Literal["first", "last"]
"""Whether an image's channels are before its height and width or behind them."""
FLOAT_BYTES = 4
_SMALLEST_IMAGE = 8


@dataclass(frozen=True)
class ObservationPart:
    """One leaf of the observation space.

    Attributes:
        path: where it lies.
        kind: numbers, normalized by running statistics; choices, each stored as one-hot numbers; flags, stored as 0
            and 1; an image of bytes; or the mask that says which actions are allowed.
        shape, dtype: as the environment gives it.
        num_choices: choices of each element, for choices.
        starts: what the environment calls each element's first choice.
        channels: where an array of three or four axes has its channels, if it is an image.
    """

    path: Path
    kind: PartKind
    shape: tuple[int, ...]
    dtype: str
    num_choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    channels: Channels = "last"

    @property
    def size(self) -> int:
        """Elements of a row that it takes."""
        return sum(self.num_choices) if self.kind == "choices" else math.prod(self.shape)

    @property
    def has_pixels(self) -> bool:
        """Whether it is to be looked at by convolutions: bytes, or numbers in the shape of an image."""
        return self.kind == "image" or (self.kind == "numbers" and has_shape_of_image(self.shape, self.channels))

    @property
    def name(self) -> str:
        """Its path for a person."""
        return "/".join(map(str, self.path)) or "observation"

    def __str__(self) -> str:
        channels = f" channels {self.channels}" if self.has_pixels and len(self.shape) > 2 else ""
        name = f"{self.name} " if self.path else ""
        return f"{name}{self.kind} {self.shape} {self.dtype}{channels}"


def find_channels(shape: tuple[int, ...]) -> Channels:
    """Where the channels of an image of three axes, or of a stack of such, are.

    Two neighbouring axes of one size are height and width; if all three are of one size, channels are last. If no
    neighbours are of one size, channels are the smaller end, the last one of two equal ends.
    """
    if len(shape) < 3 or shape[-3] == shape[-2]:
        return "last"
    return "first" if shape[-2] == shape[-1] or shape[-3] < shape[-1] else "last"


def has_shape_of_image(shape: tuple[int, ...], channels: Channels) -> bool:
    """Whether an array may be an image: [H, W], with channels before or behind, or a stack of such with channels."""
    if len(shape) not in (2, 3, 4):
        return False
    return min(image_size(shape, channels)) >= _SMALLEST_IMAGE


def image_size(shape: tuple[int, ...], channels: Channels) -> tuple[int, int]:
    """Height and width of an image."""
    *_, height, width = image_axes(shape, channels)
    return shape[height], shape[width]


def image_axes(shape: tuple[int, ...], channels: Channels) -> tuple[int, ...]:
    """Order in which the axes of an image become channels (all other axes), height, width."""
    axes = tuple(range(len(shape)))
    if len(shape) == 2 or channels == "first":
        return axes
    return (*axes[:-3], axes[-1], axes[-3], axes[-2])


@dataclass(frozen=True)
class ObservationLayout:
    """The row that an observation becomes.

    Attributes:
        parts: all leaves, in the order of the space, the mask last.
    """

    parts: tuple[ObservationPart, ...]

    @cached_property
    def is_vector(self) -> bool:
        """Whether the environment's observation is the row itself: a Box of one dimension, not nested."""
        part = self.parts[0]
        return len(self.parts) == 1 and part.kind == "numbers" and len(part.shape) == 1 and part.path == ()

    @cached_property
    def num_features(self) -> int:
        """Float32 numbers that a model sees."""
        return sum(part.size for part in self.parts if part.kind not in ("image", "mask"))

    @cached_property
    def num_mask(self) -> int:
        """Float32 numbers behind them that say which choices are allowed."""
        return sum(part.size for part in self.parts if part.kind == "mask")

    @property
    def num_floats(self) -> int:
        """Float32 numbers of a row."""
        return self.num_features + self.num_mask

    @cached_property
    def num_pixels(self) -> int:
        """Bytes of images behind the numbers."""
        return sum(part.size for part in self.parts if part.kind == "image")

    @property
    def has_images(self) -> bool:
        """Whether convolutions look at a part of it."""
        return any(part.has_pixels for part in self.parts)

    @property
    def row_dtype(self) -> Literal["float32", "uint8"]:
        """The dtype of stored rows."""
        return "uint8" if self.num_pixels else "float32"

    @property
    def row_size(self) -> int:
        """Elements of a stored row; rows of bytes are padded, so that the numbers of each stay aligned."""
        if not self.num_pixels:
            return self.num_floats
        num_bytes = FLOAT_BYTES * self.num_floats + self.num_pixels
        return -(-num_bytes // FLOAT_BYTES) * FLOAT_BYTES

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """Where each part lies: among the pixels for an image, among the float32 numbers for every other kind."""
        places, starts = [], {"pixels": 0, "floats": 0}
        for part in self.parts:
            block = "pixels" if part.kind == "image" else "floats"
            places.append(slice(starts[block], starts[block] + part.size))
            starts[block] += part.size
        return tuple(places)

    @cached_property
    def normalized(self) -> tuple[bool, ...]:
        """For each of the float32 numbers whether running statistics normalize it."""
        return tuple(part.kind == "numbers" for part in self.parts if part.kind != "image" for _ in range(part.size))

    def __str__(self) -> str:
        return ", ".join(map(str, self.parts))


def vector_observation(size: int, dtype: str = "float32") -> ObservationLayout:
    """The layout of a Box of one dimension."""
    return ObservationLayout((ObservationPart((), "numbers", (size,), dtype),))


@dataclass(frozen=True)
class BoxAction:
    """Continuous actions.

    Attributes:
        shape: shape of one action as the environment takes it.
        low, high: bounds of the flattened action, as its space gives them.
        dtype: NumPy dtype name in which the environment takes it.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of action dimensions A."""
        return len(self.low)

    @property
    def num_logits(self) -> int:
        """Logits among the parameters of a distribution: none."""
        return 0

    @property
    def num_parameters(self) -> int:
        """Parameters of a distribution: means and log-deviations."""
        return 2 * self.size

    def __str__(self) -> str:
        return f"Box {self.shape} {self.dtype} from {min(self.low):g} to {max(self.high):g}"


@dataclass(frozen=True)
class DiscreteAction:
    """`n` choices; the environment's number for choice i is `start + i`."""

    n: int
    start: int

    @property
    def num_logits(self) -> int:
        """Logits among the parameters of a distribution: all of them."""
        return self.n

    @property
    def num_parameters(self) -> int:
        """Parameters of a distribution: a logit for each choice."""
        return self.n

    def __str__(self) -> str:
        return f"one of {self.n}"


@dataclass(frozen=True)
class MultiDiscreteAction:
    """Independent choices: MultiDiscrete; MultiBinary, of 0 and 1; a bounded Box of integers.

    Attributes:
        num_choices: choices of each element, in the order of the flattened action.
        starts: the environment's number for each element's first choice.
        shape, dtype: as the environment takes it.
    """

    num_choices: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Elements."""
        return len(self.num_choices)

    @property
    def num_logits(self) -> int:
        """Logits among the parameters of a distribution: all of them."""
        return sum(self.num_choices)

    @property
    def num_parameters(self) -> int:
        """Parameters of a distribution: a logit for each choice of each element."""
        return sum(self.num_choices)

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.num_choices))} each"


LeafAction = BoxAction | DiscreteAction | MultiDiscreteAction


@dataclass(frozen=True)
class TreeAction:
    """Several actions at once: Dict and Tuple, nested.

    Attributes:
        leaves: all of them, in the order of the space.
        paths: where each lies.
    """

    leaves: tuple[LeafAction, ...]
    paths: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Numbers that one stored action takes."""
        return sum(1 if isinstance(leaf, DiscreteAction) else leaf.size for leaf in self.leaves)

    @property
    def num_logits(self) -> int:
        """Logits among the parameters of a joint distribution."""
        return sum(leaf.num_logits for leaf in self.leaves)

    @property
    def num_parameters(self) -> int:
        """Parameters of a joint distribution."""
        return sum(leaf.num_parameters for leaf in self.leaves)

    def __str__(self) -> str:
        return ", ".join(
            f"{'/'.join(map(str, path))} {leaf}" for path, leaf in zip(self.paths, self.leaves, strict=True)
        )


Action = LeafAction | TreeAction
_ACTION_TYPES: dict[str, type[Any]] = {"box": BoxAction, "discrete": DiscreteAction, "multi": MultiDiscreteAction}


def stored_action(action: Action) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape in which one action is stored, as its distribution produced it."""
    if isinstance(action, DiscreteAction):
        return "int64", ()
    return "float32", (action.size,)


def num_deviations(action: Action) -> int:
    """Continuous dimensions, each with a deviation of its own."""
    if isinstance(action, TreeAction):
        return sum(num_deviations(leaf) for leaf in action.leaves)
    return action.size if isinstance(action, BoxAction) else 0


@dataclass(frozen=True)
class EnvSpec:
    """Spaces and limits of one environment.

    Attributes:
        env_id: the id it was made with.
        observation: the row that an observation becomes.
        action: meaning of an action.
        max_episode_steps: time limit in steps, None if there is none or it is not known.
        is_vectorized: whether a vectorized implementation is used.
        resets_within_step: whether that is reset before the step after an episode's end, so that the first step after a
            truncation is lost to training (Gymnasium's autoreset modes SAME_STEP and DISABLED).
    """

    env_id: str
    observation: ObservationLayout
    action: Action
    max_episode_steps: int | None
    is_vectorized: bool = False
    resets_within_step: bool = False

    @property
    def observation_size(self) -> int:
        """Float32 numbers of an observation, which running statistics are kept of."""
        return self.observation.num_floats

    def __str__(self) -> str:
        row = self.observation
        size = row.row_size * (1 if row.num_pixels else FLOAT_BYTES)
        vectorized = ", vectorized" if self.is_vectorized else ""
        return f"{self.env_id}{vectorized}; observations: {row} ({size} bytes each); actions: {self.action}"

    def to_data(self) -> dict[str, Any]:
        """The same as JSON values; infinite bounds become Python's `Infinity`."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["observation"] = [dataclasses.asdict(part) for part in self.observation.parts]
        data["action"] = _action_to_data(self.action)
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> EnvSpec:
        """The inverse of `to_data`, after JSON has made lists of tuples."""
        values = dict(data)
        parts = tuple(_part_from_data(part) for part in values.pop("observation"))
        return cls(observation=ObservationLayout(parts), action=_action_from_data(values.pop("action")), **values)


def _part_from_data(data: Mapping[str, Any]) -> ObservationPart:
    values = _with_tuples(data)
    if "channels" not in values:  # saved by a version that looked at the ends alone
        shape = values["shape"]
        values["channels"] = "first" if len(shape) > 2 and shape[-3] < shape[-1] else "last"
    return ObservationPart(**values)


def _action_to_data(action: Action) -> dict[str, Any]:
    if isinstance(action, TreeAction):
        return {"type": "tree", "paths": action.paths, "leaves": [_action_to_data(leaf) for leaf in action.leaves]}
    name = next(name for name, kind in _ACTION_TYPES.items() if isinstance(action, kind))
    return {"type": name, **dataclasses.asdict(action)}


def _action_from_data(data: Mapping[str, Any]) -> Any:
    values = dict(data)
    kind = values.pop("type")
    if kind == "tree":
        leaves = tuple(_action_from_data(leaf) for leaf in values["leaves"])
        return TreeAction(leaves, tuple(tuple(path) for path in values["paths"]))
    return _ACTION_TYPES[kind](**_with_tuples(values))


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
