"""Encoders: which parts of a row reach which network, and in which order of axes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from critics import with_values
from gymnasium import spaces

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.observations import ObservationCodec
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import EnvSpec, ObservationPart
from asyncrl.inference.acting import ArrayPolicy
from asyncrl.models import registry
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.encoders import ConvEncoder, Inputs, ObservationEncoder, split_tensor
from asyncrl.models.factory import check_networks
from asyncrl.models.flat import FlatParameters
from asyncrl.models.sizes import num_model_parameters

IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
NESTED = spaces.Dict(
    {
        "image": IMAGE,
        "state": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(3))),
        "other": spaces.Box(-1, 1, (4,)),
    }
)
MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(3), "state": spaces.Box(-1, 1, (4,))})


def spec_of(space: spaces.Space[Any]) -> EnvSpec:
    return spec_of_spaces(space, spaces.Discrete(3), "X", None)


def rows_of(spec: EnvSpec, space: spaces.Space[Any], count: int = 6) -> torch.Tensor:
    codec, layout = ObservationCodec(spec.observation), spec.observation
    rows = np.zeros((count, layout.row_size), dtype=layout.row_dtype)
    space.seed(0)
    for row in rows:
        codec.write(space.sample(), row)
    return torch.from_numpy(rows)


@pytest.mark.parametrize("key", ["image", "other"])
def test_the_effect_of_one_key_depends_on_the_others(key: str) -> None:
    spec = spec_of(NESTED)
    encoder = ObservationEncoder(spec.observation, TrainConfig(encoder_mlp_layers=[7], encoder_conv_mlp_layers=[11]))
    assert encoder.output_size == 7
    places = {part.path: place for part, place in zip(spec.observation.parts, spec.observation.places, strict=True)}

    def changed(inputs: Inputs, key: str) -> Inputs:
        if key == "image":
            assert inputs.pixels is not None
            return inputs._replace(pixels=255 - inputs.pixels)
        floats = inputs.floats.clone()
        floats[:, places["other",] if key == "other" else places["state", 0]] += 1.0
        return inputs._replace(floats=floats)

    inputs = split_tensor(spec.observation, rows_of(spec, NESTED))
    both = changed(changed(inputs, "state"), key)
    effect_alone = encoder(changed(inputs, key)) - encoder(inputs)
    effect_after = encoder(both) - encoder(changed(inputs, "state"))
    assert (effect_alone - effect_after).abs().amax() > 1e-3


def test_the_mask_is_no_input() -> None:
    spec = spec_of(MASKED)
    encoder = ObservationEncoder(spec.observation, TrainConfig())
    inputs = split_tensor(spec.observation, rows_of(spec, MASKED))
    other_mask = inputs.floats.clone()
    other_mask[:, spec.observation.num_features :] = 0.0
    assert torch.equal(encoder(Inputs(other_mask)), encoder(inputs))


def test_an_image_alone_has_no_layers_but_those_after_its_convolutions() -> None:
    encoder = ObservationEncoder(spec_of(IMAGE).observation, TrainConfig(encoder_conv_mlp_layers=[11]))
    assert len(encoder.encoders) == 1 and encoder.output_size == 11
    two = spaces.Tuple((IMAGE, IMAGE))
    encoder = ObservationEncoder(spec_of(two).observation, TrainConfig(encoder_mlp_layers=[7]))
    assert len(encoder.encoders) == 3 and encoder.output_size == 7


def image_part(shape: tuple[int, ...], largest: int = 255) -> ObservationPart:
    (part,) = spec_of(spaces.Box(0, largest, shape, np.uint8)).observation.parts
    return part


@pytest.mark.parametrize("shape", [(12, 10, 3), (3, 12, 10), (12, 10), (2, 12, 10, 3)])
@pytest.mark.parametrize("architecture", ["auto", "impala"])
def test_an_image_is_the_same_in_any_order_of_its_axes(shape: tuple[int, ...], architecture: str) -> None:
    config = TrainConfig(encoder_conv_architecture=architecture, policy_initialization="torch_default")
    torch.manual_seed(0)
    encoder = ConvEncoder(image_part(shape), config)
    image = torch.rand(2, *shape)
    channels_first = {2: (0, 1, 2), 3: (0, 3, 1, 2) if shape[-1] == 3 else (0, 1, 2, 3), 4: (0, 1, 4, 2, 3)}[len(shape)]
    stacked = image.permute(channels_first).reshape(2, -1, 12, 10)
    expected = encoder.head(torch.relu(encoder.stack(stacked)).flatten(1))
    torch.testing.assert_close(encoder(image.flatten(1)), expected)


@pytest.mark.parametrize("largest", [1, 3, 255])
@pytest.mark.parametrize("shape", [(12, 10, 3), (3, 12, 10)])
def test_bytes_of_an_image_are_scaled_by_their_largest_value(shape: tuple[int, ...], largest: int) -> None:
    encoder = ConvEncoder(image_part(shape, largest), TrainConfig())
    image = torch.randint(0, largest + 1, (2, int(np.prod(shape))), dtype=torch.uint8)
    torch.testing.assert_close(encoder(image), encoder(image / largest))


@pytest.mark.parametrize("shape", [(12, 10, 3), (3, 12, 10), (2, 12, 10, 3)])
def test_each_image_is_normalized_by_itself(shape: tuple[int, ...]) -> None:
    config = TrainConfig(normalize_images=True)
    encoder = ConvEncoder(image_part(shape), config)
    plain = ConvEncoder(image_part(shape), TrainConfig())
    plain.load_state_dict(encoder.state_dict())
    images = torch.randint(20, 90, (3, int(np.prod(shape))), dtype=torch.uint8)
    images[1] = images[1] // 2 + 100  # another brightness and contrast
    scaled = images.numpy().astype(np.float64) / 255.0
    expected = np.stack([(image - image.mean()) / np.sqrt(image.var() + 1e-4) for image in scaled])
    found = encoder(images)
    torch.testing.assert_close(found, plain(torch.from_numpy(expected).float()), rtol=1e-4, atol=1e-5)
    floats = torch.from_numpy(scaled).float()
    before = floats.clone()
    torch.testing.assert_close(found, encoder(floats), rtol=1e-4, atol=1e-5)
    assert torch.equal(floats, before), "observations are not changed"
    uniform = torch.full_like(images, 77)
    torch.testing.assert_close(encoder(uniform), plain(torch.zeros_like(uniform)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["nature", "impala"])
@pytest.mark.parametrize("shape", [(64, 64, 3), (4, 84, 84)])
def test_a_new_stack_leaves_room_in_the_tanh_behind_it(shape: tuple[int, ...], architecture: str) -> None:
    torch.manual_seed(0)
    encoder = ConvEncoder(image_part(shape), TrainConfig(encoder_conv_architecture=architecture, nonlinearity="tanh"))
    with torch.no_grad():
        features = encoder(torch.rand(8, int(np.prod(shape))))
    assert (features.abs() > 0.95).float().mean() < 0.1
    assert features.square().mean() > 0.05


@pytest.mark.parametrize("space", [NESTED, IMAGE, MASKED, spaces.Discrete(4), spaces.Box(-1, 1, (2, 2))])
@pytest.mark.parametrize("settings", [{}, {"use_rnn": True, "rnn_size": 6}, {"actor_critic_share_weights": True}])
def test_sizes_are_known_before_anything_is_built(space: spaces.Space[Any], settings: dict[str, Any]) -> None:
    spec, config = spec_of(space), TrainConfig(encoder_conv_mlp_layers=[8], **settings)
    model = with_values(ActorCritic(spec, config))
    assert num_model_parameters(spec, config) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "space", [MASKED, spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}), spaces.Discrete(4)]
)
@pytest.mark.parametrize("shared", [False, True])
def test_arrays_act_as_tensors_do_on_nested_numbers(space: spaces.Space[Any], shared: bool) -> None:
    spec = spec_of(space)
    model = with_values(ActorCritic(spec, TrainConfig(actor_critic_share_weights=shared)))
    flat = FlatParameters(model, with_grad=False)
    flat.data.add_(torch.randn_like(flat.data) * 0.1)
    size = model.observation_size
    model.set_obs_statistics(torch.randn(size), torch.rand(size) + 0.5)
    assert model.runs_in_arrays
    rows = rows_of(spec, space)
    result = ArrayPolicy(model, seed=0).act(rows.numpy())
    expected = model.act(rows)
    np.testing.assert_allclose(result.value, expected.value.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.action_parameters, expected.action_parameters.numpy(), rtol=1e-4, atol=1e-4)


def test_choices_and_masks_are_not_normalized() -> None:
    model = with_values(ActorCritic(spec_of(MASKED), TrainConfig()))
    model.set_obs_statistics(torch.full((7,), 3.0), torch.full((7,), 2.0))
    normalized = [part.kind == "numbers" for part in model.layout.parts for _ in range(part.size)]
    assert model.obs_mean.tolist() == [3.0 if own else 0.0 for own in normalized]
    assert model.obs_std.tolist() == [2.0 if own else 1.0 for own in normalized]


def test_a_registered_encoder_core_and_model_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (registry._encoders, registry._cores, registry._models):
        monkeypatch.setattr(registry, table_name(table), dict(table))

    class Doubled(ObservationEncoder):
        def forward(self, inputs: Inputs) -> torch.Tensor:
            return super().forward(inputs) * 2.0

    registry.register_encoder("doubled")(Doubled)
    plain, doubled = (
        ActorCritic(spec_of(spaces.Box(-1, 1, (4,))), TrainConfig(encoder=name)) for name in ("default", "doubled")
    )
    assert not doubled.runs_in_arrays
    rows = torch.randn(3, 4)
    torch.testing.assert_close(doubled.actor(doubled.inputs_of(rows)), 2.0 * plain.actor(plain.inputs_of(rows)))
    with pytest.raises(UsageError, match=r"--encoder=other is not registered \(known: default, doubled"):
        ActorCritic(spec_of(MASKED), TrainConfig(encoder="other"))
    with pytest.raises(ValueError, match="choose another name"):
        registry.register_core("default")
    registry.register_core("small")(lambda size, config: type("Core", (), {"state_size": 1})())
    with pytest.raises(UsageError, match="state_size of 1"):
        ActorCritic(spec_of(MASKED), TrainConfig(use_rnn=True, core="small"))


@pytest.mark.parametrize("algo", ["ppo", "sac"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.nn.BatchNorm1d(4), "is BatchNorm1d, whose running statistics only the learner would have"),
        (lambda: RandomBuffer(torch.randn(4)), "drawn at random, so each process would have another one"),
        (lambda: RandomBuffer(torch.ones(4)), None),
        (lambda: torch.nn.LayerNorm(4), None),
    ],
)
def test_buffers_that_each_process_would_have_for_itself_are_refused(
    monkeypatch: pytest.MonkeyPatch, algo: str, make: Any, said: str | None
) -> None:
    spec, config = with_own_encoder(
        monkeypatch,
        algo,
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), make()),
        lambda layers, inputs: layers(inputs.floats),
    )
    if said is None:
        check_networks(spec, config)
    else:
        with pytest.raises(UsageError, match=said):
            check_networks(spec, config)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
@pytest.mark.parametrize(
    ("forward", "found"),
    [
        (lambda inputs: inputs.floats[:, :3], r"a tensor \[2, 3\]"),
        (lambda inputs: inputs.floats[0], r"a tensor \[4\]"),
        (lambda inputs: (inputs.floats, None), "a tuple"),
        (lambda inputs: inputs.floats, None),
    ],
)
def test_an_encoder_that_returns_other_features_than_it_says_is_refused(
    monkeypatch: pytest.MonkeyPatch, algo: str, forward: Any, found: str | None
) -> None:
    make_layers = functools.partial(torch.nn.Linear, 4, 4)
    spec, config = with_own_encoder(monkeypatch, algo, make_layers, lambda layers, inputs: forward(inputs))
    if found is None:
        check_networks(spec, config)
        return
    with pytest.raises(UsageError, match=rf"^The encoder own returns {found} for 2 observations, but .* \[2, 4\]\.$"):
        check_networks(spec, config)


def with_own_encoder(
    monkeypatch: pytest.MonkeyPatch, algo: str, make_layers: Any, forward: Any
) -> tuple[EnvSpec, TrainConfig]:
    """A run whose registered encoder has an output size of 4 and calls `forward(layers, inputs)`."""
    monkeypatch.setattr(registry, "_encoders", dict(registry._encoders))

    class Own(torch.nn.Module):
        output_size = 4

        def __init__(self, layout: Any, config: Any) -> None:
            super().__init__()
            self.layers = make_layers()

        def forward(self, inputs: Inputs) -> Any:
            return forward(self.layers, inputs)

    registry.register_encoder("own")(Own)
    return spec_of(spaces.Box(-1, 1, (4,))), TrainConfig(algo=algo, encoder="own")


class RandomBuffer(torch.nn.Module):
    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * self.values


def table_name(table: Any) -> str:
    return next(name for name in ("_encoders", "_cores", "_models") if getattr(registry, name) is table)
