"""A learner that continues with the weights of another policy."""

from __future__ import annotations

import pytest
import torch
from critics import with_values
from datasets import BOX, CPU, Actor, train_on

from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.models.actor_critic import ActorCritic

SMALL = TrainConfig(
    batch_size=64, num_batches_per_epoch=2, num_epochs=2, encoder_mlp_layers=[16], max_policy_lag=10, target_kl=None
)


def trained(seed: int, shift: float) -> tuple[OnPolicyLearner, Actor]:
    """A learner after three datasets whose observations are around `shift`, and who acts for it."""
    torch.manual_seed(seed)
    learner = OnPolicyLearner(with_values(ActorCritic(BOX, SMALL)), SMALL, CPU)
    actor = Actor(BOX, SMALL)
    for _ in range(3):
        train_on(learner, actor.collect(actor.receive(learner), lambda obs, action: 5.0 * obs[..., 0] + shift, shift))
    return learner, actor


def test_weights_and_statistics_are_those_of_the_source_and_the_optimizer_is_new() -> None:
    learner, actor = trained(1, 0.0)
    source, _ = trained(2, 7.0)
    block = source.publication()
    version = learner.policy_version
    learner.adopt_weights(block)
    assert torch.equal(learner.publication(), block)
    before, taken = source.state_dict(), learner.state_dict()
    for name in ("obs_mean", "obs_variance", "return_mean", "return_variance"):
        assert taken.optimizer[name] == pytest.approx(before.optimizer[name], rel=1e-5, abs=1e-5)
    for name in ("step", "exp_avg", "exp_avg_sq"):
        assert not taken.optimizer[name].any()
    assert (taken.scalars["obs_count"], learner.policy_version) == (before.scalars["obs_count"], version + 11)

    # Training continues from there: the statistics with which a sample is acted are those of its version.
    metrics = train_on(learner, actor.collect(actor.receive(learner), shift=7.0))
    assert metrics is not None and metrics.max_ratio_deviation_first_batch < 1e-4
    assert learner.state_dict().optimizer["obs_mean"] == pytest.approx(torch.full((3,), 7.0), abs=0.5)


def test_samples_of_the_weights_before_are_too_old_to_be_trained_on() -> None:
    learner, actor = trained(1, 0.0)
    source, _ = trained(2, 7.0)
    old = actor.collect(actor.receive(learner))
    learner.adopt_weights(source.publication())
    learner.publication()
    assert int(old.policy_version.max()) < learner.policy_version - SMALL.max_policy_lag, "the bound drops them"
    with pytest.raises(LookupError, match="of the policy versions"):
        train_on(learner, old)


def test_versions_count_no_updates_that_were_not_made_also_after_a_restart() -> None:
    learner, actor = trained(1, 0.0)
    num_updates = learner.policy_version
    learner.adopt_weights(trained(2, 7.0)[0].publication())
    resumed = OnPolicyLearner(with_values(ActorCritic(BOX, SMALL)), SMALL, CPU)
    resumed.load_state_dict(learner.state_dict())
    for each in (learner, resumed):
        each.set_hyperparameters(Hyperparameters(learning_rate=1e-4))
        train_on(each, actor.collect(actor.receive(each)))
        assert each.policy_version - each.versions_left_out == num_updates + 4
