"""Batches for an accelerator: filled up to few sizes, and answered as the model answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import BOX, CHOICE

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.inference import device_acting
from asyncrl.inference.device_acting import DeviceActor, Part
from asyncrl.models.factory import ActingModel, make_acting_model

CPU = torch.device("cpu")
NUM_ENVS = 3
RECURRENT: dict[str, Any] = {"use_rnn": True, "rnn_size": 5}


def make(spec: EnvSpec, **settings: Any) -> tuple[ActingModel, DeviceActor]:
    config = TrainConfig(**{"encoder_mlp_layers": [8], **settings})
    model = make_acting_model(spec, config).eval()
    return model, DeviceActor(model, CPU, seed=5)


def parts(count: int, state_size: int, seed: int = 0) -> list[Part]:
    random = np.random.default_rng(seed)
    shapes = ((NUM_ENVS, 2), (NUM_ENVS, state_size))
    return [tuple(random.normal(size=shape).astype(np.float32) for shape in shapes) for _ in range(count)]  # type: ignore[misc]


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
@pytest.mark.parametrize(
    "settings",
    [{}, RECURRENT, {"algo": "sac"}, {**RECURRENT, "algo": "sac"}],
    ids=["ppo", "recurrent", "sac", "recurrent-sac"],
)
def test_every_row_gets_its_own_answer_in_batches_of_any_number_of_splits(
    spec: EnvSpec, settings: dict[str, Any]
) -> None:
    model, actor = make(spec, **settings)
    state_size = getattr(model, "rnn_state_size", 0)
    for number, count in enumerate((4, 1, 3, 2, 5)):
        given = parts(count, state_size, seed=number)
        gathered = actor.gather(given)
        obs = np.concatenate([obs for obs, _ in given])
        np.testing.assert_array_equal(gathered[0], obs)
        answer: Any = actor.act(*gathered)
        state = torch.from_numpy(np.concatenate([state for _, state in given]))
        expected: Any = model.act(torch.from_numpy(obs), torch.Generator(), state)
        rest = [name for name in expected._fields if name not in ("action", "log_prob")]
        for name in rest:
            np.testing.assert_allclose(getattr(answer, name), getattr(expected, name), rtol=1e-5, atol=1e-6)
        parameters, action = torch.from_numpy(answer.action_parameters), torch.from_numpy(answer.action)
        assert action.dtype == expected.action.dtype and action.shape == expected.action.shape
        log_prob = model.distribution.log_prob(parameters, action)
        np.testing.assert_allclose(answer.log_prob, log_prob, rtol=1e-4, atol=1e-4)


def test_batches_have_few_sizes_and_what_is_left_of_a_larger_one_does_not_come_back() -> None:
    model, actor = make(BOX)
    sizes = []
    monitored = model.act
    model.act = lambda obs, *rest: (sizes.append(len(obs)), monitored(obs, *rest))[1]  # type: ignore[method-assign, assignment]
    for count in (1, 2, 3, 4, 5, 7, 8, 3):
        assert len(actor.act(*actor.gather(parts(count, 0, seed=count))).action) == count * NUM_ENVS
    assert [size // NUM_ENVS for size in sizes] == [1, 2, 4, 4, 8, 8, 8, 4]


def test_draws_differ_from_batch_to_batch() -> None:
    _, actor = make(BOX)
    first = actor.act(*actor.gather(parts(2, 0))).action.copy()
    assert (actor.act(*actor.gather(parts(2, 0))).action != first).all()


def test_a_graph_that_cannot_be_captured_gives_way_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Failing:
        def __init__(self, function: Callable[[], Any], device: torch.device, generator: torch.Generator) -> None:
            pass

        def __call__(self) -> Any:
            calls.append(1)
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(device_acting, "GraphedFunction", Failing)
    model, actor = make(CHOICE)
    actor._makes_graphs = True  # as on a CUDA device
    for count in (1, 2, 2):
        gathered = actor.gather(parts(count, 0))
        answer: Any = actor.act(*gathered)
        expected: Any = model.act(torch.from_numpy(gathered[0]))
        np.testing.assert_allclose(answer.value, expected.value, rtol=1e-5, atol=1e-6)
    assert len(calls) == 1
    notice = actor.pop_warning()
    assert notice is not None and "operation not permitted when stream is capturing" in notice
    assert actor.pop_warning() is None
