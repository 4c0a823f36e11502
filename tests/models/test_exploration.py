"""Exploration noise: its standard deviation, its correlation in time, and which numbers of an action get it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from asyncrl.buffers.inference_buffer import ActorOutput
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.inference.acting import make_act
from asyncrl.models.exploration import ActionNoise, CorrelatedNoise, make_action_noise
from asyncrl.models.factory import make_acting_model
from asyncrl.models.flat import FlatParameters

CPU = torch.device("cpu")
NUMBERS, BOX = spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-1.0, 1.0, (2,))


def drawn(kind: Any, steps: int, columns: int) -> np.ndarray:
    noise = CorrelatedNoise(kind, (columns,), np.random.default_rng(0))
    return np.stack([noise.draw() for _ in range(steps)])


@pytest.mark.parametrize("kind", ["white", "pink", "ou"])
def test_noise_has_deviation_one_from_its_first_step_on(kind: Any) -> None:
    steps = drawn(kind, 3, 20_000)
    assert steps.mean(1) == pytest.approx([0.0] * 3, abs=0.03)
    assert steps.std(1) == pytest.approx([1.0] * 3, abs=0.03)


@pytest.mark.parametrize(("kind", "kept"), [("white", 0.0), ("ou", 0.85)])
def test_correlation_falls_by_the_same_factor_in_each_step(kind: Any, kept: float) -> None:
    steps = drawn(kind, 6, 20_000)
    found = [(steps[0] * steps[lag]).mean() for lag in range(6)]
    assert found == pytest.approx([kept**lag for lag in range(6)], abs=0.04)


def test_the_spectrum_of_pink_noise_falls_with_the_frequency() -> None:
    steps = drawn("pink", 4096, 200)
    power = (np.abs(np.fft.rfft(steps, axis=0)) ** 2).mean(1)
    frequency = np.fft.rfftfreq(len(steps))
    band = (frequency > 1 / 1000) & (frequency < 1 / 8)
    slope, _ = np.polyfit(np.log(frequency[band]), np.log(power[band]), 1)
    assert slope == pytest.approx(-1.0, abs=0.1)


def acting(action: spaces.Space[Any], num_splits: int = 1, num_envs: int = 1000, **settings: Any) -> tuple[Any, Any]:
    """The answer of a policy for as many equal observations as environments, and the exploration."""
    spec = spec_of_spaces(NUMBERS, action, "Noisy", None)
    config = TrainConfig(env="Noisy", encoder_mlp_layers=[8], **settings)
    model = make_acting_model(spec, config)
    FlatParameters(model, with_grad=False)
    with torch.no_grad():
        model.mlp.layers()[-1].bias[:] = 0.3
    answer = make_act(model, CPU, seed=1)(np.zeros((num_envs, 3), np.float32), np.zeros((num_envs, 0), np.float32))
    return answer, ActionNoise(model.distribution, config, num_splits, num_envs, seed=2)


def test_a_certain_action_gets_noise_in_the_unit_of_the_bounds() -> None:
    answer, exploration = acting(BOX, algo="td3", exploration_stddev=0.1)
    assert np.ptp(answer.action, axis=0).max() == 0.0
    found = exploration.apply([(0, 0)], answer)
    distance = np.tanh(found.action) - np.tanh(answer.action)
    assert distance.std(0) == pytest.approx([0.1, 0.1], rel=0.1)
    assert distance.mean(0) == pytest.approx([0.0, 0.0], abs=0.015)


def test_noise_past_a_bound_ends_there() -> None:
    answer, exploration = acting(BOX, algo="td3", exploration_stddev=3.0)
    found = np.tanh(exploration.apply([(0, 0)], answer).action)
    assert np.isfinite(found).all() and np.abs(found).max() <= 1.0
    assert 0.3 < (found > 0.999).mean() < 0.5


def test_environments_have_deviations_from_one_to_the_other() -> None:
    answer, exploration = acting(BOX, 2, 2, algo="td3", exploration_stddev=0.1, exploration_stddev_max=0.4)
    both = ActorOutput(*(np.concatenate((field, field)) for field in answer))
    found = np.stack([np.tanh(exploration.apply([(1, 0), (0, 0)], both).action) for _ in range(3000)])
    expected = [[0.3] * 2, [0.4] * 2, [0.1] * 2, [0.2] * 2]
    assert (found - np.tanh(both.action)).std(0) == pytest.approx(np.array(expected), rel=0.1)


def test_each_split_continues_its_own_noise() -> None:
    answer, exploration = acting(BOX, 2, 1, algo="td3", exploration_noise="ou")
    both = ActorOutput(*(np.concatenate((field, field)) for field in answer))
    found = np.array(
        [exploration.apply([(0, 0), (1, 0)][:: 1 if step % 2 else -1], both).action[:, 0] for step in range(4000)]
    )
    in_order = np.where(np.arange(4000)[:, None] % 2 == 1, found, found[:, ::-1]) - answer.action[0, 0]
    correlation = np.corrcoef(np.concatenate((in_order[:-1], in_order[1:]), axis=1).T)
    assert correlation[0, 2] == pytest.approx(0.85, abs=0.04) and correlation[1, 3] == pytest.approx(0.85, abs=0.04)
    assert abs(correlation[0, 1]) < 0.15


def test_a_gaussian_policy_keeps_its_deviation_and_its_choices() -> None:
    mixed = spaces.Tuple((spaces.Discrete(3), BOX))
    answer, exploration = acting(mixed, algo="sac", exploration_noise="pink", initial_stddev=0.5)
    before = answer.action.copy()
    found = exploration.apply([(0, 0)], answer)
    assert (found.action[:, 0] == answer.action[:, 0]).all() and (answer.action == before).all()
    assert np.abs(found.action[:, 1:] - before[:, 1:]).min(0).max() > 0.0
    assert found.action[:, 1:].std(0) == pytest.approx(before[:, 1:].std(0), rel=0.1)
    assert found.action[:, 1:].mean(0) == pytest.approx(before[:, 1:].mean(0), abs=0.3)


@pytest.mark.parametrize(
    ("algo", "space"), [("td3", BOX), ("sac", BOX), ("sac", spaces.Tuple((spaces.Discrete(3), BOX)))]
)
def test_tensors_get_the_noise_that_arrays_get(algo: str, space: spaces.Space[Any]) -> None:
    settings: dict[str, Any] = {"algo": algo, "exploration_noise": "pink", "initial_stddev": 0.5}
    settings |= {"exploration_stddev": 0.1, "exploration_stddev_max": 3.0}  # TD3's: some actions end at a bound
    (answer, exploration), (_, twin) = (acting(space, num_envs=50, **settings) for _ in range(2))
    action, parameters = torch.from_numpy(answer.action), torch.from_numpy(answer.action_parameters)
    for _ in range(3):
        found = exploration.explored(action, parameters).numpy()
        expected = twin.apply([(0, 0)], answer).action
        assert np.isfinite(found).all() and np.abs(found - answer.action).max() > 0.5
        np.testing.assert_allclose(np.tanh(found), np.tanh(expected), atol=1e-5)


def test_only_policies_that_do_not_draw_it_themselves_need_it() -> None:
    for algo, noise, space, expected in (
        ("sac", "white", BOX, False),
        ("sac", "pink", BOX, True),
        ("sac", "pink", spaces.Discrete(2), False),
        ("td3", "white", BOX, True),
        ("dqn", "pink", spaces.Discrete(2), False),
    ):
        config = TrainConfig(algo=algo, exploration_noise=noise)
        model: Any = make_acting_model(spec_of_spaces(NUMBERS, space, "Any", None), config)
        assert (make_action_noise(model.distribution, config, 1, 1, seed=0) is not None) is expected
