"""Whole runs with critics of papers on environments whose right answer is known, and learners that train together."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from contrib.critics.critic_sets import critic_set
from resuming import whole_and_resumed
from run_helper import run
from sac_runs import SAC
from thread_ranks import ThreadRanks, together
from torch import Tensor
from transitions import BOX, CPU, draw

from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.critics.block_network import BatchRenorm
from asyncrl.inference.policy import load_policy
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.state import LearnerState
from asyncrl.models.sac import SacActor

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def test_critics_of_blocks_and_bins_find_a_distant_action(tmp_path: Path) -> None:
    settings = {**SAC, **critic_set("simba_v2", 32), "ent_coef": 0.1, "policy_delay": 1}
    settings |= {"learning_rate": 0.005, "gamma": 0.8, "train_for_env_steps": 800}
    finished = run(tmp_path, "serial", "DistantTarget", **settings)
    policy = load_policy(Path(finished.outcome.checkpoint))
    assert policy.act([0.0], deterministic=True) == pytest.approx([5.0], abs=0.4)


def test_a_run_that_is_resumed_equals_one_that_never_stopped(tmp_path: Path) -> None:
    settings = {**SAC, **critic_set("simba_v2"), "save_replay": True, "train_for_env_steps": 500}
    settings |= {"save_every_env_steps": 300, "updates_per_env_step": 0.2}
    first, second = whole_and_resumed(tmp_path, "CartPole-v1", **settings)
    names = [name for name in first.state if name.startswith("return_")]
    assert len(names) == 4
    assert all(first.state[name] == second.state[name] for name in names)


def test_statistics_of_batch_renormalization_move_towards_the_mean_over_ranks() -> None:
    settings = {**critic_set("crossq"), "policy_delay": 1, "normalize_input": False, "precision": "float32"}
    config, one_at_a_time = TrainConfig(**settings), threading.Lock()  # initial weights are drawn by the process
    (drawn,) = draw(BOX, num=1)

    def work(ranks: ThreadRanks) -> tuple[list[Tensor], LearnerState]:
        with one_at_a_time:
            learner = SacLearner(SacActor(BOX, config), config, BOX, CPU, ParameterStore(ranks))
        obs = torch.full_like(drawn.obs, 2.0 * ranks.rank)
        learner.train([drawn._replace(obs=obs, next_obs=obs)])
        networks = [learner.critic.modules(), learner.model.modules()]
        of_inputs = [next(layer for layer in layers if isinstance(layer, BatchRenorm)) for layers in networks]
        return [layer.running_mean.detach()[..., :3] for layer in of_inputs], learner.state_dict()

    (means, first), (means_too, second) = together(2, work)
    for mean in (*means, *means_too):
        torch.testing.assert_close(mean, torch.full_like(mean, 0.01))  # a hundredth of the way from 0 to 1
    assert all(torch.equal(tensor, second.model[name]) for name, tensor in first.model.items())
