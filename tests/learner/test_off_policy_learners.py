"""What SAC, TD3 and DQN have in common: skipped steps, schedules, statistics, target networks, and resuming."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_learners import make
from torch import Tensor
from transitions import BOX, CHOICE, draw

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.processes.children import RunFailed

UNIT = spaces.Box(-1.0, 1.0, (1,))
PICTURE = spec_of_spaces(
    spaces.Box(0, 255, (8, 8, 1), np.uint8), spaces.Dict({"first": UNIT, "second": UNIT}), "Picture", None
)
KINDS: dict[str, Any] = {
    "sac": BOX,
    "sac with choices": CHOICE,
    "td3": BOX,
    "td3 with a picture": PICTURE,
    "dqn": CHOICE,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
vectors_only = pytest.mark.parametrize("kind", [kind for kind in KINDS if "picture" not in kind])
precisions = pytest.mark.parametrize("precision", ["float32", "bf16"])


def make_kind(kind: str, **settings: Any) -> Any:
    return make(KINDS[kind], algo=kind.partition(" ")[0], **{"learning_rate": 0.01, **settings})


def batches_for(kind: str, num: int, size: int = 12) -> list[Transitions]:
    spec = KINDS[kind]
    batches = draw(CHOICE if spec is CHOICE else BOX, num, size)
    if spec is not PICTURE:
        return batches
    pixels = torch.randint(256, (2 * num, size, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return [each._replace(obs=pixels[idx], next_obs=pixels[num + idx]) for idx, each in enumerate(batches)]


def weights_of(learner: ReplayLearner) -> dict[str, Tensor]:
    """Weights of all trained networks and target networks, by their names in a checkpoint."""
    tensors = learner.state_dict().optimizer
    return {name: each for name, each in tensors.items() if ".value." in name or name.startswith("target")}


def loss_of(metrics: Any) -> float:
    return float(metrics.loss if hasattr(metrics, "loss") else metrics.critic_loss)


@every_kind
@precisions
def test_a_restored_learner_continues_to_the_bit(kind: str, precision: str) -> None:
    settings = {"normalize_input": True, "precision": precision, "lr_schedule": "linear_decay", "policy_delay": 2}
    learner, restored = make_kind(kind, **settings), make_kind(kind, seed=9, **settings)
    batches = batches_for(kind, 7)
    learner.observe(batches[0].obs)
    learner.train(batches[:4], 40)
    state, saved = learner.state_dict(), weights_of(learner)
    restored.load_state_dict(state)
    assert torch.equal(restored.publication(), learner.publication())
    for each in (learner, restored):
        each.observe(batches[1].obs)
    assert learner.train(batches[4:5], 60) == restored.train(batches[4:5], 60)  # no step of the policy of SAC and TD3
    assert learner.train(batches[5:], 80) == restored.train(batches[5:], 80)
    assert torch.equal(learner.publication(), restored.publication())
    assert learner.state_dict().scalars == restored.state_dict().scalars
    # What was saved has not moved with the learner.
    assert state.scalars["policy_version"] == 4
    now = weights_of(learner)
    assert not any(torch.equal(saved[name], now[name]) for name in saved)


@vectors_only
@precisions
@pytest.mark.parametrize("field", ["obs", "next_obs", "reward"])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
def test_steps_along_what_is_not_finite_are_skipped(field: str, bad: float, precision: str, kind: str) -> None:
    layers = {"nonlinearity": "relu", "encoder_mlp_layers": [64, 64, 64]}
    learner = make_kind(kind, precision=precision, policy_delay=1, **layers)
    batches = batches_for(kind, 3)
    getattr(batches[1], field)[2] = bad
    before = learner.state_dict().optimizer
    assert learner.train([batches[1]]) is None
    # The step of the policy reads observations only.
    moves_actor = kind != "dqn" and field != "obs"
    num_skipped = 1 if kind == "dqn" or moves_actor else 2
    assert learner.skipped_steps == num_skipped
    actor = ("actor", "target_actor", "log_ent_coef", "last_actor_figures")
    for name, tensor in learner.state_dict().optimizer.items():
        assert (moves_actor and name.startswith(actor)) or name == "generator" or torch.equal(tensor, before[name]), (
            name
        )
    assert torch.isfinite(learner.publication()).all()

    metrics = learner.train(batches)
    assert metrics is not None and all(map(math.isfinite, dataclasses.astuple(metrics)))
    assert learner.skipped_steps == 2 * num_skipped
    after = learner.state_dict().optimizer
    assert int(after["model.step.0" if kind == "dqn" else "critic.step.0"]) == 2
    assert all(torch.isfinite(tensor).all() for tensor in after.values())

    learner.train([batches[1]] * 9)
    with pytest.raises(RunFailed, match="training has diverged: 10 optimizer steps in a row") as caught:
        learner.train([batches[1]])
    assert f"{field}: " in caught.value.details
    assert " are not finite" in caught.value.details


@vectors_only
def test_the_schedule_of_the_learning_rate_reaches_the_weights(kind: str) -> None:
    learner = make_kind(kind, lr_schedule="linear_decay", train_for_env_steps=1000)
    for steps, rate in ((0, 0.01), (500, 0.005), (1000, 0.0)):
        before = weights_of(learner)
        metrics = learner.train(batches_for(kind, 1), steps)
        assert metrics is not None and metrics.learning_rate == pytest.approx(rate)
        after = weights_of(learner)
        # The last number of DQN's weights is its rate of exploration. A step of Adam is about as long as the rate.
        changes = [(after[name] - before[name])[:-1] for name in before if name.endswith(".value.0")]
        moved = max(float(change.abs().max()) for change in changes)
        assert moved == pytest.approx(rate, rel=0.5)


@vectors_only
def test_updates_see_observations_in_units_of_their_deviation(kind: str) -> None:
    """Shifted and scaled observations train exactly as the plain ones do, once they were observed."""
    plain, learner = make_kind(kind), make_kind(kind, normalize_input=True)
    scale, shift = torch.tensor([2.0, 50.0, 0.1]), torch.tensor([1.0, -300.0, 7.0])
    seen = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    seen = (seen - seen.mean(0)) / seen.std(0, correction=0)
    learner.observe(seen[:1000] * scale + shift)
    learner.observe(seen[1000:] * scale + shift)
    for batch in batches_for(kind, 3):
        moved = batch._replace(obs=batch.obs * scale + shift, next_obs=batch.next_obs * scale + shift)
        assert loss_of(learner.train([moved])) == pytest.approx(loss_of(plain.train([batch])), rel=1e-2)


@pytest.mark.parametrize(
    ("kind", "trained", "target"),
    [
        ("sac", "critic", "target_critic"),
        ("sac with choices", "critic", "target_critic"),
        ("td3", "critic", "target_critic"),
        ("td3", "actor", "target_actor"),
        ("dqn", "model", "target"),
    ],
)
def test_target_networks_move_by_tau(kind: str, trained: str, target: str) -> None:
    learner = make_kind(kind, tau=0.25)
    before = learner.state_dict().optimizer[target]
    learner.train(batches_for(kind, 1))
    after = learner.state_dict().optimizer
    assert not torch.equal(after[f"{trained}.value.0"], before)
    torch.testing.assert_close(after[target], 0.75 * before + 0.25 * after[f"{trained}.value.0"])


@pytest.mark.parametrize("kind", ["sac", "sac with choices", "td3"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"critic_layer_norm": True, "nonlinearity": "elu"}, {"encoder_mlp_layers": []}],
    ids=["plain", "norm", "linear"],
)
def test_bfloat16_products_give_nearly_the_same_gradients(kind: str, settings: dict[str, Any]) -> None:
    common = {"encoder_mlp_layers": [64, 64], "learning_rate": 0.0, "nonlinearity": "relu", **settings}
    exact, reduced = make_kind(kind, **common), make_kind(kind, **{**common, "precision": "bf16"})
    batches = batches_for(kind, 1, size=256)
    expected, metrics = exact.train(batches), reduced.train(batches)
    assert loss_of(metrics) == pytest.approx(loss_of(expected), rel=0.02)
    assert loss_of(metrics) != loss_of(expected)
    # Adam's first moment after one step is the gradient but for a factor.
    for name in ("critic.exp_avg.0", "actor.exp_avg.0"):
        gradients = [learner.state_dict().optimizer[name] for learner in (exact, reduced)]
        assert float(torch.cosine_similarity(*gradients, dim=0)) > 0.99
        assert gradients[1].dtype == torch.float32
