"""The order of the trainer's doings: what is due, weights before limits, and reports that add up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from replays import TaggedWriter, new_replay
from small_runs import CountingWaker

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import PolicyChange, RunControl, control_specs
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.learner import replay_loop as trainer_module
from asyncrl.learner.prioritized_sampler import PrioritizedSampler
from asyncrl.learner.replay_loop import MOST_UPDATES_AT_ONCE, ReplayLoop
from asyncrl.learner.threads import ThreadChoice
from asyncrl.learner.worker import LearnerContext, StopCondition
from asyncrl.observers.reports import SacMetrics, SampleAges


class Fakes:
    """A trainer over fakes of all but the replay, which write down what is done to them.

    With `prioritized` the sampler is a real one.
    """

    block_size, policy_version, due, achieved_ratio, skipped_steps = 4, 0, 0, 0.5, 0
    device, notice = torch.device("cpu"), None
    td_errors: torch.Tensor | None = None
    gamma, reward_divisor = 0.9, 1.0
    divisor = 4.0

    def __init__(self, threads: ThreadChoice | None = None, prioritized: bool = False, **settings: Any) -> None:
        self.log: list[Any] = []
        self.risen = True
        self.control = RunControl(Arena.create(control_specs()), num_workers=0)
        self._made_updates = 0
        _, self.stripes = new_replay(1, 2, 100, is_prioritized=prioritized)
        self.writer = TaggedWriter(self.stripes, 0, seed=0, end_probability=0.0)
        self.worker, self.waited, self.ages = CountingWaker(), [], SampleAges()
        self.generator = torch.Generator().manual_seed(5)
        config = TrainConfig(algo="sac", batch_size=8, train_for_env_steps=100, **settings)
        waker = SimpleNamespace(wait=lambda timeout_s: self.waited.append(timeout_s))
        self.sampler: Any = self
        if prioritized:
            powers = config.prioritized_replay_alpha, config.prioritized_replay_beta
            self.sampler = PrioritizedSampler(
                self.stripes, *powers, n_step=1, gamma=0.9, reward_scale=1.0, reward_clip=None, seed=0
            )
        self.trainer = ReplayLoop(
            self,
            self.stripes,
            self.sampler,
            self,
            self,
            waker,
            [self.worker],
            LearnerContext(config, self.control, StopCondition(self.control, None)),
            first_env_steps=7,
            threads=threads,
            return_scale=self if config.normalize_rewards else None,
        )

    # the learner
    def publication(self, out: torch.Tensor) -> torch.Tensor:
        return out.fill_(float(self.policy_version))

    def observe(self, obs: torch.Tensor) -> None:
        self.log.append(("observe", tuple(obs.shape)))

    def set_exploration(self, env_steps: int) -> None:
        self.log.append(("explore", env_steps))

    def train(self, batches: list[Any], env_steps_before: int) -> SacMetrics:
        self.log.append(("train", len(batches), env_steps_before))
        self.policy_version += len(batches)
        return SacMetrics(*[float(self.policy_version)] * 9)

    # the sampler
    def sample(self, num_batches: int, batch_size: int) -> list[Any]:
        self.divisor_of_draw = self.reward_divisor
        return [SimpleNamespace(obs=torch.zeros(batch_size, 4))] * num_batches

    def record_ages(self, policy_version: int) -> None:
        self.ages += SampleAges(1, 10.0, 1, float(policy_version))

    # the scale of returns
    def update(self, gamma: float, factor: float, clip: float | None) -> None:
        self.log.append(("scale", gamma, factor, clip))

    # the limiter
    @property
    def num_updates(self) -> int:
        return self._made_updates

    @num_updates.setter
    def num_updates(self, num_updates: int) -> None:
        num_new, self._made_updates = num_updates - self._made_updates, num_updates
        self.due -= num_new
        self.log.append(("count", num_new))

    def release(self) -> bool:
        self.log.append("release")
        return self.risen

    # the publisher
    def publish(self, block: Any, version: int, env_steps: int) -> None:
        self.log.append(("publish", version, float(block[0]), env_steps))


def test_all_that_is_due_is_learned_in_parts_and_weights_go_out_before_workers_may_step() -> None:
    fakes = Fakes(normalize_input=False)
    assert fakes.log == [("explore", 7), ("publish", 0, 0.0, 7)]
    fakes.writer.write_rows(2)
    fakes.due, fakes.log = MOST_UPDATES_AT_ONCE + 3, []
    for _ in range(2):
        fakes.trainer.train_once(5.0)
    assert fakes.log == [
        ("train", 16, 11),
        ("count", 16),
        ("publish", 16, 16.0, 11),
        "release",
        ("train", 3, 11),
        ("count", 3),
        ("publish", 19, 19.0, 11),
        "release",
    ]
    assert fakes.waited == []
    assert fakes.worker.count == 2


def test_updates_of_a_trial_of_threads_are_made_one_by_one() -> None:
    fakes = Fakes(threads=ThreadChoice(2, clock=lambda: 0.0, use=lambda count: None), normalize_input=False)
    fakes.writer.write_rows(2)
    fakes.due = MOST_UPDATES_AT_ONCE + 8
    while fakes.due > 0:
        fakes.trainer.train_once(5.0)
    assert [entry[1] for entry in fakes.log if entry[0] == "train"] == [1] * 8 + [MOST_UPDATES_AT_ONCE]


def test_with_nothing_due_it_waits_and_wakes_workers_only_if_they_may_step_further() -> None:
    fakes = Fakes()
    fakes.risen = False
    assert fakes.trainer.train_once(5.0) is None
    assert fakes.waited == [5.0]
    assert (fakes.worker.count, fakes.log[-1]) == (0, "release")


def test_observations_are_taken_in_where_they_are_normalized() -> None:
    fakes = Fakes(normalize_input=True)
    fakes.due, fakes.log = 2, []
    fakes.trainer.train_once(0.0)
    assert fakes.log[0] == ("observe", (16, 4))


def test_rewards_are_divided_by_the_scale_of_the_newest_returns() -> None:
    fakes = Fakes(normalize_rewards=True, normalize_input=False, reward_scale=0.5, reward_clip=3.0)
    fakes.due, fakes.log = 1, []
    fakes.trainer.train_once(0.0)
    assert fakes.log[:2] == [("scale", 0.9, 0.5, 3.0), ("train", 1, 7)]
    assert fakes.reward_divisor == fakes.divisor_of_draw == 4.0
    plain = Fakes(normalize_rewards=False, reward_scale=0.5)
    plain.due = 1
    plain.trainer.train_once(0.0)
    assert plain.divisor_of_draw == 1.0 and not any(entry[0] == "scale" for entry in plain.log)


def test_weights_of_prioritized_replay_correct_the_draw_more_and_more_during_the_run() -> None:
    fakes = Fakes(prioritized=True, normalize_input=False)
    assert fakes.sampler.beta == 0.4
    fakes.td_errors = torch.full((1, 8), 5.0)
    for num_rows, env_steps in ((21, 49), (2, 53), (30, 113)):  # 7 steps were made before, and a row is 2
        fakes.writer.write_rows(num_rows)
        fakes.due = 1
        fakes.trainer.train_once(0.0)
        assert fakes.trainer.env_steps == env_steps
        assert fakes.sampler.beta == pytest.approx(0.4 + 0.6 * min(env_steps / 100, 1.0))
    assert fakes.sampler.max_priority == pytest.approx(5.0**0.6, rel=1e-5), (
        "the errors of the updates are the priorities"
    )


def test_training_is_over_when_all_steps_are_collected_and_nothing_is_due() -> None:
    fakes = Fakes()
    fakes.writer.write_rows(46)
    assert fakes.trainer.env_steps == 99
    assert fakes.trainer.has_more_to_learn
    fakes.writer.write_rows(1)
    fakes.due = 1
    assert fakes.trainer.has_more_to_learn
    fakes.due = 0
    assert not fakes.trainer.has_more_to_learn


def test_reports_come_now_and_then_with_the_means_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(trainer_module, "time", clock)
    fakes = Fakes()
    fakes.writer.write_rows(3)
    fakes.notice = "no compiler"
    for _ in range(2):
        fakes.due = 2
        assert fakes.trainer.train_once(0.0) is None
    clock.now += 1.0
    report = fakes.trainer.train_once(0.0)
    assert (report.env_steps, report.num_updates, report.num_samples) == (13, 4, 32)
    assert report.train == SacMetrics(*[3.0] * 9)
    assert (report.replay.size, report.replay.updates_per_env_step) == (6, 0.5)
    assert report.notice == "no compiler"
    assert report.ages == SampleAges(2, 20.0, 2, 0.0 + 2.0), "ages are those at the version before the updates"
    later = fakes.trainer.take_report()
    assert (later.train, later.ages) == (None, SampleAges())


def test_the_replay_is_kept_only_if_asked() -> None:
    assert Fakes().trainer.replay() is None
    kept = Fakes(save_replay=True)
    kept.writer.write_rows(3)
    assert sum(map(len, kept.trainer.replay().columns["reward.0"])) == 3


def test_learner_and_sampler_of_a_replay_take_them_before_the_next_updates() -> None:
    fakes = Fakes(normalize_input=False)
    fakes.set_hyperparameters = lambda new: fakes.log.append(new)  # type: ignore[attr-defined]
    fakes.control.send_change(PolicyChange(new := Hyperparameters(gamma=0.5, tau=0.1)))
    fakes.due, fakes.log = 2, []
    fakes.trainer.train_once(0.0)
    assert [each[0] if isinstance(each, tuple) else each for each in fakes.log][:2] == [new, "train"]
    assert fakes.gamma == 0.5
    report = fakes.trainer.take_report()
    assert report is not None and report.hyperparameters == {"gamma": 0.5, "tau": 0.1}
