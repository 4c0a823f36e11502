"""SAC's update against a plain reference with autograd, and what its learner promises."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from linear_networks import networks_of_linear_layers
from replay_learners import make, targets_of
from torch import Tensor, nn
from transitions import BOX, CHOICE, CPU, draw
from unavoidable import needs_cuda

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.config import host
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.fast.layers import matmul_dtype
from asyncrl.learner.fast.sac_passes import SacPasses
from asyncrl.learner.sac import SacLearner

SPECS = pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])


class Reference:
    """SAC as in the papers, one network at a time, with PyTorch's modules, autograd and Adam."""

    def __init__(self, learner: SacLearner, spec: EnvSpec, config: TrainConfig) -> None:
        self.config, self.is_box = config, spec is BOX
        (self.actor,) = networks_of_linear_layers(learner.model.mlp)
        self.critics = nn.ModuleList(networks_of_linear_layers(learner.critic.mlp))
        self.targets = copy.deepcopy(self.critics)
        alpha = 1.0 if config.ent_coef == "auto" else config.ent_coef
        self.log_alpha = torch.tensor(math.log(alpha), dtype=torch.float64, requires_grad=config.ent_coef == "auto")
        self.target_entropy = 2.0 * config.target_entropy_per_dim if self.is_box else 0.5 * math.log(4)
        if config.target_entropy != "auto":
            self.target_entropy = config.target_entropy
        self.generator = torch.Generator().set_state(learner._generator.get_state())
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                network.parameters(), lr=config.learning_rate, eps=config.adam_eps, weight_decay=config.weight_decay
            )
            for network in (self.critics, self.actor)
        ]
        self.optimizers.append(torch.optim.Adam([self.log_alpha], lr=config.learning_rate, eps=config.adam_eps))
        self.updates = 0

    def policy(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Action and its log-probability; for choices, all probabilities and their logarithms."""
        outputs = self.actor(obs)
        if not self.is_box:
            return outputs.softmax(-1), outputs.log_softmax(-1)
        mean, log_std = outputs[:, :2], 3.5 * torch.tanh(outputs[:, 2:] / 3.5) - 1.5
        raw = mean + log_std.exp() * noise
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw)
        return raw.tanh(), (log_prob - torch.log(1.0 - raw.tanh() ** 2)).sum(-1)

    def values(self, critics: Iterable[nn.Module], obs: Tensor, action: Tensor) -> Tensor:
        if self.is_box:
            return torch.stack([critic(torch.cat((obs, action), -1)).squeeze(-1) for critic in critics])
        return torch.stack([critic(obs) for critic in critics])

    def cost(
        self, critics: Sequence[nn.Module], obs: Tensor, noise: Tensor, alpha: Tensor, takes_mean: bool = False
    ) -> tuple[Tensor, Tensor]:
        """alpha log pi - min Q (or the mean of Q), and the entropy, of each observation."""
        action, log_prob = self.policy(obs, noise)
        values = self.values(critics, obs, action)
        cost = alpha * log_prob - (values.mean(0) if takes_mean else values.amin(0))
        return (cost, -log_prob) if self.is_box else ((action * cost).sum(-1), -(action * log_prob).sum(-1))

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, parameters: Sequence[nn.Parameter]) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.config.max_grad_norm > 0.0:
            nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        optimizer.step()

    def update(self, batch: Transitions) -> dict[str, float]:
        self.updates += 1
        trains_actor, size = self.updates % self.config.policy_delay == 0, len(batch.reward)
        noise = torch.empty(0)
        if self.is_box:
            num_between = batch.between_discount.shape[1]
            shape = ((num_between + (2 if trains_actor else 1)) * size, 2)
            noise = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        targets, has_more = list(self.targets), self.config.num_critics > 2
        if has_more:  # two that are drawn give the targets, and all of them train the policy (REDQ)
            first, second = torch.randperm(self.config.num_critics, generator=self.generator)[:2].tolist()
            targets = [targets[first], targets[second]]
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            target = batch.reward - batch.discount * self.cost(targets, batch.next_obs, noise[-size:], alpha)[0]
            # The return of several steps holds the entropy after each of them but the last, where the value has it.
            num_between = batch.between_discount.shape[1]
            for step in range(num_between):
                first = len(noise) - (num_between + 1 - step) * size
                own = noise[first : first + size]
                entropy = self.cost(targets, batch.between_obs[:, step], own, alpha)[1]
                target = target + batch.between_discount[:, step] * alpha * entropy
        values = self.values(self.critics, batch.obs, batch.action.tanh() if self.is_box else batch.action)
        if not self.is_box:
            values = values[:, torch.arange(size), batch.action]
        critic_loss = 0.5 * (values - target).square().mean(1).sum()
        self.step(self.optimizers[0], critic_loss, list(self.critics.parameters()))
        for old, new in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
            old.data = (1.0 - self.config.tau) * old.data + self.config.tau * new.data
        step_metrics = {"critic_loss": critic_loss.item(), "q_mean": values.mean().item()}
        if trains_actor:
            cost, entropy = self.cost(list(self.critics), batch.obs, noise[:size], alpha, takes_mean=has_more)
            self.step(self.optimizers[1], cost.mean(), list(self.actor.parameters()))
            step_metrics |= {
                "actor_loss": cost.mean().item(),
                "entropy": entropy.mean().item(),
                "ent_coef": alpha.item(),
            }
            if self.log_alpha.requires_grad:
                alpha_loss = self.log_alpha * (entropy.mean().detach() - self.target_entropy)
                step_metrics["ent_coef_loss"] = alpha_loss.item()
                self.step(self.optimizers[2], alpha_loss, [])
        return step_metrics


@SPECS
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ent_coef": 0.2, "nonlinearity": "relu", "encoder_mlp_layers": [16, 8]},
        {"policy_delay": 2, "max_grad_norm": 0.3},
        {"n_step": 3, "policy_delay": 2},
        {"critic_layer_norm": True, "tau": 0.3, "policy_initialization": "torch_default"},
        {"weight_decay": 0.3, "critic_mlp_layers": [12]},
        {"target_entropy": 0.3},
        {"target_entropy_per_dim": -0.5},
        {"num_critics": 5},
    ],
    ids=lambda settings: ",".join(settings) or "default",
)
@pytest.mark.parametrize("by", ["passes", "autograd"])
def test_updates_are_those_of_a_plain_reference(spec: EnvSpec, by: str, settings: dict[str, Any]) -> None:
    settings = {"learning_rate": 0.01, "adam_eps": 1e-3, "tau": 0.1, "nonlinearity": "tanh", **settings}
    learner = make(spec, double=True, by=by, **settings)
    reference = Reference(learner, spec, TrainConfig(**{"max_grad_norm": 0.0, **settings}))
    for batch in draw(spec, 4, dtype=torch.float64, n_step=settings.get("n_step", 1)):
        step_metrics = reference.update(batch)
        metrics = learner.train([batch])
        for name, metric in step_metrics.items():
            assert getattr(metrics, name) == pytest.approx(metric, rel=1e-9), name
    obs = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(learner.model.mlp(obs)[0], reference.actor(obs))
    inputs = torch.randn(5, 5, dtype=torch.float64) if spec is BOX else obs
    expected = torch.stack([critic(inputs) for critic in reference.critics])
    torch.testing.assert_close(learner.critic.mlp(inputs), expected)


def test_the_policy_is_trained_at_every_policy_delay_th_update() -> None:
    learner = make(BOX, policy_delay=3)
    blocks = [learner.publication()]
    for batch in draw(BOX, 6):
        learner.train([batch])
        blocks.append(learner.publication())
    moved = [not torch.equal(before, after) for before, after in itertools.pairwise(blocks)]
    assert moved == [False, False, True, False, False, True]
    assert learner.policy_version == 6


def test_seeds_decide_weights_and_noise() -> None:
    batches = draw(BOX, 3)
    first, again, other = make(BOX, seed=1), make(BOX, seed=1), make(BOX, seed=2)
    assert first.train(batches) == again.train(batches) != other.train(batches)


@SPECS
def test_observations_may_be_bytes(spec: EnvSpec) -> None:
    as_floats, as_bytes = make(spec, normalize_input=True), make(spec, normalize_input=True)
    obs = torch.randint(256, (12, 3), dtype=torch.uint8)
    (batch,) = draw(spec, 1)
    bytewise = batch._replace(obs=obs, next_obs=obs)
    as_bytes.observe(obs)
    as_floats.observe(obs.float())
    expected = as_floats.train([batch._replace(obs=obs.float(), next_obs=obs.float())])
    assert as_bytes.train([bytewise]) == expected


@pytest.mark.parametrize(
    ("vendor", "has_avx512", "has_amx", "expected"),
    [
        ("AuthenticAMD", True, False, torch.bfloat16),
        ("GenuineIntel", True, False, torch.float32),  # its bfloat16 products are slower without AMX
        ("GenuineIntel", True, True, torch.bfloat16),
        ("AuthenticAMD", False, False, torch.float32),
        ("AuthenticAMD", None, None, torch.float32),  # a version of PyTorch that cannot tell
    ],
)
def test_auto_precision_is_bfloat16_where_the_hardware_multiplies_it_faster(
    vendor: str,
    has_avx512: bool | None,
    has_amx: bool | None,
    expected: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"vendor_id\t: {vendor}\n")
    monkeypatch.setattr(host, "_CPU_INFO", tmp_path / "cpuinfo")
    for name, answer in (("_is_avx512_bf16_supported", has_avx512), ("_is_amx_tile_supported", has_amx)):
        if answer is None:
            monkeypatch.delattr(torch.cpu, name, raising=False)
        else:
            monkeypatch.setattr(torch.cpu, name, lambda answer=answer: answer, raising=False)
    assert matmul_dtype("auto", CPU) == expected
    assert matmul_dtype("auto", torch.device("meta")) == matmul_dtype("float32", CPU) == torch.float32
    assert matmul_dtype("bf16", CPU) == torch.bfloat16
    for capability, of_gpu in (((7, 5), torch.float32), ((8, 0), torch.bfloat16)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert matmul_dtype("auto", torch.device("cuda")) == of_gpu


def test_a_fixed_entropy_coefficient_stays() -> None:
    learner = make(BOX, ent_coef=0.3)
    metrics = learner.train(draw(BOX, 5))
    assert metrics.ent_coef == pytest.approx(0.3) and metrics.ent_coef_loss == 0.0
    assert float(learner.state_dict().optimizer["log_ent_coef"]) == pytest.approx(math.log(0.3))


@pytest.mark.parametrize(
    ("before", "now", "expected"), [("auto", 0.05, 0.05), (0.3, "auto", 0.3), (0.3, 0.05, 0.05), ("auto", "auto", None)]
)
def test_a_resumed_learner_has_the_entropy_coefficient_that_its_settings_say(
    before: Any, now: Any, expected: float | None
) -> None:
    first, second = make(BOX, ent_coef=before), make(BOX, ent_coef=now)
    first.train(draw(BOX, 5))
    second.load_state_dict(first.state_dict())
    found = float(second.algorithm.log_ent_coef.exp())
    assert found == pytest.approx(float(first.algorithm.log_ent_coef.exp()) if expected is None else expected)
    second.train(draw(BOX, 3))
    assert (float(second.algorithm.log_ent_coef.exp()) != pytest.approx(found)) == (now == "auto")


def test_a_checkpoint_of_another_kind_of_device_is_taken_but_for_its_noise() -> None:
    first, second = make(BOX), make(BOX)
    state = first.state_dict()
    state.optimizer["generator"] = torch.zeros(16, dtype=torch.uint8)  # as on CUDA
    second.load_state_dict(state)
    assert torch.equal(second.model.mlp.layers()[0].weight, first.model.mlp.layers()[0].weight)


def assert_updates_are_the_same(plain: SacLearner, fast: SacLearner, spec: EnvSpec, num: int) -> None:
    """Every metric and weight over updates whose learning rate, statistics and noise change each time."""
    for number, batch in enumerate(draw(spec, num)):
        for learner in (plain, fast):
            learner.observe(batch.obs)
        metrics = [dataclasses.astuple(learner.train([batch], 500_000 * number)) for learner in (plain, fast)]
        assert metrics[1] == pytest.approx(metrics[0], rel=1e-4, abs=1e-5)
        torch.testing.assert_close(fast.publication(), plain.publication(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(targets_of(fast), targets_of(plain), rtol=1e-4, atol=1e-5)
    assert fast.notice is None


EVERY_KIND: dict[str, Any] = {
    "policy_delay": 2,
    "lr_schedule": "linear_decay",
    "normalize_input": True,
    "max_grad_norm": 0.5,
    "learning_rate": 0.01,
}


@pytest.mark.gpu
@needs_cuda
@SPECS
@pytest.mark.parametrize("settings", [{}, {"critic_layer_norm": True, "nonlinearity": "elu"}], ids=["plain", "norm"])
def test_updates_as_cuda_graphs_equal_plain_ones(spec: EnvSpec, settings: dict[str, Any]) -> None:
    device = torch.device("cuda")
    plain = make(spec, device=device, compile="off", **EVERY_KIND, **settings)
    graphed = make(spec, device=device, compile="cuda_graph", **EVERY_KIND, **settings)
    assert_updates_are_the_same(plain, graphed, spec, 20)


def test_the_entropy_coefficient_begins_where_it_is_asked_to() -> None:
    learner = make(BOX, initial_ent_coef=0.01)
    assert learner.train(draw(BOX, 1)).ent_coef == pytest.approx(0.01)


def test_each_pair_is_drawn_equally_often_and_two_critics_draw_none() -> None:
    learner, (batch,) = make(BOX, num_critics=4), draw(BOX, 1)
    pairs = Counter(frozenset(learner._inputs_of(batch, True)[-1].tolist()) for _ in range(3000))
    assert len(pairs) == 6 and all(len(pair) == 2 for pair in pairs)
    assert all(400 < count < 600 for count in pairs.values())
    two = make(BOX)
    assert isinstance(two._step.__self__, SacPasses)
    assert len(two._inputs_of(batch, True)) == len(batch) + 1
    assert learner._step == learner._update


def test_more_critics_are_trained_with_several_steps_and_continue_from_a_checkpoint() -> None:
    learner, other = (make(BOX, num_critics=3, seed=seed, n_step=3) for seed in (1, 2))
    batches = draw(BOX, 4, n_step=3)
    assert learner.train(batches[:2]) is not None
    other.load_state_dict(learner.state_dict())
    learner.train(batches[2:])
    other.train(batches[2:])
    first, second = (each.state_dict().optimizer for each in (learner, other))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@SPECS
def test_the_entropy_becomes_the_target_though_rewards_pull_away(spec: EnvSpec) -> None:
    learner = make(spec, encoder_mlp_layers=[64], learning_rate=5e-3, nonlinearity="relu")
    batches = []
    for batch in draw(spec, 2000, size=32):
        payoff = -3.0 * (batch.action.tanh() ** 2).sum(-1) if spec is BOX else 2.0 * (batch.action == 1)
        batches.append(batch._replace(reward=payoff, discount=torch.zeros_like(batch.reward)))
    learner.train(batches[:-400])
    metrics = learner.train(batches[-400:])
    target = -2.0 if spec is BOX else 0.5 * math.log(4)
    assert metrics.entropy == pytest.approx(target, abs=0.1)
    if spec is CHOICE:  # 2 / alpha is then what one logit is above the three others
        logits = torch.tensor([2.0 / metrics.ent_coef, 0.0, 0.0, 0.0])
        assert float(torch.distributions.Categorical(logits=logits).entropy()) == pytest.approx(target, abs=0.1)
