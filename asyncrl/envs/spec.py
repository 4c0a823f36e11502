"""An environment's spaces as plain data, which is sent between processes as JSON.

One observation, even a nested one, is one row of numbers: in shared memory, in datasets and in replays it is an array
`[..., row_size]` of `row_dtype`. Only environments (`asyncrl.envs.observations`) and models
(`asyncrl.models.encoders`) read its parts. A row without images is float32. A row with images is bytes: first the
float32 numbers, then the unchanged images.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

PathKey = str | int
Path = tuple[PathKey, ...]
"""Position of a leaf in nested spaces: keys of Dict, indices of Tuple; empty for a space that is not nested."""

PartKind = Literal["numbers", "choices", "flags", "image", "mask"]
Channels = Literal["first", "last"]
"""Whether an image's channels are its first or its last axis."""
FLOAT_BYTES = 4
_SMALLEST_IMAGE = 8
_MOST_ELEMENTS = 8  # of a space in a message


@dataclass(frozen=True)
class ObservationPart:
    """One leaf of the observation space.

    Attributes:
        path: its position in the space.
        kind: numbers, normalized by running statistics; choices, each stored as one-hot numbers; flags, stored as 0
            and 1; an image of bytes; or the mask of allowed actions.
        shape, dtype: as the environment returns it.
        num_choices: number of choices of each element, for choices.
        starts: the environment's number for each element's first choice.
        channels: the channel axis of an image of three or four axes.
        largest: the largest magnitude of its numbers, by the bounds of its space; None without bounds, or if unknown.
        is_image: whether numbers are an image of another dtype than uint8, because `image_keys` names them.
    """

    path: Path
    kind: PartKind
    shape: tuple[int, ...]
    dtype: str
    num_choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    channels: Channels = "last"
    largest: float | None = dataclasses.field(default=None, compare=False)
    is_image: bool = False

    @property
    def size(self) -> int:
        """Elements of the row: numbers or bytes."""
        return sum(self.num_choices) if self.kind == "choices" else math.prod(self.shape)

    @property
    def has_pixels(self) -> bool:
        """Whether convolutions encode it: an image of bytes, or of numbers."""
        return self.kind == "image" or self.is_image

    @property
    def name(self) -> str:
        """Its path, for messages."""
        return "/".join(map(str, self.path)) or "observation"

    def is_in(self, keys: Collection[str]) -> bool:
        """Whether one of the keys, `outer/inner` for nested ones, names this part or a Dict that contains it."""
        return any(f"{self.name}/".startswith(f"{key}/") for key in keys)

    def __str__(self) -> str:
        name = f"{self.name} " if self.path else ""
        if self.kind == "mask":
            return f"{name}{self.shape} {self.dtype}"
        if self.kind == "flags":
            return f"{name}{_multi_binary_text(self.shape)}"
        if self.kind == "choices":
            return f"{name}{_choices_text(self.num_choices, self.starts, is_single=self.shape == ())}"
        channels = f" with channels {self.channels}" if len(self.shape) > 2 else ""
        return f"{name}Box(..., {self.shape}, {self.dtype})" + (f" as image{channels}" if self.has_pixels else "")


def find_channels(shape: tuple[int, ...]) -> Channels:
    """Finds the channel axis of an image of three axes, or of a stack of images.

    Two neighbouring axes of equal size are height and width; if all three are equal, channels are last. If no
    neighbours are equal, the smaller one of the first and the last axis are the channels; if these are equal, the last.
    """
    if len(shape) < 3 or shape[-3] == shape[-2]:
        return "last"
    return "first" if shape[-2] == shape[-1] or shape[-3] < shape[-1] else "last"


def has_axes_of_image(shape: tuple[int, ...]) -> bool:
    """Whether an array may be an image: [H, W], [C, H, W], [H, W, C], or a stack of images with channels."""
    return len(shape) in (2, 3, 4)


def has_shape_of_image(shape: tuple[int, ...], channels: Channels) -> bool:
    """Whether bytes of this shape are an image: both height and width are 8 or more."""
    return has_axes_of_image(shape) and min(image_size(shape, channels)) >= _SMALLEST_IMAGE


def image_size(shape: tuple[int, ...], channels: Channels) -> tuple[int, int]:
    """Height and width of an image."""
    *_, height, width = image_axes(shape, channels)
    return shape[height], shape[width]


def image_axes(shape: tuple[int, ...], channels: Channels) -> tuple[int, ...]:
    """Permutation of an image's axes to channels (all axes but two), height, width."""
    axes = tuple(range(len(shape)))
    if len(shape) == 2 or channels == "first":
        return axes
    return (*axes[:-3], axes[-1], axes[-3], axes[-2])


@dataclass(frozen=True)
class ObservationLayout:
    """The row in which an observation is stored.

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
        """Float32 numbers without the mask."""
        return sum(part.size for part in self.parts if part.kind not in ("image", "mask"))

    @cached_property
    def num_mask(self) -> int:
        """Float32 numbers of the mask, which follow the features."""
        return sum(part.size for part in self.parts if part.kind == "mask")

    @property
    def num_floats(self) -> int:
        """Float32 numbers of a row."""
        return self.num_features + self.num_mask

    @cached_property
    def num_pixels(self) -> int:
        """Bytes of images, which follow the numbers."""
        return sum(part.size for part in self.parts if part.kind == "image")

    @property
    def has_images(self) -> bool:
        """Whether convolutions encode one of the parts."""
        return any(part.has_pixels for part in self.parts)

    @property
    def row_dtype(self) -> Literal["float32", "uint8"]:
        return "uint8" if self.num_pixels else "float32"

    @property
    def row_size(self) -> int:
        """Elements of a stored row. Rows of bytes are padded to keep the numbers of every row aligned."""
        if not self.num_pixels:
            return self.num_floats
        num_bytes = FLOAT_BYTES * self.num_floats + self.num_pixels
        return -(-num_bytes // FLOAT_BYTES) * FLOAT_BYTES

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return self.row_size * (1 if self.num_pixels else FLOAT_BYTES)

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """Position of each part: among the pixels for an image, among the float32 numbers for other kinds."""
        places, starts = [], {"pixels": 0, "floats": 0}
        for part in self.parts:
            block = "pixels" if part.kind == "image" else "floats"
            places.append(slice(starts[block], starts[block] + part.size))
            starts[block] += part.size
        return tuple(places)

    @cached_property
    def normalized(self) -> tuple[bool, ...]:
        """For each float32 number, whether running statistics normalize it."""
        return tuple(part.kind == "numbers" for part in self.parts if part.kind != "image" for _ in range(part.size))

    def without(self, keys: Collection[str]) -> ObservationLayout:
        """The layout of the parts that none of the keys names."""
        return ObservationLayout(tuple(part for part in self.parts if not part.is_in(keys))) if keys else self

    def __str__(self) -> str:
        return ", ".join(map(str, self.parts))


def _list_text(values: Sequence[object]) -> str:
    """Values as Gymnasium prints them; of many only the first ones."""
    return f"[{', '.join(map(str, values[:_MOST_ELEMENTS]))}{', ...' if len(values) > _MOST_ELEMENTS else ''}]"


def _bound_text(bounds: Sequence[float]) -> str:
    """One bound of a Box: a number, or a list if they differ."""
    shown = [float(f"{bound:.6g}") for bound in bounds]
    return str(shown[0]) if len(set(shown)) == 1 else _list_text(shown)


def _choices_text(num_choices: Sequence[int], starts: Sequence[int], is_single: bool = False) -> str:
    if is_single:
        return f"Discrete({num_choices[0]}{f', start={starts[0]}' if starts[0] else ''})"
    return f"MultiDiscrete({_list_text(num_choices)}{f', start={_list_text(starts)}' if any(starts) else ''})"


def _multi_binary_text(shape: tuple[int, ...]) -> str:
    return f"MultiBinary({shape[0] if len(shape) == 1 else shape})"


class _ActionSizes:
    """Sizes that follow from the leaves of an action: its Box, Discrete and MultiDiscrete spaces."""

    leaves: Any

    @property
    def size(self) -> int:
        """Numbers that one stored action takes."""
        return self.num_stddevs + sum(len(leaf.num_choices) for leaf in self.leaves)

    @property
    def num_stddevs(self) -> int:
        """Continuous dimensions, each with a standard deviation."""
        return sum(len(leaf.low) for leaf in self.leaves if isinstance(leaf, BoxAction))

    @property
    def num_logits(self) -> int:
        """Logits among the parameters of a distribution, one for each choice."""
        return sum(sum(leaf.num_choices) for leaf in self.leaves)

    @property
    def num_parameters(self) -> int:
        """Parameters of a distribution: means and log standard deviations of continuous dimensions, and logits."""
        return 2 * self.num_stddevs + self.num_logits


class _Leaf(_ActionSizes):
    paths: ClassVar[tuple[Path, ...]] = ((),)

    @property
    def leaves(self) -> tuple[Any, ...]:
        return (self,)


@dataclass(frozen=True)
class BoxAction(_Leaf):
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
    num_choices: ClassVar[tuple[int, ...]] = ()

    def __str__(self) -> str:
        return f"Box({_bound_text(self.low)}, {_bound_text(self.high)}, {self.shape}, {self.dtype})"


@dataclass(frozen=True)
class DiscreteAction(_Leaf):
    """`n` choices; the environment's number for choice i is `start + i`, in `dtype`, which makes no other space."""

    n: int
    start: int
    dtype: str = field(default="int64", compare=False)
    shape: ClassVar[tuple[int, ...]] = ()

    @property
    def num_choices(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def starts(self) -> tuple[int, ...]:
        return (self.start,)

    def __str__(self) -> str:
        return _choices_text((self.n,), (self.start,), is_single=True)


@dataclass(frozen=True)
class MultiDiscreteAction(_Leaf):
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

    def __str__(self) -> str:
        if self.dtype == "int8" and set(self.num_choices) == {2} and not any(self.starts):  # as MultiBinary has it
            return _multi_binary_text(self.shape)
        return _choices_text(self.num_choices, self.starts)


LeafAction = BoxAction | DiscreteAction | MultiDiscreteAction


@dataclass(frozen=True)
class TreeAction(_ActionSizes):
    """Several actions at once: Dict and Tuple, nested.

    Attributes:
        leaves: all of them, in the order of the space.
        paths: where each lies.
    """

    leaves: tuple[LeafAction, ...]
    paths: tuple[Path, ...]

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


def mask_layout(action: TreeAction) -> str:
    """The numbers of a mask that belong to each choice, in the order of the space: Gymnasium sorts the keys of Dict."""
    found, start = [], 0
    for path, leaf in zip(action.paths, action.leaves, strict=True):
        name = "/".join(map(str, path))
        is_short = len(leaf.num_choices) <= _MOST_ELEMENTS
        for element, count in enumerate(leaf.num_choices if is_short else (sum(leaf.num_choices),)):
            suffix = "" if isinstance(leaf, DiscreteAction) or not is_short else f"[{element}]"
            found.append(f"{name}{suffix} {start} to {start + count - 1}")
            start += count
    return ", ".join(found)


class AgentSpaces(NamedTuple):
    """The observations and actions of an agent."""

    observation: ObservationLayout
    action: Action


@dataclass(frozen=True)
class EnvSpec:
    """Spaces and limits of one environment.

    If its agents differ in their spaces, a policy has a spec with the spaces of the agents that it plays (`kinds`).

    Attributes:
        env_id: the id in the settings.
        observation: the row in which an observation is stored.
        action: the action space.
        max_episode_steps: time limit in steps; None if there is none or it is unknown.
        is_vectorized: whether a vectorized implementation is used.
        gives_tensors: whether its observations and actions are tensors.
        resets_within_step: whether it resets before the step after an episode's end (Gymnasium's autoreset modes
            SAME_STEP and DISABLED), so the first step after a truncation is lost to training.
        agents: names of the agents that an environment may have; empty for a single one.
        spaces: the different spaces of the agents, in the order in which they first appear; empty if all have the same.
        of_agents: index in `spaces`, for each agent; empty if all have the same.
        reward_shaping: names and default values of the factors of its reward that `set_reward_shaping` changes.
        takes_training_info: whether it has `set_training_info`.
        computes_reward: whether it has a method `compute_reward` (Gymnasium-Robotics: environments with goals).
        made_of: id of the registered environment inside wrappers and functions; empty without one.
        keeps_spaces: whether its spaces equal the spaces of `made_of`.
        frames_per_step: frames of a preprocessed game in one step; 1 for other environments.
    """

    env_id: str
    observation: ObservationLayout
    action: Action
    max_episode_steps: int | None
    is_vectorized: bool = False
    gives_tensors: bool = False
    resets_within_step: bool = False
    agents: tuple[str, ...] = ()
    spaces: tuple[AgentSpaces, ...] = ()
    of_agents: tuple[int, ...] = ()
    reward_shaping: tuple[tuple[str, float], ...] = ()
    takes_training_info: bool = False
    computes_reward: bool = False
    made_of: str = ""
    keeps_spaces: bool = True
    frames_per_step: int = 1

    @cached_property
    def kinds(self) -> tuple[EnvSpec, ...]:
        """The specs of policies for each of `spaces`; this spec alone if all agents have the same."""
        found = [dataclasses.replace(self, observation=own.observation, action=own.action) for own in self.spaces]
        return tuple(found) or (self,)

    def kind_of(self, agent: int) -> int:
        """Index in `kinds` of an agent, by its number."""
        return self.of_agents[agent] if self.of_agents else 0

    @property
    def own_agents(self) -> list[int]:
        """Numbers of the agents that a policy of this spec can play."""
        own = self.kinds.index(self)
        return [agent for agent in range(self.num_agents) if self.kind_of(agent) == own]

    @property
    def num_agents(self) -> int:
        """Agents of an environment, each with its own column."""
        return max(1, len(self.agents))

    @property
    def shape_of_networks(self) -> tuple[object, ...]:
        """What networks depend on; the dtypes of numbers are not part of it: all are stored as float32."""
        parts = [
            (part.path, part.kind, part.size, part.shape, part.channels if part.has_pixels else None)
            for part in self.observation.parts
        ]
        return parts, self.action

    @property
    def observation_size(self) -> int:
        """Float32 numbers of an observation, for which running statistics are kept."""
        return self.observation.num_floats

    def __str__(self) -> str:
        vectorized = ", vectorized" if self.is_vectorized else ""
        agents = f" of {len(self.agents)} agents" if self.agents else ""
        kinds = [f"observations: {_row_text(kind.observation)}; actions: {kind.action}" for kind in self.kinds]
        if self.spaces:
            names = (", ".join(self.agents[agent] for agent in kind.own_agents) for kind in self.kinds)
            kinds = [f"{of_kind}: {text}" for of_kind, text in zip(names, kinds, strict=True)]
        return "; ".join([f"{self.env_id}{vectorized}{agents}", *kinds])

    def to_data(self) -> dict[str, Any]:
        """JSON values of all fields; infinite bounds become Python's `Infinity`."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["observation"] = [dataclasses.asdict(part) for part in self.observation.parts]
        data["action"] = _action_to_data(self.action)
        data["spaces"] = [
            ([dataclasses.asdict(part) for part in own.observation.parts], _action_to_data(own.action))
            for own in self.spaces
        ]
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> EnvSpec:
        """The inverse of `to_data`; tuples may have become lists."""
        values = dict(data)
        parts = tuple(_part_from_data(part) for part in values.pop("observation"))
        for name in ("agents", "of_agents"):
            values[name] = tuple(values[name])
        values["reward_shaping"] = tuple((name, value) for name, value in values["reward_shaping"])
        values["spaces"] = tuple(
            AgentSpaces(ObservationLayout(tuple(map(_part_from_data, of_parts))), _action_from_data(action))
            for of_parts, action in values["spaces"]
        )
        return cls(observation=ObservationLayout(parts), action=_action_from_data(values.pop("action")), **values)


def _row_text(row: ObservationLayout) -> str:
    return f"{row} ({row.row_bytes} bytes each)"


def _part_from_data(data: Mapping[str, Any]) -> ObservationPart:
    return ObservationPart(**_with_tuples(data))


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
