"""Learner processes that look at every batch which they draw from a replay of sentinels."""

from __future__ import annotations

import json
import time
from typing import Any
from unittest import mock

import numpy as np
from probe_envs import Sentinel

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.worker import LearnerOutcome
from asyncrl.run import runner
from asyncrl.run.setup import RunSetup


def check_sentinels(batch: Transitions, gamma: float) -> dict[int, int]:
    """Fails unless each transition is a step that a sentinel made; returns how many are of which environment."""
    action = Sentinel.BOUND * np.tanh(batch.action.numpy())
    np.testing.assert_allclose(batch.reward.numpy(), action[:, 0] + 3.0 * action[:, 1], atol=1e-5)
    numbers: dict[int, int] = {}
    rows = zip(batch.obs.tolist(), batch.next_obs.tolist(), batch.discount.tolist(), strict=True)
    for obs, after, discount in rows:
        number, episode, step = map(int, obs)
        length = Sentinel.length(number, episode)
        assert step < length, "a final observation is the start of no transition"
        if step == length - 1 and not Sentinel.is_truncated(number, episode):
            assert discount == 0.0
        else:
            assert discount == np.float32(gamma)
            assert after == [number, episode, step + 1], "what follows is of the same episode"
        numbers[number] = numbers.get(number, 0) + 1
    return numbers


def checking_learner_main(setup: RunSetup, *args: Any) -> LearnerOutcome:
    """The learner's process; it writes down how many transitions it has seen of which environment."""
    seen: dict[int, int] = {}
    sample = ReplaySampler.sample

    def checked_sample(sampler: ReplaySampler, *sizes: int) -> list[Transitions]:
        batches = sample(sampler, *sizes)
        for batch in batches:
            for number, count in check_sentinels(batch, setup.config.gamma).items():
                seen[number] = seen.get(number, 0) + count
        return batches

    with mock.patch.object(ReplaySampler, "sample", checked_sample):
        outcome = runner._learner_main(setup, *args)
    (setup.checkpoints.parent / "seen.json").write_text(json.dumps(seen))
    return outcome


def slow_learner_main(setup: RunSetup, *args: Any) -> LearnerOutcome:
    """The same, and updates take their time."""
    train = SacLearner.train

    def slow_train(learner: SacLearner, batches: Any, *rest: Any) -> Any:
        time.sleep(0.002 * len(batches))
        return train(learner, batches, *rest)

    with mock.patch.object(SacLearner, "train", slow_train):
        return checking_learner_main(setup, *args)
