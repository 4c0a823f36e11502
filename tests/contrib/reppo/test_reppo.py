"""REPPO against plain references, and on tasks whose right answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from critics import with_values
from datasets import BOX, CPU, Actor, train_on
from gymnasium import spaces
from resuming import whole_and_resumed
from run_helper import PARALLEL_MODES, run
from torch import Tensor

from asyncrl.algorithms.losses import Samples
from asyncrl.commands.validate import main as validate
from asyncrl.config.algorithms import find_algorithm
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.reppo import learner as reppo
from asyncrl.contrib.reppo.algorithm import find_spec_problems
from asyncrl.contrib.reppo.critic import LARGEST_RETURN, ActionValues
from asyncrl.contrib.reppo.learner import ReppoLearner
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.inference.policy import load_policy
from asyncrl.learner.dataset import Dataset
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.run.setup import has_same_networks
from asyncrl.run.spec_warnings import suits_native_core

REPPO: dict[str, Any] = {**find_algorithm("reppo").defaults, "algo": "reppo"}
SMALL: dict[str, Any] = {
    **REPPO,
    "batch_size": 32,
    "num_batches_per_epoch": 4,
    "num_epochs": 2,
    "rollout": 8,
    "encoder_mlp_layers": [32, 32],
}


def make(**settings: Any) -> tuple[ReppoLearner, Actor]:
    config = TrainConfig(**{**SMALL, **settings})
    return ReppoLearner(with_values(ActorCritic(BOX, config)), config, CPU), Actor(BOX, config)


def samples(learner: ReppoLearner, dataset: Dataset) -> Samples:
    return learner._prepare(dataset).samples


def make_values(learner: ReppoLearner) -> None:
    """Gives the critic, whose first values are 0, others."""
    torch.manual_seed(3)
    torch.nn.init.normal_(learner._values.head.weight, std=0.5)


def test_a_target_has_the_return_as_its_mean_and_is_clipped_to_the_bins() -> None:
    values = ActionValues(BOX.observation, 2, TrainConfig(**SMALL))
    returns = torch.tensor([-19.0, -0.31, 0.0, 4.05, 12.7])
    target = values.target(returns)
    torch.testing.assert_close(target.sum(-1), torch.ones(5))
    torch.testing.assert_close(values.mean(target.log()), returns, atol=5e-3, rtol=0.0)
    outside = values.mean(values.target(torch.tensor([-100.0, 100.0])).log())
    torch.testing.assert_close(outside, torch.tensor([-LARGEST_RETURN, LARGEST_RETURN]), atol=0.2, rtol=0.0)


def reference_returns(
    reward: np.ndarray, values: np.ndarray, log_prob: np.ndarray, dataset: Dataset, coeff: float, config: TrainConfig
) -> np.ndarray:
    """The same row by row, from what follows each action."""
    returns = np.zeros_like(reward)
    num_rows, num_columns = reward.shape
    for column in range(num_columns):
        for row in reversed(range(num_rows)):
            if not dataset.valid[row, column]:
                continue
            later = 0.0
            if not dataset.terminated[row, column]:
                later = values[row + 1, column]
                goes_on = row + 1 < num_rows and bool(dataset.valid[row + 1, column])
                if goes_on and not dataset.truncated[row, column]:
                    later += config.gae_lambda * (returns[row + 1, column] - later)
                later -= coeff * log_prob[row + 1, column]
            returns[row, column] = reward[row, column] + config.gamma * later
    return returns


def test_returns_have_the_entropy_of_later_actions_and_end_where_episodes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, actor = make(reppo_initial_coeff=0.7, gamma=0.9, reward_scale=2.0)
    make_values(learner)
    dataset = actor.collect(actor.receive(learner))
    assert dataset.terminated.any() and dataset.truncated.any()
    monkeypatch.setattr(reppo, "draw", lambda parameters, generator: parameters.chunk(2, dim=-1)[0] + 0.1)
    with torch.no_grad():
        found = learner._returns(dataset, learner._statistics.obs_statistics)
        obs = learner.model.inputs_of(dataset.obs.flatten(0, 1))
        parameters = learner.model.forward(*obs).action_parameters
        drawn = parameters.chunk(2, dim=-1)[0] + 0.1
        values = learner._values.mean(learner._values.logits(obs, drawn.tanh())) * learner._return_scale()
        log_prob = learner.model.distribution.log_prob(parameters, drawn)
    shape, coeff = dataset.value.shape, 0.7 * float(learner._return_scale())
    rest = dataset, coeff, learner._config
    expected = reference_returns(
        2.0 * dataset.reward.numpy(), values.view(shape).numpy(), log_prob.view(shape).numpy(), *rest
    )
    np.testing.assert_allclose(found[dataset.valid], expected[dataset.valid.numpy()], rtol=1e-3, atol=1e-4)


def test_the_first_step_is_taken_with_the_policy_that_acted() -> None:
    learner, actor = make(learning_rate=0.0)
    for shift in (0.0, 6.0):
        metrics = train_on(learner, actor.collect(actor.receive(learner), shift=shift))
        assert metrics is not None
        assert metrics.max_ratio_deviation_first_batch < 1e-5 and abs(metrics.approx_kl) < 1e-6


def test_samples_of_an_older_policy_are_compared_with_the_one_before_training() -> None:
    learner, actor = make(learning_rate=0.01)
    version = actor.receive(learner)
    first, second = actor.collect(version), actor.collect(version)
    assert train_on(learner, first) is not None
    learner._learning_rate.value = 0.0
    metrics = train_on(learner, second)
    assert metrics is not None and metrics.max_ratio_deviation_first_batch < 1e-5 and abs(metrics.kl_loss) < 1e-6


def mean_values(learner: ReppoLearner, batch: Samples) -> Tensor:
    """Values of the policy's most likely actions."""
    mean = learner.model.forward(*batch.inputs).action_parameters.chunk(2, dim=-1)[0]
    return learner._values.mean(learner._values.logits(batch.inputs, mean.tanh()))


def divergence(learner: ReppoLearner, batch: Samples) -> float:
    parameters = learner.model.forward(*batch.inputs).action_parameters
    return float(learner.model.distribution.kl(batch.action_parameters, parameters).mean())


@torch.no_grad()
def test_the_policy_moves_up_the_values_without_changing_the_critic() -> None:
    learner, actor = make(reppo_kl_bound=100.0, reppo_initial_coeff=1e-6)
    make_values(learner)
    batch = samples(learner, actor.collect(actor.receive(learner)))
    before, critic = mean_values(learner, batch).mean(), learner._critic.flat.data.clone()
    learner._rate.fill_(1e-3)
    with torch.enable_grad():
        for _ in range(20):
            learner._step._step_policy(batch, *torch.zeros(2))  # type: ignore[union-attr]
    assert mean_values(learner, batch).mean() > before + 0.02
    assert torch.equal(learner._critic.flat.data, critic)


@torch.no_grad()
def test_a_policy_too_far_from_the_one_that_acted_is_pulled_back() -> None:
    learner, actor = make(reppo_kl_bound=1e-3, reppo_initial_coeff=1.0)
    make_values(learner)
    batch = samples(learner, actor.collect(actor.receive(learner)))
    learner.model.policy_head.bias += 0.3
    before = divergence(learner, batch)
    learner._rate.fill_(1e-3)
    with torch.enable_grad():
        for _ in range(20):
            learner._step._step_policy(batch, *torch.zeros(2))  # type: ignore[union-attr]
    assert before > 1e-2 and divergence(learner, batch) < 0.9 * before


@pytest.mark.parametrize(("entropy_excess", "kl_excess"), [(2.0, -0.05), (-2.0, 0.5)])
def test_coefficients_follow_their_targets(entropy_excess: float, kl_excess: float) -> None:
    coefficients = make()[0]._coefficients
    before = [float(value) for value in coefficients.values()]
    coefficients.adapt(torch.tensor(entropy_excess), torch.tensor(kl_excess), torch.tensor(0.01), torch.zeros(()))
    entropy_coeff, kl_coeff = (float(value) for value in coefficients.values())
    assert (entropy_coeff < before[0]) == (entropy_excess > 0.0)
    assert (kl_coeff > before[1]) == (kl_excess > 0.0)


def test_normalized_returns_have_one_size_whatever_the_unit_of_rewards() -> None:
    sizes = []
    for unit in (1e-3, 1e3):
        learner, actor = make(reward_scale=unit)
        batch = samples(learner, actor.collect(actor.receive(learner)))
        sizes.append(float(batch.normalized_return.square().mean().sqrt()))
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-3) and 0.5 < sizes[0] / reppo.RETURN_SIZE < 1.5


def test_the_unit_of_returns_does_not_depend_on_the_entropy_that_it_scales() -> None:
    scales = []
    for coeff in (0.01, 10.0):
        learner, actor = make(reppo_initial_coeff=coeff)
        for _ in range(3):
            samples(learner, actor.collect(actor.receive(learner)))
        scales.append(learner._return_scale())
    assert torch.equal(*scales)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    learner, actor = make()
    dataset = actor.collect(actor.receive(learner))
    dataset.reward.fill_(float("nan"))
    trained = [*learner.model.actor.parameters(), *learner._critic.tensors().values(), learner._coefficients.logs]
    before = [tensor.detach().clone() for tensor in trained]
    assert train_on(learner, dataset) is None
    assert learner.skipped_steps == 8
    assert all(torch.equal(tensor, old) for tensor, old in zip(trained, before, strict=True))


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("mode", ["serial", PARALLEL_MODES[2]])
def test_it_finds_a_distant_action(tmp_path: Path, mode: str) -> None:
    settings = {**SMALL, "learning_rate": 0.003, "num_epochs": 4, "gamma": 0.8, "reppo_target_entropy": -2.0}
    finished = run(tmp_path, mode, "DistantTarget", **{**settings, "train_for_env_steps": 12000})
    policy = load_policy(Path(str(finished.outcome.checkpoint)))
    assert policy.act([0.0], deterministic=True) == pytest.approx([5.0], abs=0.5)


@pytest.mark.usefixtures("leaves_nothing")
def test_a_run_that_is_resumed_equals_one_that_never_stopped(tmp_path: Path) -> None:
    settings = {**SMALL, "save_every_env_steps": 512, "train_for_env_steps": 1024}
    first, _ = whole_and_resumed(tmp_path, "DistantTarget", **settings)
    assert {"coefficients", "critic.exp_avg.0"} <= first.optimizer.keys()


def test_what_it_does_not_do_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    given = "--env=Pendulum-v1", "--algo=reppo"
    for flag, said in (("--use_rnn=True", "--use_rnn=False"), ("--squash_actions=False", "--squash_actions=True")):
        assert validate([*given, flag]) == 2
        assert f"error: --algo=reppo needs {said}." in capsys.readouterr().err
    assert validate([*given, "--num_ranks=2"]) == 2
    assert "trains with one learner" in capsys.readouterr().err
    assert validate(["--env=CartPole-v1", "--algo=REPPO"]) == 2
    assert "needs continuous actions only" in capsys.readouterr().err
    assert validate([*given, "--reppo_kl_bound=0.2"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "networks:       observation: a perceptron" in printed.out
    assert validate([*given, "--ppo_clip_ratio=0.3"]) == 0
    assert "No effect in this run: --ppo_clip_ratio" in capsys.readouterr().err


def test_several_boxes_of_actions_are_refused() -> None:
    two = spaces.Tuple((spaces.Box(-1.0, 1.0, (1,)), spaces.Box(-1.0, 1.0, (2,))))
    spec = spec_of_spaces(spaces.Box(-1.0, 1.0, (3,)), two, "Two-v0", None)
    config = TrainConfig(**SMALL)
    plan = resolve(config, Machine(cores=2))
    (problem,) = find_spec_problems(config, plan, spec)
    assert "needs one agent and one Box of actions; Two-v0 has others" in problem.text
    assert not list(find_spec_problems(config, plan, BOX))


def test_a_run_that_begins_with_a_policy_of_ppo_takes_the_policy_alone() -> None:
    reppo_config = TrainConfig(**SMALL)
    ppo_config = reppo_config.model_copy(update={"algo": "ppo"})
    state = {"config": ppo_config.model_dump(mode="json"), "spec": BOX.to_data()}
    assert has_same_networks(state, ppo_config, BOX)
    assert not has_same_networks(state, reppo_config, BOX)


def test_a_squashed_policy_does_not_use_the_native_core() -> None:
    for algo, squashes, is_used in (("ppo", False, True), ("ppo", True, False), ("reppo", True, False)):
        config = TrainConfig(**{**SMALL, "algo": algo, "squash_actions": squashes})
        assert suits_native_core(config, resolve(config, Machine(cores=2)), BOX) == is_used
