"""Every space that is supported becomes a row of numbers and comes back; every other is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.config.errors import UsageError
from asyncrl.config.value_types import ActionMapping, ImageChannels
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch, split_rows
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import EnvSpec, TreeAction, find_channels, image_axes, image_size, stored_action

_LEAVES = st.one_of(
    st.builds(lambda shape: spaces.Box(-9.0, 9.0, tuple(shape), np.float32), st.lists(st.integers(1, 3), max_size=3)),
    st.builds(lambda size: spaces.Box(-99, 99, (size,), np.int16), st.integers(1, 4)),
    st.builds(lambda size: spaces.Box(0, 255, (8, size, 3), np.uint8), st.integers(8, 9)),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
    st.builds(lambda counts: spaces.MultiDiscrete(counts), st.lists(st.integers(1, 4), min_size=1, max_size=4)),
    st.builds(lambda size: spaces.MultiBinary(size), st.integers(1, 4)),
)
_SPACES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=6,
)
_CHOICE = spaces.Discrete(2)


def same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(np.array_equal(first, second))


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(space=_SPACES, seed=st.integers(0, 99))
def test_observations_come_back_from_shared_memory_as_they_were(space: spaces.Space[Any], seed: int) -> None:
    layout = spec_of_spaces(space, _CHOICE, "X", None).observation
    assert (
        EnvSpec.from_data(json.loads(json.dumps(EnvSpec("X", layout, _action(), None).to_data()))).observation == layout
    )
    codec = ObservationCodec(layout)
    space.seed(seed)
    given_ones = [space.sample() for _ in range(3)]
    arena = Arena.create([ArraySpec("rows", layout.row_dtype, (3, layout.row_size))])
    rows = arena.array("rows")
    rows[:] = 7  # nothing may lean on what was there
    for observation, row in zip(given_ones, rows, strict=True):
        codec.write(observation, row)
    for observation, row in zip(given_ones, rows, strict=True):
        assert same(codec.read(row), observation)
        assert space.contains(codec.read(row))
    together = np.full_like(rows, 9)
    codec.write_batch(_stacked(given_ones), together)
    for part, whole in zip(split_rows(layout, together), split_rows(layout, rows), strict=True):
        np.testing.assert_array_equal(part, whole)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(space=_SPACES, seed=st.integers(0, 99))
def test_stored_actions_become_members_of_the_space(space: spaces.Space[Any], seed: int) -> None:
    spec = spec_of_spaces(spaces.Box(-1, 1, (1,)), space, "X", None)
    assert EnvSpec.from_data(json.loads(json.dumps(spec.to_data()))) == spec
    dtype, shape = stored_action(spec.action)
    random = np.random.default_rng(seed)
    stored = np.concatenate([_stored(leaf, random) for leaf in _leaves(spec.action)], axis=1).astype(dtype)
    mappings: tuple[ActionMapping, ...] = ("raw", "rescaled", "squashed")
    for mapping in mappings:
        actions = ActionAdapter(spec, mapping).to_env_batch(stored.reshape(20, *shape))
        assert len(actions) == 20
        assert all(space.contains(action) for action in actions)


def test_a_mask_is_not_seen_as_a_feature_and_only_fits_its_choices() -> None:
    observation = spaces.Dict({"action_mask": spaces.MultiBinary(5), "number": spaces.Box(-1, 1, (2,))})
    layout = spec_of_spaces(observation, spaces.MultiDiscrete([2, 3]), "X", None).observation
    assert (layout.num_features, layout.num_mask, layout.row_size) == (2, 5, 7)
    assert layout.normalized == (True, True, *[False] * 5)
    with pytest.raises(UsageError, match="actions have 4 choices"):
        spec_of_spaces(observation, spaces.Discrete(4), "X", None)
    with pytest.raises(UsageError, match="actions have 0 choices"):
        spec_of_spaces(observation, spaces.Box(-1, 1, (5,)), "X", None)


def test_images_stay_bytes_and_numbers_beside_them_stay_aligned() -> None:
    space = spaces.Dict({"a": spaces.Box(0, 255, (9, 9), np.uint8), "b": spaces.Box(-1, 1, (3,)), "c": _CHOICE})
    layout = spec_of_spaces(space, _CHOICE, "X", None).observation
    assert (layout.row_dtype, layout.num_floats, layout.num_pixels, layout.row_size) == ("uint8", 5, 81, 104)
    row = np.zeros(layout.row_size, dtype=np.uint8)
    image = np.arange(81, dtype=np.uint8).reshape(9, 9)
    ObservationCodec(layout).write({"a": image, "b": np.array([0.5, -1.0, 2.0]), "c": 1}, row)
    floats, pixels = split_rows(layout, row[np.newaxis])
    assert floats.tolist() == [[0.5, -1.0, 2.0, 0.0, 1.0]]
    assert pixels.tolist() == [list(range(81))]


@pytest.mark.parametrize(
    ("shape", "axes", "size"),
    [
        ((84, 60), (0, 1), (84, 60)),
        ((84, 60, 3), (2, 0, 1), (84, 60)),
        ((4, 84, 60), (0, 1, 2), (84, 60)),
        ((4, 84, 60, 3), (0, 3, 1, 2), (84, 60)),
        ((9, 9, 17), (2, 0, 1), (9, 9)),
        ((8, 8, 111), (2, 0, 1), (8, 8)),
        ((17, 9, 9), (0, 1, 2), (9, 9)),
        ((2, 9, 9, 17), (0, 3, 1, 2), (9, 9)),
        ((16, 16, 16), (2, 0, 1), (16, 16)),
        ((12, 10, 12), (2, 0, 1), (12, 10)),
    ],
)
def test_the_axes_of_an_image_are_found(shape: tuple[int, ...], axes: tuple[int, ...], size: tuple[int, int]) -> None:
    channels = find_channels(shape)
    assert (image_axes(shape, channels), image_size(shape, channels)) == (axes, size)


@pytest.mark.parametrize(("image_channels", "found"), [("auto", "last"), ("first", "first"), ("last", "last")])
def test_a_setting_says_where_channels_are_and_a_saved_layout_keeps_them(
    image_channels: ImageChannels, found: str
) -> None:
    space = spaces.Box(0, 255, (12, 10, 8), np.uint8)
    spec = spec_of_spaces(space, _CHOICE, "X", None, image_channels)
    (part,) = spec.observation.parts
    assert (part.kind, part.channels) == ("image", found)
    assert image_size(part.shape, part.channels) == ((12, 10) if found == "last" else (10, 8))
    assert EnvSpec.from_data(json.loads(json.dumps(spec.to_data()))) == spec


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"a": np.zeros(3)}, "b is not in the observation"),
        ({"a": np.zeros(4), "b": 0}, r"a has shape \(4,\), its space says \(3,\)"),
        (np.zeros(3), "a is not in the observation"),
    ],
)
def test_an_observation_of_another_shape_is_named(observation: Any, message: str) -> None:
    layout = spec_of_spaces(spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": _CHOICE}), _CHOICE, "X", None).observation
    with pytest.raises(ObservationMismatch, match=message):
        ObservationCodec(layout).write(observation, np.zeros(layout.row_size, dtype=np.float32))


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (spaces.Discrete(5), -1, "has -1, its space the integers 0 to 4"),
        (spaces.Discrete(5), 5, "has 5, its space the integers 0 to 4"),
        (spaces.Discrete(5), 1.7, "has 1.7, its space the integers 0 to 4"),
        (spaces.Discrete(5), float("nan"), "has nan"),
        (spaces.Discrete(5), float("inf"), "has inf"),
        (spaces.Discrete(5), np.uint64(2**64 - 1), "has 18446744073709551615"),
        (spaces.Discrete(5), "2", "has dtype <U1, its space says int64"),
        (spaces.Discrete(3, start=-2), 1, "has 1, its space the integers -2 to 0"),
        (spaces.MultiDiscrete([3, 2]), np.array([3, 0]), "has 3 at position 0, its space the integers 0 to 2"),
        (spaces.MultiDiscrete([3, 2]), np.array([2, -1]), "has -1 at position 1, its space the integers 0 to 1"),
        (spaces.MultiDiscrete([[3], [2]]), np.array([[0], [2]]), "has 2 at position 1"),
        (spaces.MultiBinary(2), np.array([0, 2]), r"is \[0, 2\], its space has only 0 and 1"),
        (spaces.Box(0, 255, (8, 8), np.uint8), np.full((8, 8), 300, np.uint16), "has dtype uint16"),
    ],
)
def test_a_value_that_its_space_does_not_have_is_never_stored(
    space: spaces.Space[Any], observation: Any, message: str
) -> None:
    layout = spec_of_spaces(spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": space}), _CHOICE, "X", None).observation
    codec, rows = ObservationCodec(layout), np.zeros((2, layout.row_size), dtype=layout.row_dtype)
    with pytest.raises(ObservationMismatch, match=f"b {message}"):
        codec.write({"a": np.zeros(3), "b": observation}, rows[0])
    with pytest.raises(ObservationMismatch, match=r"b (has|is) "):
        codec.write_batch({"a": np.zeros((2, 3)), "b": np.stack([np.asarray(observation)] * 2)}, rows)


def test_choices_of_every_dtype_that_holds_integers_are_taken() -> None:
    layout = spec_of_spaces(spaces.Discrete(3, start=1), _CHOICE, "X", None).observation
    codec, row = ObservationCodec(layout), np.zeros(3, dtype=np.float32)
    for value in (2, 2.0, np.uint8(2), np.float32(2.0)):
        codec.write(value, row)
        assert codec.read(row) == 2


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(_CHOICE),
        spaces.Graph(_CHOICE, None),
        spaces.Dict({"inner": spaces.Tuple((spaces.Text(5), _CHOICE))}),
    ],
)
def test_what_is_not_supported_is_named_in_one_sentence(space: spaces.Space[Any]) -> None:
    for observation, action in ((space, _CHOICE), (_CHOICE, space)):
        with pytest.raises(UsageError) as caught:
            spec_of_spaces(observation, action, "X-v0", None)
        assert "not" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="more than the 4096"):
        spec_of_spaces(spaces.Discrete(100_000), _CHOICE, "X-v0", None)
    with pytest.raises(UsageError, match=r"int64\): at most 1024 integers an element are supported"):
        spec_of_spaces(_CHOICE, spaces.Box(0, 9999, (2,), np.int64), "X-v0", None)


def test_a_space_of_the_package_gym_is_said_to_be_that() -> None:
    class Discrete:
        """Stands for gym.spaces.Discrete."""

        __module__ = "gym.spaces.discrete"

        def __repr__(self) -> str:
            return "Discrete(2)"

    old: Any = Discrete()
    for observation, action, whose in ((old, _CHOICE, "observations"), (_CHOICE, old, "actions")):
        with pytest.raises(UsageError) as caught:
            spec_of_spaces(observation, action, "X-v0", None)
        text = "have Discrete(2), which is a space of the package gym: gymnasium.spaces is needed."
        assert str(caught.value) == f"The {whose} of X-v0 {text}"


def _action() -> Any:
    return spec_of_spaces(spaces.Box(-1, 1, (1,)), _CHOICE, "X", None).action


def _leaves(action: Any) -> Any:
    return action.leaves if isinstance(action, TreeAction) else (action,)


def _stored(leaf: Any, random: np.random.Generator) -> Any:
    if hasattr(leaf, "low"):
        return random.normal(size=(20, leaf.size)) * 20.0
    counts = leaf.num_choices if hasattr(leaf, "num_choices") else (leaf.n,)
    return np.stack([random.integers(count, size=20) for count in counts], axis=1)


def _stacked(observations: list[Any]) -> Any:
    first = observations[0]
    if isinstance(first, dict):
        return {key: _stacked([observation[key] for observation in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked([observation[idx] for observation in observations]) for idx in range(len(first)))
    return np.stack(observations)
