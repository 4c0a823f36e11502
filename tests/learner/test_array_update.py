"""Updates in NumPy and in C are those of autograd: gradients, steps, metrics, and skipped steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from critics import with_values
from datasets import CPU, train_on
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from unavoidable import needs_native_core

from asyncrl import native
from asyncrl.algorithms.losses import Samples
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.autograd_step import AutogradStep
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.fast.array_update import ArrayUpdate
from asyncrl.learner.fast.native_update import NativeUpdate
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.encoders import Inputs

NUMBERS = spaces.Box(-1.0, 1.0, (5,))
NESTED = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple((spaces.Box(-1, 1, (3,)), spaces.Discrete(3)))})
MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(3), "state": spaces.Box(-1, 1, (4,))})
MOVES, CHOICES = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)
SPECS = {
    "continuous": spec_of_spaces(NUMBERS, MOVES, "X", None),
    "nested, continuous": spec_of_spaces(NESTED, MOVES, "X", None),
    "choice": spec_of_spaces(NUMBERS, CHOICES, "X", None),
    "nested, choice": spec_of_spaces(NESTED, CHOICES, "X", None),
    "masked choice": spec_of_spaces(MASKED, CHOICES, "X", None),
}
NUM_ROWS, NUM_COLUMNS = 4, 6
WIDE = {"encoder_mlp_layers": [300, 64]}  # so wide that tanh is computed in another way, see `activations.tanh_`

VARIANTS = st.fixed_dictionaries(
    {
        "actor_critic_share_weights": st.booleans(),
        "nonlinearity": st.sampled_from(["tanh", "relu", "elu"]),
        "encoder_mlp_layers": st.sampled_from([[8, 6], [9], []]),
        "adaptive_stddev": st.booleans(),
        "initial_stddev": st.sampled_from([0.3, 1.0, 200.0]),  # the last is beyond the range of standard deviations
        "algo": st.sampled_from(["ppo", "a2c"]),
        "with_vtrace": st.booleans(),
        "ppo_clip_ratio": st.sampled_from([0.02, 0.3]),
        "ppo_clip_mode": st.sampled_from(["symmetric", "reciprocal"]),
        "ppo_clip_value": st.sampled_from([None, 0.05, 1.0]),
        "value_loss_coeff": st.sampled_from([0.0, 0.5, 2.0]),
        "entropy_loss_coeff": st.sampled_from([0.0, 0.1]),
        "kl_loss_coeff": st.sampled_from([0.0, 0.4]),
        "lr_schedule": st.sampled_from(["constant", "kl_adaptive_minibatch", "kl_adaptive_epoch"]),
        "max_grad_norm": st.sampled_from([0.0, 0.1, 100.0]),
        "normalize_advantage": st.booleans(),
        "num_batches_per_epoch": st.sampled_from([1, 2, 5, NUM_ROWS * NUM_COLUMNS]),  # down to one sample in each
    }
)


NATIVE = [pytest.param(name, marks=needs_native_core) for name in ("native", "avx2", "sse2")]


@pytest.fixture(autouse=True, params=["numpy", NATIVE[0]])
def updates_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[ArrayUpdate | NativeUpdate]:
    """How updates in arrays are computed: in NumPy, in C, or in C for a smaller instruction set."""
    if request.param == "numpy":
        monkeypatch.setattr(native, "kernels", lambda: None)
        return ArrayUpdate
    kernels = native.kernels(None if request.param == "native" else request.param)
    monkeypatch.setattr(native, "kernels", lambda: kernels)
    return NativeUpdate


def learner_for(spec: EnvSpec, **given: Any) -> OnPolicyLearner:
    # With a larger epsilon than usual a step moves with its gradient, not with the sign of it alone.
    config = TrainConfig(**{"encoder_mlp_layers": [8], "learning_rate": 1e-3, "adam_eps": 1e-3, **given})
    learner = OnPolicyLearner(with_values(ActorCritic(spec, config)), config, CPU)
    learner.publication()
    return learner


def both_for(spec: EnvSpec, **given: Any) -> tuple[OnPolicyLearner, OnPolicyLearner]:
    """The same learner twice: one that updates in arrays, one by autograd."""
    arrays = learner_for(spec, **given)
    assert isinstance(arrays._step, ArrayUpdate | NativeUpdate)
    with mock.patch.object(ArrayUpdate, "fits", return_value=False):
        autograd = learner_for(spec, **given)
    assert isinstance(autograd._step, AutogradStep)
    return arrays, autograd


def collect(learner: OnPolicyLearner, seed: int, distance: float = 0.1) -> Dataset:
    """Samples of a policy that is a little off the learner's, so that ratios, clips and divergences are not trivial."""
    generator = torch.Generator().manual_seed(seed)
    model, layout, shape = learner.model, learner.model.layout, (NUM_ROWS, NUM_COLUMNS)
    obs = torch.randn(NUM_ROWS + 1, NUM_COLUMNS, layout.row_size, generator=generator) * 2.0 + 1.0
    for part, place in zip(layout.parts, layout.places, strict=True):
        if part.kind == "mask":
            obs[..., place] = (torch.rand(obs[..., place].shape, generator=generator) < 0.6).float()
    with torch.no_grad():
        parameters, value = model(*model.inputs_of(obs.flatten(0, 1)))
        noise = distance * torch.randn(parameters.shape, generator=generator)
        parameters = parameters + noise
        if model.distribution.num_logits:
            parameters = parameters.log_softmax(-1)
        action, log_prob = model.distribution.sample(parameters, generator)
    valid = torch.rand(shape, generator=generator) < 0.9
    valid[0] = True

    def rows(tensor: Tensor) -> Tensor:
        return tensor.view(NUM_ROWS + 1, NUM_COLUMNS, *tensor.shape[1:])

    return Dataset(
        obs=obs,
        rnn_state=torch.zeros(1, NUM_COLUMNS, 0),
        action=rows(action)[:-1],
        action_parameters=rows(parameters)[:-1],
        log_prob=rows(log_prob)[:-1],
        value=rows(value) + 0.3 * torch.randn(NUM_ROWS + 1, NUM_COLUMNS, generator=generator),
        reward=torch.randn(shape, generator=generator),
        terminated=torch.rand(shape, generator=generator) < 0.2,
        truncated=torch.zeros(shape, dtype=torch.bool),
        valid=valid,
        policy_version=torch.full(shape, learner.policy_version),
    )


def test_deeper_networks_than_the_native_core_knows_are_trained_in_numpy(updates_in: type[Any]) -> None:
    for depth, kind in ((native.MOST_LAYERS, updates_in), (native.MOST_LAYERS + 1, ArrayUpdate)):
        arrays, autograd = both_for(SPECS["continuous"], encoder_mlp_layers=[4] * depth)
        assert type(arrays._step) is kind
        dataset = collect(arrays, seed=depth)
        for learner in (arrays, autograd):
            train_on(learner, dataset)
        torch.testing.assert_close(arrays.publication(), autograd.publication(), rtol=1e-3, atol=1e-5)


def prepare_same(arrays: OnPolicyLearner, autograd: OnPolicyLearner, seed: int = 0, distance: float = 0.1) -> Samples:
    """The samples of one dataset, whose statistics both learners have taken in."""
    dataset = collect(autograd, seed, distance)
    arrays._prepare(dataset)
    return autograd._prepare(dataset).samples


def assert_same(arrays: OnPolicyLearner, autograd: OnPolicyLearner) -> None:
    """Fails unless weights, moments, counts and rates are the same."""
    state, expected = arrays.state_dict(), autograd.state_dict()
    assert state.scalars == pytest.approx(expected.scalars)
    for mine, theirs in ((state.model, expected.model), (state.optimizer, expected.optimizer)):
        for name in theirs:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-4, atol=3e-6, msg=lambda _, name=name: name)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(variant=VARIANTS, seed=st.integers(0, 1000))
def test_steps_in_arrays_are_those_of_autograd(spec: EnvSpec, variant: dict[str, Any], seed: int) -> None:
    arrays, autograd = both_for(spec, num_epochs=2, **variant)
    for number in range(2):
        dataset = collect(autograd, seed + number)
        noted: list[list[tuple[Tensor, Tensor]]] = [[], []]
        metrics = []
        for learner, steps in zip((arrays, autograd), noted, strict=True):
            learner.publication()
            metrics.append(train_noting(learner, dataset, steps))
        for (step_metrics, log_ratio), (expected, expected_ratio) in zip(*noted, strict=True):
            torch.testing.assert_close(step_metrics, expected, rtol=2e-4, atol=2e-6)
            torch.testing.assert_close(log_ratio, expected_ratio, rtol=1e-4, atol=2e-5)
        assert metrics[0] == pytest.approx(metrics[1], rel=1e-3, abs=1e-5)
    assert_same(arrays, autograd)


def train_noting(learner: OnPolicyLearner, dataset: Dataset, steps: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Trains, and notes metrics and log-ratios of each step."""
    take_step = learner._take_step

    def noting(batch: Samples, learning_rate: float) -> tuple[Tensor, Tensor]:
        steps.append(take_step(batch, learning_rate))
        return steps[-1]

    learner._take_step = noting
    try:
        metrics = train_on(learner, dataset)  # type: ignore[arg-type]
    finally:
        learner._take_step = take_step
    assert metrics is not None
    return {name: value for name, value in dataclasses.asdict(metrics).items() if value is not None}


@pytest.mark.parametrize("updates_in", NATIVE, indirect=True)
@pytest.mark.parametrize("layers", [[300, 64], [1], [17, 33, 5], []], ids=str)
@pytest.mark.parametrize("spec", [SPECS["nested, continuous"], SPECS["masked choice"]], ids=["continuous", "choice"])
def test_every_instruction_set_computes_the_same(spec: EnvSpec, layers: list[int]) -> None:
    arrays, autograd = both_for(spec, encoder_mlp_layers=layers, kl_loss_coeff=0.1, entropy_loss_coeff=0.1)
    whole = prepare_same(arrays, autograd).at(torch.arange(100) % NUM_COLUMNS)
    for size in (100, 1, 33):
        batch = whole.at(torch.arange(size))
        step_metrics = [learner._take_step(batch, 1e-3)[0] for learner in (arrays, autograd)]
        torch.testing.assert_close(*step_metrics, rtol=1e-4, atol=2e-6)
    assert_same(arrays, autograd)


@pytest.mark.parametrize("updates_in", NATIVE, indirect=True)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@pytest.mark.parametrize("adaptive", [False, True])
def test_outputs_for_a_whole_dataset_are_those_of_the_model(spec: EnvSpec, adaptive: bool) -> None:
    learner, _ = both_for(spec, adaptive_stddev=adaptive)
    rows = learner._prepare(collect(learner, 0)).samples.floats
    learner._flat.data.add_(torch.randn(learner._flat.data.shape), alpha=0.3)  # the critic's head begins at 0
    assert learner._outputs.evaluate is not None
    for num_rows in (1, 64, 65, 200):
        floats = rows[torch.arange(num_rows) % len(rows)]
        expected = learner.model.forward(floats)
        torch.testing.assert_close(learner._outputs.dataset(Inputs(floats), None, None), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_wide_layers_and_minibatches_of_changing_size_are_the_same_too(shared: bool) -> None:
    spec = SPECS["continuous"]
    arrays, autograd = both_for(spec, actor_critic_share_weights=shared, kl_loss_coeff=0.1, **WIDE)
    whole = prepare_same(arrays, autograd).at(torch.arange(100) % NUM_COLUMNS)
    for size in (100, 3, 1, 64):
        batch = whole.at(torch.arange(size))
        step_metrics = [learner._take_step(batch, 1e-3)[0] for learner in (arrays, autograd)]
        torch.testing.assert_close(*step_metrics, rtol=1e-4, atol=2e-6)
    assert_same(arrays, autograd)


def test_a_standard_deviation_beyond_its_range_has_no_gradient() -> None:
    arrays, autograd = both_for(SPECS["continuous"], adaptive_stddev=True, initial_stddev=200.0, entropy_loss_coeff=0.1)
    batch = prepare_same(arrays, autograd)
    for learner in (arrays, autograd):
        learner._take_step(batch, 1e-3)
        gradient = learner.model.policy_head.bias.grad
        assert gradient is not None and (gradient[2:] == 0.0).all() and (gradient[:2] != 0.0).all()


def change(name: str, value: float) -> Callable[[Samples], Samples]:
    def changed(batch: Samples) -> Samples:
        field = getattr(batch, name).clone()
        field[0] = value
        return batch._replace(**{name: field})

    return changed


BAD = {
    "log-probability": change("log_prob", math.nan),
    "observation": change("floats", math.nan),
    "return": change("normalized_return", math.inf),
    "advantage": change("advantage", -math.inf),
    # The ratio is infinite: where the surrogate is clipped the loss is finite, and its gradient is not.
    "ratio with an advantage": lambda batch: change("advantage", 1.0)(change("log_prob", -1e3)(batch)),
    "ratio with a disadvantage": lambda batch: change("advantage", -1.0)(change("log_prob", -1e3)(batch)),
    "ratio without either": lambda batch: change("advantage", 0.0)(change("log_prob", -1e3)(batch)),
}


@pytest.mark.parametrize("make_bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("spec", [SPECS["continuous"], SPECS["choice"]], ids=["continuous", "choice"])
@pytest.mark.filterwarnings("error")
def test_steps_that_are_not_finite_are_left_out_as_by_autograd(
    spec: EnvSpec, make_bad: Callable[[Samples], Samples]
) -> None:
    for learner in both_for(spec):
        batch = learner._prepare(collect(learner, 0)).samples
        learner._take_step(batch, 1e-3)
        before, count = learner._flat.data.clone(), learner._optimizer.steps[0].clone()
        moments = learner._optimizer.exp_avgs[0].clone(), learner._optimizer.exp_avg_sqs[0].clone()
        step_metrics, _ = learner._take_step(make_bad(batch), 1e-3)
        assert not torch.isfinite(step_metrics[0] + step_metrics[-1])
        assert torch.equal(learner._flat.data, before) and torch.equal(learner._optimizer.steps[0], count)
        assert torch.equal(learner._optimizer.exp_avgs[0], moments[0])
        assert torch.equal(learner._optimizer.exp_avg_sqs[0], moments[1])
        learner._take_step(batch, 1e-3)
        assert not torch.equal(learner._flat.data, before) and torch.isfinite(learner._flat.data).all()


def test_a_ratio_that_is_0_takes_part_as_by_autograd() -> None:
    arrays, autograd = both_for(SPECS["continuous"])
    batch = change("log_prob", 1e3)(prepare_same(arrays, autograd))
    for learner in (arrays, autograd):
        learner._take_step(batch, 1e-3)
    assert_same(arrays, autograd)


def test_a_choice_that_the_mask_forbids_moves_no_weights_towards_it() -> None:
    arrays, autograd = both_for(SPECS["masked choice"], entropy_loss_coeff=0.1, kl_loss_coeff=0.3)
    batch = prepare_same(arrays, autograd)
    floats = batch.floats.clone()
    floats[:, -3:] = torch.tensor([1.0, 0.0, 1.0])
    batch = batch._replace(floats=floats, action=torch.zeros_like(batch.action), log_prob=torch.zeros(len(floats)))
    for learner in (arrays, autograd):
        learner._take_step(batch, 0.0)
        assert learner.model.policy_head.bias.grad is not None
        assert learner.model.policy_head.bias.grad[1] == 0.0
    torch.testing.assert_close(arrays._gradient, autograd._gradient, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("observation", "action", "given", "expected"),
    [
        (NUMBERS, MOVES, {}, True),
        (NUMBERS, CHOICES, {"actor_critic_share_weights": True}, True),
        (MASKED, CHOICES, {"algo": "a2c", "with_vtrace": True}, True),
        (NUMBERS, MOVES, {"squash_actions": True}, False),
        (NUMBERS, spaces.MultiDiscrete([2, 3]), {}, False),
        (NUMBERS, spaces.Tuple((CHOICES, MOVES)), {}, False),
        (spaces.Box(0, 255, (12, 10, 3), np.uint8), CHOICES, {}, False),
        (NUMBERS, MOVES, {"use_rnn": True, "rnn_size": 4}, False),
        (NUMBERS, MOVES, {"precision": "bf16"}, False),
        (NUMBERS, MOVES, {"compile": "cuda_graph"}, False),
    ],
)
def test_updates_are_made_in_arrays_where_that_is_known(
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    given: dict[str, Any],
    expected: bool,
    updates_in: type[ArrayUpdate | NativeUpdate],
) -> None:
    learner = learner_for(spec_of_spaces(observation, action, "X", None), **given)
    assert isinstance(learner._step, updates_in) == expected


class OwnActorCritic(ActorCritic):
    """A user's own model, which may compute anything."""


def test_models_of_users_other_devices_and_several_threads_are_left_to_autograd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, config = SPECS["continuous"], TrainConfig()
    model = ActorCritic(spec, config)
    assert ArrayUpdate.fits(model, config, CPU)
    assert not ArrayUpdate.fits(OwnActorCritic(spec, config), config, CPU)
    assert not ArrayUpdate.fits(model, config, torch.device("cuda"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not ArrayUpdate.fits(model, config, CPU)
